"""Fourier features: unbiased for the kernel and its gradient, orthogonal where they should be, frozen where
they should be.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grams import matrix as _matrix
from scipy.stats import kstest

from stochgp import features, kernels
from stochgp.features.fourier import orthogonal_rows
from stochgp.parameters import frozen, partition

D, N_KEYS, N_SE = 3, 1000, 5.0
X = jnp.asarray(np.random.default_rng(0).normal(size=(4, D)), jnp.float32)
KEYS = jax.random.split(jax.random.key(7), N_KEYS)
KERNELS = {
    "rbf": kernels.RBF([0.8, 1.0, 2.0], 1.7),
    "matern12": kernels.Matern12(1.5, 1.7),
    "matern32": kernels.Matern32(1.2, 1.7),
    "matern52": kernels.Matern52([0.8, 1.0, 2.0], 1.7),
    "rational-quadratic": kernels.RationalQuadratic(1.2, 1.7, alpha=frozen(0.8)),
    "active": kernels.RBF([0.8, 2.0], 1.7, active_dims=[2, 0]),
}
FORMS = {"cosine": {}, "paired": {"paired": True}, "orthogonal": {"orthogonal": True}}


def assert_mean(samples, expected):
    """The mean over independent draws is the expected value within N_SE of its own standard errors (and
    float32 rounding).
    """
    samples = np.asarray(samples, dtype=np.float64)
    error = np.abs(samples.mean(axis=0) - np.asarray(expected))
    assert np.all(error <= N_SE * samples.std(axis=0, ddof=1) / np.sqrt(len(samples)) + 2e-6)


def of_draws(function, kernel, n_inputs, n_features, **form):
    """The function's value of each of N_KEYS maps, parts of one large map with whole orthogonal blocks."""
    whole = features.RandomFourier.init(kernel, n_inputs, n_features * N_KEYS, key=KEYS[0], **form)
    split = lambda part: jnp.moveaxis(part.reshape(*part.shape[:-1], N_KEYS, -1), -2, 0)
    parts = jax.tree.map(split, (whole.frequencies, whole.phases))
    of = lambda drawn: function(
        eqx.tree_at(lambda phi: (phi.frequencies, phi.phases), whole, drawn, is_leaf=lambda x: x is None)
    )
    return jax.jit(jax.vmap(of))(parts)


@pytest.mark.parametrize(
    ("name", "form"),
    [(name, "cosine") for name in KERNELS]
    + [(name, form) for name in ("rbf", "matern32") for form in ("paired", "orthogonal")],
)
def test_inner_products_average_to_the_kernel(name, form):
    kernel = KERNELS[name]

    gram = lambda phi: phi(X) @ phi(X).T
    assert_mean(of_draws(gram, kernel, D, 6 * D, **FORMS[form]), _matrix(kernel, X, X))


@pytest.mark.parametrize("name", ["rbf", "matern52"])
def test_gradients_average_to_the_gradient_of_the_kernel(name):
    """Lengthscale and variance train: E ∂(φ·φ) = ∂k, for frequencies that do not."""
    trainable, rest = partition(KERNELS[name])
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(4, 4)), jnp.float32)

    def of_features(trainable, phi):
        Phi = eqx.tree_at(lambda phi: phi.kernel, phi, eqx.combine(trainable, rest))(X)
        return jnp.sum(weights * (Phi @ Phi.T))

    def of_kernel(trainable):
        return jnp.sum(weights * eqx.combine(trainable, rest).matrix(X, X))

    found = of_draws(lambda phi: jax.grad(of_features)(trainable, phi), KERNELS[name], D, 10)
    expected = jax.jit(jax.grad(of_kernel))(trainable)
    for samples, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert np.all(np.asarray(wanted) != 0)
        assert_mean(samples, wanted)


def test_paired_features_have_the_exact_variance():
    phi = features.RandomFourier.init(kernels.Matern32(variance=1.7), D, 10, key=KEYS[0], paired=True)
    np.testing.assert_allclose(jnp.sum(jnp.square(phi(X)), axis=1), 1.7, rtol=1e-5)


@pytest.mark.parametrize("n", [8, 10])
def test_blocks_of_frequencies_are_orthogonal(n):
    rows = np.asarray(orthogonal_rows(n, 4, KEYS[0], jnp.float32))
    for block in (rows[:4], rows[4:8], rows[8:]):
        products = block @ block.T
        np.testing.assert_allclose(products, np.diag(np.diagonal(products)), atol=1e-5)


def test_orthogonal_frequencies_are_each_standard_normal():
    """Every coordinate of every frequency, over independent draws; in one dimension too, where blocks are 1 ×
    1.
    """
    for n_inputs in (1, 3):
        draws = orthogonal_rows(n_inputs * N_KEYS, n_inputs, KEYS[0], jnp.float32)
        for coordinate in draws.reshape(N_KEYS, -1).T:
            assert kstest(coordinate, "norm").pvalue > 1e-4


def test_orthogonal_frequencies_have_less_variance():
    """Yu et al. (2016), theorem 1: for paired features of the RBF kernel and close enough points."""
    rows = jnp.asarray(np.random.default_rng(2).normal(size=(2, 16)) * 0.35, jnp.float32)

    product = lambda phi: phi(rows)[0] @ phi(rows)[1]
    independent, orthogonal = (
        np.var(of_draws(product, kernels.RBF(), 16, 32, paired=True, orthogonal=o)) for o in (False, True)
    )
    spread = np.sqrt(2 / N_KEYS)  # relative standard error of a sample variance
    assert orthogonal < independent * (1 - N_SE * spread)


def test_what_has_no_fourier_features_is_refused():
    make = lambda kernel, n=10, **options: features.RandomFourier.init(kernel, D, n, key=KEYS[0], **options)
    with pytest.raises(TypeError, match="Linear"):
        make(kernels.Linear())
    with pytest.raises(ValueError, match="alpha=frozen"):
        make(kernels.RationalQuadratic())
    with pytest.raises(ValueError, match="even"):
        make(kernels.RBF(), 9, paired=True)
    with pytest.raises(ValueError, match="at least 1"):
        make(kernels.RBF(), 0)
    with pytest.raises(ValueError, match=r"shape \(2,\).* 3 inputs"):
        make(kernels.RBF([1.0, 2.0]))
