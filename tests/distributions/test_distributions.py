"""Predictive distributions: the density is the derivative of the distribution function, scores are their integrals, draws are what they say."""

import math

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
from scipy.special import ndtr
from scipy.stats import beta

from stochgp import metrics
from stochgp.distributions import (
    Categorical,
    ConformalScores,
    Counts,
    Mixture,
    Normal,
    PITRecalibration,
    PointMass,
    Recalibrated,
    Rounded,
    Student,
    Warped,
    discrete,
    normal_plus_student,
)
from stochgp.distributions import base as distributions_base
from stochgp.transforms import Log, SinhArcsinh

RNG = np.random.default_rng(2)
N = 5
MEAN, STD = RNG.normal(size=N), RNG.uniform(0.3, 2.0, size=N)


def student(df, v=0.3, s2=0.7):
    return normal_plus_student(MEAN, np.full(N, v), np.full(N, s2), df)


CONTINUOUS = {
    "normal": lambda: Normal(MEAN, STD),
    "student": lambda: student(4.0),
    "student, nearly two": lambda: student(2.1),
    "two scales": lambda: Mixture((Normal(MEAN, STD), Normal(MEAN, 3 * STD)), np.array([0.8, 0.2])),
    "lognormal": lambda: Warped(Normal(MEAN, 0.5 * STD), Log()),
    "warped": lambda: Warped(Normal(MEAN, STD), SinhArcsinh(0.7, 0.2)),
    "warped student": lambda: Warped(student(4.0), SinhArcsinh(0.9, 0.1)),
    "mixture": lambda: Mixture((Normal(MEAN, STD), Normal(MEAN + 1, 2 * STD)), np.array([0.7, 0.3])),
    "mixture of each row's weights": lambda: Mixture(
        (Normal(MEAN, STD), Normal(MEAN + 1, 2 * STD)),
        np.stack([W := np.linspace(0.1, 0.9, N), 1 - W], axis=1),
    ),
    "recalibrated": lambda: Recalibrated(Normal(MEAN, STD), PITRecalibration(1.3, 0.8)),
    "exact student": lambda: Student(MEAN, STD, 4.0),
}
OWN_UNITS = ("lognormal", "warped", "warped student")
SYMMETRIC = ("normal", "student", "student, nearly two", "two scales", "exact student")
INFINITE_FOURTH_MOMENT = (
    "student",
    "student, nearly two",
    "warped student",
    "exact student",
)


@pytest.fixture(params=CONTINUOUS)
def named(request):
    return request.param, CONTINUOUS[request.param]()


def test_density_is_the_derivative_of_the_distribution_function(named):
    _, found = named
    p = np.array([1e-3, 0.05, 0.4, 0.5, 0.9, 0.999])
    y = found.quantile(p)
    h = 1e-4 * found.quantile([0.1, 0.9]) @ [-1, 1]
    h = h[:, None]
    slope = (8 * (found.cdf(y + h) - found.cdf(y - h)) - found.cdf(y + 2 * h) + found.cdf(y - 2 * h)) / (
        12 * h
    )
    np.testing.assert_allclose(np.exp(found.logpdf(y)), slope, rtol=1e-7)


def test_density_integrates_to_one_and_has_the_mean(named):
    name, found = named
    u = np.linspace(-20, 20, 4001)
    y = found.quantile(0.5)[:, None] + np.sinh(u)
    weights = np.exp(found.logpdf(y)) * np.cosh(u) * (u[1] - u[0])
    np.testing.assert_allclose(weights.sum(axis=1), np.ones(N), rtol=3e-5 if name in OWN_UNITS else 1e-8)
    spread = np.diff(found.interval(0.5))[:, 0]
    error = np.sum(weights * (y - found.mean[:, None]), axis=1)
    assert np.all(np.abs(error) < (1e-4 if name in (*OWN_UNITS, "recalibrated") else 1e-6) * spread)


