"""Missing values on request: what stands in for them, what says that they were missing, and what stays refused."""

import json

import numpy as np
import pandas as pd
import pytest

from stochgp import FeatureGPRegressor, KernelGPRegressor, learners
from stochgp.data import TableEncoder, read_table
from stochgp.storage.trees import decode, encode

GAPS = pd.DataFrame(
    {
        "x": [1.0, np.nan, 3.0, 10.0],
        "n": pd.array([None, 2, 4, 4], dtype="Int64"),
        "b": pd.array([True, None, True, False], dtype="boolean"),
        "t": ["u", None, "v", "u"],
        "d": pd.to_datetime(["2011-01-01", "2011-01-05", None, "2011-01-03"]),
        "full": [1.0, 2.0, 3.0, 4.0],
        "word": ["p", "q", "p", "q"],
    }
)
FILLED = {
    "x": [1, 3, 3, 10],
    "x=(missing)": [0, 1, 0, 0],
    "n": [4, 2, 4, 4],
    "n=(missing)": [1, 0, 0, 0],
    "b": [1, 1, 1, 0],
    "b=(missing)": [0, 1, 0, 0],
    "t=u": [1, 0, 0, 1],
    "t=v": [0, 0, 1, 0],
    "t=(missing)": [0, 1, 0, 0],
    "d.days": [0, 4, 2, 2],
    "d.weekday": [5, 2, 0, 0],
    "d=(missing)": [0, 0, 1, 0],
    "full": [1, 2, 3, 4],
    "word=p": [1, 0, 1, 0],
    "word=q": [0, 1, 0, 1],
}


def refusal(call, *arguments, **options):
    with pytest.raises(ValueError) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_medians_levels_and_indicators():
    encoder = TableEncoder.fit(GAPS, missing="auto")
    assert encoder.output_names == tuple(FILLED)
    np.testing.assert_array_equal(encoder.transform(GAPS), np.array(list(FILLED.values())).T)
    assert decode(json.loads(json.dumps(encode(encoder, {}))), {}) == encoder


def test_without_gaps_imputing_is_refusing():
    whole = GAPS[["full", "word"]]
    kept, filled = (TableEncoder.fit(whole, missing=rule) for rule in ("refuse", "auto"))
    assert kept.output_names == filled.output_names
    np.testing.assert_array_equal(kept.transform(whole), filled.transform(whole))


def test_gaps_that_come_only_at_predict():
    encoder = TableEncoder.fit(GAPS, missing="auto")
    names = list(encoder.output_names)
    row = dict(zip(names, encoder.transform(GAPS[:1].assign(full=np.nan, word=None))[0], strict=True))
    assert (row["full"], row["word=p"], row["word=q"]) == (2.5, 0, 0)
    nothing = pd.DataFrame({name: [None] for name in GAPS})
    row = dict(zip(names, encoder.transform(nothing)[0], strict=True))
    assert {name for name, value in row.items() if value == 1} >= {
        name for name in names if "(missing)" in name
    }
    assert (row["x"], row["n"], row["d.days"], row["t=u"], row["t=v"]) == (3, 4, 2, 0, 0)


@pytest.mark.parametrize("column", ["x", "n", "b", "t", "d"])
def test_missing_values_are_refused_on_request_with_the_remedy(column):
    message = refusal(TableEncoder.fit, GAPS[[column]], missing="refuse")
    row = 1 + int(np.argmax(GAPS[column].isna()))
    assert f"{column!r} has 1 missing or infinite value, at data row {row}: missing" in message
    assert 'missing="auto"' in message
    encoder = TableEncoder.fit(GAPS[[column]].dropna(), missing="refuse")
    assert f"at data row {row}" in refusal(encoder.transform, GAPS[[column]])


def test_what_stays_refused():
    for gap in ([np.nan] * 2, [None] * 2, pd.Series([None, float("nan")], dtype=object)):
        assert "no useful column; 'x' is ignored: it has no values" in refusal(
            TableEncoder.fit, pd.DataFrame({"x": gap}), missing="auto"
        )
    assert "unknown missing 'aut'; did you mean 'auto'?" in refusal(TableEncoder.fit, GAPS, missing="aut")


@pytest.mark.parametrize("text", ["?", "NA", "n/a", "", " ?", " NA", "N/A", "NaN", "null"])
def test_marks_of_missing_values_in_text_files(tmp_path, text):
    path = tmp_path / "t.csv"
    path.write_text(f"a,t,d\n1,u,2011-01-01\n{text},{text},{text}\n3,v,2011-01-02\n")
    table = read_table(path)
    assert [table[name].null_count for name in "atd"] == [1, 1, 1]
    names = TableEncoder.fit(table, missing="auto").output_names
    assert names == ("a", "a=(missing)", "t=u", "t=v", "t=(missing)", "d.days", "d.weekday", "d=(missing)")


QUICK = [
    FeatureGPRegressor(
        "rff", n_features=10, learner=learners.BSGD(epochs=1, learning_rate=0.01), random_state=0
    ),
    KernelGPRegressor(learner=None, random_state=0),
]


@pytest.mark.parametrize("model", QUICK, ids=lambda model: type(model).__name__)
def test_estimators_impute_arrays_as_their_encoder_does(model, tmp_path):
    """An array with gaps gives the model of the encoded rows, in fits, predictions and files."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(40, 2))
    y = np.sin(X[:, 0])
    X[generator.random(40) < 0.3, 1] = np.nan
    assert "Input X contains NaN at row" in refusal(model.set_params(missing="refuse").fit, X, y)
    encoded = TableEncoder.fit(X, missing="auto").transform(X)
    assert encoded.shape == (40, 3)
    expected = model.fit(encoded, y).predict(encoded)
    found = model.set_params(missing="auto").fit(X, y)
    np.testing.assert_array_equal(found.predict(X), expected)
    assert found.n_features_in_ == 2
    missing = lambda value: np.where(np.arange(40)[:, None] == [2, 50], value, X)
    with pytest.warns(UserWarning, match="1 (infinite|missing) value\\(s\\)"):
        np.testing.assert_array_equal(found.predict(missing(np.inf)), found.predict(missing(np.nan)))
    assert "unknown missing 'drop'" in refusal(model.set_params(missing="drop").fit, X, y)
    assert "mean is nan" in refusal(model.set_params(missing="refuse", mean=np.nan).fit, X, y)
    model.set_params(mean=None)
    table = pd.DataFrame(X, columns=["a", "b"])
    model.set_params(missing="auto").fit(table, y).save(tmp_path / "model")
    np.testing.assert_array_equal(model.predict(table), expected)
    from stochgp import load

    np.testing.assert_array_equal(load(tmp_path / "model").predict(table), expected)
