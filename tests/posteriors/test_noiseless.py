"""Where data have next to no noise: variances and covariances that are those of a predictor, in spite of rounding."""

import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
from numpy.testing import assert_allclose

from stochgp import KernelGPRegressor
from stochgp.kernels import RBF, Matern32
from stochgp.likelihoods.noise import known_noise
from stochgp.models import KernelGP
from stochgp.numerics.linalg import safe_covariance
from stochgp.posteriors import ExactKernelPosterior, KernelSystem, LocalPosterior
from stochgp.solvers import Cholesky

EPS = float(np.finfo(np.float64).eps)
LONG = np.longdouble
N, D = 60, 3
_generator = np.random.default_rng(0)
X, Z = _generator.normal(size=(N, D)), _generator.normal(size=(25, D))
# kernel, lengthscale, k(x, x), σ²: what the likelihood of a linear function learns, weights of 1e8, hardly any noise at all
SYSTEMS = {
    "a linear function": (Matern32, (7.8e4, 6e13, 7e14), 2.2e8, 1e-6),
    "a smooth function": (RBF, (3.0, 10.0, 10.0), 1e3, 1e-6),
    "weights of 1e8": (RBF, (1.0, 2.0, 2.0), 1.0, 1e-14),
    "usual noise": (Matern32, (1.0, 2.0, 2.0), 1.0, 1e-2),
}


def kernel(name):
    kind, lengthscale, variance, _ = SYSTEMS[name]
    return kind(jnp.asarray(lengthscale), jnp.asarray(variance))


def posterior(name, family):
    noise = SYSTEMS[name][-1]
    gp = KernelGP(kernel(name), known_noise(noise))
    if family == "local":
        return LocalPosterior(gp, X, X[:, 0], np.ones(N), N)
    system = KernelSystem(kernel(name), jnp.asarray(X), np.ones(N), gp.noise, 16)
    weights = Cholesky().solve(system.operator, X[:, :1], 1e-6).value
    return ExactKernelPosterior(system, weights, 1.0, np.zeros(len(weights)))


def long_kernel(name, A, B):
    kind, lengthscale, variance, _ = SYSTEMS[name]
    scaled = [(part.astype(LONG) / np.asarray(lengthscale, LONG)) for part in (A, B)]
    s = np.sum((scaled[0][:, None] - scaled[1][None]) ** 2, axis=2)
    if kind is RBF:
        return LONG(variance) * np.exp(-s / 2)
    return LONG(variance) * (1 + np.sqrt(3 * s)) * np.exp(-np.sqrt(3 * s))


def long_solution(A, B):
    """A⁻¹B in long double, by elimination without pivots, as a positive definite A allows."""
    A, B = A.copy(), B.copy()
    for j in range(len(A)):
        factor = A[j + 1 :, j : j + 1] / A[j, j]
        A[j + 1 :] -= factor * A[j]
        B[j + 1 :] -= factor * B[j]
    for j in reversed(range(len(A))):
        B[j] = (B[j] - A[j, j + 1 :] @ B[j + 1 :]) / A[j, j]
    return B


def truth(name):
    """(The variances, ‖A⁻¹k‖² of each row) in long double."""
    A = long_kernel(name, X, X) + LONG(SYSTEMS[name][-1]) * np.eye(N, dtype=LONG)
    k = long_kernel(name, X, Z)
    b = long_solution(A, k)
    variances = LONG(SYSTEMS[name][2]) - np.sum(k * b, axis=0)
    return variances.astype(float), np.sum(b * b, axis=0).astype(float)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("family", ["exact", "local"])
@pytest.mark.parametrize("name", SYSTEMS)
def test_variances_are_never_below_the_true_ones_but_for_rounding(name, family):
    """No lower than the true variance by more than twelve roundings, never 0, and no less than the noise that the predictor takes in."""
    true, weight = truth(name)
    assert (true > 0).all()
    _, found = posterior(name, family).mean_and_variance(Z)
    rounding = EPS * SYSTEMS[name][2] * (1 + weight)
    assert (found > 0).all()
    assert (found > true - 12 * rounding).all()
    assert (found >= 3 * rounding).all()  # the stated floor is 4 of them, with the computed ‖b‖²
    if name == "usual noise":
        assert_allclose(found, true, rtol=1e-10)


@pytest.mark.usefixtures("double")
@pytest.mark.parametrize("name", SYSTEMS)
def test_covariances_are_positive_semi_definite_to_their_own_rounding(name):
    held = posterior(name, "exact")
    covariance, (_, variance) = held.covariance(Z), held.mean_and_variance(Z)
    values = scipy.linalg.eigvalsh(covariance)
    assert values.min() > -len(Z) * EPS * values.max()
    assert (covariance.diagonal() > 0).all()
    floor = 4 * EPS * SYSTEMS[name][2] * (1 + truth(name)[1])
    assert (covariance.diagonal() > 0.5 * np.minimum(variance, floor)).all()


def test_a_covariance_that_rounding_made_indefinite_becomes_the_nearest_that_is_not():
    """In the basis of its eigenvectors: the negative eigenvalue becomes 0, the others stay, and the rounding error is added."""
    basis = np.linalg.qr(_generator.normal(size=(4, 4)))[0]
    rest = basis @ np.diag([1.0, 0.5, 1e-3, -1e-2]) @ basis.T
    found = safe_covariance(np.zeros((4, 4)), rest, np.full(4, 1e-9))
    assert_allclose(found, basis @ np.diag([1.0, 0.5, 1e-3, 0]) @ basis.T, atol=3e-9)


@pytest.mark.parametrize("weight", [None, 1e8, 1e12])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_fit_without_noise_knows_how_wrong_it_may_be(weight, dtype):
    """Of 200 new points, none has an error beyond 6 standard deviations, none a standard deviation of 0."""
    generator = np.random.default_rng(0)
    X, Z = generator.normal(size=(120, 3)), generator.normal(size=(200, 3))
    count = None if weight is None else np.full(120, weight)
    model = KernelGPRegressor(random_state=0, dtype=dtype).fit(X, 3 * X[:, 0] + 1, count)
    mean, std = model.predict(Z, return_std=True)
    assert (std > 0).all()
    assert (np.abs(mean - 3 * Z[:, 0] - 1) <= 6 * std).all()
    covariance = model.predict(Z, return_cov=True)[1]
    values = scipy.linalg.eigvalsh(covariance)
    assert values.min() > -200 * EPS * values.max()