def test_quantiles_are_the_inverse_of_the_distribution_function(named):
    _, found = named
    p = np.array([1e-12, 1e-6, 0.01, 0.3, 0.5, 0.5 + 1e-9, 0.8, 0.99, 1 - 1e-6])
    np.testing.assert_allclose(found.cdf(found.quantile(p)), np.tile(p, (N, 1)), rtol=1e-8)
    np.testing.assert_allclose(found.sf(found.quantile(p)), 1 - np.tile(p, (N, 1)), rtol=1e-8)
    np.testing.assert_array_equal(found.quantile(0.3), found.quantile([0.3])[:, 0])
    np.testing.assert_allclose(found.interval(0.9), found.quantile([0.05, 0.95]), rtol=1e-12)


def test_crps_is_its_integral(named):
    name, found = named
    y = found.quantile([0.001, 0.3, 0.5, 0.9, 0.9999])
    u = np.linspace(-25, 20, 3001)
    away, total = np.exp(u), np.zeros_like(y)
    for j in range(y.shape[1]):
        squares = found.cdf(y[:, [j]] - away) ** 2 + found.sf(y[:, [j]] + away) ** 2
        total[:, j] = squares @ away * (u[1] - u[0])
    np.testing.assert_allclose(found.crps(y), total, rtol=1e-5 if name in OWN_UNITS else 1e-7)


@pytest.mark.parametrize("shape", [(0.05, 80.0), (80.0, 0.05), (1.3, 0.8), (3.0, 40.0)])
def test_both_tails_of_a_corrected_probability_are_accurate_where_they_are_small(shape):
    u = np.array([1e-12, 0.01, 0.3, 0.4, 0.49, 0.5])
    for below, above in ((u, 1 - u), (1 - u, u)):
        lower, upper = PITRecalibration(*shape).tails(below, above)
        exact = beta(*shape), beta(*shape[::-1])  # of u, and of 1 − u
        small = below < 0.5
        np.testing.assert_allclose(
            lower, np.where(small, exact[0].cdf(below), exact[1].sf(above)), rtol=1e-10
        )
        np.testing.assert_allclose(
            upper, np.where(small, exact[0].sf(below), exact[1].cdf(above)), rtol=1e-10
        )


def test_draws_have_a_uniform_probability_integral_transform(named):
    _, found = named
    draws = found.sample(3, 4000)
    for i in range(N):
        assert scipy.stats.kstest(found[[i]].cdf(draws[[i]])[0], "uniform").pvalue > 1e-4
    np.testing.assert_array_equal(draws, found.sample(3, 4000))


def test_draws_have_the_mean_and_the_standard_deviation(named):
    name, found = named
    n = 10000
    draws = found.sample(5, n)
    if np.isfinite(found.std).all() and name != "student, nearly two":
        assert np.all(np.abs(draws.mean(axis=1) - found.mean) < 4.5 * found.std / np.sqrt(n))
    if name not in INFINITE_FOURTH_MOMENT:
        squares = (draws - found.mean[:, None]) ** 2
        error = squares.std(axis=1) / np.sqrt(n)
        assert np.all(np.abs(squares.mean(axis=1) - found.std**2) < 4.5 * error)


def test_units_shift_and_scale(named):
    name, found = named
    if name in OWN_UNITS:
        with pytest.raises(ValueError, match="cannot be scaled or shifted"):
            found.affine(2.5, -4.0)
        return
    moved = found.affine(2.5, -4.0)
    p = [0.01, 0.3, 0.95]
    np.testing.assert_allclose(moved.quantile(p), 2.5 * found.quantile(p) - 4, rtol=1e-10, atol=1e-12)
    y = found.quantile(p)
    np.testing.assert_allclose(moved.logpdf(2.5 * y - 4), found.logpdf(y) - math.log(2.5), rtol=1e-10)
    np.testing.assert_allclose(moved.crps(2.5 * y - 4), 2.5 * found.crps(y), rtol=1e-10)
    np.testing.assert_allclose(moved.std, 2.5 * found.std)


