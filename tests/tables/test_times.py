"""Dates become numbers: against Python's calendar, from every kind of table, and every refusal by name."""

import datetime
import importlib.util
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stochgp.data import TableEncoder, read_table
from stochgp.storage.trees import decode, encode
from stochgp.tables.times import part_of

START = datetime.datetime(2011, 1, 1)
MOMENTS = [START + datetime.timedelta(hours=h) for h in (30.5, 0, 20000, 7)]
DAYS = [moment.replace(hour=0, minute=0) for moment in MOMENTS]


def parts(moments, start=START):
    """Days since the start, day of a leap year, weekday and hour, by Python's calendar."""
    return [
        [
            (moment - start) / datetime.timedelta(days=1),
            moment.replace(year=2000).timetuple().tm_yday,
            moment.weekday(),
            moment.hour + moment.minute / 60 + moment.second / 3600,
        ]
        for moment in moments
    ]


def written(form):
    return pd.DataFrame({"when": [moment.strftime(form) for moment in MOMENTS]})


TABLES = {
    "pandas": lambda: pd.DataFrame({"when": pd.to_datetime(MOMENTS)}),
    "pandas, in seconds": lambda: pd.DataFrame({"when": pd.to_datetime(MOMENTS).astype("datetime64[s]")}),
    "datetimes": lambda: pd.DataFrame({"when": pd.Series(MOMENTS, dtype=object)}),
    "pyarrow": lambda: pa.table({"when": pa.array(MOMENTS, pa.timestamp("ns"))}),
    "array": lambda: np.array(MOMENTS, "datetime64[m]")[:, None],
    "text": lambda: written("%Y-%m-%d %H:%M:%S"),
    "text, T, minutes": lambda: written("%Y-%m-%dT%H:%M"),
    "text, fractions": lambda: written(" %Y-%m-%dT%H:%M:%S.000000000"),
    "categories": lambda: written("%Y-%m-%d %H:%M:%S").astype("category"),
}
if importlib.util.find_spec("polars") is not None:
    TABLES["polars"] = lambda: importlib.import_module("polars").DataFrame({"when": MOMENTS})


def refusal(call, *arguments, **options):
    with pytest.raises(ValueError) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", TABLES)
def test_every_table_of_times_gives_the_same_numbers(kind):
    encoder = TableEncoder.fit(TABLES[kind]())
    name = encoder.columns[0].name
    assert encoder.output_names == tuple(f"{name}.{part}" for part in ("days", "yearday", "weekday", "hour"))
    for other in TABLES.values():
        if encoder.named and "when" in getattr(other(), "columns", ["when"]) or not encoder.named:
            np.testing.assert_allclose(encoder.transform(other()), parts(MOMENTS), rtol=1e-15)


@pytest.mark.parametrize(
    "column",
    [
        pd.Series([day.date() for day in DAYS], dtype=object),
        pa.array([day.date() for day in DAYS]),
        pa.array([day.date() for day in DAYS], pa.date64()),
        [day.strftime("%Y-%m-%d") for day in DAYS],
    ],
)
def test_dates_have_no_hour(column):
    table = pa.table({"when": column}) if isinstance(column, pa.Array) else pd.DataFrame({"when": column})
    encoder = TableEncoder.fit(table)
    assert encoder.output_names == ("when.days", "when.yearday", "when.weekday")
    np.testing.assert_array_equal(encoder.transform(table), [row[:3] for row in parts(DAYS)])


@given(st.lists(st.datetimes(datetime.datetime(1600, 1, 1), datetime.datetime(2400, 1, 1)), min_size=1))
def test_days_of_the_year_weekdays_and_hours_are_those_of_the_calendar(moments):
    moments = [moment.replace(microsecond=0) for moment in moments]
    table = pa.table({"when": pa.array(moments, pa.timestamp("us"))})
    encoder = TableEncoder.fit(table)
    expected = np.array(parts(moments, min(moments)))
    kept = [True, *(np.ptp(expected[:, 1:], axis=0) > 0)]
    kept[1] = kept[1] and max(moments) - min(moments) > datetime.timedelta(days=366)
    np.testing.assert_allclose(encoder.transform(table), expected[:, kept], rtol=1e-14)
    assert decode(json.loads(json.dumps(encode(encoder, {}))), {}) == encoder


