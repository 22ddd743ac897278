"""Numbers as tables have them: one decimal mark and unit in a column, and a warning if values are not taken as they are."""

import re

import numpy as np
import pandas as pd
import pytest

from stochgp.data import TableEncoder, read_table
from stochgp.tables.columns import Caution
from stochgp.tables.targets import read_labels, read_targets

RNG = np.random.default_rng(0)
N = 60
SHARE, LENGTH = RNG.uniform(0.1, 0.9, N).round(3), RNG.uniform(1.1, 9, N).round(3)
COMMA = [[f"{x:.3f}".replace(".", ",") for x in part] for part in (SHARE, LENGTH)]


def encoded(column, new=None):
    """(The numbers of the column, its warnings): those of the fit, or those of new values."""
    frame = lambda values: pd.DataFrame({"a": values, "x": np.arange(float(len(values)))})
    encoder = TableEncoder.fit(frame(column))
    X, said = encoder.encoded(frame(column if new is None else new))
    of_fit = [f"column {rule.name!r}: {rule.caution}" for rule in encoder.columns if rule.caution]
    return X[:, 0], of_fit if new is None else said


def test_between_semicolons_a_comma_is_the_decimal_mark(tmp_path):
    pd.DataFrame({"length": COMMA[1], "n": range(N)}).to_csv(tmp_path / "t.csv", sep=";", index=False)
    np.testing.assert_array_equal(read_table(tmp_path / "t.csv")["length"], LENGTH)


def test_a_mark_that_nothing_decides_is_a_warning():
    values, said = encoded(COMMA[1])
    np.testing.assert_array_equal(values, (1000 * LENGTH).round())
    assert "column 'a'" in said[0] and f"in all {N} values, ','" in said[0] and repr(COMMA[1][0]) in said[0]
    with pytest.warns(UserWarning, match="target 'y': in all 60 values, ','"):
        read_targets(COMMA[1])
    for decided in (["1,234", "950"] * N, ["$1,234", "$2,345"] * N, ["1.234", "2.345"] * N):
        assert encoded(decided)[1] == []


FORMS = {
    "per cent beside fractions": (["15%", "0.10"], [0.15, 0.10], ""),
    "per cent without the sign": (["15%", "10"], [15, 10], ""),
    "a currency in some rows": (["€5", "6"], [5, 6], ""),
    "parentheses": (["(1,200.50)", "3,000.25"], [-1200.5, 3000.25], ""),
    "k and M": (["1.2k", "1.3M", "850"], [1200, 1.3e6, 850], ""),
    "k and M of a currency": (["$1.2k", "$1.3M", "$850"], [1200, 1.3e6, 850], ""),
    "hours and minutes": (["2h 50m", "19h", "45m"], [2 + 5 / 6, 19, 0.75], ""),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_odd_numbers_are_read_or_named(form):
    texts, expected, words = FORMS[form]
    values, said = encoded(texts * 20)
    np.testing.assert_allclose(values, expected * 20, rtol=1e-12)
    assert bool(said) == bool(words)
    if words:
        with pytest.warns(UserWarning, match=words):
            read_targets(texts * 20)


@pytest.mark.parametrize("texts", [["3 kg", "3 g"], ["12L", "12M"], ["1.5", "2.5", "3.5", "see note"]])
def test_categories_that_are_mostly_numbers_are_named(texts):
    assert "the whole column is read as categories" in encoded(texts * 20)[1][0]


def test_codes_are_no_numbers_and_get_no_warning():
    assert encoded([f"{10 + i}{letter}" for i, letter in enumerate("ABCDEF")] * 20)[1] == []


def test_cells_that_cannot_be_read_are_warnings_of_the_fit():
    said = encoded([*["1.5", "2.5", "3.5"] * 40, "see note"])[1]
    assert said == [
        "column 'a': 1 value(s) that are not numbers are treated as missing, the first, 'see note', at data row 121"
    ]


NUMBERS = [3.754, 2.5, 4.25] * 20
AT_PREDICT = {
    "thousands": ([45000.0, 900.0] * 20, ["1,200"], [1200], "text is read as numbers, '1,200' as 1200"),
    "a note": (NUMBERS, ["3.5", "see note"], [3.5, 3.754], "1 value.*not numbers.*'see note', at data row 2"),
    "nothing": (NUMBERS, [np.nan] * 3, [3.754] * 3, "3 missing value.*the first at data row 1"),
    "nothing where some were missing": ([*NUMBERS, np.nan], [np.nan] * 30, [3.754] * 30, "30 missing value"),
    "per cent": (NUMBERS, ["15%", "2"], [0.15, 2], "text is read as numbers, '15%' as 0.15"),
    "the same": (["3.5", "4"] * 20, ["3.5", " 2"], [3.5, 2], ""),
}  # fmt: skip


@pytest.mark.parametrize("case", AT_PREDICT)
def test_a_column_that_is_read_otherwise_at_predict_is_named(case):
    column, new, expected, words = AT_PREDICT[case]
    values, said = encoded(column, new)
    np.testing.assert_array_equal(values, expected)
    assert all(isinstance(line, Caution) and line.startswith("column 'a': ") for line in said)
    assert len(said) == bool(words) and re.search(words, "".join(said))


def test_a_column_that_cannot_be_read_at_all_is_refused():
    with pytest.raises(
        ValueError, match="'a' contained numbers at fit and contains text now: 'see note' at data row 1"
    ):
        encoded(NUMBERS, ["see note", "none"])


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        (pd.Series([1, None, 3, 1]), "i"),
        ([1, None, 3, 1], "i"),
        (np.array([1.0, np.nan, 3, 1]), "i"),
        (pd.Series([1, None, 3, 1], dtype="Int64"), "i"),
        (np.array([0.5, np.nan, 3, 1]), "f"),
        ([True, None, False, True], "b"),
        (["a", None, "c", "a"], "U"),
    ],
)
def test_labels_beside_a_missing_one_keep_their_type(labels, kind):
    from stochgp import GPClassifier

    if kind == "f":  # fractions are no classes
        with pytest.raises(ValueError, match="label"):
            read_labels(GPClassifier(), labels)
        return
    classes, numbers = read_labels(GPClassifier(), labels)
    assert classes.dtype.kind == kind and np.isnan(numbers).tolist() == [False, True, False, False]
