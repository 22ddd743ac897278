"""From frames to matrices: one-hot against a plain loop, names, stored rules, and every refusal by name."""

import decimal
import importlib.util
import json

import narwhals as nw
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stochgp.data import TableEncoder, target_column
from stochgp.storage.trees import decode, encode

COLUMNS = {
    "size": [1.5, 2.0, -3.0, 4.0],
    "count": [1, 2, 3, 4],
    "open": [True, False, True, True],
    "town name": ["Ulm", "Bonn", "Ulm", "Köln"],
    "y": [0.1, 0.2, 0.3, 0.4],
}
INPUTS = pd.DataFrame(COLUMNS).drop(columns="y")
MATRIX = np.array([[1.5, 1, 1, 0, 0, 1], [2.0, 2, 0, 1, 0, 0], [-3.0, 3, 1, 0, 0, 1], [4.0, 4, 1, 0, 1, 0]])
NAMES = ("size", "count", "open", "town name=Bonn", "town name=Köln", "town name=Ulm")


def categorical():
    return pd.DataFrame(COLUMNS).astype({"town name": "category", "count": "Int64", "open": "boolean"})


def objects():
    frame = pd.DataFrame(COLUMNS).astype(object)
    frame["count"] = [decimal.Decimal(value) for value in COLUMNS["count"]]
    return frame


def categories_of_polars(pl):
    return pl.DataFrame(COLUMNS).with_columns(pl.col("town name").cast(pl.Categorical))


def dictionary():
    table = pa.table(COLUMNS)
    return table.set_column(3, "town name", table["town name"].dictionary_encode())


FRAMES = {
    "pandas": lambda: pd.DataFrame(COLUMNS),
    "categorical": categorical,
    "objects": objects,
    "pyarrow": lambda: pa.table(COLUMNS),
    "dictionary": dictionary,
    "narwhals": lambda: nw.from_native(pa.table(COLUMNS)),
}
if importlib.util.find_spec("polars") is not None:
    FRAMES["polars"] = lambda: importlib.import_module("polars").DataFrame(COLUMNS)
    FRAMES["polars categories"] = lambda: categories_of_polars(importlib.import_module("polars"))


def refusal(call, *arguments):
    with pytest.raises(ValueError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def with_column(name, values):
    return pd.DataFrame(COLUMNS | {name: values})


@pytest.mark.parametrize("fit_on", FRAMES)
@pytest.mark.parametrize("apply_to", FRAMES)
def test_every_frame_gives_the_same_matrix(fit_on, apply_to):
    encoder = TableEncoder.fit(nw.from_native(FRAMES[fit_on]()).drop("y").to_native())
    X = encoder.transform(FRAMES[apply_to]())
    assert encoder.output_names == NAMES and X.dtype == np.float64
    np.testing.assert_array_equal(X, MATRIX)


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.text(max_size=5), min_size=1, max_size=30), st.lists(st.booleans(), min_size=30, max_size=30)
)
def test_one_hot_equals_a_plain_loop(texts, flags):
    texts = [f"v{text}" for text in texts]  # no numbers, dates or yes and no
    frame = pd.DataFrame({"t": pd.Series(texts, dtype=object), "b": flags[: len(texts)]})
    encoder = TableEncoder.fit(frame, missing="refuse")
    levels = sorted(set(texts))
    expected = [
        [float(text == level) for level in levels] + [float(f)] for text, f in zip(texts, flags, strict=False)
    ]
    np.testing.assert_array_equal(encoder.transform(frame), expected)
    assert decode(json.loads(json.dumps(encode(encoder, {}))), {}) == encoder


def test_columns_are_matched_by_name():
    frame = pd.DataFrame(COLUMNS)
    encoder = TableEncoder.fit(INPUTS)
    shuffled = frame[["y", "town name", "open", "size", "count"]].assign(extra=1, other="z")
    np.testing.assert_array_equal(encoder.transform(shuffled), MATRIX)
    assert encoder.unknown(shuffled) == ("y", "extra", "other")
    assert encoder.unknown(INPUTS) == ()


def test_extra_columns_may_hold_anything():
    encoder = TableEncoder.fit(INPUTS)
    frame = with_column("when", pd.to_datetime(["2020-01-01"] * 4)).assign(y=[None] * 4)
    np.testing.assert_array_equal(encoder.transform(frame), MATRIX)


