"""Columns of many levels: weights are numbers of rows, copies share a fold, and a new level is a random one of the known."""

import numpy as np
import pandas as pd
import pytest

from stochgp import FeatureGPRegressor, KernelGPRegressor, learners
from stochgp.context import FitContext
from stochgp.data import TableEncoder
from stochgp.data.reading import read_training_rows
from stochgp.tables.categories import CategoryTargets, at_ranks
from stochgp.tables.encoding import STAND_INS, known_instead

RNG = np.random.default_rng(0)
L, N = 70, 421
SHOP = np.r_[RNG.permutation(np.arange(N - 1) % L), 0]
TABLE = pd.DataFrame({"shop": [f"s{i}" for i in SHOP], "x": RNG.uniform(-2, 2, N)})
EFFECT = RNG.normal(size=L)
Y = EFFECT[SHOP] + np.sin(TABLE.x.to_numpy()) + 0.3 * RNG.normal(size=N)


def read(table, y, weight=None):
    model = KernelGPRegressor(random_state=0)
    return read_training_rows(model, table, y, weight, None, FitContext(model))


def test_nine_copies_are_a_row_of_weight_nine():
    weight = np.where(np.arange(N) % 3 == 0, 9, 1)
    weighted, of_weights = read(TABLE, Y, weight)
    times = np.repeat(np.arange(N), weight)
    copied, of_copies = read(TABLE.iloc[times], Y[times])
    order = lambda rows: np.lexsort([rows.X[:, -1]])
    a, b = order(weighted), order(copied)
    np.testing.assert_allclose(weighted.X[a], copied.X[b], rtol=1e-12)
    np.testing.assert_array_equal(weighted.weights[a], copied.weights[b])
    names = zip(of_weights.columns[0].table, of_copies.columns[0].table, strict=True)
    for one, other in names:
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_rows_of_weight_0_leave_no_trace():
    """Neither their targets, nor their levels, medians and far values: encoder and rows are those without them."""
    table, y, weight = TABLE.copy(), Y.copy(), np.ones(N)
    weight[SHOP < 10] = 0
    table.loc[weight == 0, "x"], y[weight == 0] = 1e9, 100.0
    table.loc[5:30, "x"] = np.nan
    kept = weight > 0
    rows, encoder = read(table, y, weight)
    expected, without = read(table[kept], y[kept])
    assert encoder == without
    np.testing.assert_array_equal(rows.X, expected.X)
    np.testing.assert_array_equal(rows.y, expected.y)
    X = table.drop(columns="shop").assign(z=y).to_numpy()
    rows, encoder = read(X, y, weight)
    expected, without = read(X[kept], y[kept])
    assert encoder == without
    np.testing.assert_array_equal(rows.X, expected.X)


def test_no_row_sees_its_target_through_a_copy():
    times = np.repeat(np.arange(N), 2)
    copied, y = TABLE.iloc[times], Y[times]
    encoder = TableEncoder.fit(copied, targets=CategoryTargets.of(y, 0))
    found = encoder.in_folds(encoder.transform(copied), copied, CategoryTargets.of(y, 0))
    np.testing.assert_array_equal(found[::2], found[1::2])
    for row in (0, 17, 101):
        changed = y.copy()
        changed[2 * row : 2 * row + 2] = 50.0
        again = encoder.in_folds(encoder.transform(copied), copied, CategoryTargets.of(changed, 0))
        np.testing.assert_array_equal(again[2 * row], found[2 * row])
        assert not np.array_equal(again, found)


@pytest.fixture(scope="module", params=["kernel", "trees", "features"])
def fitted(request):
    made = {
        "kernel": KernelGPRegressor(learner=None, random_state=0),
        "trees": KernelGPRegressor(learner=None, random_state=0, mean="trees"),
        "features": FeatureGPRegressor(
            "rff", n_features=20, learner=learners.SCGD(epochs=3, learning_rate=0.01), random_state=0
        ),
    }
    return made[request.param].fit(TABLE, Y)


def test_a_new_level_is_a_random_one_of_the_known(fitted):
    """Mean and variance are those of the mixture of predictions for known levels; the variance of f counts that between them."""
    rule = fitted._fitted.encoder.columns[0]
    ranked = at_ranks(rule.table, STAND_INS)
    names = [rule.categories[np.flatnonzero((np.array(rule.table) == row).all(axis=1))[0]] for row in ranked]
    x = [-1.0, 0.5]
    new = pd.DataFrame({"shop": ["new", "newer"], "x": x})
    known = pd.DataFrame({"shop": np.repeat(names, 2), "x": np.tile(x, STAND_INS)})
    for include_noise in (False, True):
        mean, std = fitted.predict(new, return_std=True, include_noise=include_noise)
        means, stds = (
            part.reshape(STAND_INS, 2)
            for part in fitted.predict(known, return_std=True, include_noise=include_noise)
        )
        np.testing.assert_allclose(mean, means.mean(axis=0), rtol=1e-5)
        expected = np.mean(stds**2, axis=0) + means.var(axis=0, ddof=1)
        np.testing.assert_allclose(std**2, expected, rtol=1e-3)
    np.testing.assert_allclose(fitted.predict_distribution(new).std, std, rtol=1e-6)
    covariance = fitted.predict(new, return_cov=True)[1]
    of_f = fitted.predict(new, return_std=True)[1]
    np.testing.assert_allclose(np.diag(covariance), of_f**2, rtol=1e-5)
    both = fitted.predict(pd.concat([new, TABLE[:5]]))
    np.testing.assert_allclose(both[2:], fitted.predict(TABLE[:5]), rtol=1e-6)


def test_draws_at_a_new_level_have_its_variance():
    """Of a model that is linear in features, row by row; moments of 400 draws within four standard errors."""
    model = FeatureGPRegressor("linear", random_state=0).fit(TABLE, Y)
    new = pd.DataFrame({"shop": ["new", "newer", "s3"], "x": [-1.0, 0.5, 0.5]})
    mean, std = model.predict(new, return_std=True)
    draws = model.sample_y(new, 400, random_state=1)
    np.testing.assert_allclose(draws.var(axis=1) / std**2, 1.0, atol=4 * np.sqrt(2 / 400))
    np.testing.assert_allclose((draws.mean(axis=1) - mean) / std, 0.0, atol=4 / np.sqrt(400))
    assert abs(np.corrcoef(draws[:2])[0, 1]) < 4 / np.sqrt(400)


def test_missing_levels_that_were_learned_from_are_no_new_ones():
    table = TABLE.copy()
    table.loc[:80, "shop"] = None
    model = KernelGPRegressor(learner=None, random_state=0).fit(table, Y)
    rows = pd.DataFrame({"shop": [None, "new"], "x": [0.0, 0.0]})
    fitted = model._fitted
    X = fitted.encoder.transform(rows)
    assert known_instead(fitted.encoder, X)[0].tolist() == [False, True]
    std = model.predict(rows, return_std=True)[1]
    assert std[1] > 1.5 * std[0]


def test_intervals_of_new_levels_hold_what_they_say():
    """95 % within four standard errors, rows of one level taken together: 400 new levels, hyperparameters known to the model."""
    effect = RNG.normal(size=400)
    x = RNG.uniform(-2, 2, 400)
    y = effect + np.sin(x) + 0.3 * RNG.normal(size=400)
    model = KernelGPRegressor(random_state=0)
    interval = model.fit(TABLE, Y).predict_interval(
        pd.DataFrame({"shop": [f"n{i}" for i in range(400)], "x": x})
    )
    held = np.mean((interval[:, 0] <= y) & (y <= interval[:, 1]))
    assert abs(held - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 400)
