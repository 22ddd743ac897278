"""Every likelihood: probabilities sum to one, expectations are their integrals, draws are what they say, predictions are mixtures."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from jax.test_util import check_grads
from scipy.special import ndtri
from sweeps import some_of

from stochgp import likelihoods
from stochgp.likelihoods.classes import mirrored, sobol
from stochgp.likelihoods.noise import AbstractNoise
from stochgp.parameters import AbstractParameter, cast, frozen, partition, positive

N, D = 4, 2
RNG = np.random.default_rng(5)
X = RNG.normal(size=(N, D))


class TiltedNoise(AbstractNoise):
    """s(x) = exp(x₁): a noise that depends on the input."""

    level: AbstractParameter

    def multiplier(self, X):
        return jnp.exp(X[:, 0])


class Case(NamedTuple):
    likelihood: likelihoods.AbstractLikelihood
    targets: str  # "real", "counts" or "classes"
    expected: float = (
        1e-9  # how far the expectation of the log density may be from quadrature, for variances up to 0.6
    )
    predicted: float = 1e-7  # and the predictive density


CASES = {
    "gaussian": Case(likelihoods.Gaussian(0.3), "real"),
    "gaussian, row noise": Case(likelihoods.Gaussian(TiltedNoise(positive(0.3))), "real"),
    "student": Case(likelihoods.StudentT(3.5, 0.4), "real", 1e-4),
    "student, row noise": Case(likelihoods.StudentT(30.0, TiltedNoise(positive(0.4))), "real", 1e-5),
    "probit": Case(likelihoods.Bernoulli(), "classes"),
    "poisson": Case(likelihoods.Poisson(), "counts"),
    "negative binomial": Case(likelihoods.NegativeBinomial(3.0), "counts"),
    "negative binomial, shifted": Case(likelihoods.Shifted(likelihoods.NegativeBinomial(3.0), 0.7), "counts"),
    "student, shifted": Case(likelihoods.Shifted(likelihoods.StudentT(3.5, 0.4), -0.4), "real", 1e-4),
    "negative binomial, nearly Poisson": Case(likelihoods.NegativeBinomial(1e4), "counts"),
    "softmax": Case(likelihoods.Softmax(3), "classes", 8e-3, 1e-3),
}


FEW = [
    name
    for name in CASES
    if name not in ("gaussian", "student, row noise", "student, shifted", "negative binomial")
]


@pytest.fixture(params=some_of(CASES, FEW))
def case(request, double):
    found = CASES[request.param]
    return found._replace(likelihood=cast(found.likelihood, np.float64))


def latent(case):
    """(mean, variance) [N, L] of the latent functions."""
    rng = np.random.default_rng(7)
    shape = (N, case.likelihood.n_latent)
    return rng.normal(size=shape), rng.uniform(0.05, 0.6, size=shape)


def targets(case):
    """Some targets of it, one for each row."""
    some = {
        "real": [0.3, -1.2, 2.0, 5.0],
        "counts": [0.0, 1.0, 4.0, 11.0],
        "classes": [0.0, 1.0, float(case.likelihood.n_latent > 1) + 1, 0.0],
    }[case.targets]
    return (
        np.clip(some, None, max(case.likelihood.n_latent - 1, 1))
        if case.targets == "classes"
        else np.array(some)
    )


def all_targets(case):
    """(Points [Q], weights [Q]) whose weighted sum over y is the integral, or the sum, over all targets."""
    if case.targets == "classes":
        n = max(case.likelihood.n_latent, 2)
        return np.arange(n, dtype=float), np.ones(n)
    if case.targets == "counts":
        return np.arange(4000.0), np.ones(4000)
    u = np.linspace(-16, 16, 6001)
    return np.sinh(u), np.cosh(u) * (u[1] - u[0])


# One program is compiled sooner than one for each operation, and serves all tests of a likelihood.


@eqx.filter_jit
def density(likelihood, y, f, rows):
    return likelihood.log_density(y, f, rows)


@eqx.filter_jit
def expected(likelihood, y, mean, variance, rows):
    return likelihood.expected_log_density(y, mean, variance, rows)


@eqx.filter_jit
def _at_points(likelihood, y, f, rows):
    return jax.vmap(lambda at: likelihood.log_density(jnp.full(N, at), f, rows))(y)


@eqx.filter_jit
def _at_latent_values(likelihood, y, f, rows):
    return jax.vmap(lambda f: likelihood.log_density(y, f, rows))(f)


@eqx.filter_jit
def _value_and_slopes(likelihood, y, mean, variance, rows):
    of = lambda m, v: (
        likelihood.expected_log_density(y, m, v, rows).sum() + likelihood.log_density(y, m, rows).sum()
    )
    return jax.value_and_grad(of, (0, 1))(mean, variance)


def log_densities(case, y, f):
    """[N, Q] for points y [Q] at the latent values f [N, L]."""
    return np.asarray(_at_points(case.likelihood, *map(jnp.asarray, (y, f, X)))).T


def quadrature(case, mean, variance):
    """(Latent values [K, N, L], weights [K, N]) of a fine grid over N(mean, variance)."""
    L = mean.shape[1]
    n = {1: 801, 2: 121, 3: 61}[L]
    z = np.linspace(-12, 12, n) if L == 1 else np.linspace(-8, 8, n)
    w = scipy.stats.norm.pdf(z) * (z[1] - z[0])
    grid = np.stack([part.ravel() for part in np.meshgrid(*[z] * L, indexing="ij")], axis=1)
    weights = np.prod(np.stack([part.ravel() for part in np.meshgrid(*[w] * L, indexing="ij")]), axis=0)
    return mean + grid[:, None] * np.sqrt(variance), weights


def test_densities_integrate_to_one(case):
    mean, _ = latent(case)
    y, w = all_targets(case)
    np.testing.assert_allclose(np.exp(log_densities(case, y, mean)) @ w, np.ones(N), rtol=1e-5)


def test_expectations_are_their_integrals(case):
    mean, variance = latent(case)
    y = jnp.asarray(targets(case))
    found = expected(case.likelihood, y, *map(jnp.asarray, (mean, variance, X)))
    f, w = quadrature(case, mean, variance)
    each = _at_latent_values(case.likelihood, y, jnp.asarray(f), jnp.asarray(X))
    np.testing.assert_allclose(found, w @ np.asarray(each), atol=case.expected, rtol=case.expected)


def test_predictions_are_mixtures(case):
    mean, variance = latent(case)
    y = targets(case)
    found = case.likelihood.predictive(mean, variance, X).logpdf(y)
    f, w = quadrature(case, mean, variance)
    each = np.exp(np.asarray(_at_latent_values(case.likelihood, *map(jnp.asarray, (y, f, X)))))
    np.testing.assert_allclose(np.exp(found), w @ each, rtol=case.predicted)


def test_known_latent_values_are_predicted_by_the_density(case):
    """Without variance of f the prediction is the likelihood."""
    mean, _ = latent(case)
    y = targets(case)
    found = case.likelihood.predictive(mean, np.zeros_like(mean), X).logpdf(y)
    wanted = density(case.likelihood, *map(jnp.asarray, (y, mean, X)))
    np.testing.assert_allclose(found, wanted, atol=2e-7, rtol=2e-7)


def test_gradients_are_finite_differences(case):
    mean, variance = (jnp.asarray(part) for part in latent(case))
    y, rows = jnp.asarray(targets(case)), jnp.asarray(X)
    theta, rest = partition(case.likelihood)
    combine = lambda theta: eqx.combine(theta, rest)
    total = jax.jit(
        lambda theta, m, v: (
            combine(theta).expected_log_density(y, m, v, rows).sum()
            + combine(theta).log_density(y, m, rows).sum()
        )
    )
    check = lambda f, at: check_grads(f, (at,), order=1, modes=("rev",), rtol=1e-5, atol=1e-6)

    check(lambda m: total(theta, m, variance), mean)
    check(lambda v: total(theta, mean, v), variance)
    if jax.tree.leaves(theta):
        check(lambda theta: total(theta, mean, variance), theta)


def test_draws_have_the_moments_of_the_density(case, key):
    mean, _ = latent(case)
    n = 4000
    draws = case.likelihood.predictive(mean, np.zeros_like(mean), X).sample(key, n).T
    y, w = all_targets(case)
    p = np.exp(log_densities(case, y, mean)) * w  # [N, Q]
    for g in (np.tanh, lambda y: np.tanh(y) ** 2, lambda y: (y > 1).astype(float)):
        exact = p @ g(y)
        error = np.sqrt(np.maximum(p @ g(y) ** 2 - exact**2, 1e-12) / n)
        assert np.all(np.abs(g(draws).mean(axis=0) - exact) < 4 * error + 1e-6)


@pytest.mark.parametrize("size", [30.0, 1e4])
def test_extreme_latent_values_stay_finite_in_single_precision(case, size):
    single = cast(case.likelihood, np.float32)
    shape = (N, single.n_latent)
    y, rows = jnp.asarray(targets(case), jnp.float32), jnp.asarray(X, jnp.float32)
    for sign in (-1, 1):
        mean = jnp.full(shape, sign * size, jnp.float32)
        for variance in (jnp.full(shape, 1e-8, jnp.float32), jnp.full(shape, 0.5, jnp.float32)):
            value, slopes = _value_and_slopes(single, y, mean, variance, rows)
            assert value.dtype == jnp.float32
            assert np.isfinite(value) and all(np.isfinite(slope).all() for slope in slopes)


def test_rows_do_not_depend_on_one_another(case):
    """So that weights and mini-batches may stay outside."""
    mean, variance = latent(case)
    y = targets(case)
    for of, args in ((density, (mean,)), (expected, (mean, variance))):
        whole = of(case.likelihood, *map(jnp.asarray, (y, *args, X)))
        others = of(case.likelihood, *(jnp.asarray(a[[3, 1, 2, 2]]) for a in (y, *args, X)))
        np.testing.assert_allclose(others, np.asarray(whole)[[3, 1, 2, 2]], rtol=1e-12)


def test_frozen_parameters_do_not_train(case):
    held = frozen(case.likelihood)
    assert jax.tree.leaves(partition(held)[0]) == []


def test_student_s_moments_that_do_not_exist(double):
    m, v = np.zeros((1, 1)), np.ones((1, 1))
    assert np.isinf(likelihoods.StudentT(1.5, 1.0).predictive(m, v, X[:1]).std)
    with pytest.warns(UserWarning, match="no mean"):
        assert likelihoods.StudentT(0.8, 1.0).predictive(m, v, X[:1]).mean == 0
    assert float(likelihoods.StudentT(4.0).df) > 2 and likelihoods.StudentT(4.0).df.lower == 2.0


@pytest.mark.parametrize("C", [3, 10])
def test_expectations_of_classes_by_points_are_unbiased(C, double):
    """Averages of fresh draws against 2¹⁵ points, within 4 standard errors; the points of reports within 0.02 nats."""
    likelihood, generator = likelihoods.Softmax(C), np.random.default_rng(3)
    mean, v = 2 * generator.normal(size=(40, C)), np.full((40, C), 6.0)
    z = mirrored(ndtri(sobol(2**14, C, 99)))
    exact = np.stack([-np.mean(scipy.special.logsumexp(m + np.sqrt(6.0) * z, axis=1)) for m in mean])
    args = jnp.asarray(mean[:, 0] * 0), jnp.asarray(mean), jnp.asarray(v), jnp.zeros((40, 1))
    exact = exact + mean[:, 0]
    drawn = jax.jit(jax.vmap(lambda key: likelihood.drawn_log_density(*args, key=key)))
    errors = np.mean(np.asarray(drawn(jax.random.split(jax.random.key(0), 64))) - exact, axis=1)
    assert errors.std() > 0 and abs(errors.mean()) < 4 * errors.std(ddof=1) / np.sqrt(64) + 1e-4
    assert abs(np.mean(likelihood.expected_log_density(*args) - exact)) < 2e-2
