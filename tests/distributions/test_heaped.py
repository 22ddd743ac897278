"""Values that are recorded again and again: cells keep their mass, and what is counted is what was rounded."""

import dataclasses

import numpy as np
import pytest
import scipy.stats
from numpy.testing import assert_allclose, assert_array_equal

from stochgp.distributions import (
    BetaCurve,
    Heaped,
    Heaping,
    Mixture,
    Normal,
    PITRecalibration,
    Recalibrated,
    Student,
    Warped,
)
from stochgp.transforms import Log

RNG = np.random.default_rng(4)
N = 4
MEAN, STD = RNG.normal(size=N), RNG.uniform(0.3, 1.5, size=N)
HEAPING = Heaping(
    value=np.array([-1.0, 0.0, 0.5, 2.0]),
    low=np.array([-np.inf, -0.2, 0.4, 1.0]),
    high=np.array([-0.7, 0.3, 0.9, np.inf]),
    share=np.array([0.5, 0.3, 0.2, 0.9]),
    width=0.05,
)
EDGES = np.unique(
    np.concatenate([HEAPING.low[1:], HEAPING.high[:-1], *(HEAPING.value + side * 0.025 for side in (-1, 1))])
)
BASES = {
    "normal": lambda: Normal(MEAN, STD),
    "narrower than a cell": lambda: Normal(MEAN, 0.05 * STD),
    "student": lambda: Student(MEAN, STD, 6.0),
    "mixture": lambda: Mixture((Normal(MEAN, STD), Normal(MEAN + 1, 2 * STD)), np.array([0.7, 0.3])),
    "corrected": lambda: Recalibrated(Normal(MEAN, STD), BetaCurve(1.3, 0.8)),
}


@pytest.fixture(params=BASES)
def pair(request):
    base = BASES[request.param]()
    return base, HEAPING(base)


def pieces(found, row):
    """(Nodes, weights) that are exact for what is smooth between edges and quantiles of the base."""
    p = np.concatenate(
        [10.0 ** -np.arange(14, 1, -0.5), np.linspace(0.05, 0.95, 60), 1 - 10.0 ** -np.arange(2, 14.5, 0.5)]
    )
    ends = np.unique(np.concatenate([EDGES, found.base[[row]].quantile(p)[0]]))
    nodes, w = np.polynomial.legendre.leggauss(12)
    half = np.diff(ends)[:, None] / 2
    return (ends[:-1, None] + half * (1 + nodes)).ravel(), (half * w).ravel()


def test_density_has_the_distribution_function_mean_and_deviation(pair):
    _, found = pair
    mean, std = found.mean, found.std
    for i in range(N):
        row = found[[i]]
        y, w = pieces(found, i)
        p = np.exp(row.logpdf(y[None])[0]) * w
        assert_allclose(p.sum(), 1, rtol=1e-8)
        assert_allclose(p @ y, mean[i], atol=1e-6)
        assert_allclose(np.sqrt(p @ (y - mean[i]) ** 2), std[i], rtol=1e-5)
        for at in EDGES:
            assert_allclose(p[y < at].sum(), row.cdf(at)[0], rtol=1e-7, atol=1e-12)
            assert_allclose(p[y > at].sum(), row.sf(at)[0], rtol=1e-7, atol=1e-12)


def test_cells_keep_their_mass_and_a_heap_has_its_share(pair):
    base, found = pair
    ends = np.concatenate([HEAPING.low[1:], HEAPING.high[:-1]])
    assert_allclose(found.cdf(np.tile(ends, (N, 1))), base.cdf(np.tile(ends, (N, 1))), rtol=1e-12)
    for v, low, high, q in zip(HEAPING.value, HEAPING.low, HEAPING.high, HEAPING.share, strict=True):
        below = base.cdf(low) if np.isfinite(low) else 0.0
        mass = (base.cdf(high) if np.isfinite(high) else 1.0) - below
        ramp = base.cdf(v + 0.025) - base.cdf(v - 0.025)
        heap = found.cdf(v + 0.025) - found.cdf(v - 0.025)
        assert_allclose(heap, q * mass + (1 - q) * ramp, atol=1e-14)
    outside = np.array([-0.5, 0.35, 0.95])
    assert_allclose(found.logpdf(np.tile(outside, (N, 1))), base.logpdf(np.tile(outside, (N, 1))), rtol=1e-12)