def test_missing_columns_are_named_with_the_nearest():
    encoder = TableEncoder.fit(INPUTS)
    frame = pd.DataFrame(COLUMNS).rename(columns={"town name": "Town_name"}).drop(columns="open")
    assert refusal(encoder.transform, frame) == (
        "the table lacks the columns 'open', 'town name'; for 'open', valid: 'Town_name', 'y'"
    )
    frame = pd.DataFrame(COLUMNS).drop(columns=["open", "y"])
    assert refusal(encoder.transform, frame) == (
        "the table lacks the column 'open'; for 'open', valid: 'size', 'count', 'town name'"
    )
    assert "did you mean 'Size'?" in refusal(
        encoder.transform, pd.DataFrame(COLUMNS).rename(columns={"size": "Size"})
    )


def test_unseen_level_is_named_with_its_row():
    encoder = TableEncoder.fit(INPUTS, missing="refuse")
    message = refusal(encoder.transform, with_column("town name", ["Ulm", "Ulm", "Rom", "Rom"]))
    assert "'town name'" in message and "'Rom' at data row 3" in message and "2 such rows" in message


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1.0, np.nan, np.inf, 4.0], "2 missing or infinite values, the first at data row 2"),
        ([1.0, 2.0, -np.inf, 4.0], "1 missing or infinite value, at data row 3: -inf"),
        (pd.array([1, None, 3, 4], dtype="Int64"), "data row 2: missing"),
        (pd.array([True, None, False, True], dtype="boolean"), "data row 2: missing"),
        (["a", "b", None, "a"], "data row 3: missing"),
        (pd.Series([1, float("nan"), 2, 3], dtype=object), "data row 2"),
        (pd.Series([1, -(10**400), 2, 3], dtype=object), "data row 2: -inf"),
        (pd.Series([decimal.Decimal(1), decimal.Decimal("sNaN")] * 2, dtype=object), "2 missing or infinite"),
        ([None] * 4, "has no values"),
        ([np.nan] * 4, "has no values"),
        (pd.to_datetime(["2020-01-01", None, "2020-01-02", "2020-01-03"]), "data row 2: missing"),
        (
            [1j, 2j, 3j, 4j],
            "contains a value of type complex (1j at data row 1); it must contain numbers, dates or text",
        ),
        (
            pd.Series([1, 2, [3], [4]], dtype=object),
            "contains a value of type list ([3] at data row 3); it must contain numbers, dates or text",
        ),
        (pd.Series([[1], [1], [1], [1]], dtype=object), "contains a value of type list ([1] at data row 1)"),
        (pd.Series([set()] * 4, dtype=object), "'bad'"),
    ],
)
def test_refused_columns_are_named(values, words):
    frame = with_column("bad", values)
    message = refusal(TableEncoder.fit, frame, "refuse")
    assert "'bad'" in message and words in message


def test_integers_up_to_two_to_the_53_are_numbers():
    frame = pd.DataFrame({"n": [2**53, -(2**53)]})
    np.testing.assert_array_equal(TableEncoder.fit(frame).transform(frame)[:, 0], [2.0**53, -(2.0**53)])


def test_sparse_columns_are_numbers():
    frame = pd.DataFrame(
        {"s": pd.arrays.SparseArray([0, 0, 3, 0]), "f": pd.arrays.SparseArray([0.5, 0, 0, 0])}
    )
    np.testing.assert_array_equal(
        TableEncoder.fit(frame).transform(frame), [[0, 0.5], [0, 0], [3, 0], [0, 0]]
    )


@pytest.mark.parametrize("n_levels", [50, 51])
def test_at_most_fifty_levels(n_levels):
    frame = pd.DataFrame({"id": [f"v{i}" for i in range(n_levels)] * 2})
    if n_levels == 50:
        assert TableEncoder.fit(frame).transform(frame).sum() == 100
    else:
        assert "'id' contains 51 different texts" in refusal(TableEncoder.fit, frame)


def test_kinds_that_change_between_fit_and_predict():
    encoder = TableEncoder.fit(INPUTS, missing="refuse")
    assert "contained numbers at fit and contains text now: 'x' at data row 2" in refusal(
        encoder.transform, with_column("size", ["1.5", "x", "2", "3"])
    )
    np.testing.assert_array_equal(encoder.transform(with_column("open", [1, 0, 1, 1])), MATRIX)
    assert "'3' at data row 1" in refusal(encoder.transform, with_column("town name", [3.0, 4.0, 3.0, 4.0]))


