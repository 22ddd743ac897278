"""What every posterior promises: moments, functions, files, rows in any company, bytes, and noise that depends on the input."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grams import matrix
from numpy.testing import assert_allclose, assert_array_equal
from toy import KEY

from stochgp.data import Standardiser
from stochgp.data.memory import MemorySource
from stochgp.data.rows import Data
from stochgp.estimators.fitted import Fitted
from stochgp.features import RandomFourier
from stochgp.kernels import Matern32
from stochgp.likelihoods import AbstractNoise, Gaussian
from stochgp.likelihoods.noise import known_noise
from stochgp.models import FeatureGP, KernelGP, SparseGP
from stochgp.objectives import moments_of_rows, spectrum
from stochgp.objectives.elbo import sites
from stochgp.observations import Observation
from stochgp.parameters import AbstractParameter, frozen
from stochgp.posteriors import (
    ExactKernelPosterior,
    FeaturePosterior,
    KernelSystem,
    LocalPosterior,
    MixturePosterior,
    SampledKernelPosterior,
    VariationalPosterior,
)
from stochgp.posteriors.exact import exact_at
from stochgp.solvers import CG, Cholesky, solve
from stochgp.storage.trees import load_tree, save_tree
from stochgp.variational import Decoupled, InducingPoints, functions_at, optimum

N, D, NOISE = 40, 2, 0.05
_generator = np.random.default_rng(0)
X = _generator.uniform(-2, 2, size=(N, D))
y = np.sin(2 * X[:, 0]) + 0.2 * _generator.normal(size=N)
COUNT = _generator.integers(1, 4, N).astype(np.float64)
NEAR = _generator.uniform(-2, 2, size=(6, D))
FAR = np.concatenate(
    [NEAR, X[:2], X[:2] + 1e-9, NEAR + 50.0]
)  # training rows, equal rows and rows of nothing but prior


pytestmark = pytest.mark.usefixtures("double")


def kernel():
    return Matern32(jnp.asarray([0.7, 1.5]), jnp.asarray(1.3))


def system(noise=None, count=COUNT):
    noise = known_noise(NOISE) if noise is None else noise
    return KernelSystem(kernel(), jnp.asarray(X), count, noise, 16)  # three tiles


def feature():
    phi = RandomFourier.init(kernel(), n_inputs=D, n_features=30, key=KEY, dtype=jnp.float64)
    rows = MemorySource(X, y, COUNT, dtype=jnp.float64).take(np.arange(len(y)))
    return FeaturePosterior.of(phi, spectrum(moments_of_rows(FeatureGP(phi), rows)), 1.3, NOISE)


def exact(noise=None, count=COUNT):
    held = system(noise, count)
    weights = Cholesky().solve(held.operator, y[:, None], 1e-6).value
    return ExactKernelPosterior(held, weights, float(y @ np.asarray(weights)[:, 0]), y)


def mixed():
    base, lengths = exact(), [jnp.asarray([0.5, 1.0]), jnp.asarray([1.0, 2.0])]
    thetas = zip(lengths, [0.5 * NOISE, 1.5 * NOISE], strict=True)
    parts = tuple(exact_at(base, Matern32(length, jnp.asarray(1.3)), level) for length, level in thetas)
    return MixturePosterior(base, parts, np.array([0.3, 0.7]))


def sampled():
    held = system()
    found = solve(held.operator, y[:, None], CG(), key=KEY, tolerance=1e-7)
    explained, residual = float(y @ np.asarray(found.value)[:, 0]), np.asarray(found.residual)[:, 0]
    return SampledKernelPosterior(held, found.value, explained, CG(), 1e-7, y, residual)


def local():
    return LocalPosterior(KernelGP(kernel(), NOISE), X, y, COUNT, 12).calibrated(20, 0)[0]


def variational():
    """At the rows, whose optimal q(f) is the posterior."""
    points = InducingPoints.of(jnp.asarray(X), jitter=1e-12)
    gp = SparseGP(kernel(), points, known_noise(NOISE))
    rows = Data(jnp.asarray(X), jnp.asarray(y), jnp.asarray(COUNT))

    @eqx.filter_jit  # one program is compiled sooner than one for each operation
    def best(gp, rows):
        process = gp.process()
        return optimum(process.whitened(rows.X), *sites(gp, rows, *process.moments(rows.X))).gaussian()

    return VariationalPosterior.of(SparseGP(gp.kernel, points.at(*best(gp, rows)), gp.noise), D)


def decoupled():
    """α = β = the rows, a = A⁻¹y, B = Σ⁻¹: the posterior again."""
    K = np.asarray(matrix(kernel(), jnp.asarray(X), jnp.asarray(X)))
    weights = jnp.asarray(np.linalg.solve(K + np.diag(NOISE / COUNT), y))
    root = jnp.diag(jnp.sqrt(jnp.asarray(COUNT / NOISE)))
    q = Decoupled(functions_at(X), weights, functions_at(X), root)
    return VariationalPosterior.of(SparseGP(kernel(), q, known_noise(NOISE)), D)


POSTERIORS = {
    "variational": variational,
    "decoupled": decoupled,
    "feature": feature,
    "kernel exact": exact,
    "kernel mixture": mixed,
    "kernel by solving": sampled,
    "local": local,
}
BY_SOLVING = ["kernel by solving"]
GLOBAL = [name for name in POSTERIORS if name != "local"]


@functools.cache
def made(name):
    return POSTERIORS[name]()


def moments(posterior, Z):
    """Of any number of rows, by blocks as the contract wants them."""
    mean, std = observed(posterior).mean_and_std(Z, include_noise=False)
    return mean, std**2


def observed(posterior, targets=None, noise=None):
    """With Gaussian noise."""
    targets = Standardiser.identity(()) if targets is None else targets
    observation = Observation(targets, Gaussian(known_noise(NOISE) if noise is None else noise))
    return Fitted(None, Standardiser.identity((D,)), posterior, "float64", observation)


@pytest.mark.parametrize("name", POSTERIORS)
def test_variances_are_not_negative_and_at_most_the_priors_far_away(name):
    mean, variance = moments(made(name), FAR)
    assert np.all(np.isfinite(mean)) and np.all(variance >= 0)
    prior = 1.3 * (made(name).scale if name == "local" else 1.0)
    assert name == "feature" or np.all(variance <= prior * (1 + 1e-9))


@pytest.mark.parametrize("name", POSTERIORS)
def test_the_mean_alone_is_the_mean_with_the_variance(name):
    posterior = made(name)
    Z = np.resize(NEAR, (posterior.block_rows or 6, D))
    mean, _ = posterior.mean_and_variance(Z)
    assert_allclose(posterior.mean(Z), mean, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", POSTERIORS)
def test_rows_are_wanted_in_the_dtype_that_the_posterior_holds(name):
    assert made(name).dtype == ("float64" if name.startswith("kernel") else None)


@pytest.mark.parametrize("name", GLOBAL)
def test_covariances_are_symmetric_and_have_no_negative_eigenvalue(name):
    covariance = made(name).covariance(FAR)
    assert covariance.dtype == np.float64
    rounding = 1e-9 * covariance.max()
    assert_allclose(covariance, covariance.T, atol=rounding)
    assert np.linalg.eigvalsh(covariance).min() > -len(FAR) * rounding


@pytest.mark.parametrize("name", ["feature", "kernel exact", "kernel mixture", "variational", "decoupled"])
def test_the_diagonal_of_the_covariance_is_the_variance(name):
    assert_allclose(np.diag(made(name).covariance(FAR)), moments(made(name), FAR)[1], rtol=1e-8, atol=1e-11)


def test_posteriors_of_one_kernel_agree():
    """CG solves to a residual of 1e-7; near rows are all 40, with matrices in float32."""
    mean, variance = moments(made("kernel exact"), NEAR)
    for name in ("variational", "decoupled"):
        for part, wanted in zip(moments(made(name), NEAR), (mean, variance), strict=True):
            assert_allclose(part, wanted, rtol=1e-6, atol=1e-8)
    by_solving = made("kernel by solving")
    found = moments(by_solving, NEAR)
    assert_allclose(found[0], mean, atol=1e-5)
    assert_allclose(found[1], variance, rtol=1e-4)
    assert_allclose(by_solving.covariance(NEAR), made("kernel exact").covariance(NEAR), atol=1e-6)


@pytest.mark.parametrize("name", GLOBAL)
def test_functions_have_the_posterior_mean_and_variance(name):
    """Within 4 standard errors of S draws; functions of a mixture are drawn one by one."""
    posterior, S = made(name), 100 if name == "kernel mixture" else 256
    functions = posterior.functions(S, key=jax.random.key(3))
    assert functions.n_samples == S
    values = np.asarray(jax.jit(lambda X: functions(X))(jnp.asarray(NEAR)))
    mean, variance = moments(posterior, NEAR)
    assert values.shape == (len(NEAR), S)
    assert np.all(np.abs(values.mean(axis=1) - mean) < 4 * np.sqrt(values.var(axis=1) / S))
    assert_allclose(values.var(axis=1, ddof=1), variance, rtol=4 * (2 / S) ** 0.5)


@pytest.mark.parametrize("name", POSTERIORS)
def test_a_file_keeps_every_bit(name, tmp_path):
    save_tree(tmp_path / "posterior", made(name), {})
    found, _ = load_tree(tmp_path / "posterior")
    assert type(found) is type(made(name))
    for mine, loaded in zip(moments(made(name), FAR), moments(found, FAR), strict=True):
        assert_array_equal(loaded, mine)
    if name in GLOBAL:
        assert_array_equal(found.covariance(NEAR), made(name).covariance(NEAR))


@pytest.mark.parametrize("name", POSTERIORS)
def test_a_row_alone_has_the_numbers_that_it_has_in_company(name):
    """To every bit, but for products of BLAS with one row."""
    same = functools.partial(assert_allclose, rtol=1e-12) if name.startswith("kernel") else assert_array_equal
    targets = Standardiser(np.asarray(3.0), np.asarray(2.0))
    fitted = observed(made(name), targets)
    many = np.resize(FAR, (1100, D))  # more than two blocks of the largest
    mean, std = fitted.mean_and_std(many, include_noise=True)
    same(fitted.mean(many)[:4], [fitted.mean(row[None])[0] for row in many[:4]])
    for i in (0, 5, 1099):
        alone = fitted.mean_and_std(many[i : i + 1], include_noise=True)
        same([alone[0][0], alone[1][0]], [mean[i], std[i]])


@pytest.mark.parametrize("name", POSTERIORS)
def test_needs_grow_with_rows_and_samples(name):
    need = made(name).need_bytes
    assert 0 < need(100) < need(10**6)
    if name in GLOBAL:
        assert need(100) < need(100, covariance=True) < need(1000, covariance=True)
        assert 0 < need(n_samples=1) < need(n_samples=1000)
        assert need(100, n_samples=9) >= max(need(100), need(n_samples=9))


def test_the_moments_of_a_mixture_are_those_of_enumeration():
    """E and cov of f over both kernels by dense algebra; each row alone, from all others."""
    posterior, Z = mixed(), jnp.asarray(NEAR)
    means, covariances, errors, variances = [], [], [], []
    for part in posterior.parts:
        k, level = part.system.kernel, float(part.noise.level)
        A = np.asarray(matrix(k, jnp.asarray(X), jnp.asarray(X))) + np.diag(level / COUNT)
        across = np.asarray(matrix(k, Z, jnp.asarray(X)))
        means.append(across @ np.linalg.solve(A, y))
        covariances.append(np.asarray(matrix(k, Z, Z)) - across @ np.linalg.solve(A, across.T))
        Q = np.linalg.inv(A)
        errors.append(Q @ y / np.diag(Q))
        variances.append(1 / np.diag(Q) + level * (1 - 1 / COUNT))
    w = posterior.shares
    mean, D = w @ means, np.array(means) - w @ means
    covariance = np.einsum("s,sij->ij", w, covariances) + D.T @ np.diag(w) @ D
    assert_allclose(posterior.mean(NEAR), mean, rtol=1e-9)
    assert_allclose(posterior.covariance(NEAR), covariance, rtol=1e-7, atol=1e-10)
    assert_allclose(float(posterior.noise.level), NOISE * (0.3 * 0.5 + 0.7 * 1.5), rtol=1e-12)
    e, V = w @ errors, w @ (np.array(variances) + (errors - w @ errors) ** 2)
    assert_allclose(
        posterior.errors_of_left_out(np.arange(N), Data(X, y, COUNT), NOISE), e / np.sqrt(V), rtol=1e-8
    )


def test_the_factor_is_counted_until_it_is_there():
    posterior = exact()
    before = posterior.need_bytes(1)
    posterior.mean_and_variance(NEAR)
    assert before - posterior.need_bytes(1) == 8 * N**2


def test_the_search_for_near_rows_is_counted_until_it_is_there():
    posterior = sampled()
    before = posterior.need_bytes(1)
    posterior.mean_and_variance(NEAR)
    assert before - posterior.need_bytes(1) == N * (8 * D + 32)


def test_what_is_not_known_is_refused():
    with pytest.raises(ValueError, match="no covariances between rows"):
        made("local").covariance(NEAR)
    with pytest.raises(ValueError, match="cannot draw functions"):
        made("local").functions(2, key=KEY)


class Ramp(AbstractNoise):
    """s(x) = 1 + x₁²."""

    level: AbstractParameter

    def multiplier(self, X):
        return 1 + X[:, 0] ** 2


def ramp():
    return Ramp(frozen(np.float64(NOISE)))


def test_noise_of_the_input_is_added_row_by_row():
    targets = Standardiser(np.asarray(3.0), np.asarray(2.0))
    fitted = observed(made("feature"), targets, ramp())
    wanted = 4 * NOISE * (1 + NEAR[:, 0] ** 2)
    clean, noisy = (fitted.mean_and_std(NEAR, include_noise=given)[1] for given in (False, True))
    assert_allclose(noisy**2 - clean**2, wanted, rtol=1e-9)
    clean, noisy = (fitted.covariance(NEAR, include_noise=given) for given in (False, True))
    assert_allclose(noisy - clean, np.diag(wanted), atol=1e-12)
    rows = MemorySource(NEAR, inputs=fitted.inputs, dtype=fitted.dtype, on_device=False)
    draws = fitted.observation.draw_noise(rows, 4000, key=KEY)
    assert_allclose(draws.var(axis=1), wanted, rtol=4 * (2 / 4000) ** 0.5)


@pytest.mark.parametrize("count", [np.ones(N), COUNT])
def test_the_likelihood_of_noise_of_the_input_is_the_dense_one(count):
    """A row that counts as ρ stands for ρ rows."""
    posterior, rows = exact(ramp(), count), np.repeat(np.arange(N), count.astype(int))
    A = np.asarray(matrix(kernel(), jnp.asarray(X), jnp.asarray(X)))[np.ix_(rows, rows)]
    A = A + np.diag(NOISE * (1 + X[rows, 0] ** 2))
    total = y[rows] @ np.linalg.solve(A, y[rows]) + np.linalg.slogdet(A)[1] + len(rows) * np.log(2 * np.pi)
    assert_allclose(posterior.nlml(), total / (2 * len(rows)), rtol=1e-9)


@pytest.mark.parametrize("name", GLOBAL)
def test_means_can_be_traced(name):
    """As a constant and as an argument, before the posterior was ever evaluated; what is traced is not kept."""
    posterior, Z = POSTERIORS[name](), jnp.asarray(NEAR)
    if hasattr(posterior, "system"):
        vars(posterior.system).pop("operator", None)
    inside = jax.jit(lambda Z: posterior.mean(Z))(Z)
    passed = eqx.filter_jit(lambda posterior, Z: posterior.mean(Z))(posterior, Z)
    for found in (inside, passed):
        assert_allclose(found, posterior.mean(Z), rtol=1e-9, atol=1e-12)
