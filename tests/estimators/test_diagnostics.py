"""Whether a fit helps: rows predicted by it against a constant, in every family."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from sklearn.exceptions import ConvergenceWarning

from stochgp import KernelGPRegressor, SparseGPClassifier, SparseGPRegressor
from stochgp.data.rows import Data
from stochgp.estimators.diagnostics import caution_of, cells_of, constant_of, scores
from stochgp.learners import BSGD, SVGP

_generator = np.random.default_rng(0)
X = _generator.normal(size=(80, 2))
y = 3 + 5 * np.sin(2 * X[:, 0]) + _generator.normal(size=80)
N = 400
ONES = np.ones(N)


def test_the_constant_knows_mean_and_variance():
    found = constant_of(y, np.ones(80), False).logpdf(y)
    assert_allclose(-np.mean(found), 0.5 * np.log(2 * np.pi * np.e * np.var(y)), rtol=1e-12)


def test_the_constant_of_counts_has_their_mean_and_variance_and_is_poisson_where_these_are_equal():
    counts = _generator.negative_binomial(2, 0.3, 3000).astype(float)
    found = constant_of(counts, np.ones(3000), True)
    assert_allclose(found.mean[0], counts.mean(), rtol=1e-9)
    assert_allclose(found.std[0] ** 2, counts.var(), rtol=1e-9)
    few = np.array([1.0, 2.0, 2.0, 3.0, 1.0])
    assert_allclose(
        constant_of(few, np.ones(5), True).logpdf(few), stats.poisson(few.mean()).logpmf(few), rtol=1e-6
    )


def caution(found, cell=None):
    rows = Data(np.arange(N)[:, None] * 1.0, np.arange(N) * 1.0, None, np.arange(N) if cell is None else cell)
    units = SimpleNamespace(inputs=SimpleNamespace(transform=lambda X, dtype: X))
    return caution_of(units, rows, "rows", lambda *_: found)


def test_a_model_is_worse_by_two_standard_errors_of_cells_or_not_at_all():
    """Differences d per row, alike in cells of 4: their mean must exceed 2/n and 2 √(Σd²/(G(G − 1))) more, of G = 100 cells."""
    noise = _generator.normal(size=100)
    noise = np.repeat((noise - noise.mean()) / noise.std(), 4)
    least = 2 / N + 2 / np.sqrt(99)
    for more, is_worse in ((least + 1e-6, True), (least - 1e-6, False), (-1.0, False), (np.nan, True)):
        found = caution((-noise - more, 0 * ONES, ONES), np.arange(N) // 4)
        assert ("worse than by a constant" in found) == is_worse


def test_next_to_nothing_is_not_worse():
    for more, is_worse in ((2 / N + 0.0101, True), (2 / N + 0.0099, False)):
        assert ("worse" in caution((-more * ONES, 0 * ONES, ONES))) == is_worse


def test_rows_that_count_are_judged_as_equal_rows():
    count = _generator.integers(1, 4, 80).astype(float)
    model = KernelGPRegressor("rbf", learner=None, likelihood="gaussian").fit(X, y)
    rows = Data(X, y + 10 * _generator.normal(size=80), count, np.arange(80) // 4)
    many = rows.take(np.repeat(np.arange(80), count.astype(int)))
    many = Data(many.X, many.y, None, many.group)
    said = [caution_of(model._fitted, part, "rows") for part in (rows, many)]
    assert said[0] == said[1] != ""
    found = constant_of(rows.y, count, False)
    assert_allclose(found.std[0], np.std(many.y), rtol=1e-12)


def test_few_groups_give_way_to_cells_of_near_rows():
    model = KernelGPRegressor("rbf", learner=None, likelihood="gaussian").fit(X, y)
    cells = lambda group: cells_of(Data(X, y, None, group), model._fitted)
    assert np.array_equal(cells(np.arange(80) // 8), np.arange(80) // 8)
    assert len(np.unique(cells(np.arange(80) // 10))) == 64
    assert len(Data(X, y, np.arange(80) % 2).counted()) == 40


def test_intervals_that_hold_too_few_rows_are_said():
    inside = np.where(np.arange(N) < 0.79 * N, 1.0, 0.0)
    assert caution((ONES, 0 * ONES, inside)).startswith("only 79% of rows lie within their 95% intervals")
    assert caution((ONES, 0 * ONES, np.where(np.arange(N) < 0.8 * N, 1.0, 0.0))) == ""


def test_a_useless_fit_warns_and_has_not_converged(monkeypatch):
    """Both families without held-out rows: targets ten standard deviations from what is predicted."""
    shifted = lambda fitted, rows: scores(fitted, dataclasses.replace(rows, y=rows.y + 10 * np.std(rows.y)))
    monkeypatch.setattr("stochgp.estimators.diagnostics.scores", shifted)
    for model in (
        KernelGPRegressor("rbf", learner=BSGD(batch_size=16, epochs=2), random_state=0),
        SparseGPRegressor(n_inducing=8, learner=SVGP(steps=64, learning_rate=0.03), random_state=0),
    ):
        with pytest.warns(ConvergenceWarning, match="training rows are predicted worse than by a constant"):
            model.fit(X, y)
        assert not model.converged_
        assert "training rows are predicted worse" in model.summary()


def test_a_fit_that_helps_says_nothing():
    classes = (y > 3).astype(int)
    for model, targets in (
        (SparseGPRegressor(n_inducing=8, learner=SVGP(steps=64, learning_rate=0.03), random_state=0), y),
        (
            SparseGPClassifier(n_inducing=8, learner=SVGP(steps=64, learning_rate=0.03), random_state=0),
            classes,
        ),
    ):
        assert "caution" not in model.fit(X, targets).plan_


@pytest.mark.parametrize("estimator", [KernelGPRegressor, SparseGPRegressor, SparseGPClassifier])
def test_a_weight_beyond_all_counts_is_refused(estimator):
    weight = np.ones(80)
    weight[7] = 1e200
    with pytest.raises(
        ValueError,
        match=r"sample_weight is 1e\+200, not between 0 and 1e\+30, at row 8 \(rows count from 1\)",
    ):
        estimator().fit(X, (y > 3).astype(int), weight)


@pytest.mark.parametrize(
    ("weight", "words"),
    [
        (np.ones(79), r"sample_weight has the shape \(79,\) for 80 rows"),
        (np.ones((80, 1)), r"sample_weight has the shape \(80, 1\)"),
        (
            np.where(np.arange(80) == 4, -1.0, 1.0),
            r"sample_weight is negative, -1, at row 5 \(rows count from 1\)",
        ),
        (np.where(np.arange(80) == 4, np.nan, 1.0), "sample_weight is nan"),
        (np.zeros(80), "the sum of sample_weight is zero"),
    ],
)
def test_weights_that_are_none_are_refused_in_one_line(weight, words):
    with pytest.raises(ValueError, match=words):
        KernelGPRegressor().fit(X, y, weight)


def test_one_number_is_the_weight_of_every_row():
    found, wanted = (KernelGPRegressor(learner=None).fit(X, y, weight) for weight in (2, np.full(80, 2.0)))
    np.testing.assert_array_equal(found.predict(X), wanted.predict(X))


def test_rows_without_a_target_are_left_out_with_one_number_as_the_weight_too():
    missing = np.where(np.arange(80) == 3, np.nan, y)
    with pytest.warns(UserWarning, match="1 rows of 80 are ignored"):
        model = KernelGPRegressor(learner=None).fit(X, missing, 2.0)
    assert model.plan_["unused_rows"]["choice"] == 1