def test_intervals_are_symmetric_iff_the_distribution_is(named):
    name, found = named
    low, high = found.interval(0.8).T
    even = np.allclose(high - found.quantile(0.5), found.quantile(0.5) - low)
    assert even == (name in SYMMETRIC)


def test_parts_of_rows_change_nothing(named, monkeypatch):
    _, found = named
    y = RNG.normal(size=(N, 3))
    whole = found.logpdf(y), found.quantile([0.2, 0.7])
    monkeypatch.setattr(distributions_base, "HELD", 1)
    np.testing.assert_allclose(found.logpdf(y), whole[0], rtol=1e-14)
    np.testing.assert_allclose(found.quantile([0.2, 0.7]), whole[1], rtol=1e-12)


@pytest.mark.parametrize("ratio", [1e-2, 1.0, 1e2, 1e4])
@pytest.mark.parametrize("df", [2.1, 6.0])
def test_student_mixture_is_the_convolution(df, ratio):
    """Against quadrature over the noise: ∫ N(y − e; 0, v) t(e) de."""
    found = normal_plus_student(np.zeros(1), np.full(1, ratio), np.ones(1), df)
    for y in (0.0, 1.0, 3 * np.sqrt(1 + ratio)):
        density = lambda u, y=y: (
            scipy.stats.norm.pdf(y - np.sinh(u), 0, np.sqrt(ratio))
            * (scipy.stats.t.pdf(np.sinh(u), df) * np.cosh(u))
        )
        near = np.arcsinh([0.0, y, y - 3 * np.sqrt(ratio), y + 3 * np.sqrt(ratio)])
        exact = scipy.integrate.quad(density, -14, 14, points=np.unique(near), limit=400, epsabs=1e-14)[0]
        np.testing.assert_allclose(found.logpdf(y), np.log(exact), atol=1e-6)


def test_classes():
    p = np.array([[0.2, 0.5, 0.3], [1.0, 0.0, 0.0]])
    with np.errstate(divide="ignore"):
        found = Categorical(np.log(p))
    np.testing.assert_allclose(np.exp(found.logpdf([1, 0])), [0.5, 1.0])
    assert np.all(np.isneginf(found.logpdf([0.5, 3])))
    np.testing.assert_allclose(found.cdf([[-1, 0, 1.5, 2], [0, 1, 2, 3]]), [[0, 0.2, 0.7, 1], [1, 1, 1, 1]])
    np.testing.assert_allclose(found.sf([[0, 1, 2], [0, 1, 2]]), [[0.8, 0.3, 0], [0, 0, 0]])
    np.testing.assert_array_equal(found.quantile([0.1, 0.3, 0.9]), [[0, 1, 2], [0, 0, 0]])
    np.testing.assert_allclose(found.mean, [1.1, 0])
    np.testing.assert_allclose(found.std, [np.sqrt(0.5 + 1.2 - 1.21), 0], atol=1e-12)
    np.testing.assert_allclose(found.crps([1, 2]), [0.2**2 + 0.3**2, 2.0])
    draws = found.sample(0, 20000)
    for c in range(3):
        assert abs(np.mean(draws[0] == c) - p[0, c]) < 4 * np.sqrt(p[0, c] * (1 - p[0, c]) / 20000)
    with pytest.raises(ValueError, match="cannot be scaled or shifted"):
        found.affine(2.0, 0.0)


