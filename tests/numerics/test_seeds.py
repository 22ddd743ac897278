"""Keys, seeds and draws of the host are those of JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stochgp.numerics import seeds
from stochgp.numerics.seeds import as_key, key_of, seed_of, split


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**32 - 1])
def test_keys_splits_and_seeds_are_those_of_jax(seed):
    key = as_key(seed)
    np.testing.assert_array_equal(jax.random.key_data(key), jax.random.key_data(jax.random.key(seed)))
    found = split(key, 5)
    np.testing.assert_array_equal(found, jax.random.key_data(jax.random.split(key, 5)))
    for words in found:
        np.testing.assert_array_equal(seed_of(words), jax.random.bits(key_of(words), (2,), "uint32"))


@pytest.mark.parametrize("wrong", [-1, 2**32, 1.5, "0", True])
def test_what_is_no_seed_is_refused(wrong):
    with pytest.raises(ValueError, match="random_state"):
        as_key(wrong)


EPS = np.finfo(np.float32).eps  # XLA rounds low + u (high − low) once or, with few optimisations, twice
ROUNDING = 1e-5  # of XLA's inverse of the error function
SHAPES = [(1,), (7,), (5, 128), (128, 128), (3, 5_461), (1 << 14,), (20_000,)]


@pytest.mark.parametrize("shape", SHAPES)
def test_normal_and_uniform(shape):
    for seed in range(3):
        key, reach = jax.random.key(seed), shape[-1] ** -0.5
        expected = jax.random.normal(key, shape, jnp.float32)
        np.testing.assert_allclose(
            seeds.normal(key, shape, jnp.float32), expected, rtol=ROUNDING, atol=ROUNDING
        )
        for low, high in ((0.0, 1.0), (-reach, reach), (0.0, 2 * np.pi)):
            expected = jax.random.uniform(key, shape, jnp.float32, low, high)
            found = seeds.uniform(key, shape, jnp.float32, low, high)
            np.testing.assert_allclose(found, expected, rtol=0, atol=(high - low) * EPS)


def test_split_and_fold_in():
    key = jax.random.key(3)
    for n in (2, 3, 7):
        for own, expected in zip(seeds.split_key(key, n), jax.random.split(key, n), strict=True):
            assert jax.random.key_data(own).tolist() == jax.random.key_data(expected).tolist()
    for number in (0, 2, 5):
        own, expected = seeds.fold_in(key, number), jax.random.fold_in(key, number)
        assert jax.random.key_data(own).tolist() == jax.random.key_data(expected).tolist()


@pytest.mark.parametrize("key", [jax.random.key(1, impl="rbg"), jax.random.key(1)])
def test_other_generators_and_traced_keys_are_those_of_jax(key):
    shape = (4, 3)
    found = jax.jit(lambda key: seeds.normal(seeds.split_key(key)[0], shape, jnp.float32))(key)
    np.testing.assert_array_equal(found, jax.random.normal(jax.random.split(key)[0], shape, jnp.float32))
    wide = seeds.normal(key, shape, jnp.float32)
    np.testing.assert_allclose(wide, jax.random.normal(key, shape, jnp.float32), rtol=ROUNDING, atol=ROUNDING)
