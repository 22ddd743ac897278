"""Estimators of tables as people have them: what is learned from, what is said, and what stays at predict, in files and in updates."""

import numpy as np
import pandas as pd
import pytest

from stochgp import KernelGPRegressor, SparseGPClassifier, learners, load
from stochgp.context import FitContext
from stochgp.data.reading import read_training_rows
from stochgp.tables.categories import CategoryTargets

RNG = np.random.default_rng(0)
N = 400
SHOP = RNG.integers(0, 80, N)
PRICE = RNG.uniform(1, 9, N)
Y = RNG.normal(size=80)[SHOP] * 3 + np.sin(PRICE) + 0.1 * RNG.normal(size=N)
TABLE = pd.DataFrame({"shop": [f"shop {i}" for i in SHOP], "price": [f"€{x:.3f}" for x in PRICE], "one": 1.0})


def model():
    return KernelGPRegressor(learner=None, random_state=3)


def rows_of(table, y, **options):
    context = FitContext(estimator := model())
    return *read_training_rows(estimator, table, y, None, None, context, **options), context.plan_


@pytest.fixture(scope="module")
def fitted():
    return model().fit(TABLE, Y)


def test_training_rows_are_out_of_fold_and_new_rows_are_not(fitted):
    """By the seed of the estimator; the rows of the posterior are those, standardised."""
    encoder = fitted._fitted.encoder
    expected = encoder.in_folds(encoder.transform(TABLE), TABLE, CategoryTargets.of(Y, 3))
    rows, found, told = rows_of(TABLE, Y)
    assert found == encoder and found.output_names[0] == "shop.mean"
    key = lambda X: X[np.lexsort(X.T)]
    np.testing.assert_array_equal(key(rows.X), key(expected))
    assert set(told["columns"]["choice"]) == {"shop", "price", "one"}
    assert (encoder.transform(TABLE) != expected).any()


def test_notes_are_in_the_summary_and_predictions_in_files(fitted, tmp_path):
    text = " ".join(fitted.summary().split())
    assert (
        "Note: column 'shop': 80 different texts" in text
        and "Note: column 'price': numbers written as" in text
    )
    new = TABLE[:5].assign(
        shop=["shop 1", "?", "shop none", "shop 2", "shop 3"], price=["€1", None, "free", "2", "€3"]
    )
    fitted.save(tmp_path / "m")
    with pytest.warns(UserWarning, match="column 'price': 1 value.* are not numbers .*'free', at data row 3"):
        np.testing.assert_array_equal(load(tmp_path / "m").predict(new), fitted.predict(new))
    before = fitted._fitted.encoder
    again = load(tmp_path / "m").update(TABLE[:3].assign(shop="shop none"), Y[:3])
    assert again._fitted.encoder == before


def test_rows_without_a_target_are_as_if_they_were_not_there():
    y = np.where(np.arange(N) == 7, np.nan, Y)
    weight = 1.0 + np.arange(N) % 2
    good = np.delete(np.arange(N), 7)
    said = "1 rows of 400 are ignored: 1 without a target \\(the first: data row 8"
    with pytest.warns(UserWarning, match=said) as warned:
        found = model().fit(TABLE, y, weight)
    assert len(warned) == 1
    whole = model().fit(TABLE.iloc[good], Y[good], weight[good])
    np.testing.assert_array_equal(found.predict(TABLE), whole.predict(TABLE))
    assert found.plan_["unused_rows"]["choice"] == 1
    table = TABLE.copy()
    table.loc[[11, 12]] = np.nan
    with pytest.warns(UserWarning, match="2 missing value.* in a column with no missing values at fit"):
        assert len(found.predict(table)) == N
    with pytest.raises(ValueError, match="Input y contains NaN: 1 such .*, the first at row 8"):
        model().set_params(missing="refuse").fit(TABLE, y)


def test_blocks_of_time_are_whole_in_a_fold():
    """Errors of neighbours in time that agree: the same rows, with statistics by the other blocks."""
    when = pd.date_range("2020-01-01", periods=1000, freq="h")
    slow = np.cumsum(RNG.normal(size=1000))
    table = pd.DataFrame({"when": when, "shop": [f"shop {i % 60}" for i in range(1000)]})
    rows, encoder, told = rows_of(table, slow, time_order="auto")
    assert told["time_order"]["choice"] == "forecast"
    order = np.argsort(rows.X[:, 0])
    targets = CategoryTargets.of(slow, 3, rows.group[order])
    np.testing.assert_array_equal(rows.X[order], encoder.in_folds(encoder.transform(table), table, targets))


def test_classes_learn_from_their_shares_within_a_level():
    labels = np.where(np.median(Y) < Y, "high", "low")
    made = SparseGPClassifier(
        n_inducing=16, learner=learners.SVGP(epochs=5, learning_rate=0.03), random_state=0
    )
    found = made.fit(TABLE[["shop", "price"]], labels)
    assert found._fitted.encoder.output_names == ("shop.share of 1", "shop.log count", "price")
    assert (found.predict(TABLE[["shop", "price"]]) == labels).mean() > 0.7


def test_targets_as_text_are_numbers():
    texts = [f"{y:,.6f} kg" for y in 1000 * Y]
    np.testing.assert_array_equal(
        model().fit(PRICE[:, None], texts).predict(PRICE[:9, None]),
        model().fit(PRICE[:, None], np.round(1000 * Y, 6)).predict(PRICE[:9, None]),
    )
    with pytest.raises(ValueError, match="y must be numbers: column 'y' contains text"):
        model().fit(PRICE[:, None], ["a", "b"] * (N // 2))