@pytest.mark.parametrize("shape", [None, 2.0, 50.0])
@pytest.mark.parametrize(("m", "v"), [(0.3, 0.0), (0.3, 0.4), (5.0, 0.05), (2.0, 4.0), (-1.0, 1.0)])
def test_counts(m, v, shape):
    """Against a fine grid over the log rate."""
    found = Counts(np.full(1, m), np.full(1, v), shape)
    z = np.linspace(-15, 15, 8001)
    w = np.exp(-0.5 * z**2) / np.exp(-0.5 * z**2).sum()
    mu = np.exp(m + np.sqrt(v) * z)
    given_rate = scipy.stats.poisson(mu) if shape is None else scipy.stats.nbinom(shape, shape / (shape + mu))
    y = np.array([0.0, 1.0, 2.0, 7.0, 30.0, 200.0])
    np.testing.assert_allclose(
        np.exp(found.logpdf(y[None])[0]), [w @ given_rate.pmf(k) for k in y], rtol=1e-6, atol=1e-290
    )
    np.testing.assert_allclose(
        found.cdf(y[None] + 0.3)[0], [w @ given_rate.cdf(k) for k in y], rtol=1e-7, atol=1e-15
    )
    np.testing.assert_allclose(found.sf(y[None])[0], [w @ given_rate.sf(k) for k in y], rtol=1e-5, atol=1e-13)
    assert found.cdf(-1.0) == 0 and found.sf(-0.5) == 1 and np.isneginf(found.logpdf(1.5))
    for p in (0.01, 0.5, 0.95):
        k = found.quantile(p)
        assert found.cdf(k) >= p and (k == 0 or found.cdf(k - 1) < p)
    if v <= 1:
        k = np.arange(4000.0)
        pmf = np.exp(found.logpdf(k[None])[0])
        np.testing.assert_allclose(pmf.sum(), 1, rtol=1e-6)
        np.testing.assert_allclose(found.mean, pmf @ k, rtol=1e-4)
        np.testing.assert_allclose(found.std**2, pmf @ (k - found.mean) ** 2, rtol=1e-3)
        F = np.cumsum(pmf)
        np.testing.assert_allclose(found.crps(7.0), np.sum((F - (k >= 7)) ** 2), rtol=1e-6)
        draws = found.sample(1, 20000)[0]
        assert abs(draws.mean() - found.mean[0]) < 4.5 * found.std[0] / np.sqrt(20000)
        for c in (0, 1, 2):
            assert abs(np.mean(draws == c) - pmf[c]) < 4.5 * np.sqrt(pmf[c] / 20000) + 1e-9


def test_what_cannot_be_asked_is_refused():
    found = Normal(MEAN, STD)
    for p in (0.0, 1.0, [0.1, 1.2], [[0.1]], np.nan):
        with pytest.raises(ValueError, match="must be a number between 0 and 1 or a list"):
            found.quantile(p)
    with pytest.raises(ValueError, match="level must be between 0 and 1, but is 95"):
        found.interval(95)
    with pytest.raises(ValueError, match=f"with N = {N}"):
        found.logpdf(np.zeros(N + 1))


def test_means_that_do_not_exist_are_medians_with_a_warning():
    found = Warped(student(4.0), Log())
    with pytest.warns(UserWarning, match="no mean"):
        np.testing.assert_array_equal(found.mean, found.quantile(0.5))
    assert np.isinf(found.std).all()


def test_rounded_is_the_mass_between_halves():
    found = Rounded(Warped(Normal(np.array([1.0, 3.0]), np.array([0.5, 0.2])), Log()))
    k = np.arange(400.0)
    p = np.exp(found.logpdf(np.tile(k, (2, 1))))
    np.testing.assert_allclose(p.sum(axis=1), 1, rtol=1e-9)
    np.testing.assert_allclose(found.mean, p @ k, rtol=1e-9)
    np.testing.assert_allclose(found.cdf(np.tile(k, (2, 1))), np.cumsum(p, axis=1), rtol=1e-9)
    np.testing.assert_allclose(
        found.crps(np.array([4.0, 15.0])),
        [np.sum((np.cumsum(q) - (k >= y)) ** 2) for q, y in zip(p, (4, 15), strict=True)],
        rtol=1e-8,
    )
    q = found.quantile([0.025, 0.5])
    assert np.all(q == np.floor(q)) and np.all(q >= 0)
    assert np.all(found.cdf(q) >= [0.025, 0.5]) and np.all(found.cdf(q - 1) < [0.025, 0.5])
    assert np.all(np.isneginf(found.logpdf(-1.0))) and np.all(found.sf(-1.0) == 1)
    draws = found.sample(0, 20000)
    assert np.all(np.abs(draws.mean(axis=1) - p @ k) < 4 * draws.std(axis=1) / np.sqrt(20000))


