"""Default estimators on simulated data: against the oracle that knows the process, and on inputs that are made to mislead.

STOCHGP_FUZZ=500 simulates that many sets of misleading inputs instead of 6.
"""

import os
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg

from stochgp import FeatureGPRegressor, KernelGPRegressor, features, kernels
from stochgp.parameters import frozen

EXAMPLES = int(os.environ.get("STOCHGP_FUZZ", "6"))
LEAST_COVERAGE = 0.8  # of 95 % intervals, without a warning

# ---- a known process: f ~ GP(0, k), k Matérn-3/2 of lengthscales 1, 2 and variance 1, noise of standard deviation 0.2

LENGTHSCALE, NOISE = np.array([1.0, 2.0]), 0.2
N_NEW = 1000


def matern32(A, B):
    a = np.sqrt(3 * np.sum(((A[:, None] - B[None]) / LENGTHSCALE) ** 2, axis=2))
    return (1 + a) * np.exp(-a)


def drawn(n, seed):
    """(X, y, new X, new y) with f drawn jointly at all rows, in units that standardising must undo."""
    generator = np.random.default_rng(seed)
    X = generator.uniform(-3, 3, size=(n + N_NEW, 2))
    L = np.linalg.cholesky(matern32(X, X) + 1e-9 * np.eye(len(X)))
    y = L @ generator.normal(size=len(X)) + NOISE * generator.normal(size=len(X))
    return X[:n], y[:n], X[n:], y[n:]


def oracle(X, y, Z):
    """(Mean, standard deviation of an observation) at Z, of who knows k and σ²."""
    factor = scipy.linalg.cho_factor(matern32(X, X) + NOISE**2 * np.eye(len(X)))
    k = matern32(X, Z)
    variance = 1 - np.sum(k * scipy.linalg.cho_solve(factor, k), axis=0)
    return k.T @ scipy.linalg.cho_solve(factor, y), np.sqrt(variance + NOISE**2)


def nlpd(mean, std, y):
    return 0.5 * np.log(2 * np.pi * std**2) + 0.5 * ((y - mean) / std) ** 2


def standard_error(values):
    return values.std() / len(values) ** 0.5


@pytest.mark.parametrize("n", [300, 1000])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_default_kernel_gp_predicts_as_well_as_the_oracle(n, dtype):
    """Five parameters are estimated: mean, two lengthscales, two variances. Each costs in expectation about 1/(2n) nats of the training
    likelihood; new rows are nearer to each other's kind than to all rows, so three times that is allowed, and 3 standard errors of the
    paired differences. For squared errors the same share of the oracle's. The coverage is 95 % within 4 standard errors and the
    2 % that standard deviations off by a tenth make.
    """
    X, y, Z, y_new = drawn(n, n)
    model = KernelGPRegressor(random_state=0, dtype=dtype).fit(X, y)
    mean, std = model.predict(Z, return_std=True, include_noise=True)
    best, best_std = oracle(X, y, Z)
    lost = nlpd(mean, std, y_new) - nlpd(best, best_std, y_new)
    allowed = 3 * 5 / (2 * n)
    assert lost.mean() <= allowed + 3 * standard_error(lost)
    more = (y_new - mean) ** 2 - (y_new - best) ** 2
    assert more.mean() <= 2 * allowed * best_std.mean() ** 2 + 3 * standard_error(more)
    covered = np.mean(np.abs(y_new - mean) <= 1.96 * std)
    assert abs(covered - 0.95) <= 4 * (0.95 * 0.05 / N_NEW) ** 0.5 + 0.02


@pytest.mark.parametrize("seed", [0, 1])
def test_the_default_kernel_gp_finds_the_process(seed):
    """The noise variance within 4 standard errors of its estimate from n − (effective parameters) residuals."""
    n = 500
    X, y, _, _ = drawn(n, seed)
    K = matern32(X, X)
    spent = np.trace(np.linalg.solve(K + NOISE**2 * np.eye(n), K))  # effective parameters of f
    model = KernelGPRegressor(random_state=0).fit(X, y)
    assert abs(model.noise_variance_ / NOISE**2 - 1) <= 4 * (2 / (n - 2 * spent)) ** 0.5


