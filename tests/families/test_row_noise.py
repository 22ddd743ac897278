"""Noise that depends on the input: every row's own variance in local and global posteriors, and the identities of such noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float
from numpy.testing import assert_allclose

from stochgp import KernelGPRegressor
from stochgp.context import FitContext
from stochgp.data import Standardiser
from stochgp.data.rows import Data
from stochgp.data.training import TrainingData
from stochgp.families.solving import choose
from stochgp.families.solving import solved as posterior_of
from stochgp.kernels import Matern52
from stochgp.likelihoods import AbstractNoise
from stochgp.models import KernelGP
from stochgp.parameters import AbstractParameter, frozen
from stochgp.posteriors import LocalPosterior

N, D, LEVEL, SLOPE, VARIANCE = 40, 2, 0.05, 1.3, 1.2
generator = np.random.default_rng(4)
X, Z = generator.normal(size=(N, D)), generator.normal(size=(7, D))
y = np.sin(2 * X[:, 0]) + X[:, 1] + generator.normal(size=N) * np.sqrt(LEVEL * np.exp(SLOPE * X[:, 0]))
COUNT = generator.integers(1, 4, size=N).astype(np.float64)


class Sloped(AbstractNoise):
    """s(x) = exp(slope x₁)."""

    level: AbstractParameter
    slope: Float[Array, ""]

    def multiplier(self, X):
        return jnp.exp(jnp.asarray(self.slope, X.dtype) * X[:, 0])


def make_gp(slope=SLOPE):
    with jax.enable_x64(True):
        noise = Sloped(frozen(np.float64(LEVEL)), jnp.asarray(slope, jnp.float64))
        return KernelGP(Matern52(np.array([0.9, 1.4]), np.float64(VARIANCE)), noise)


def dense(slope=SLOPE):
    """(K, Σ)."""
    with jax.enable_x64(True):
        K = np.asarray(make_gp().kernel.matrix(jnp.asarray(X), jnp.asarray(X)))
    return K, LEVEL * np.exp(slope * X[:, 0]) / COUNT


def exact_at(Z):
    """(Means, variances) at rows Z, dense."""
    K, noise = dense()
    with jax.enable_x64(True):
        across = np.asarray(make_gp().kernel.matrix(jnp.asarray(X), jnp.asarray(Z)))
    solved = np.linalg.solve(K + np.diag(noise), across)
    return solved.T @ y, VARIANCE - np.sum(across * solved, axis=0)


def data():
    rows = Data(X, y, COUNT)
    identity = Standardiser.identity((D,))
    return TrainingData(rows, identity, Standardiser(np.zeros(()), np.ones(())), "float64")


def solved(solver):
    context = FitContext(KernelGPRegressor(random_state=0))
    with jax.enable_x64(True):
        choice = choose(make_gp(), data(), solver, context)
        return posterior_of(make_gp(), data(), choice, context)[0]


@pytest.mark.parametrize("solver", ["cholesky", "cg", "sdd"])
def test_every_solver_solves_with_the_variances_of_the_rows(solver):
    """To the residual that it reports: mean = k(x, X)(A⁻¹y + A⁻¹r)."""
    posterior = solved(solver)
    K, noise = dense()
    alpha = np.asarray(posterior.weights)[:, 0]
    residual = np.linalg.norm(y - K @ alpha - noise * alpha) / np.linalg.norm(y)
    assert residual < (1e-7 if solver == "cholesky" else 0.1)
    assert_allclose(posterior.system.row_noise, noise, rtol=1e-7)


def test_variances_of_the_factor_are_those_of_the_rows_noise():
    posterior = solved("cholesky")
    with jax.enable_x64(True):
        mean, variance = posterior.mean_and_variance(Z)
    assert_allclose(mean, exact_at(Z)[0], rtol=1e-8)
    assert_allclose(variance, exact_at(Z)[1], rtol=1e-6)


def test_local_prediction_from_all_rows_is_exact():
    local = LocalPosterior(make_gp(), X, y, COUNT, N)
    mean, variance = local.mean_and_variance(Z)
    assert_allclose(mean, exact_at(Z)[0], rtol=1e-9)
    assert_allclose(variance, exact_at(Z)[1], rtol=1e-9)


def test_the_scale_of_local_variances_is_that_of_errors_standardised_row_by_row():
    """c = (1 + n Σρz²/Σρ)/(1 + n), n = (Σρ)²/Σρ², with all rows as neighbours, z of one observation, of variance 1/Q_ii − σ²s/ρ + σ²s; and noise c σ² s(x)."""
    local = LocalPosterior(make_gp(), X, y, COUNT, N).calibrated(N, 0)[0]
    K, noise = dense()
    Q = np.linalg.inv(K + np.diag(noise))
    squares = (Q @ y / np.diag(Q)) ** 2 / (1 / np.diag(Q) - noise + COUNT * noise)
    n = COUNT.sum() ** 2 / np.sum(COUNT**2)
    wanted = (1 + n * np.average(squares, weights=COUNT)) / (1 + n)
    assert_allclose(local.scale, wanted, rtol=1e-8)
    with jax.enable_x64(True):
        found = local.noise.variance(jnp.asarray(Z), np.ones(len(Z)))
    assert_allclose(found, wanted * LEVEL * np.exp(SLOPE * Z[:, 0]), rtol=1e-7)


def test_identities_of_row_noise():
    """Q_ii = (σ_i² − v_i)/σ_i⁴, y_i − m_i = σ_i² α_i, and −2 log p changes with η_i = log s_i at the rate ρ_i − E_i/σ_i²,
    E_i = (y_i − m_i)² + v_i.
    """
    K, noise = dense()
    posterior = solved("cholesky")
    with jax.enable_x64(True):
        mean, v = posterior.mean_and_variance(X)
    Q, alpha = np.linalg.inv(K + np.diag(noise)), np.asarray(posterior.weights)[:, 0]
    assert_allclose(np.diag(Q), (noise - v) / noise**2, rtol=1e-7)
    assert_allclose(y - mean, noise * alpha, rtol=1e-7, atol=1e-10)

    def twice_loss(slope):
        K, noise = dense(slope)
        A = K + np.diag(noise)
        repeats = (COUNT - 1) @ (np.log(2 * np.pi * LEVEL) + slope * X[:, 0])
        return y @ np.linalg.solve(A, y) + np.linalg.slogdet(A)[1] + repeats

    step, E = 1e-5, (y - mean) ** 2 + v
    slope = (twice_loss(SLOPE + step) - twice_loss(SLOPE - step)) / (2 * step)
    assert_allclose(np.sum((COUNT - E / noise) * X[:, 0]), slope, rtol=1e-6)
    constant = N * np.log(2 * np.pi) + np.sum(np.log(COUNT))
    assert_allclose(2 * COUNT.sum() * posterior.nlml(), twice_loss(SLOPE) + constant, rtol=1e-9)