ROUNDED = {
    "rare": (Warped(Normal(np.array([-1.2]), np.array([0.3])), Log(0.5)), 1e-9),
    "mostly 0": (Normal(np.array([-0.5]), np.array([0.4])), 1e-9),
    "sure": (Normal(np.array([7.2]), np.array([0.05])), 1e-9),
    "medium": (Warped(Normal(np.array([2.0]), np.array([0.7])), Log(0.5)), 1e-8),
    "narrow around 10⁶": (Normal(np.array([1e6 + 0.3]), np.array([0.4])), 1e-9),
    "wide around 10⁶": (Normal(np.array([1e6]), np.array([3e3])), 1e-5),
    "half of it below 0": (Normal(np.array([150.0]), np.array([400.0])), 1e-5),
    "lognormal around 10⁵": (Warped(Normal(np.array([11.0]), np.array([0.5])), Log()), 1e-5),
    "Student's t": (normal_plus_student(np.array([40.0]), np.ones(1), np.full(1, 9.0), 6.0), 1e-4),
}  # fmt: skip


@pytest.mark.parametrize("name", ROUNDED)
def test_moments_of_rounded_are_those_of_its_probabilities(name):
    """Against Σ k P(Y = k) over all counts up to 4·10⁶; beyond 256 counts of the median within the stated bounds."""
    base, rtol = ROUNDED[name]
    found = Rounded(base)
    first = max(0.0, float(base.quantile(1e-15)[0]) - 2)
    k = np.arange(np.floor(first), min(float(base.quantile(1 - 1e-15)[0]) + 3, 4e6))
    p = np.exp(found.logpdf(k[None]))[0]
    p = np.where(p > 1e-200, p, 0.0)
    mean = first_moment = k[0] + p @ (k - k[0])
    std = np.sqrt(p @ (k - first_moment) ** 2)
    np.testing.assert_allclose(found.mean[0], mean, atol=rtol * std)
    np.testing.assert_allclose(found.std[0], std, rtol=rtol)


LONG = {
    "rounded": (Rounded(Normal(np.array([4e4]), np.array([3e3]))), (2e4, 3.9e4, 4.2e4, 1e5)),
    "rounded, half of it below 0": (Rounded(Normal(np.array([1e3]), np.array([5e3]))), (0.0, 3.0, 2e4)),
    "rounded, with a narrow middle": (
        Rounded(Mixture((Normal(np.array([3.0]), np.array([0.4])), Normal(np.array([4e4]), np.array([6e3]))), np.array([0.9, 0.1]))),
        (2.0, 3.0, 3e4),
    ),
    "Poisson": (Counts(np.array([10.0]), np.array([0.01])), (1e3, 2.1e4, 2.4e4, 5e4)),
    "negative binomial": (Counts(np.array([9.0]), np.array([0.05]), 3.0), (0.0, 5e3, 3e4)),
}  # fmt: skip


@pytest.mark.parametrize("name", LONG)
def test_scores_of_many_counts_are_their_sums(name):
    """CRPS by integrals where more than 10⁴ counts have a probability, against Σ_k (F(k) − 1[k ≥ y])²."""
    found, y = LONG[name]
    k = np.arange(1.2e5)
    F = np.cumsum(np.exp(found.logpdf(k[None])[0]))
    wanted = [np.sum((F - (k >= at)) ** 2) for at in y]
    np.testing.assert_allclose(found.crps(np.array([y]))[0], wanted, rtol=3e-4)


