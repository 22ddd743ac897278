"""Tables as people have them: the right numbers with one note a column at most."""

import datetime
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from stochgp.data import TableEncoder, read_table, target_column
from stochgp.storage.trees import decode, encode
from stochgp.tables.categories import FOLDS, WEIGHTS, CategoryTargets
from stochgp.tables.columns import Column
from stochgp.tables.readings import reading_of
from stochgp.tables.rules import bound_of

N = 120
RNG = np.random.default_rng(0)
MOMENTS = [datetime.datetime(2016, 12, 20) + datetime.timedelta(minutes=7331 * i) for i in range(N)]
AMOUNTS = np.round(RNG.normal(size=N) * 3000 - 200, 2)


def fitted(column, **others):
    """(The encoder, the matrix, what is said of the column)."""
    table = pd.DataFrame({"a": pd.Series(column), "other": np.arange(float(len(column))), **others})
    encoder = TableEncoder.fit(table)
    return (
        encoder,
        encoder.transform(table)[:, : len(encoder.columns[0].output_names)],
        encoder.notes.get("a", ""),
    )


def with_commas(x):
    return f"{x:,.2f}".translate(str.maketrans(",.", ".,"))


NUMBERS = {
    "decimal comma": (lambda x: f"{x:.2f}".replace(".", ","), "comma is the decimal mark"),
    "points between thousands": (with_commas, "comma is the decimal mark"),
    "commas between thousands": (lambda x: f"{x:,.2f}", "numbers written as"),
    "dollars": (lambda x: f"{'-' if x < 0 else ''}${abs(x):,.2f}", "in $"),
    "euros behind": (lambda x: f"{with_commas(x)} €", "in €"),
    "code of a currency": (lambda x: f"USD {x:.2f}", "in USD"),
    "per cent": (lambda x: f"{x:.2f}%", "in %"),
    "kilograms": (lambda x: f"{x:.2f} kg", "in kg"),
    "blanks between thousands": (lambda x: f"{x:,.2f}".replace(",", " "), "numbers written as"),
    "apostrophes": (lambda x: f"{x:,.2f}".replace(",", "'"), "numbers written as"),
    "plain text": (lambda x: f" {x:.2f}", ""),
    "powers of ten": (lambda x: f"{x:.6e}", ""),
}  # fmt: skip


@pytest.mark.parametrize("form", NUMBERS)
def test_numbers_as_they_are_written(form):
    write, words = NUMBERS[form]
    _, X, note = fitted([write(x) for x in AMOUNTS])
    np.testing.assert_allclose(X[:, 0], AMOUNTS, rtol=1e-12)
    assert words in note and (words or not note)


DATES = {
    "month first": ("%m/%d/%Y %H:%M", "month first"),
    "day first": ("%d/%m/%Y %H:%M", "day first"),
    "short year": ("%m/%d/%y %H:%M", "month first"),
    "points": ("%d.%m.%Y %H:%M:%S", "day first"),
    "compact": ("%Y%m%dT%H%M%S", ""),
    "colons": ("%Y:%m:%d %H:%M:%S.000", ""),
    "year and points": ("%Y.%m.%d %H:%M", ""),
    "months by name": ("%d-%b-%Y %H:%M", ""),
    "month, day": ("%b %d, %Y %I:%M %p", ""),
    "log of a server": ("%d/%b/%Y:%H:%M:%S", ""),
    "weekday": ("%a, %d %B %Y %H:%M:%S", ""),
}  # fmt: skip


@pytest.mark.parametrize("form", DATES)
def test_dates_as_they_are_written(form):
    pattern, words = DATES[form]
    _, X, note = fitted([moment.strftime(pattern) for moment in MOMENTS])
    expected = [
        [
            (m - MOMENTS[0]) / datetime.timedelta(days=1),
            m.replace(year=2000).timetuple().tm_yday,
            m.weekday(),
            m.hour + m.minute / 60,
        ]
        for m in MOMENTS
    ]
    np.testing.assert_allclose(X, expected, rtol=1e-12, atol=1e-12)
    assert words in note and (words or not note)