def test_categories_of_numbers_match_numbers():
    encoder = TableEncoder.fit(pd.DataFrame({"zone": pd.Categorical([1, 2, 10])}))
    assert encoder.columns[0].categories == ("1", "10", "2")
    np.testing.assert_array_equal(encoder.transform(pa.table({"zone": [10.0, 1.0]})), [[0, 1, 0], [1, 0, 0]])
    codes = pa.table({"zone": pa.array([10, 1]).dictionary_encode()})
    np.testing.assert_array_equal(encoder.transform(codes), [[0, 1, 0], [1, 0, 0]])


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int8, np.uint64, bool, object])
def test_arrays_are_matched_by_position(dtype):
    X = np.array([[1, 0], [0, 1], [1, 1]]).astype(dtype)
    encoder = TableEncoder.fit(X)
    np.testing.assert_array_equal(encoder.transform(X), X.astype(np.float64))
    assert encoder.output_names == ("x0", "x1") and not encoder.named and encoder.unknown(X) == ()
    np.testing.assert_array_equal(
        encoder.transform(pd.DataFrame(X, columns=["p", "q"])), X.astype(np.float64)
    )
    assert "expected 2 columns" in refusal(encoder.transform, np.ones((3, 3)))


def test_lists_strings_and_integer_names():
    np.testing.assert_array_equal(TableEncoder.fit([[1, 2], [3, 4]]).transform([[5, 6]]), [[5.0, 6.0]])
    letters = np.array([["a", "b"], ["b", "b"]])
    np.testing.assert_array_equal(TableEncoder.fit(letters).transform(letters), [[1, 0, 1], [0, 1, 1]])
    frame = pd.DataFrame(np.eye(2))
    encoder = TableEncoder.fit(frame)
    assert encoder.output_names == ("0", "1")
    np.testing.assert_array_equal(encoder.transform(frame[[1, 0]]), np.eye(2))


def test_what_is_no_table():
    assert "shape (3,)" in refusal(TableEncoder.fit, np.ones(3))
    assert "no rows" in refusal(TableEncoder.fit, np.ones((0, 2)))
    assert "no rows" in refusal(TableEncoder.fit, pd.DataFrame(COLUMNS).iloc[:0])
    assert "no columns" in refusal(TableEncoder.fit, np.ones((3, 0)))
    repeated = pd.DataFrame(np.ones((2, 2)), columns=["a", "a"])
    refusal(TableEncoder.fit, repeated)


@pytest.mark.parametrize("frame", FRAMES)
def test_target_is_a_numeric_column(frame):
    np.testing.assert_array_equal(target_column(FRAMES[frame](), "y"), COLUMNS["y"])
    np.testing.assert_array_equal(target_column(FRAMES[frame](), "open"), [1, 0, 1, 1])


def test_one_row_with_a_missing_value():
    encoder = TableEncoder.fit(INPUTS, missing="refuse")
    row = pd.DataFrame(COLUMNS).iloc[:1].assign(size=np.nan)
    assert "'size' has 1 missing or infinite value, at data row 1" in refusal(encoder.transform, row)


def test_target_refusals():
    frame = pd.DataFrame(COLUMNS)
    assert (
        refusal(target_column, frame, "cout")
        == "target column 'cout' is not in the table; did you mean 'count'?"
    )
    assert "contains text ('Ulm' at data row 1)" in refusal(target_column, frame, "town name")
    assert "target column 'y' has 1 missing or infinite value, at data row 2" in refusal(
        target_column, with_column("y", [1.0, None, 2.0, 3.0]), "y"
    )
    assert "dates or times" in refusal(
        target_column, with_column("y", pd.to_datetime(["2020-01-01"] * 4)), "y"
    )


def test_a_column_without_a_finite_value_is_dropped_at_fit_and_not_at_predict():
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [0.0, 1.0]})
    bad = frame.assign(b=np.inf)
    assert refusal(TableEncoder.fit, bad, "refuse").endswith(
        "column 'b' has no values: all 2 entries are missing or infinite"
    )
    at_predict = refusal(TableEncoder.fit(frame, missing="refuse").transform, bad)
    assert at_predict.endswith("column 'b' has no values: all 2 entries are missing or infinite")