def test_quantiles_are_the_inverse(pair):
    _, found = pair
    p = np.array([1e-10, 1e-4, 0.01, 0.2, 0.3, 0.5, 0.77, 0.9, 0.99, 1 - 1e-7])
    assert_allclose(found.cdf(found.quantile(p)), np.tile(p, (N, 1)), rtol=1e-7, atol=1e-12)
    assert_allclose(found.sf(found.quantile(p)), 1 - np.tile(p, (N, 1)), rtol=1e-7, atol=1e-12)


def test_crps_is_its_integral(pair):
    _, found = pair
    for i in range(N):
        t, w = pieces(found, i)
        for y in EDGES[[1, 4, 7]]:
            G = found[[i]].cdf(t[None])[0]
            outside = max(t.min() - y, 0.0) + max(y - t.max(), 0.0)
            wanted = w @ (G - (t >= y)) ** 2 + outside
            assert_allclose(found[[i]].crps(y)[0], wanted, rtol=1e-4)


def test_draws_are_heaps_as_often_as_said(pair):
    """A heap is drawn as its value: within its width, at random, it would be as any other draw."""
    _, found = pair
    n = 4_000
    draws = found.sample(1, n)
    spread = np.where(
        np.isin(draws, HEAPING.value), draws + 0.05 * (RNG.uniform(size=draws.shape) - 0.5), draws
    )
    for i in range(N):
        assert scipy.stats.kstest(found[[i]].cdf(spread[[i]])[0], "uniform").pvalue > 1e-4
    for v, low, high, q in zip(HEAPING.value, HEAPING.low, HEAPING.high, HEAPING.share, strict=True):
        p = q * ((found.cdf(high) if high < np.inf else 1.0) - (found.cdf(low) if low > -np.inf else 0.0))
        assert np.all(abs(np.mean(draws == v, axis=1) - p) < 4.5 * np.sqrt(p * (1 - p) / n) + 1e-9)


def test_units_rows_and_parts_change_nothing(pair, monkeypatch):
    base, found = pair
    y = RNG.normal(size=(N, 3))
    moved = found.affine(2.5, np.arange(4.0))
    to = lambda t: 2.5 * t + np.arange(4.0).reshape(-1, *[1] * (np.ndim(t) - 1))
    assert_allclose(moved.logpdf(to(y)), found.logpdf(y) - np.log(2.5), rtol=1e-9)
    assert_allclose(moved.quantile([0.1, 0.6]), to(found.quantile([0.1, 0.6])), rtol=1e-6)
    assert_allclose((moved.mean, moved.std), (to(found.mean), 2.5 * found.std), rtol=1e-9)
    rows = np.array([2, 0])
    assert_allclose(found[rows].logpdf(y[rows]), found.logpdf(y)[rows], rtol=1e-13)
    many = np.tile(np.linspace(-3, 3, 50), (N, 1))  # more points than cells: ends are found once
    assert_allclose(found.cdf(many)[:, 7], found.cdf(many[:, 7]), rtol=1e-13)
    mean = found.mean
    monkeypatch.setattr("stochgp.distributions.base.HELD", 1)
    assert_allclose(found.mean, mean, rtol=1e-12)
    assert not found.has_masses and found.tail_index == base.tail_index


def test_a_curve_comes_first():
    base, curve = Normal(MEAN, STD), PITRecalibration(1.3, 0.8, 0.1, 100)
    both = dataclasses.replace(HEAPING, curve=curve)(base)
    y = np.tile(EDGES, (N, 1))
    assert_allclose(both.logpdf(y), HEAPING(curve(base)).logpdf(y), rtol=1e-13)


@pytest.mark.parametrize("weighted", [False, True])
def test_shares_are_those_that_were_rounded(weighted):
    """Of targets a third of which are rounded to multiples of ½; a row of weight 2 is two rows."""
    n, q, step = 20_000, 1 / 3, 0.5
    y = np.round(RNG.normal(size=n), 4)
    rounded = RNG.uniform(size=n) < q
    y = np.where(rounded, step * np.round(y / step), y)
    y[:2] = 0.00005, 0.00015  # so that they are known to a ten-thousandth
    weight = np.ones(n)
    if weighted:
        weight[::3] = 2.0
    made = Heaping.of(y, weight)
    on_grid = np.round(made.value / step, 9) % 1 == 0
    assert np.sum(~on_grid) <= 2  # by chance
    inner = on_grid & (abs(made.value) <= 1)
    assert inner.sum() == 5 and made.width == pytest.approx(1e-3 * np.std(y), rel=0.05)
    for v, low, high, share in zip(
        made.value[inner], made.low[inner], made.high[inner], made.share[inner], strict=True
    ):
        assert (v - low, high - v) == pytest.approx((0.1, 0.1), rel=0.05)  # a tenth of a deviation
        within = (y >= low) & (y < high)
        total, chance = weight[within].sum(), made.width / (high - low)
        wanted = ((weight * (y == v)).sum() / (total + 1) - chance) / (1 - chance)
        assert share == pytest.approx(wanted, rel=1e-9)
    if weighted:
        again = Heaping.of(np.concatenate([y, y[::3]]), np.ones(n + len(y[::3])))
        assert_allclose(made.share, again.share)


