"""Feature maps by name."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stochgp import features, kernels, networks

D = 4
KEY = jax.random.key(0)
X = jnp.asarray(np.random.default_rng(0).normal(size=(20, D)), jnp.float32)


def _resolve(spec, kernel=None, n_features=None, **options):
    return features.resolve(spec, kernel, n_features, n_inputs=D, key=KEY, X_sample=X, **options)


def _network():
    return networks.mlp(D, (6, 5), key=KEY)


@pytest.mark.parametrize(
    ("spec", "kernel", "n_features", "kind", "expected"),
    [
        ("mlp", None, None, features.Network, 128),
        ("mlp", "linear", 16, features.Network, 16),
        ("mlp", kernels.Linear(2.0), 16, features.Scaled, 16),
        ("mlp", "rbf", None, features.Composed, 1000),
        ("mlp", kernels.Matern32(3.0), 50, features.Composed, 50),
        ("attention", None, None, features.Network, 32),
        ("attention", None, 8, features.Network, 8),
        ("rff", None, None, features.RandomFourier, 1000),
        ("rff", "matern52", 30, features.RandomFourier, 30),
        ("orf", None, 30, features.RandomFourier, 30),
        ("nystrom", None, None, features.Nystrom, 20),
        ("nystrom", "matern12", 7, features.Nystrom, 7),
        (_network(), None, None, features.Network, 5),
        (_network(), "rbf", 12, features.Composed, 12),
        (lambda x: x[:2], None, 2, features.Network, 2),
    ],
)
def test_names_sizes_and_kernels(spec, kernel, n_features, kind, expected):
    phi = _resolve(spec, kernel, n_features)
    assert isinstance(phi, kind)
    assert phi.n_features == expected
    Phi = eqx.filter_jit(phi)(X)
    assert (Phi.shape, Phi.dtype) == ((20, expected), jnp.float32)
    assert np.all(np.isfinite(Phi))


def test_starting_lengthscales():
    """One per input on the rows; one for all outputs of a network."""
    fourier, composed = _resolve("rff"), _resolve("mlp", "rbf")
    assert isinstance(fourier, features.RandomFourier)
    np.testing.assert_allclose(fourier.kernel.lengthscale.value, np.full(D, 2.0), rtol=1e-6)
    assert isinstance(composed, features.Composed)
    assert isinstance(composed.features, features.RandomFourier)
    np.testing.assert_allclose(composed.features.kernel.lengthscale.value, np.sqrt(128), rtol=1e-6)


def test_a_feature_map_passes():
    phi = _resolve("rff", n_features=10)
    assert _resolve(phi) is phi


@pytest.mark.parametrize("spec", ["mlp", "attention"])
def test_a_network_by_name_is_bounded_by_the_limits_of_its_inputs(spec):
    """The same to the last bit within them, constant far beyond; a network given is left alone."""
    limits = np.stack([X.min(axis=0), X.max(axis=0)])
    bounded, plain = _resolve(spec, limits=limits), _resolve(spec)
    np.testing.assert_array_equal(bounded(X), plain(X))
    far = jnp.concatenate([jnp.full((1, D), size, jnp.float32) for size in (1e3, 1e6)])
    np.testing.assert_array_equal(*bounded(far))
    given = _network()
    assert _resolve(given, limits=limits).network is given


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: _resolve("nystrem"), "did you mean 'nystrom'"),
        (lambda: _resolve("rff", "matern23"), "did you mean 'matern"),
        (lambda: _resolve(_network(), None, 7), "returns 5 values"),
        (lambda: _resolve(_resolve("rff"), "rbf"), "leave both None"),
        (lambda: _resolve("attention", None, 30), "multiple of n_heads"),
        (lambda: _resolve("mlp", kernels.Linear(active_dims=[0])), "active_dims"),
        (lambda: features.resolve("nystrom", n_inputs=D, key=KEY), "X_sample"),
        (lambda: _resolve("nystrom", None, 21), "the 20 rows"),
    ],
)
def test_contradictions_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
