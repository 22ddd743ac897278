"""Keys and draws of the host are those of `jax.random`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stochgp.numerics import draws

EPS = np.finfo(np.float32).eps  # XLA rounds low + u (high − low) once or, with few optimisations, twice
SHAPES = [(1,), (7,), (5, 128), (128, 128), (3, 5_461), (1 << 14,), (20_000,)]


@pytest.mark.parametrize("shape", SHAPES)
def test_normal_and_uniform(shape):
    for seed in range(3):
        key, reach = jax.random.key(seed), shape[-1] ** -0.5
        np.testing.assert_array_equal(
            draws.normal(key, shape, jnp.float32), jax.random.normal(key, shape, jnp.float32)
        )
        for low, high in ((0.0, 1.0), (-reach, reach), (0.0, 2 * np.pi)):
            expected = jax.random.uniform(key, shape, jnp.float32, low, high)
            found = draws.uniform(key, shape, jnp.float32, low, high)
            np.testing.assert_allclose(found, expected, rtol=0, atol=(high - low) * EPS)


def test_split_and_fold_in():
    key = jax.random.key(3)
    for n in (2, 3, 7):
        for own, expected in zip(draws.split(key, n), jax.random.split(key, n), strict=True):
            assert jax.random.key_data(own).tolist() == jax.random.key_data(expected).tolist()
    for number in (0, 2, 5):
        own, expected = draws.fold_in(key, number), jax.random.fold_in(key, number)
        assert jax.random.key_data(own).tolist() == jax.random.key_data(expected).tolist()


@pytest.mark.parametrize("key", [jax.random.key(1, impl="rbg"), jax.random.key(1)])
def test_other_generators_and_traced_keys_are_those_of_jax(key):
    shape = (4, 3)
    found = jax.jit(lambda key: draws.normal(draws.split(key)[0], shape, jnp.float32))(key)
    np.testing.assert_array_equal(found, jax.random.normal(jax.random.split(key)[0], shape, jnp.float32))
    wide = draws.normal(key, shape, jnp.float32)
    np.testing.assert_array_equal(wide, jax.random.normal(key, shape, jnp.float32))


@pytest.mark.parametrize("most", [5, 2**16 + 1, 2**31 - 1])
def test_integer(most):
    for seed in range(20):
        expected = jax.random.randint(jax.random.key(seed), (), 0, most, dtype=jnp.int32)
        assert draws.integer(jax.random.key(seed), most) == int(expected)