def test_times_with_a_zone_are_utc():
    berlin = pd.DataFrame({"when": pd.to_datetime(MOMENTS).tz_localize("UTC").tz_convert("Europe/Berlin")})
    encoder = TableEncoder.fit(written("%Y-%m-%dT%H:%M:%SZ"))
    python = pd.DataFrame(
        {"when": pd.Series([m.replace(tzinfo=datetime.UTC) for m in MOMENTS], dtype=object)}
    )
    for table in (berlin, python, written("%Y-%m-%d %H:%M:%S+00:00")):
        np.testing.assert_allclose(encoder.transform(table), parts(MOMENTS), rtol=1e-15)
        assert TableEncoder.fit(table).output_names == encoder.output_names
    shifted = pd.DataFrame({"when": ["2011-01-01T02:00:00+02:00"]})
    assert encoder.transform(shifted)[0, 0] == 0.0
    assert "contained dates with a time zone at fit and contains dates without a time zone now" in refusal(
        encoder.transform, TABLES["pandas"]()
    )
    assert "without a time zone at fit and contains dates with a time zone now: 2" in refusal(
        TableEncoder.fit(TABLES["pandas"]()).transform, berlin
    )


def test_the_start_and_the_parts_are_those_of_the_training_rows(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("when,day\n2011-01-03 05:00:00,2011-01-03\n2011-01-03 06:30:00,2011-01-04\n")
    encoder = TableEncoder.fit(read_table(path))
    assert encoder.output_names == ("when.days", "when.hour", "day.days", "day.weekday")
    later = pd.DataFrame({"when": ["2012-01-03 05:00:00"], "day": ["2011-01-02"]})
    np.testing.assert_array_equal(encoder.transform(later), [[365, 5, -1, 6]])


@pytest.mark.parametrize("row", [0, 1, 6, 99])
def test_text_that_is_no_date_is_named_with_its_row(row):
    dates = [f"2011-01-{1 + i % 28:02d}" for i in range(100)]
    encoder = TableEncoder.fit(pd.DataFrame({"when": dates}), missing="refuse")
    dates[row] = "2011-02-30"
    message = refusal(encoder.transform, pd.DataFrame({"when": dates}))
    assert "'when'" in message and f"contains text now: '2011-02-30' at data row {row + 1}" in message


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([5, 6], "'when' contained dates at fit and contains numbers now: 5.0 at data row 1"),
        ([True, False], "contained dates at fit and contains true and false now"),
        (["2011-01-01", None], "'when' has 1 missing or infinite value, at data row 2"),
        (["2011-01-01", "2011-01-01T00:00:00Z"], "contains text now: '2011-01-01T00:00:00Z' at data row 2"),
        (pd.to_timedelta([1, 2]), "contained dates at fit and contains numbers now"),
    ],
)
def test_what_is_given_for_dates_at_predict(values, words):
    encoder = TableEncoder.fit(pd.DataFrame({"when": ["2011-01-01", "2011-01-02"]}), missing="refuse")
    assert words in refusal(encoder.transform, pd.DataFrame({"when": values}))


def test_dates_where_none_were():
    dates = pd.DataFrame({"a": pd.to_datetime(["2011-01-01"])})
    numbers, text = pd.DataFrame({"a": [1.0, 2.0]}), pd.DataFrame({"a": ["u", "v"]})
    assert "contained numbers at fit and contains dates now: 2011-01-01" in refusal(
        TableEncoder.fit(numbers).transform, dates
    )
    assert "contained text at fit and contains dates now: 2011-01-01" in refusal(
        TableEncoder.fit(text).transform, dates
    )


def test_times_with_and_without_a_zone_do_not_mix():
    moments = pd.Series([START, START.replace(tzinfo=datetime.UTC)], dtype=object)
    assert "'when' mixes times with and without a time zone" in refusal(
        TableEncoder.fit, pd.DataFrame({"when": moments})
    )


def test_a_date_has_the_same_number_in_every_year_and_older_files_have_months():
    dates = [datetime.datetime(year, 7, 4) for year in (2023, 2024)] + [datetime.datetime(2023, 3, 1)]
    micros = np.array(dates, "datetime64[us]").astype(np.int64)
    np.testing.assert_array_equal(part_of("yearday", micros, 0), [186, 186, 61])
