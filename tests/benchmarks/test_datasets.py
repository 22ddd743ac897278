"""Named sets: the published sizes, splits that divide the rows, and where files are looked for."""

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
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
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
