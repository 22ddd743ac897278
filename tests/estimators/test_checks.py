"""Data of which a fit knows less than it says: a warning, in one line and with the column, or an honest standard deviation."""

import logging
import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest

from stochgp import FeatureGPRegressor, KernelGPRegressor, learners, likelihoods, load
from stochgp.estimators.diagnostics import FEW_ROWS, Seen

_generator = np.random.default_rng(0)
N = 60
X, X_NEW = _generator.normal(size=(N, 2)), _generator.normal(size=(40, 2))
y = np.sin(X[:, 0]) + 0.1 * _generator.normal(size=N)

FAMILIES = {
    "kernel": lambda: KernelGPRegressor(random_state=0),
    "features": lambda: FeatureGPRegressor(
        "rff", n_features=20, learner=learners.SCGD(epochs=3, learning_rate=0.01), random_state=0
    ),
}


def said(call):
    """The warnings of a call, each in one line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    found = [str(entry.message) for entry in caught]
    assert all(len(text.splitlines()) == 1 for text in found)
    return found


@pytest.mark.parametrize("name", FAMILIES)
def test_usual_data_say_nothing(name):
    model = FAMILIES[name]()
    assert said(lambda: model.fit(X, y)) == []
    assert said(lambda: model.predict(X_NEW, return_std=True)) == []


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize(("share", "says"), [(0.6, True), (0.4, False)])
def test_counts_that_are_mostly_0_are_said(name, share, says):
    counts = np.where(np.arange(N) < share * N, 0.0, 1.0 + np.arange(N) % 5)
    found = said(
        lambda: FAMILIES[name]().set_params(likelihood=likelihoods.Warped("auto", "count")).fit(X, counts)
    )
    assert any("60% of the counts have the smallest value" in text for text in found) == says


@pytest.mark.parametrize("name", FAMILIES)
def test_few_rows_are_said(name):
    """Rows that differ count, however often each is repeated."""
    rows = np.arange(FEW_ROWS - 1)
    rows = np.append(rows, rows[-1])
    assert f"only {FEW_ROWS - 1} different row(s)" in said(lambda: FAMILIES[name]().fit(X[rows], y[rows]))[0]
    assert said(lambda: FAMILIES[name]().fit(X[:FEW_ROWS], y[:FEW_ROWS])) == []


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_that_agree_exactly_are_said(name):
    """Given twice or with weights."""
    twice = np.repeat(np.arange(N), 2)
    said_so = f"the {N} different rows count as {2 * N}"
    for arguments in ((X[twice], y[twice]), (X, y, np.full(N, 2.0))):
        assert said_so in said(lambda given=arguments: FAMILIES[name]().fit(*given))[0]


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_that_count_as_few_are_said(name):
    """Weights that are shares, as of importance sampling; not where rows count a little less than once."""
    assert (
        f"the {N} different rows count as 1 row(s),"
        in said(lambda: FAMILIES[name]().fit(X, y, np.full(N, 1 / N)))[0]
    )
    assert said(lambda: FAMILIES[name]().fit(X, y, np.full(N, 0.6))) == []


def test_what_is_given_is_not_learned_from_few_rows():
    assert said(lambda: KernelGPRegressor("rbf", learner=None).fit(X[:5], y[:5])) == []


@pytest.mark.parametrize("name", FAMILIES)
def test_targets_without_a_scale_are_said(name):
    assert "all targets are equal" in said(lambda: FAMILIES[name]().fit(X, np.full(N, 1e6)))[-1]


def test_one_row_is_no_certainty():
    """The prior of the hyperparameters keeps the variance of one row: far from it, at least half of the starting one."""
    model = KernelGPRegressor(random_state=0)
    with pytest.warns(UserWarning, match="all targets are equal"):
        model.fit(np.zeros((1, 1)), [3.0])
    mean, std = model.predict(np.zeros((1, 1)), return_std=True)
    assert abs(mean[0] - 3) < 0.5 and std[0] > 0.1
    with pytest.warns(UserWarning, match="constant in the training data"):
        std = model.predict(np.full((1, 1), 50.0), return_std=True)[1]
    assert std[0] ** 2 > 0.5


@pytest.mark.parametrize("name", FAMILIES)
def test_an_outlier_is_moved_near_the_others_and_skewed_columns_say_nothing(name):
    far = X.copy()
    far[7, 1] = 1e8
    model = FAMILIES[name]()
    assert said(lambda: model.fit(pd.DataFrame(far, columns=["a", "b"]), y)) == []
    assert "values up to 1e+08 are far from the other values" in model.plan_["columns"]["choice"]["b"]
    assert said(lambda: FAMILIES[name]().fit(np.exp(3 * X), y)) == []


@pytest.mark.parametrize("name", FAMILIES)
def test_a_column_constant_at_fit_and_different_at_predict_is_named(name, tmp_path):
    """By every way to predict, and after a file; equal values, and values equal to rounding, say nothing."""
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(c=0.1)
    model = FAMILIES[name]().set_params(missing="refuse").fit(frame, y)
    model.save(tmp_path / "model")
    moved, same = frame.assign(c=0.2), frame.assign(c=np.float32(0.1))
    for found in (model, load(tmp_path / "model")):
        for name in ("predict", "predict_interval", "sample_y"):
            call = getattr(found, name)
            assert "input column 'c': constant in the training data" in said(partial(call, moved))[0]
            assert said(partial(call, frame)) == said(partial(call, same)) == []


GIVEN = partial(KernelGPRegressor, "rbf", learner=None, time_order="interpolate")


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("factor", [1000.0, 0.001])
def test_a_column_in_another_unit_is_named(named, factor):
    """By half of its rows; not where fewer lie far outside, or where all lie near the range."""
    kilograms = 50 + 50 * _generator.random(N)
    rows = np.column_stack([X[:, 0], kilograms])
    table = lambda x: pd.DataFrame(x, columns=["a", "kg"]) if named else x
    model = GIVEN().fit(table(rows), y)
    assert said(lambda: model.predict(table(rows * [1, 1.2]))) == []
    found = said(lambda: model.predict(table(rows * [1, factor])))
    name = "'kg'" if named else "2"
    assert len(found) == 1 and found[0].startswith(f"{N} of {N} rows are outside the training range")
    assert f"worst: input column {name} is" in found[0]
    few = np.where(np.arange(N)[:, None] < N // 2 - 1, rows * [1, factor], rows)
    assert said(lambda: model.predict(table(few))) == []


def test_what_changes_numbers_is_a_warning_and_in_the_summary():
    """Of any estimator: cells that cannot be read, and an input that determines the target."""
    target = _generator.normal(size=300)
    texts = [f"{x:.2f}" for x in _generator.normal(size=300)]
    texts[41] = "see note"
    frame = pd.DataFrame({"copy": np.exp(target), "amount": texts})
    model = GIVEN()
    found = said(lambda: model.fit(frame, target))
    assert "column 'copy': it alone determines the target (rank correlation 1.00000)" in found[0]
    assert (
        "column 'amount': 1 value(s) that are not numbers" in found[1]
        and "'see note', at data row 42" in found[1]
    )
    summary = " ".join(model.summary().split())
    assert all(line.partition(": ")[2] in summary for line in found)
    read = said(lambda: model.predict(frame.assign(amount=["see note", *texts[1:]])))
    assert read == [
        "column 'amount': 2 value(s) that are not numbers are treated as missing, the first, 'see note', at data row 1"
    ]


def test_ranges_are_those_of_the_rows_and_grow_with_further_ones():
    """By enumeration; a moved constant has its warning, and no place among the rows outside; rounding is not outside."""
    rows = np.column_stack([np.full(5, 7.0), np.arange(5.0), np.full(5, -0.5)])
    seen = Seen(rows.min(axis=0), rows.max(axis=0))
    new = np.array(
        [[7.0, 4.0, -0.5], [7.0, 4.0 + 1e-7, -0.5], [8.0, 4.0, -0.5], [7.0, 4.5, -0.5], [7.0, -3.0, 9.0]]
    )
    assert seen.extrapolation(None, rows) == ("", False) and seen.varying(None, rows) == ""
    text, is_far = seen.extrapolation(None, new)
    assert text.startswith("2 of 5 rows") and "input column 2 is -3 at data row 5, trained on 0 to 4" in text
    assert not is_far and seen.extrapolation(None, new[[4]])[1]
    assert seen.varying(None, new).startswith("input column 1, 3: constant in the training data")
    more = seen.with_rows(new)
    np.testing.assert_array_equal([more.low, more.high], [[7, -3, -0.5], [8, 4.5, 9]])
    assert more.extrapolation(None, new) == ("", False)


def test_rows_outside_of_the_training_range_are_said(caplog, capsys):
    """In the log, and with `verbose` on stderr: how many, and the column that is farthest out, by its name. No warning."""
    frame = pd.DataFrame(X, columns=["a", "b"])
    model = GIVEN().fit(frame, y).set_params(verbose=1)
    caplog.set_level(logging.INFO, "stochgp.estimators")
    new = frame.assign(b=[*X[:50, 1], *np.full(7, 9.5), *X[:2, 1], -30.0])
    assert said(lambda: model.predict(frame)) == [] and "outside" not in caplog.text
    assert said(lambda: model.predict(new)) == []
    for text in (caplog.text, capsys.readouterr().err):
        assert "8 of 60 rows are outside the training range (worst: input column 'b' is -30" in text