@pytest.mark.parametrize("name", ["counts", "rounded", "classes"])
def test_probability_integral_transforms_of_counts_are_uniform(name):
    """n times the squared calibration error has mean 1/6 and standard deviation √(1/45), as of continuous observations."""
    n, repeats = 100, 200
    generator = np.random.default_rng(8)
    m = np.tile(generator.normal(-1.0, 1.0, size=n), repeats)
    found = {
        "counts": lambda: Counts(m, np.full(n * repeats, 0.2)),
        "rounded": lambda: Rounded(Normal(m, np.full(n * repeats, 0.7))),
        "classes": lambda: Categorical(np.stack([np.log(ndtr(m)), np.log(ndtr(-m))], axis=1)),
    }[name]()
    y = found.sample(1)[:, 0]
    parts = np.split(np.arange(n * repeats), repeats)
    squares = [n * metrics.calibration_error(y[i], found[i], seed=int(i[0]))[0] ** 2 for i in parts]
    assert abs(np.mean(squares) - 1 / 6) < 4 * np.sqrt(1 / 45 / repeats)
    u, u_again = metrics.pit(y, found), metrics.pit(y, found)
    np.testing.assert_array_equal(u, u_again)
    assert np.all((found.cdf(y - 1) <= u) & (u <= found.cdf(y))) and np.any(
        metrics.pit(y, found, seed=1) != u
    )


def test_conformal_intervals_of_counts_hold_their_share():
    """By randomised scores: at least the level, and no more than repeated targets make of it."""
    generator, level, covered = np.random.default_rng(3), 0.9, []
    for seed in range(200):
        m = generator.normal(1.0, 1.0, size=300)
        truth = Rounded(Normal(3 * m, np.full(300, 3.0)))
        y, said = truth.sample(seed)[:, 0], Rounded(Normal(3 * m, np.full(300, 1.5)))
        made = ConformalScores.fit(said[:199], y[:199], seed=seed)
        lower, upper = made.interval(said[199:], level).T
        covered.append(np.mean((lower <= y[199:]) & (y[199:] <= upper)))
    error = np.std(covered) / np.sqrt(len(covered))
    assert level - 4 * error < np.mean(covered) < level + 0.05


def test_mixtures_need_weights_that_sum_to_one():
    with pytest.raises(ValueError, match="sum to 1"):
        Mixture((Normal(MEAN, STD),), np.array([0.5]))
    with pytest.raises(ValueError, match="same number of rows"):
        Mixture((Normal(MEAN, STD), Normal(MEAN[1:], STD[1:])), np.array([0.5, 0.5]))


RATES = [(1e3, 0.05), (1e3, 0.5), (100.0, 0.5), (1e4, 0.01), (1e6, 0.09)]  # e^m, v


@pytest.mark.parametrize(("rate", "variance"), RATES)
def test_many_counts_are_summed_by_gamma_variables(rate, variance, monkeypatch):
    """P(Y ≤ k) is the integral over the rate, which takes as many nodes as counts are sharp; the least count with F ≥ p is found."""
    found = Counts(np.array([math.log(rate)]), np.array([variance]))
    p = np.array([1e-6, 0.025, 0.5, 0.975, 1 - 1e-6])
    z, step = np.linspace(-10, 10, 20_001, retstep=True)
    w = step * scipy.stats.norm.pdf(z)
    mu = np.exp(math.log(rate) + math.sqrt(variance) * z)
    with monkeypatch.context() as patched:
        if rate == 1e6:
            patched.setattr(discrete, "gammaincc", None)  # which the integral over the rate takes
        k = found.quantile(p)
        F, S = found.cdf(k), found.sf(k)
        assert np.all(found.cdf(k - 1)[0] < p) and np.all(p <= F[0])
    np.testing.assert_allclose(F[0], [scipy.special.gammaincc(at + 1, mu) @ w for at in k[0]], rtol=1e-7)
    np.testing.assert_allclose(S[0], [scipy.special.gammainc(at + 1, mu) @ w for at in k[0]], rtol=1e-7)


