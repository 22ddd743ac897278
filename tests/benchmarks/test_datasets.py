"""Named sets: the published sizes, splits that divide the rows, and where files are looked for."""

import gzip
import hashlib
from pathlib import Path

import numpy as np
import pytest

from benchmarks.datasets import load
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
    monkeypatch.setitem(UCI_SETS, "toy", UCISet(20, 2))
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
    for file, digest in (("data.csv.gz", known.data), (MASK_FILE, known.mask)):
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


def test_the_absent_file_of_hourly_bikes_says_what_to_get_and_where_to_put_it(tmp_path, monkeypatch):
    monkeypatch.setenv("STOCHGP_DATA", str(tmp_path / "given"))
    monkeypatch.setattr("platformdirs.user_cache_dir", lambda name: str(tmp_path / "cache"))
    message = refusal("bike-hourly")
    assert "hour.csv" in message and "275" in message
    assert str(tmp_path / "given" / "bike_hourly") in message and str(tmp_path / "cache") in message
    path = tmp_path / "given" / "bike_hourly" / "hour.csv"
    path.parent.mkdir(parents=True)
    path.write_text("a,b\n1,2\n")
    assert str(path) in refusal("bike-hourly") and "another file" in refusal("bike-hourly")
