"""Files to tables and back: what is read, and the one line that says what is wrong."""

import gzip
import os

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.feather as pa_feather
import pyarrow.parquet as pa_parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stochgp.data import read_table, write_table
from stochgp.tables import files

SMALL = {"a": np.array([1.5, -2.0, 3.25]), "b c": np.array([1, 2, 3])}


def put(folder, name, content):
    path = folder / name
    path.write_bytes(content)
    return path


def refusal(path):
    with pytest.raises(ValueError) as caught:
        read_table(path)
    message = str(caught.value)
    assert "\n" not in message and message.startswith(str(path))
    return message


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".feather"])
def test_written_columns_come_back(tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    write_table(path, SMALL)
    assert read_table(path).to_pydict() == {name: values.tolist() for name, values in SMALL.items()}
    assert os.listdir(tmp_path) == [path.name]


@settings(max_examples=30, deadline=None)
@given(hnp.arrays(np.float64, st.integers(1, 20), elements=st.floats(allow_nan=False, allow_infinity=False)))
def test_csv_keeps_every_bit(tmp_path_factory, values):
    path = tmp_path_factory.mktemp("bits") / "out.csv"
    write_table(path, {"v": values})
    np.testing.assert_array_equal(np.asarray(read_table(path)["v"], np.float64), values)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\xef\xbb\xbfa,b\n1,2\n", {"a": [1], "b": [2]}),
        (b"a,b\r\n1,2\r\n\r\n\r\n", {"a": [1], "b": [2]}),
        (b'"a, x",b c\n"007","x, ""y"""\n8,z\n', {"a, x": [7, 8], "b c": ['x, "y"', "z"]}),
        (b"a,b\n1,NA\n,x\n", {"a": [1, None], "b": [None, "x"]}),
        (b"a\n1e400\n99999999999999999999\n", {"a": [np.inf, 1e20]}),
        (b'a,b\n"two\nlines",1\n', {"a": ["two\nlines"], "b": [1]}),
        (b"a,b\ntrue,1.5\nFalse,2\n", {"a": [True, False], "b": [1.5, 2.0]}),
        (b"0,1\n2,3\n", {"0": [2], "1": [3]}),
        (b"a,b,a\n1,2,3\n", {"a": [1], "b": [2], "a.1": [3]}),
        (b",b\n1,2\n", {"Unnamed: 0": [1], "b": [2]}),
        (b"a;b\n1,5;2\n", {"a": [1.5], "b": [2]}),
        (b"a\tb\n1\t2\n", {"a": [1], "b": [2]}),
        (b"a;b\n1;2,3\n", {"a": [1], "b": [2.3]}),
        ("größe,b\n1,è\n".encode("latin-1"), {"größe": [1], "b": ["è"]}),
    ],
)
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_odd_but_valid_text(tmp_path, content, expected, suffix):
    path = put(tmp_path, f"t{suffix}", gzip.compress(content) if suffix == ".csv.gz" else content)
    assert read_table(path).to_pydict() == expected


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"\n\n", "empty"),
        (b"\xef\xbb\xbf", "empty"),
        (b"a,b\n", "no rows"),
        (b"a,b\n1,2\n3\n", "Row #3: Expected 2 columns, got 1"),
        (b"0.5,1.5\n2,3\n", "first line contains numbers"),
        ("a,b\n1,2\n".encode("utf-16"), "UTF-16"),
        (b'a,b\n"1,2\n3,4\n', "Expected 2 columns"),
    ],
)
def test_faulty_text_is_refused_in_one_line(tmp_path, content, words):
    assert words in refusal(put(tmp_path, "t.csv", content))


def test_path_faults(tmp_path):
    assert "no such file" in refusal(tmp_path / "absent.csv")
    assert "did you mean '.parquet'?" in refusal(put(tmp_path, "t.parquett", b"x"))
    assert "no file type" in refusal(put(tmp_path, "t", b"x"))
    (tmp_path / "folder.csv").mkdir()
    assert "is not a file" in refusal(tmp_path / "folder.csv")


@pytest.mark.parametrize("suffix", [".csv.gz", ".parquet", ".feather"])
@pytest.mark.parametrize("keep", [0.0, 0.02, 0.3, 0.7, 0.99])
def test_truncation_is_refused(tmp_path, suffix, keep):
    whole, values = tmp_path / f"whole{suffix}", np.random.default_rng(0).normal(size=2000)
    if suffix == ".csv.gz":
        whole.write_bytes(gzip.compress(("v\n" + "\n".join(map(repr, values.tolist()))).encode()))
    else:
        write_table(whole, {"v": values})
    assert read_table(whole).num_rows == 2000
    content = whole.read_bytes()
    refusal(put(tmp_path, f"part{suffix}", content[: int(keep * len(content))]))


def test_damage_inside_is_refused(tmp_path):
    refusal(put(tmp_path, "plain.csv.gz", b"a,b\n1,2\n"))
    packed = gzip.compress(b"a,b\n1,2\n")
    refusal(put(tmp_path, "sum.csv.gz", packed[:-8] + bytes(8)))
    write_table(tmp_path / "t.parquet", SMALL)
    content = (tmp_path / "t.parquet").read_bytes()
    refusal(put(tmp_path, "zeros.parquet", content[:20] + bytes(40) + content[60:]))


def test_repeated_names_of_binary_files(tmp_path):
    table = pa.Table.from_arrays([pa.array([1.0]), pa.array([2.0])], ["a", "a"])
    pa_feather.write_feather(table, tmp_path / "t.feather")
    assert read_table(tmp_path / "t.feather").to_pydict() == {"a": [1.0], "a.1": [2.0]}
    pa_parquet.write_table(table.slice(0, 0), tmp_path / "t.parquet")
    refusal(tmp_path / "t.parquet")


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".feather"])
@pytest.mark.parametrize("columns", [{"a": np.array([1j])}, {"a": np.ones(2), "b": np.ones(3)}, {}])
def test_failed_write_leaves_what_was_there(tmp_path, suffix, columns):
    path = put(tmp_path, f"out{suffix}", b"before")
    with pytest.raises(ValueError):
        write_table(path, columns)
    assert path.read_bytes() == b"before" and os.listdir(tmp_path) == [path.name]


def test_failure_in_the_middle_of_writing_leaves_what_was_there(tmp_path, monkeypatch):
    class Failing(pa_csv.CSVWriter):
        def write_table(self, table):
            super().write_table(table)
            raise OSError("disk full")

    monkeypatch.setitem(files._WRITERS, ".csv", Failing)
    path = put(tmp_path, "out.csv", b"before")
    with pytest.raises(ValueError, match="disk full"):
        write_table(path, SMALL)
    assert path.read_bytes() == b"before" and os.listdir(tmp_path) == ["out.csv"]


def test_places_that_cannot_be_written(tmp_path):
    with pytest.raises(ValueError, match="cannot be written"):
        write_table(tmp_path / "absent" / "out.csv", SMALL)
    with pytest.raises(ValueError, match=r"\.txt"):
        write_table(tmp_path / "out.txt", SMALL)
    (tmp_path / "out.csv").mkdir()
    with pytest.raises(ValueError, match="folder"):
        write_table(tmp_path / "out.csv", SMALL)