def test_counts_beyond_all_whole_numbers_have_quantiles():
    """Where neighbouring numbers of float64 are more than 1 apart, those of the rate are found to their last digits."""
    found = Counts(np.array([60.0]), np.array([4.0])).quantile([1e-9, 0.5, 1 - 1e-16])[0]
    np.testing.assert_allclose(
        np.log(found), 60 + 2 * scipy.stats.norm.ppf([1e-9, 0.5, 1 - 1e-16]), rtol=1e-3
    )


W = np.linspace(0.1, 0.9, N)
RAIN = Mixture(
    (PointMass(np.full(N, 0.3), np.full(N, 1e-3)), Normal(MEAN, STD)), np.stack([W, 1 - W], axis=1)
)


def test_a_point_mass_is_a_step_of_the_distribution_function():
    y, steps = np.array([-1.0, 0.3 - 1e-8, 0.3, 2.0]), np.array([0, 0, 1, 1])
    rest = Normal(MEAN, STD)
    at = np.tile(y, (N, 1))
    np.testing.assert_allclose(RAIN.cdf(at), (1 - W)[:, None] * rest.cdf(at) + W[:, None] * steps)
    np.testing.assert_allclose(RAIN.sf(at), 1 - RAIN.cdf(at), atol=1e-15)
    np.testing.assert_allclose(RAIN.mean, 0.3 * W + (1 - W) * MEAN)
    squares = 0.09 * W + (1 - W) * (MEAN**2 + STD**2)
    np.testing.assert_allclose(RAIN.std, np.sqrt(squares - RAIN.mean**2))
    moved = RAIN.affine(2.0, 1.0)
    np.testing.assert_allclose(moved.cdf(2 * at + 1), RAIN.cdf(at))
    np.testing.assert_allclose(moved.logpdf(1.6), RAIN.logpdf(0.3) - np.log(2.0))


def test_quantiles_with_a_point_mass_are_the_least_values_of_that_probability():
    p = np.linspace(0.001, 0.999, 101)
    q = RAIN.quantile(p)
    assert np.all(RAIN.cdf(q) >= p - 1e-12) and np.all(RAIN.cdf(q - 1e-6) < p)
    below, to = (1 - W) * Normal(MEAN, STD).cdf(0.3), (1 - W) * Normal(MEAN, STD).cdf(0.3) + W
    inside = (p > below[:, None]) & (p <= to[:, None])
    assert inside.sum() > 100 and np.array_equal(q == 0.3, inside)


def test_scores_with_a_point_mass_are_their_integrals_and_pit_is_uniform():
    t = np.linspace(-12.0, 12.0, 60_001)
    cells = (t[1:] + t[:-1]) / 2  # no step is inside a cell
    for y in (-0.5, 0.3, 1.2):
        squares = (RAIN.cdf(np.tile(cells, (N, 1))) - (cells >= y)) ** 2
        np.testing.assert_allclose(RAIN.crps(y), squares.sum(axis=1) * (t[1] - t[0]), rtol=1e-5)
    drawn = RAIN.sample(1, 1_000)
    share = np.mean(drawn == 0.3, axis=1)
    assert np.all(abs(share - W) < 4 * np.sqrt(W * (1 - W) / 1_000))
    u = np.concatenate([RAIN.pit(drawn[:, k], seed=k) for k in range(1_000)])
    counts = np.histogram(u, 20, (0, 1))[0]
    assert np.sum((counts - 250) ** 2 / 250) < 45  # the 0.1 % point of χ² with 19 degrees of freedom is 43.8


EDGES = CONTINUOUS | {
    "rounded": lambda: Rounded(Normal(MEAN, STD)),
    "rounded lognormal": lambda: Rounded(Warped(Normal(MEAN, STD), Log(0.5))),
    "poisson": lambda: Counts(MEAN, STD**2),
    "negative binomial": lambda: Counts(MEAN, STD**2, 1.7),
    "classes": lambda: Categorical(np.log(np.full((N, 3), 1 / 3))),
    "with a point mass": lambda: Mixture(
        (PointMass(np.zeros(N), np.full(N, 0.1)), Normal(MEAN, STD)), np.array([0.4, 0.6])
    ),
}


