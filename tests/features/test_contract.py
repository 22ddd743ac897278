"""What every feature map promises, swept over one table."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sweeps import some_of

from stochgp import features, kernels, networks
from stochgp.parameters import frozen, partition

D = 3
KEY = jax.random.key(3)


def _rows(n, seed=0, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(n, D)), dtype)


def _fourier(kernel, **options):
    return features.RandomFourier.init(kernel, D, 8, key=KEY, **options)


def _mlp():
    return features.Network(networks.mlp(D, (6, 5), key=KEY))


MAPS = {
    "rff": lambda: _fourier(kernels.RBF([0.5, 1.0, 2.0], 1.3)),
    "rff-paired": lambda: _fourier(kernels.RBF(0.7), paired=True),
    "rff-active": lambda: _fourier(kernels.Matern32([0.5, 2.0], active_dims=[2, 0])),
    "rff-frozen": lambda: _fourier(frozen(kernels.Matern12())),
    "orf": lambda: _fourier(kernels.RBF(0.7), orthogonal=True),
    "orf-matern": lambda: _fourier(kernels.Matern52(0.7), orthogonal=True, paired=True),
    "nystrom": lambda: features.Nystrom(kernels.Matern32(0.9, 2.0), _rows(6, 9)),
    "tanimoto": lambda: features.Composed(
        features.Network(jnp.exp, D), features.TanimotoHashes.init(kernels.Tanimoto(1.3), D, 7, key=KEY)
    ),
    "tanimoto-packed": lambda: features.TanimotoHashes.init(
        kernels.Tanimoto(1.3, packed=True), D, 7, key=KEY
    ),
    "mlp": _mlp,
    "attention": lambda: features.Network(networks.attention(D, width=8, feedforward=8, key=KEY)),
    "equinox-mlp": lambda: features.Network(eqx.nn.MLP(D, 4, 5, 1, key=KEY, dtype=jnp.float32)),
    "function": lambda: features.Network(lambda x: jnp.tanh(x[:2]), D),
    "linear": lambda: features.Linear(D),
    "scaled": lambda: features.Scaled(_mlp(), 2.0),
    "composed": lambda: features.Composed(
        _mlp(), features.RandomFourier.init(kernels.RBF(2.0), 5, 6, key=KEY)
    ),
    "extrapolation": lambda: features.Extrapolation.init(
        np.array([[-0.5] * D, [0.5] * D]), 2.0, np.array([1.0, 0.5, 2.0]), n_features=8, key=KEY
    ),
    "sum": lambda: features.Sum(_mlp(), _fourier(kernels.RBF())),
}
FEW = [name for name in MAPS if name not in ("rff", "rff-paired", "orf", "mlp", "equinox-mlp")]
sweep = pytest.mark.parametrize("name", some_of(MAPS, FEW))


@pytest.fixture(autouse=True)
def strict():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@eqx.filter_jit
def _phi(features, X):
    return features(X)


@sweep
def test_rows_are_mapped_independently(name):
    phi, X = MAPS[name](), _rows(5)
    Phi = _phi(phi, X)
    assert Phi.shape == (5, phi.n_features)
    one = np.stack([_phi(phi, np.repeat(X[i : i + 1], 5, axis=0))[0] for i in range(5)])
    np.testing.assert_allclose(Phi, one, rtol=1e-4, atol=1e-5)


@sweep
def test_features_have_the_dtype_of_the_rows(name):
    phi = MAPS[name]()
    for x64 in (False, True):
        with jax.enable_x64(x64):
            found = jax.eval_shape(phi, _rows(4))
            assert (found.dtype, found.weak_type) == (jnp.float32, False)
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):  # a network of others may mix
        assert jax.eval_shape(phi, _rows(4, dtype=jnp.float64)).dtype == jnp.float64


@sweep
def test_a_map_is_a_pytree_and_the_same_key_draws_it_again(name):
    phi = MAPS[name]()
    leaves, structure = jax.tree.flatten(phi)
    assert eqx.tree_equal(jax.tree.unflatten(structure, leaves), phi)
    with jax.enable_x64(True):
        again = MAPS[name]()
    for found, wanted in zip(jax.tree.leaves(again), jax.tree.leaves(phi), strict=True):
        if eqx.is_array(wanted):
            np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=1e-7)
            assert found.dtype == wanted.dtype


@sweep
def test_gradients_are_finite_and_reach_every_parameter(name):
    phi, X = MAPS[name](), jnp.concatenate([_rows(3), _rows(3), jnp.zeros((1, D), jnp.float32)])
    weights = jnp.asarray(np.random.default_rng(4).normal(size=(7, phi.n_features)), jnp.float32)
    trainable, rest = partition(phi)

    def loss(trainable, X):
        return jnp.sum(jnp.square(weights * eqx.combine(trainable, rest)(X)))

    by_parameter, by_input = jax.jit(jax.grad(loss, argnums=(0, 1)))(trainable, X)
    assert np.all(np.isfinite(by_input))
    for leaf in jax.tree.leaves(by_parameter):
        assert np.all(np.isfinite(leaf))
        assert np.any(leaf != 0)


@sweep
def test_rows_of_another_kind_are_refused(name):
    phi = MAPS[name]()
    with pytest.raises(ValueError, match=rf"\[N, {D}\]"):
        phi(jnp.ones((4, D + 1), jnp.float32))
    for rows in (jnp.ones(D, jnp.float32), jnp.ones((4, D), jnp.int32)):
        with pytest.raises(
            (ValueError, TypeError), match=rf"\[N, {D}\]|Type-check"
        ):  # where a type checker runs
            phi(rows)


def test_combinations_have_the_kernels_they_claim():
    X, left, right = _rows(4), _mlp(), _fourier(kernels.RBF())
    gram = lambda phi: np.asarray(phi(X) @ phi(X).T)
    np.testing.assert_allclose(gram(features.Scaled(left, 2.5)), 2.5 * gram(left), rtol=1e-5)
    np.testing.assert_allclose(
        gram(features.Sum(left, right)), gram(left) + gram(right), rtol=1e-4, atol=1e-5
    )
    fourier = features.RandomFourier.init(kernels.RBF(2.0), 5, 6, key=KEY)
    np.testing.assert_allclose(features.Composed(left, fourier)(X), fourier(left(X)), rtol=1e-5, atol=1e-6)


def test_networks_of_the_wrong_form_are_refused():
    with pytest.raises(ValueError, match="pass n_inputs"):
        features.Network(lambda x: x)
    with pytest.raises(ValueError, match="floating-point vector"):
        features.Network(lambda x: jnp.sum(x), D)
    with pytest.raises(ValueError, match="floating-point vector"):
        features.Network(lambda x: x > 0, D)
    with pytest.raises(ValueError, match=r"cannot map one row of shape \(3,\)"):
        features.Network(networks.mlp(4, key=KEY), D)
    with pytest.raises(ValueError, match="5 values, but the features take 4"):
        features.Composed(_mlp(), features.RandomFourier.init(kernels.RBF(), 4, 6, key=KEY))