@pytest.mark.parametrize("learner", ["scgd", "full-batch"])
def test_a_feature_gp_of_known_features_predicts_as_well_as_the_oracle(learner):
    """Two variances are estimated, by the n/10 rows held out; the bound is as above with these."""
    n = 600
    generator = np.random.default_rng(3)
    X = generator.uniform(-3, 3, size=(n + N_NEW, 2))
    kernel = frozen(kernels.Matern32(LENGTHSCALE, 1.0))
    phi = features.RandomFourier.init(kernel, n_inputs=2, n_features=60, key=jax.random.key(1))
    Phi = np.asarray(phi(jnp.asarray(X, jnp.float32)), np.float64)
    y = Phi @ generator.normal(size=60) + NOISE * generator.normal(size=n + N_NEW)
    model = FeatureGPRegressor(phi, learner=learner, standardize=False, random_state=0)
    mean, std = model.fit(X[:n], y[:n]).predict(X[n:], return_std=True, include_noise=True)
    precision = Phi[:n].T @ Phi[:n] / NOISE**2 + np.eye(60)
    best = Phi[n:] @ np.linalg.solve(precision, Phi[:n].T @ y[:n]) / NOISE**2
    best_std = np.sqrt(NOISE**2 + np.sum(Phi[n:] * np.linalg.solve(precision, Phi[n:].T).T, axis=1))
    lost = nlpd(mean, std, y[n:]) - nlpd(best, best_std, y[n:])
    assert lost.mean() <= 3 * 2 / (2 * n / 10) + 3 * standard_error(lost)
    more = (y[n:] - mean) ** 2 - (y[n:] - best) ** 2
    assert more.mean() <= 2 * 3 * 2 / (2 * n / 10) * NOISE**2 + 3 * standard_error(more)


# ---- misleading inputs: what the model sees is a column spoiled, the targets follow the columns as they were


def spoiled(generator, u):
    """A column that holds less, or another thing, than what the targets follow."""
    n = len(u)
    ways = {
        "as it is": lambda: u,
        "huge": lambda: 1e30 * u,
        "tiny": lambda: 1e-30 * u,
        "far from 0": lambda: 1e8 + u,
        "beyond precision": lambda: 1e17 + u,
        "constant": lambda: np.full(n, generator.normal()),
        "rounded": lambda: np.round(u, 1),
        "skewed": lambda: np.exp(3 * u),
        "classes": lambda: np.floor(2 * u),
        "outlier": lambda: np.where(np.arange(n) == 0, 1e8, u),
        "idle": lambda: generator.normal(size=n),
    }
    return ways[generator.choice(list(ways))]()


def simulated(seed):
    """(X, y, count, new X, new y): 3 columns, two of which matter; noise of 5 to 50 % of the targets' standard deviation."""
    generator = np.random.default_rng((11, seed))
    n, n_new = int(generator.choice([1, 3, 12, 40, 60, 120, 250])), 500
    U = generator.normal(size=(n + n_new, 3))
    functions = [
        lambda: np.sin(2 * U[:, 0]) + 0.5 * U[:, 1],
        lambda: 3 * U[:, 0],
        lambda: U[:, 0] * U[:, 1],
        lambda: np.zeros(len(U)),
        lambda: np.exp(U[:, 0]),
    ]
    f = functions[generator.integers(len(functions))]()
    noise = generator.choice([0.05, 0.2, 0.5]) * max(f.std(), 0.1)
    count = generator.choice([1.0, 1.0, 4.0, 1e8]) * np.ones(n)
    y = f + noise * generator.normal(size=len(f)) / np.sqrt(np.concatenate([count, np.ones(n_new)]))
    y = y * 10.0 ** generator.integers(-20, 21) + generator.choice([0.0, 1.0])
    X = np.column_stack([spoiled(generator, U[:, d]) for d in range(3)])
    if generator.integers(4) == 0:
        X[:, 2] = X[:, 0]  # collinear
    order = np.arange(n + n_new)
    if n >= 12 and generator.integers(4) == 0:
        order[: n // 2] = n // 2  # half of the rows are one
        y[: n // 2] = y[n // 2]
    return X[order[:n]], y[:n], count, X[n:], y[n:]


SETTINGS = [{}, {"kernel": "rbf"}, {"dtype": "float64"}, {"solver": "local"}, {"kernel": "linear"}]


@pytest.mark.timeout(max(300, 60 + 10 * EXAMPLES))
def test_misleading_inputs_are_never_covered_badly_without_a_warning():
    """All answers are finite, all variances above 0, and 95 % intervals hold at least 80 % of new observations, or a warning was given."""
    bad = []
    for seed in range(EXAMPLES):
        X, y, count, Z, y_new = simulated(seed)
        model = KernelGPRegressor(random_state=0).set_params(**SETTINGS[seed % len(SETTINGS)])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            mean, std = model.fit(X, y, count).predict(Z, return_std=True)
            lower, upper = model.predict_interval(Z).T
        assert np.isfinite(mean).all() and np.isfinite(std).all(), seed
        assert (std > 0).all() or model.kernel == "linear", seed
        covered = np.mean((lower <= y_new) & (y_new <= upper))
        if covered < LEAST_COVERAGE and not caught:
            bad.append((seed, len(y), covered))
    assert not bad