@pytest.mark.parametrize("named", EDGES.values(), ids=EDGES)
def test_edges_of_the_line(named):
    """NaN gives NaN and ±∞ the limits, whatever the other points of the row; so does a number so large that nothing lies beyond it."""
    found, y = named(), 1.0
    at = np.tile([y, np.nan, -np.inf, np.inf], (N, 1))
    limits = {
        "logpdf": (-np.inf,) * 2,
        "cdf": (0, 1),
        "sf": (1, 0),
        "crps": (np.inf,) * 2,
    }
    for name, ends in limits.items():
        values = getattr(found, name)(at)
        np.testing.assert_allclose(values[:, 0], getattr(found, name)(y), rtol=1e-12)
        np.testing.assert_array_equal(values[:, 1:], np.tile([np.nan, *ends], (N, 1)))
    np.testing.assert_array_equal(found.pit(at)[:, 1:], np.tile([np.nan, 0, 1], (N, 1)))
    np.testing.assert_allclose(found.cdf(1e300), 1, rtol=1e-12)
    assert found.cdf(1e300).max() <= 1 and found.sf(-1e300).max() <= 1
    np.testing.assert_allclose(found.sf(1e300), 0, atol=1e-12)
    if not isinstance(found, Categorical):
        np.testing.assert_allclose(found.crps(1e250), 1e250, rtol=1e-6)


def test_quantiles_of_mixtures_of_one_transform_are_those_of_their_bases():
    """Also where a few entries need many more steps than the others."""
    bases = (Normal(MEAN, STD), Student(MEAN + 1, 0.1 * STD, 3.0))
    p, T, w = np.linspace(1e-6, 1 - 1e-6, 60), Log(1.0), np.array([0.999, 0.001])
    found = Mixture(tuple(Warped(base, T) for base in bases), w)
    expected = T.inverse(Mixture(bases, w).quantile(p))
    np.testing.assert_allclose(found.quantile(p), expected, rtol=1e-10)
    np.testing.assert_allclose(found.cdf(found.quantile(p)), np.broadcast_to(p, (N, 60)), rtol=1e-9)


def test_the_crps_of_a_mixture_of_normal_parts_is_the_integral():
    parts, w = (Normal(MEAN, STD), Normal(MEAN + 1, 2 * STD)), np.column_stack([W, 1 - W])
    y, found = MEAN[:, None] + np.array([-30.0, 0.0, 2.0]), Mixture(parts, w)
    np.testing.assert_allclose(found.crps(y), super(Mixture, found)._crps(y), rtol=1e-8)


@pytest.mark.parametrize("named", EDGES.values(), ids=EDGES)
def test_names_of_scipy_and_data_frames(named):
    found, y = named(), np.ones(N)
    assert len(found) == N and repr(found).startswith(f"{type(found).__name__} of {N} rows, means and 90 %")
    np.testing.assert_array_equal(found.pdf(y), np.exp(found.logpdf(y)))
    np.testing.assert_array_equal(found.ppf([0.1, 0.5]), found.quantile([0.1, 0.5]))
    np.testing.assert_array_equal(found.median, found.quantile(0.5))
    np.testing.assert_array_equal(found.var, found.std**2)
    np.testing.assert_array_equal(found.rvs(3, random_state=1), found.sample(1, 3))
    assert found.rvs(random_state=1).shape == (N,)
    frame = found.to_frame(0.5)
    assert list(frame.columns) == ["mean", "std", "median", "lower", "upper"]
    np.testing.assert_array_equal(frame[["lower", "upper"]], found.interval(0.5))


def test_a_long_distribution_shows_its_first_rows():
    found = Normal(np.arange(9.0), np.ones(9))
    shown = "0 (-1.645 to 1.645), 1 (-0.6449 to 2.645), 2 (0.3551 to 3.645), …"
    assert repr(found) == f"Normal of 9 rows, means and 90 % intervals: {shown}"