def test_a_limit_takes_all_that_lies_beyond():
    y = np.minimum(RNG.normal(size=5_000), 1.0)
    made = Heaping.of(y, np.ones(5_000))
    assert_array_equal(made.value, [1.0])
    assert made.high[0] == np.inf and made.low[0] == pytest.approx(1 - 0.1 * np.std(y), abs=1e-3)
    found = made(Normal(np.zeros(1), np.ones(1)))
    beyond = scipy.stats.norm.sf(made.low[0])
    assert found.sf(1 - made.width / 2)[0] == pytest.approx(
        made.share[0] * beyond + (1 - made.share[0]) * scipy.stats.norm.sf(1 - made.width / 2)
    )
    assert found.mean[0] < 0 and Heaping.of(-y, np.ones(5_000)).low[0] == -np.inf


@pytest.mark.parametrize(
    "y",
    [
        RNG.normal(size=3_000),
        np.ones(300),
        np.repeat(RNG.normal(size=500), 4),
    ],
    ids=["no value twice", "one value", "each value four times"],
)
def test_where_no_value_stands_out_there_is_nothing_to_know(y):
    assert Heaping.of(y, np.ones(len(y))) is None


def test_a_grid_of_values_has_no_large_shares():
    """By chance alone a few of 60 values stand out."""
    made = Heaping.of(np.round(RNG.normal(size=3_000), 1), np.ones(3_000))
    assert made is None or (len(made.value) < 10 and made.share.max() < 0.2)


def test_heaps_are_apart_by_the_width_they_are_known_to():
    y = np.concatenate([RNG.normal(size=5_000), np.full(200, 0.5), np.full(100, 0.5 + 1e-6)])
    made = Heaping.of(y, np.ones(len(y)))
    assert_array_equal(made.value, [0.5])
    assert isinstance(made(Normal(MEAN, STD)), Heaped)


def test_a_few_rows_are_not_sure():
    """Five rows of a value, and none near it: the next one in the cell is another with probability 1/6."""
    y = np.concatenate([RNG.uniform(-1, 1, 500), np.full(5, 3.0)])
    made = Heaping.of(y, np.ones(505))
    assert_array_equal(made.value, [3.0])
    assert made.share[0] == pytest.approx(5 / 6, abs=1e-2)


def test_a_value_is_one_value_in_any_rounding():
    y = np.concatenate([RNG.normal(size=2_000), np.full(100, 0.7), np.full(100, np.float64(np.float32(0.7)))])
    made = Heaping.of(y, np.ones(len(y)))
    assert len(made.value) == 1 and made.share[0] > 0.4
    grid = np.concatenate([np.repeat(np.arange(1.0, 6.0), 40), [3 + 5e-16]])
    assert Heaping.of(grid, np.ones(len(grid))) is None  # no finer than its steps


def test_what_a_base_has_no_moments_of_has_none_here():
    """A logarithm with Student errors reaches beyond what numbers hold."""
    heavy = Warped(Student(np.zeros(1), np.full(1, 0.2), 4.0), Log())
    found = Heaping(np.array([1.5]), np.array([1.2]), np.array([np.inf]), np.array([0.5]), 0.01)(heavy)
    with pytest.warns(UserWarning, match="no mean"):
        assert_array_equal(found.mean, heavy.quantile(0.5))
    assert_array_equal(found.std, [np.inf])


def test_positive_predictions_have_no_heap_at_the_border():
    y = np.concatenate([np.exp(RNG.normal(size=2_000)), np.full(300, 1e-4), np.full(300, 1.0)])
    assert len(Heaping.of(y, np.ones(2_600)).value) == 2
    assert_array_equal(Heaping.of(y, np.ones(2_600), above=0.0).value, [1.0])
