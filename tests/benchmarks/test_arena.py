"""The arena of raw tables: the distribution of quantile rivals, divisions, budgets of tuning, scores; one quick run."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest

from benchmarks import arena, arena_inputs, arena_summary, arena_tuning
from benchmarks.arena_rivals import LEVELS, Predicted, Rival
from benchmarks.arena_tables import Rows, division
from benchmarks.quantiles import QuantileDistribution
from stochgp import metrics


@pytest.fixture(scope="module")
def quantiles():
    """Of four rows: uneven gaps, the same crossed, many that agree, and those of an exponential distribution."""
    q = np.cumsum(np.random.default_rng(0).exponential(size=(4, len(LEVELS))), axis=1)
    q[1] = q[0][::-1]
    q[2, 3:8] = q[2, 3]
    q[3] = -np.log1p(-np.array(LEVELS))
    return QuantileDistribution.through(q)


def over_the_line(law, integrand, *corners):
    """∫ over y of `integrand(y [1, Q])` of a distribution of one row: Gauss–Legendre between many quantiles, corners, and points of the far tails."""
    q, (s, t) = law.q[0], law.scales[0]
    tails = q[0] - np.linspace(0, 40, 200) * s, q[-1] + np.linspace(0, 40, 200) * t
    graded = np.sin(np.linspace(0, np.pi / 2, 201)) ** 2  # a density may be steep beside a level
    inner = [law.quantile(a + (b - a) * graded)[0] for a, b in itertools.pairwise(LEVELS)]
    ends = np.unique(np.concatenate([*tails, *inner, corners]))
    nodes, weights = np.polynomial.legendre.leggauss(6)
    half = np.diff(ends)[:, None] / 2
    y = ends[:-1, None] + half * (1 + nodes)
    return float(np.sum(integrand(y.reshape(1, -1)) * (half * weights).reshape(1, -1)))


@pytest.mark.parametrize("row", range(4))
def test_the_density_of_quantiles_integrates_to_one_and_has_their_mean(quantiles, row):
    law = quantiles[[row]]
    assert over_the_line(law, lambda y: np.exp(law.logpdf(y))) == pytest.approx(1, abs=1e-6)
    assert over_the_line(law, lambda y: y * np.exp(law.logpdf(y))) == pytest.approx(law.mean[0], rel=1e-5)


@pytest.mark.parametrize("row", range(4))
def test_the_crps_of_quantiles_is_that_of_numeric_integration(quantiles, row):
    law = quantiles[[row]]
    q, (s, t) = law.q[0], law.scales[0]
    for at in (q[0] - 2 * s, q[0], (q[3] + q[4]) / 2, q[-2] + 0.3 * (q[-1] - q[-2]), q[-1] + t):
        found = over_the_line(law, lambda y: np.where(y < at, law.cdf(y), law.sf(y)) ** 2, at)  # noqa: B023
        assert law.crps(np.array([at]))[0] == pytest.approx(found, rel=1e-6)


def test_divisions_are_those_that_the_tables_page_states():
    """A random fifth by `default_rng(0).permutation(n)`, the last fifth as rows stand, whole groups."""
    n = 23
    train, test = division(n, "random")
    np.testing.assert_array_equal(test, np.random.default_rng(0).permutation(n)[:4])
    assert sorted([*train, *test]) == list(range(n))
    train, test = division(n, "time")
    assert list(test) == [19, 20, 21, 22] and list(train) == list(range(19))
    groups = np.repeat(list("abcdefghij"), np.arange(1, 11))
    train, test = division(len(groups), "group", groups)
    assert len(set(groups[test])) == 2 and not set(groups[test]) & set(groups[train])


@pytest.mark.parametrize("inputs", [arena_inputs.Levels, arena_inputs.Categories, arena_inputs.Numbers])
def test_inputs_of_rivals_take_dates_gaps_and_new_levels(inputs):
    X = pd.DataFrame(
        {
            "at": ["2/1/2018 0:15", "3/1/2018 1:00"] * 4,
            "word": ["a", "b", None, "a"] * 2,
            "z": [1.0, np.nan] * 4,
        }
    )
    new = pd.DataFrame({"at": ["31/12/2019 23:59"], "word": ["c"], "z": [np.nan]})
    made = inputs.of(X, {"at": "%d/%m/%Y %H:%M"})
    rows, row = made(X), made(new)
    assert rows.shape[1] == row.shape[1] and len(rows) == 8
    numbers = arena_inputs.with_numbers_of_dates(new, {"at": "%d/%m/%Y %H:%M"})
    assert numbers["at year"][0] == 2019 and numbers["at day of year"][0] == 365
    assert numbers["at minute"][0] == 1439 and numbers["at weekday"][0] == 1
    if inputs is arena_inputs.Numbers:
        assert np.isfinite(rows).all() and np.isfinite(row).all()


class Clock:
    """Seconds that pass only while a rival is fitted: one for each row."""

    def __init__(self):
        self.now, self.fits = 0.0, []

    def rival(self):
        def fit(X, y, settings):
            self.now += len(y)
            self.fits.append((len(y), settings))
            return lambda X: Predicted(np.full(len(X), y.mean() + settings.get("shift", 2.0)))

        return Rival(arena_inputs.Numbers, fit, lambda g: {"shift": float(g.uniform(-1, 1))})


@pytest.mark.parametrize(("seconds", "n_trials"), [(None, 0), (0, 0), (1, 1), (180, 1), (270, 2), (1000, 11)])
def test_tuning_ends_within_its_seconds_and_takes_the_best(monkeypatch, seconds, n_trials):
    """Trials of 80 rows take 80 s here and the fit to all of 100 rows 100 s; the defaults are the first trial, and are kept where nothing else can be tried."""
    clock = Clock()
    monkeypatch.setattr(arena_tuning.time, "perf_counter", lambda: clock.now)
    y = np.random.default_rng(0).normal(size=100)
    rows = Rows(pd.DataFrame({"x": np.arange(100.0)}), y)
    found = arena_tuning.fit(clock.rival(), rows, "random", {}, seconds)
    trials = [(n, settings) for n, settings in clock.fits if n == 80]
    assert found.n_trials == n_trials and len(trials) == max(n_trials, 1) and trials[0][1] == {}
    assert clock.now <= max(seconds or 0, 180)
    (best,) = [settings for n, settings in clock.fits if n == 100]
    train, held = division(100, "random")
    errors = [np.mean((y[held] - y[train].mean() - s.get("shift", 2.0)) ** 2) for _, s in trials]
    assert best == trials[int(np.argmin(errors))][1]
    predicted = found.predict(rows.X)  # with the deviation of the rows held out
    np.testing.assert_allclose(predicted.std, np.sqrt(min(errors)))


def test_scores_are_those_of_metrics_in_units_of_the_training_targets():
    generator = np.random.default_rng(0)
    y, mean, std = generator.normal(size=50), generator.normal(size=50), generator.uniform(0.5, 2, 50)
    seen = 3.0 * np.array([-1.0, 1.0] * 10)  # of standard deviation 3
    found = arena.scores(Predicted(3 * mean, 3 * std), 3 * y, seen)
    assert found["rmse"] == pytest.approx(metrics.rmse(y, mean))
    assert found["nlpd"] == pytest.approx(metrics.nlpd(y, mean, std))
    assert found["nlpd"] == pytest.approx(metrics.nlpd(3 * y, 3 * mean, 3 * std) - math.log(3))
    assert found["crps"] == pytest.approx(metrics.crps(y, mean, std))
    assert found["coverage50"] == metrics.coverage(y, mean, std, level=0.5)
    assert found["coverage95"] == metrics.coverage(y, mean, std) and found["repeated"] == 0.5
    quantiles = mean[:, None] + 4 * np.linspace(-2, 2, len(LEVELS))
    law = QuantileDistribution.through(quantiles, 1.0, 2.0)
    found = arena.scores(Predicted(mean, quantiles=3 * quantiles), 3 * y, seen)
    assert found["nlpd"] == pytest.approx(metrics.nlpd(y, law))
    assert found["crps"] == pytest.approx(metrics.crps(y, law))


def line(table, side, variant="default", **results):
    of = {
        "split": "random",
        "rows": 9,
        "n_train": 9,
        "fit_seconds": 1.0,
        "coverage50": 0.5,
        "coverage95": 0.9,
    }
    return {"table": table, "side": side, "variant": variant} | of | results


def test_shares_count_tables_where_ours_is_ahead_of_every_rival():
    """Of three tables one is ahead by all, one behind in CRPS of a tuned rival and in RMSE of a point rival, and one refused."""
    rows = [
        line("a", "pool", nlpd=0.0, crps=0.1, rmse=0.3),
        line("a", "catboost", nlpd=0.5, crps=0.2, rmse=0.4),
        line("a", "histograms", nlpd=-9.0, crps=0.01, rmse=0.31),
        line("b", "pool", nlpd=0.0, crps=0.1, rmse=0.3),
        line("b", "ngboost", nlpd=None, crps=0.2, rmse=0.4),
        line("b", "ngboost", "tuned", nlpd=0.4, crps=0.09, rmse=0.4),
        line("b", "ridge", nlpd=0.1, crps=0.2, rmse=0.2),
        {
            "table": "c",
            "side": "pool",
            "variant": "default",
            "split": "random",
            "rows": 9,
            "n_train": 9,
            "refused": "no",
        },
        line("c", "lightgbm", nlpd=5.0, crps=5.0, rmse=5.0),
    ]
    headings, ((split, n, both, nlpd, crps, rmse, half, _), second) = arena_summary.shares(rows)
    assert (split, n, both, nlpd, crps, rmse) == ("all", 3, "1 of 3", "2 of 3", "1 of 3", "1 of 3")
    assert half == "0.500 (0.500 to 0.500)" and second[0] == "random" and len(headings) == len(second)
    assert arena_summary.shares([])[1] == []


@pytest.mark.parametrize("side", ["ridge", "histograms"])
def test_a_cell_of_a_tiny_table(side):
    row = arena.run(
        {"table": "diabetes", "split": "random", "side": side, "variant": "default", "rows": 1_500}
    )
    assert row["n_train"] == 354 and row["n_test"] == 88 and row["trials"] == 0
    assert 0.5 < row["rmse"] < 1 and row["crps"] < row["rmse"] and row["nlpd"] < 1.5