@pytest.mark.parametrize("day_first", [True, False])
def test_ambiguous_dates_move_least_from_row_to_row(day_first):
    """Twelve days of February, by day first or by month first."""
    texts = [f"{d}/2/2017" if day_first else f"2/{d}/2017" for d in range(1, 13)]
    with pytest.warns(UserWarning, match=r"column 'a': .* '.*' is taken as 2017-02-01"):
        _, X, note = fitted(texts)
    np.testing.assert_array_equal(X[:, 0], np.arange(12.0))
    assert "unclear whether the day or the month is first" in note


def test_one_ambiguous_date_has_the_day_first():
    one_date = pa.array(["3/4/2017", "3/4/2017"], pa.large_string())
    reading, column = reading_of(Column("day", "text", one_date, np.zeros(2, bool)))
    assert reading.day_first and "'3/4/2017' is taken as 2017-04-03" in column.note


MONTHS = pd.date_range("2014-01-01", periods=48, freq="MS")
DAYS = (MONTHS - MONTHS[0]).days


@pytest.mark.parametrize("form", ["%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y"])
@pytest.mark.parametrize("day", [1, 5])
@pytest.mark.parametrize("shuffled", [False, True])
def test_monthly_dates_are_months_apart_in_either_order_of_day_and_month(form, day, shuffled):
    """First days of 48 months, and fifth days, whose order is that of even spacing, in any order of the rows."""
    order = np.random.default_rng(0).permutation(48) if shuffled else np.arange(48)
    moments = MONTHS[order] + pd.Timedelta(days=day - 1)
    with pytest.warns(UserWarning, match=f"is taken as {(moments[moments.month != day][0]):%Y-%m-%d}"):
        _, X, _ = fitted(moments.strftime(form))
    np.testing.assert_array_equal(X[:, 0], DAYS[order])


def test_hours_of_a_few_days_are_no_first_days_of_months():
    moments = pd.date_range("2014-01-03", periods=96, freq="h")
    with pytest.warns(UserWarning, match="is taken as 2014-01-03"):
        _, X, _ = fitted(moments.strftime("%d/%m/%Y %H:%M"))
    np.testing.assert_allclose(X[:, 0], np.arange(96) / 24)


@pytest.mark.parametrize("form", ["%d/%m/%Y", "%m/%d/%Y"])
def test_other_columns_decide_the_order_of_day_and_month(form):
    """Ten days of March up to the twelfth are ambiguous alone; ten days from the 20th on are not. Nothing is left to be warned of."""
    first = pd.date_range("2014-03-03", periods=10)
    encoder, X, note = fitted(first.strftime(form), b=(first + pd.Timedelta(days=17)).strftime(form))
    np.testing.assert_array_equal(X[:, 0], np.arange(10.0))
    assert "as in other columns" in note and encoder.columns[0].start == first[0].value // 1000


YEAR_MONTHS = [
    "%Y-%m",
    "%Y/%m",
    "%YM%m",
    "%m/%Y",
    "%b-%y",
    "%b'%y",
    "%b %Y",
    "%B %Y",
    "%b. %Y",
    "%Y %b",
    "%Y-%B",
]


@pytest.mark.parametrize("form", YEAR_MONTHS)
def test_months_of_a_year_are_their_first_days(form):
    encoder, X, _ = fitted(MONTHS.strftime(form))
    np.testing.assert_array_equal(X[:, 0], DAYS)
    later = pd.DataFrame({"a": [f"{pd.Timestamp('2019-06-01'):{form}}"], "other": 0.0})
    assert encoder.transform(later)[0, 0] == (pd.Timestamp("2019-06-01") - MONTHS[0]).days


