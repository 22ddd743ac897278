"""The ELBO with a site for each row: equalities with exact inference, bounds, and its gradient."""

import itertools

import equinox as eqx
import jax
import numpy as np
import pytest
from scipy.special import log_ndtr
from scipy.stats import multivariate_normal

from stochgp.data.rows import Data
from stochgp.kernels import RBF, Constant, Linear
from stochgp.learners.svgp import VGP
from stochgp.likelihoods import Bernoulli, Gaussian, Poisson, Softmax
from stochgp.models import KernelGP, SparseGP
from stochgp.numerics.arrays import packed, unpacked
from stochgp.objectives import nlml_and_gradient
from stochgp.objectives.elbo import bound_and_gradient, gaussian_of
from stochgp.parameters import cast, positive
from stochgp.variational import InducingPoints

N, D = 12, 2
_gram = eqx.filter_jit(lambda kernel, X: kernel.matrix(X, X))
_moments = eqx.filter_jit(lambda gp, X: gp.process().moments(X))
KERNELS = {"rbf": lambda: RBF([0.8, 1.3], 1.7), "sum": lambda: Linear(0.4) + Constant(0.9)}


def _rows(classes: int = 2) -> Data:
    generator = np.random.default_rng(0)
    X = generator.normal(size=(N, D))
    return Data(X, generator.integers(0, classes, N).astype(float), generator.uniform(0.5, 2.5, N))


def _model(likelihood, kernel, rows: Data) -> SparseGP:
    points = InducingPoints.of(rows.X, n_latent=likelihood.n_latent, jitter=0.0)
    return cast(SparseGP(kernel(), points, likelihood), np.float64)


@pytest.mark.parametrize("name", KERNELS)
def test_bound_and_gradient_of_gaussian_noise_are_those_of_exact_inference(name):
    rows = _rows()
    noise = Gaussian(positive(0.3))
    with jax.enable_x64(True):
        bound, gradient, _ = bound_and_gradient(_model(noise, KERNELS[name], rows), rows)
        gp = cast(KernelGP(KERNELS[name](), noise.noise), np.float64)
        exact = nlml_and_gradient(gp, rows)
    count = rows.weight.sum()
    np.testing.assert_allclose(bound, -exact.nlml * count, rtol=1e-9)
    np.testing.assert_allclose(packed(gradient), -packed(exact.gradient) * count, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    "likelihood", [Bernoulli(), Softmax(3), Poisson()], ids=lambda part: type(part).__name__
)
@pytest.mark.parametrize("name", KERNELS)
def test_gradient_is_that_of_the_bound(likelihood, name):
    rows = _rows(likelihood.n_latent + 1 if likelihood.n_latent < 2 else 3)
    gp = _model(likelihood, KERNELS[name], rows)
    theta, rest = VGP().partition(gp)
    x, step = packed(theta), 1e-4

    def bound(x):
        return bound_and_gradient(eqx.combine(unpacked(x, theta), rest), rows)[0]

    with jax.enable_x64(True):
        gradient = packed(bound_and_gradient(gp, rows)[1])
        slopes = [(bound(x + step * e) - bound(x - step * e)) / (2 * step) for e in np.eye(len(x))]
    np.testing.assert_allclose(gradient, slopes, rtol=3e-3, atol=3e-3)


def test_bound_is_below_the_probability_of_all_labels_and_near_it():
    rows = _rows().take(slice(0, 3))
    gp = _model(Bernoulli(), KERNELS["rbf"], rows)
    rows = Data(rows.X, rows.y, np.ones(3))
    with jax.enable_x64(True):
        bound, _, _ = bound_and_gradient(gp, rows)
        K = np.asarray(_gram(gp.kernel, rows.X))
    # Φ(s f) averaged over N(0, K) is the probability of an orthant under N(0, K + I).
    sign = np.where(rows.y > 0.5, 1.0, -1.0)
    exact = np.log(multivariate_normal(np.zeros(3), (K + np.eye(3)) * np.outer(sign, sign)).cdf(np.zeros(3)))
    assert exact - 0.05 < bound < exact


def test_no_other_gaussian_has_a_higher_bound():
    rows = Data(_rows().X, _rows().y, np.ones(N))
    gp = _model(Bernoulli(), KERNELS["rbf"], rows)
    with jax.enable_x64(True):
        best, _, sites = bound_and_gradient(gp, rows)
        K = np.asarray(_gram(gp.kernel, rows.X))
    m, R = (part[0] for part in gaussian_of(np.linalg.solve(np.linalg.cholesky(K), K), sites))
    nodes, weights = np.polynomial.hermite_e.hermegauss(32)
    L = np.linalg.cholesky(K)

    def elbo(m, R):  # of v with f = L v, from its definition
        mean, std = L @ m, np.linalg.norm(L @ R, axis=1)
        f = (mean[:, None] + std[:, None] * nodes) * np.where(rows.y > 0.5, 1.0, -1.0)[:, None]
        expected = np.sum(log_ndtr(f) @ weights) / np.sqrt(2 * np.pi)
        return expected - 0.5 * (m @ m + np.sum(R**2) - N) + np.log(np.abs(np.diagonal(R))).sum()

    np.testing.assert_allclose(elbo(m, R), best, rtol=1e-6)
    generator = np.random.default_rng(1)
    for _, size in itertools.product(range(5), (0.03, 0.3)):
        other = elbo(m + size * generator.normal(size=N), R + size * np.tril(generator.normal(size=(N, N))))
        assert other < best


def test_model_predicts_as_the_best_gaussian_at_inducing_points_in_any_order():
    from stochgp.data.memory import MemorySource
    from stochgp.learning import fit

    rows = Data(_rows().X, _rows().y, None)
    order = np.random.default_rng(2).permutation(N)
    gp = cast(
        SparseGP(RBF([1.0, 1.0], 2.0), InducingPoints.of(rows.X[order], jitter=1e-10), Bernoulli()),
        np.float64,
    )
    source = MemorySource(rows.X, rows.y, dtype=np.float64)
    found = fit(VGP(spread=1.0), gp, source, key=jax.random.key(0))
    with jax.enable_x64(True):
        _, gradient, sites = bound_and_gradient(found.gp, rows.wide())
        mean, variance = (np.asarray(part)[:, 0] for part in _moments(found.gp, rows.X))
        K = np.asarray(_gram(found.gp.kernel, rows.X))
    beta, r = (part[:, 0] for part in sites)
    S = np.linalg.inv(np.linalg.inv(K) + np.diag(beta))
    np.testing.assert_allclose(mean, S @ r, atol=1e-3)
    np.testing.assert_allclose(variance, np.diagonal(S), atol=1e-3)
    assert found.converged and packed(gradient) @ packed(gradient) < 1.0
