"""Named sets: the published sizes, splits that divide the rows, and where files are looked for."""

import gzip
import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.datasets import load
from benchmarks.datasets.tables import TABLES
from benchmarks.datasets.uci import MASK_FILE, UCI_SETS, UCISet

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
needs_shared = pytest.mark.skipif(
    not (SHARED / "uci").is_dir(), reason="needs the data sets in ../shared/data"
)


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
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / "cache"))
    monkeypatch.setattr("pooch.retrieve", refuse)
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


def test_absent_files_say_where_they_were_looked_for(toy_set):
    folder, _ = toy_set
    (folder / "data.csv.gz").unlink()
    message = refusal("uci:toy:0")
    assert str(folder) in message and "no network" in message and "STOCHGP_DATA" in message


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


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("uci:bkie:0", "did you mean 'bike'?"),
        ("uci:bike", "did you mean 'uci:bike:0'?"),
        ("uci:bike:10", "the splits are 0 to 9"),
        ("pm2.5", "did you mean 'pm25'?"),
        ("", "no data set"),
    ],
)
def test_wrong_names(name, words):
    assert words in refusal(name)


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
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / "cache"))
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
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / "cache"))
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