@pytest.mark.parametrize("form", ["{}Q{}", "{}-Q{}", "{} q{}", "Q{1} {0}", "Q{1}/{0}"])
def test_quarters_are_their_first_days(form):
    _, X, _ = fitted([form.format(when.year, when.quarter) for when in MONTHS[::3]])
    np.testing.assert_array_equal(X[:, 0], DAYS[::3])


@pytest.mark.parametrize(
    "texts", [["2014-13", "2014-15"], ["Mar 05", "Dec 21"], ["10-14", "15-19"], ["2014Q5", "2014Q6"]]
)
def test_other_texts_with_numbers_stay_levels(texts):
    encoder, _, _ = fitted(texts * 10)
    assert encoder.columns[0].categories == tuple(sorted(texts))


PERIODS = pd.period_range("2020", periods=4, freq="M")
KINDS = {
    "cut": (pd.cut([1.0, 2.0, 3.0, 2.5], [0, 2, 4]), ("(0, 2]", "(2, 4]")),
    "cut, with a gap": (pd.cut([1.0, 2.0, 3.0, 9.0], [0, 2, 4]), ("(0.0, 2.0]", "(2.0, 4.0]")),
    "intervals": (pd.IntervalIndex.from_breaks([0, 1, 2, 3, 4]), ("(0, 1]", "(1, 2]", "(2, 3]", "(3, 4]")),
    "tuples": (pd.Series([(1, 2), (1, 2), (0, 1), (0, 1)]), ("(0, 1)", "(1, 2)")),
    "categories that are tuples": (pd.Categorical([(1, 2), (1, 2), (0, 1), (0, 1)]), ("(0, 1)", "(1, 2)")),
    "bytes": (np.array([b"a", b"b", b"b", b"a"]), ("a", "b")),
    "bytes as objects": (pd.Series([b"a", b"b", b"b", None], dtype=object), ("a", "b")),
    "bytes of Arrow": (pd.Series([b"a", b"b", b"b", b"a"], dtype=pd.ArrowDtype(pa.binary())), ("a", "b")),
    "periods": (PERIODS, None),
    "categories that are periods": (pd.Categorical(PERIODS), None),
    "periods, with a gap": (pd.Series(PERIODS).where([True, True, True, False]), None),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_what_arrow_has_no_type_for_is_levels_or_dates(kind):
    column, levels = KINDS[kind]
    encoder, X, _ = fitted(column)
    if levels is None:
        np.testing.assert_array_equal(X[:3, 0], [0, 31, 60])
    else:
        assert encoder.columns[0].categories == levels


DIGITS = {
    "%Y%m%d": 7331 * 60,
    "%Y%m": 86_400 * 31,
    "%Y%m%d%H": 3600,
    "%Y%m%d%H%M": 660,
    "%Y%m%d%H%M%S": 7331,
}  # seconds apart


@pytest.mark.parametrize("form", DIGITS)
@pytest.mark.parametrize("kind", [int, float, str])
def test_whole_numbers_that_are_all_dates_are_dates(form, kind):
    moments = pd.date_range("1958-03-29", periods=N, freq=f"{DIGITS[form]}s")
    read = pd.to_datetime(moments.strftime(form), format=form)
    numbers = moments.strftime(form).astype("int64").astype(kind)
    with pytest.warns(UserWarning, match=f"column 'a': .* {int(numbers[0])} is taken as {read[0]:%Y-%m-%d}"):
        encoder, X, note = fitted(numbers)
    np.testing.assert_allclose(X[:, 0], (read - read[0]).total_seconds() / 86_400, atol=1e-9)
    assert "whole numbers are read as dates" in note
    later = pd.DataFrame({"a": [numbers[3], numbers[4]], "other": 0.0})
    np.testing.assert_array_equal(encoder.transform(later)[:, : X.shape[1]], X[3:5])
    bad = pd.DataFrame({"a": [numbers[3], kind(19581342)], "other": 0.0})
    assert "1 value(s) that are not dates are treated as missing" in encoder.encoded(bad)[1][0]


@pytest.mark.parametrize(
    "numbers",
    [
        np.arange(200001, 200001 + N),  # a 13th month
        np.repeat([19580329, 19580330], N // 2),  # of few kinds
        np.append(np.arange(19580301, 19580330), 19580332),
        np.arange(N) * 100.0,
    ],
)
def test_other_whole_numbers_stay_numbers(numbers):
    _, X, note = fitted(numbers)
    np.testing.assert_array_equal(X[:, 0], numbers)
    assert not note


@pytest.mark.parametrize("write", ["{}.0", "{} kg", "{:,}"])
def test_texts_that_are_not_digits_alone_stay_numbers(write):
    days = pd.date_range("1958-03-29", periods=N).strftime("%Y%m%d").astype(int)
    _, X, note = fitted([write.format(day) for day in days])
    np.testing.assert_array_equal(X[:, 0], days)
    assert "dates" not in note


@pytest.mark.parametrize(
    "numbers", [201410000 + np.arange(1, 29), [*range(201401, 201413), *range(20140101, 20140130)]]
)
def test_numbers_of_other_or_mixed_lengths_are_no_dates(numbers):
    np.testing.assert_array_equal(fitted(np.sort(numbers))[1][:, 0], np.sort(numbers))


def test_codes_that_were_declared_categories_stay_levels():
    codes = pd.Series(pd.Categorical(np.resize(["201301", "201303", "201310"], N)))
    assert fitted(codes)[0].columns[0].categories == ("201301", "201303", "201310")


def test_an_array_has_no_dates():
    days = pd.date_range("1958-03-29", periods=N).strftime("%Y%m%d").astype(float).to_numpy()
    assert TableEncoder.fit(days[:, None]).is_plain


def test_zones_are_utc_and_the_kind_stays_at_predict():
    texts = [moment.strftime("%Y-%m-%dT%H:%M:%S+02:00") for moment in MOMENTS]
    encoder, X, _ = fitted(texts)
    assert encoder.columns[0].zoned
    utc = [
        moment.strftime("%d %b %Y %H:%M:%S UTC") for moment in np.array(MOMENTS) - datetime.timedelta(hours=2)
    ]
    table = pd.DataFrame({"a": utc, "other": np.arange(float(N))})
    np.testing.assert_array_equal(encoder.transform(table)[:, :4], X)


def test_times_of_day_are_hours_and_durations_seconds():
    times = [moment.time() for moment in MOMENTS]
    hours = [t.hour + t.minute / 60 for t in times]
    for column in (times, [t.strftime("%H:%M:%S") for t in times], [t.strftime("%I:%M %p") for t in times]):
        _, X, note = fitted(column)
        np.testing.assert_allclose(X[:, 0], hours)
        assert "in hours" in note
    _, X, note = fitted(pd.to_timedelta(hours, unit="h"))
    np.testing.assert_allclose(X[:, 0], np.array(hours) * 3600)
    assert "in seconds" in note


@pytest.mark.parametrize("words", [("no", "yes"), ("FALSE", "TRUE"), ("N", "Y"), ("f", "t"), ("off", "on")])
def test_yes_and_no_are_one_and_zero(words):
    flags = RNG.random(N) < 0.5
    _, X, _ = fitted(np.array(words)[flags.astype(int)])
    np.testing.assert_array_equal(X[:, 0], flags)


@pytest.mark.parametrize("bad", ["unknown", "2017-13-45"])
def test_a_few_cells_that_cannot_be_read_are_missing_and_named(bad):
    numbers = [f"{x:.2f} kg" for x in AMOUNTS]
    dates = [moment.strftime("%d/%m/%Y") for moment in MOMENTS]
    for texts in (numbers, dates):
        texts = list(texts)
        texts[40] = bad
        encoder, X, note = fitted(texts)
        assert encoder.columns[0].indicator and np.flatnonzero(X[:, -1]).tolist() == [40]
        assert f"the first, {bad!r}, at data row 41" in note
    texts[50] = texts[60] = bad  # more than a hundredth
    with pytest.raises(ValueError, match="'a' contains 1.. different texts"):
        TableEncoder.fit(pd.DataFrame({"a": texts * 2}))


def test_mixed_units_are_levels():
    encoder, X, _ = fitted(["3 kg", "3 g"] * 30)
    assert encoder.columns[0].categories == ("3 g", "3 kg") and X.sum() == 60


def test_values_of_several_kinds_are_texts():
    encoder, _, note = fitted(pd.Series([12, "12a", True] * 10, dtype=object))
    assert encoder.columns[0].categories == ("12", "12a", "True") and "several kinds" in note


def test_infinite_values_and_marks_of_missing_ones_are_missing():
    _, X, note = fitted([1.0, np.inf, 3.0, -np.inf, 5.0])
    np.testing.assert_array_equal(X, [[1, 0], [3, 1], [3, 0], [3, 1], [5, 0]])
    assert "2 infinite value(s)" in note and "the first, inf, at data row 2" in note
    _, X, _ = fitted(["?", "u", "v", "-", " N/A"])
    np.testing.assert_array_equal(X, [[0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]])


def test_columns_that_tell_nothing_are_left_out():
    table = pd.DataFrame({
        "Unnamed: 0": np.arange(N), "x": AMOUNTS, "again": AMOUNTS, "one": 7.0, "word": "u", "none": [None] * N,
        "name": [f"person {i}" for i in range(N)], "t": ["u", "v"] * (N // 2), "t2": ["u", "v"] * (N // 2),
    })  # fmt: skip
    encoder = TableEncoder.fit(table)
    assert encoder.output_names == ("x", "t=u", "t=v")
    reasons = {"Unnamed: 0": "only row numbers", "again": "equals the column 'x'", "one": "constant", "word": "constant",
               "none": "no values", "name": "nearly one per row", "t2": "equals the column 't'"}  # fmt: skip
    assert set(encoder.notes) == set(reasons)
    assert all(words in encoder.notes[name] for name, words in reasons.items())
    np.testing.assert_array_equal(encoder.transform(table[["t", "x"]])[:, 0], AMOUNTS)
    assert "differ from the only training value 7," in encoder.encoded(table.assign(one=8.0))[1][0]
    whole = TableEncoder.fit(table[["x", "one"]].iloc[:1])  # one row: nothing varies, and all stays
    assert whole.output_names == ("x", "one")
    assert TableEncoder.fit(np.ones((5, 2))).output_names == ("x0", "x1")  # arrays keep their columns


def test_what_is_new_at_predict_is_said_and_never_an_error():
    table = pd.DataFrame({"x": AMOUNTS, "t": ["u", "v"] * (N // 2), "d": [f"{m:%d/%m/%Y}" for m in MOMENTS]})
    encoder = TableEncoder.fit(table)
    new = pd.DataFrame({"d": ["soon", "1/2/2017"], "t": ["v", "w"], "x": [np.nan, 1.0]})
    X, notes = encoder.encoded(new)
    row = dict(zip(encoder.output_names, X.T, strict=True))
    assert (row["x"][0], row["t=u"][1], row["t=v"][1]) == (np.median(AMOUNTS), 0, 0)
    assert (
        len(notes) == 3 and "the first 'w' at data row 2" in notes[1] and "'soon', at data row 1" in notes[2]
    )


def leaking(frame, y):
    targets = CategoryTargets.of(np.asarray(y, np.float64), 0)
    return TableEncoder.fit(frame, targets=targets).notes


def test_a_column_that_determines_the_target_is_told_and_kept():
    y = RNG.normal(size=N)
    notes = leaking(pd.DataFrame({"x": np.exp(y), "other": RNG.normal(size=N)}), y)
    assert list(notes) == ["x"] and "determines the target" in notes["x"]


def test_values_far_beyond_all_others_are_moved_and_no_other_is():
    x = np.r_[RNG.normal(size=2000), 9831.0, -500.0]
    bound = bound_of(x)
    moved = bound(x)
    np.testing.assert_array_equal(moved[:1990], x[:1990])
    assert 0 < moved[2000] < 25 and -25 < moved[2001] < 0
    grid = np.linspace(-100, 100, 4001)
    assert (np.diff(bound(grid)) > 0).all() and np.abs(np.diff(bound(grid), 2)).max() < 0.01  # smooth
    for ordinary in (
        RNG.normal(size=5000),
        RNG.lognormal(size=5000),
        RNG.exponential(size=500),
        RNG.integers(0, 2, 900),
    ):
        assert bound_of(ordinary.astype(float)) is None


LEVELS = np.array([f"shop {i}" for i in range(70)])
SHOP = RNG.integers(0, 70, 900)
TARGET = RNG.normal(size=70)[SHOP] * 2 + 5 + RNG.normal(size=900)
SHOPS = pd.DataFrame({"shop": LEVELS[SHOP], "x": RNG.normal(size=900)})


def statistics(level, codes, y, scale):
    """By plain loops: (shrunk mean, log(1 + n), log of the shrunk standard deviation) of a level; None for no level."""
    sizes, means, squares = {}, {}, {}
    for one in set(codes):
        rows = [y[i] for i in range(len(y)) if codes[i] == one]
        sizes[one], means[one] = len(rows), sum(rows) / len(rows)
        squares[one] = sum((value - means[one]) ** 2 for value in rows)
    n, mean = len(y), sum(y) / len(y)
    between = sum(sizes[one] * (means[one] - mean) ** 2 for one in sizes) / (len(sizes) - 1)
    within = sum(squares.values()) / (n - len(sizes))
    size = (n - sum(v**2 for v in sizes.values()) / n) / (len(sizes) - 1)
    k = min(max(within / ((between - within) / size), WEIGHTS[0]), WEIGHTS[1])
    m = sizes.get(level, 0)
    shrunk = (m * means.get(level, 0) + k * mean) / (m + k)
    return shrunk, np.log1p(scale * m), 0.5 * np.log((squares.get(level, 0) + k * within) / (m + k))


def test_statistics_of_levels_equal_plain_loops():
    targets = CategoryTargets.of(TARGET, 3)
    encoder = TableEncoder.fit(SHOPS, targets=targets)
    assert encoder.output_names == ("shop.mean", "shop.log count", "shop.log spread", "x")
    found, training = encoder.transform(SHOPS), encoder.in_folds(encoder.transform(SHOPS), SHOPS, targets)
    for i in range(0, 900, 97):
        np.testing.assert_allclose(found[i, :3], statistics(SHOP[i], SHOP, TARGET, 1.0), rtol=1e-10)
        other = targets.fold != targets.fold[i]
        expected = statistics(SHOP[i], SHOP[other], TARGET[other], 900 / other.sum())
        np.testing.assert_allclose(training[i, :3], expected, rtol=1e-10)
    assert np.bincount(targets.fold).tolist() == [900 // FOLDS] * FOLDS


def test_no_row_sees_its_own_target():
    targets = CategoryTargets.of(TARGET, 0)
    encoder = TableEncoder.fit(SHOPS, targets=targets)
    before = encoder.in_folds(encoder.transform(SHOPS), SHOPS, targets)
    for i in (0, 450, 899):
        changed = TARGET.copy()
        changed[i] += 1000
        targets = CategoryTargets.of(changed, 0)
        after = (again := TableEncoder.fit(SHOPS, targets=targets)).in_folds(
            again.transform(SHOPS), SHOPS, targets
        )
        np.testing.assert_array_equal(after[i], before[i])
        assert (after != before).any()


def test_a_level_that_is_new_is_the_prior_and_groups_share_a_fold():
    targets = CategoryTargets.of(TARGET, 0, group=SHOP)
    assert all(len(set(targets.fold[shop == SHOP])) == 1 for shop in range(70))
    encoder = TableEncoder.fit(SHOPS, targets=targets)
    X, notes = encoder.encoded(pd.DataFrame({"shop": ["shop 5", "shop X", None], "x": 0.0}))
    np.testing.assert_allclose(X[1, :2], [TARGET.mean(), 0.0])
    np.testing.assert_array_equal(X[2], X[1])
    assert "missing" in notes[0] and "'shop X' at data row 2" in notes[0]
    np.testing.assert_allclose(
        encoder.in_folds(encoder.transform(SHOPS), SHOPS, targets)[:, 1], 0.0
    )  # no other fold has the level


def test_classes_have_the_share_of_each_within_a_level():
    y = (TARGET > 5).astype(int) + (TARGET > 7)
    for classes, n in ((y, 3), (np.minimum(y, 1), 1)):
        targets = CategoryTargets.of(classes.astype(float), 0, classes=True)
        encoder = TableEncoder.fit(SHOPS, targets=targets)
        assert len(encoder.output_names) == n + 2  # log count and x
        share = encoder.transform(SHOPS)[:, 0]
        assert np.corrcoef(share, classes == targets.values.shape[1] - n + (n == 1))[0, 1] ** 2 > 0.05


def test_thousands_of_levels_and_files_of_models_keep_the_rules():
    names = np.array([f"id {i}" for i in range(5000)])[RNG.integers(0, 5000, 20_000)]
    table = pd.DataFrame(
        {
            "id": names,
            "price": [f"${x:,.2f}" for x in RNG.exponential(2000, 20_000)],
            "far": np.r_[RNG.normal(size=19_999), 1e6],
        }
    )
    targets = CategoryTargets.of(RNG.normal(size=20_000), 0)
    encoder = TableEncoder.fit(table, targets=targets)
    again = decode(json.loads(json.dumps(encode(encoder, {}))), {})
    assert again == encoder and again.notes == encoder.notes and len(again.notes) == 3
    np.testing.assert_array_equal(again.transform(table[:50]), encoder.transform(table[:50]))


CSV = "name;größe;tag;\n" + "".join(
    f"n{i % 3};{i},5;{1 + i % 28}.{1 + i // 28}.2020;{i}\n" for i in range(84)
)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_a_file_with_semicolons_decimal_commas_and_points_in_dates(tmp_path, encoding):
    path = tmp_path / "t.csv"
    path.write_bytes((CSV + "\n;;;\n").encode(encoding))
    table = read_table(path)
    assert table.column_names == ["name", "größe", "tag", "Unnamed: 3"]
    encoder = TableEncoder.fit(table.slice(0, 84))
    assert encoder.output_names == (
        "name=n0",
        "name=n1",
        "name=n2",
        "größe",
        "tag.days",
        "tag.weekday",
    )
    X = encoder.transform(table)
    np.testing.assert_array_equal(X[:84, 3], np.arange(84) + 0.5)
    days = [
        (datetime.date(2020, 1 + i // 28, 1 + i % 28) - datetime.date(2020, 1, 1)).days for i in range(84)
    ]
    np.testing.assert_array_equal(X[:84, 4], days)


def test_targets_with_marks_are_numbers_and_others_are_refused():
    for text, value in (("$1,200", 1200), ("12%", 12), ("1.234,50 €", 1234.5)):
        np.testing.assert_array_equal(target_column(pa.table({"y": [text] * 3}), "y"), [value] * 3)
    with pytest.raises(
        ValueError, match="'y' contains text \\('none' at data row 2\\); the target must be numbers"
    ):
        target_column(pa.table({"y": ["1", "none", "2"]}), "y")
