"""Rows in files, block by block: what is found of them is what the whole table says, whatever its type, its order and its division into files."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.feather as pa_feather
import pyarrow.parquet as pa_parquet
import pytest

from stochgp import data
from stochgp.data.files import FileSource, open_files, row_hashes, with_targets
from stochgp.data.rows import NO_ROWS
from stochgp.tables import files as files_module

N = 700
WRITERS = {
    ".parquet": pa_parquet.write_table,
    ".feather": pa_feather.write_feather,
    ".csv": pa_csv.write_csv,
    ".csv.gz": pa_csv.write_csv,
}


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(files_module, "BLOCK_ROWS", 64)
    monkeypatch.setattr(files_module, "CSV_BYTES", 2048)


@pytest.fixture(scope="module")
def table():
    """Numbers, whole ones first and then a half, text, times and truth values."""
    rng = np.random.default_rng(0)
    whole = rng.integers(-5, 5, N).astype(float)
    whole[-3] = 0.5
    start = np.datetime64("2013-01-30T22:00:00", "s")
    return pa.table({
        "a": 1e6 + rng.normal(size=N),
        "whole": whole,
        "text": rng.choice(["x", "why", "é"], N),
        "time": start + rng.integers(0, 10**6, N),
        "truth": rng.random(N) < 0.3,
        "y": rng.normal(size=N),
    })  # fmt: skip


def written(table, path):
    suffix = "".join(path.suffixes)
    if suffix == ".csv.gz":
        with pa.CompressedOutputStream(path, "gzip") as stream:
            pa_csv.write_csv(table, stream)
    else:
        WRITERS[suffix](table, path)
    return path


def opened(source, sample=N, missing="refuse"):
    return open_files(replace(source, target="y"), seed=0, n_sample=lambda n_inputs: sample, missing=missing)


def rows_of(source, **options):
    return opened(source, **options)[0]


def sample_of(source, **options):
    return opened(source, **options)[1]


def pair(rows):
    return rows.X, rows.y


def in_order(X, y):
    return np.column_stack([X, y])[np.lexsort(np.column_stack([X, y]).T)]


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_survey_finds_what_the_whole_table_says(table, tmp_path, suffix):
    found, sample, _ = opened(FileSource.of(written(table, tmp_path / f"rows{suffix}")))
    encoder = data.TableEncoder.fit(table.drop_columns(["y"]))
    X, y = encoder.transform(table), table["y"].to_numpy()
    whole = data.Standardiser.fit(X)
    assert found.encoder.output_names == encoder.output_names
    np.testing.assert_array_equal(found.encoder.transform(table), encoder.transform(table))
    assert found.size == N
    np.testing.assert_allclose(found.of_rows.standardiser().mean[:-1], whole.mean, rtol=1e-12)
    np.testing.assert_allclose(found.of_rows.standardiser().scale[:-1], whole.scale, rtol=1e-11)
    np.testing.assert_array_equal(in_order(*pair(sample)), in_order(X, y))


def test_a_sample_depends_neither_on_the_order_of_rows_nor_on_their_files(table, tmp_path):
    one = sample_of(FileSource.of(written(table, tmp_path / "one.parquet")), sample=100)
    order = np.random.default_rng(1).permutation(N)
    for part, rows in enumerate(np.array_split(order, 5)):
        (tmp_path / "many" / str(part % 2)).mkdir(parents=True, exist_ok=True)
        written(table.take(rows), tmp_path / "many" / str(part % 2) / f"{part}.parquet")
    many = sample_of(FileSource.of(tmp_path / "many"), sample=100)
    for a, b in zip(pair(one), pair(many), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_sample_is_uniform():
    """Each of 40 rows is in a sample of 10 in a quarter of 2,000 draws, within 4 standard errors of the most extreme row."""
    table, drawn = pa.table({"a": np.arange(40.0)}), np.zeros(40)
    for seed in range(2_000):
        drawn[np.argsort(row_hashes(table, ["a"], seed))[:10]] += 1
    error = np.sqrt(2_000 * 0.25 * 0.75)
    assert np.abs(drawn - 500).max() < 4 * error


def test_a_division_is_of_the_rows_and_its_parts_are_all_of_them(table, tmp_path):
    """Times are left out: they are days since the first of each part."""
    path = written(table.drop_columns(["time"]), tmp_path / "rows.parquet")
    rest, aside = FileSource.of(path).divided(0.3, seed=5)
    both = [in_order(*pair(sample_of(part))) for part in (rest, aside)]
    assert len(both[0]) + len(both[1]) == N
    assert abs(len(both[1]) - 0.3 * N) < 4 * np.sqrt(N * 0.3 * 0.7)
    np.testing.assert_array_equal(
        in_order(*pair(sample_of(FileSource.of(path)))),
        np.array(sorted(map(tuple, np.concatenate(both)), key=lambda r: r[::-1])),
    )


def test_hashes_are_of_values_and_fractions_of_rows():
    X = np.random.default_rng(0).normal(size=(20_000, 2))
    order = np.random.default_rng(1).permutation(len(X))
    hashes = lambda X: row_hashes(pa.table({"a": X[:, 0], "b": X[:, -1]}), ["a", "b"])
    np.testing.assert_array_equal(hashes(X[order]), hashes(X)[order])
    np.testing.assert_array_equal(hashes(-np.zeros((1, 1))), hashes(np.zeros((1, 1))))
    for fraction in (0.01, 0.1, 0.5):
        share = (hashes(X) < np.uint64(fraction * 2.0**64)).mean()
        assert abs(share - fraction) < 4 * np.sqrt(fraction * (1 - fraction) / len(X))


@pytest.mark.parametrize("cuts", [[1], [3, 4, 5], [17, 300, 301, 699]])
def test_merged_summaries_are_those_of_all_rows(cuts):
    X = np.random.default_rng(0).normal(size=(N, 3)) * [1.0, 1e-3, 1e6] + [0.0, 1e6, -3.0]
    merged, whole = NO_ROWS, NO_ROWS.plus(X)
    for part in np.split(X, cuts):
        merged = merged.plus(part)
    assert merged.count == N
    for a, b in zip(merged[1:], whole[1:], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_columns_widen_where_later_rows_need_it(tmp_path):
    lines = ["a,b,y", *(f"{i % 7},,1.0" for i in range(600)), "1.5,3,2.0", "x,4,2.0"]
    path = tmp_path / "rows.csv"
    path.write_text("\n".join(lines))
    found = rows_of(FileSource.of(path), missing="auto")
    a, b = found.encoder.columns
    assert (a.kind, a.indicator) == ("number", True) and "'x', at data row 602" in a.caution
    assert (b.kind, b.indicator, b.fill) == ("number", True, 3.5)


def test_imputed_values_are_medians(table, tmp_path):
    values = np.random.default_rng(0).normal(size=N)
    values[::9] = np.nan
    path = written(
        pa.table({"a": pa.array(values, from_pandas=True), "y": table["y"]}), tmp_path / "rows.parquet"
    )
    (rule,) = rows_of(FileSource.of(path), missing="auto").encoder.columns
    assert rule.fill == np.nanmedian(values)


def test_rows_without_a_target_are_as_if_they_were_not_there(tmp_path):
    """Missing, infinite or beyond 1e150, in any file; huge inputs are missing ones."""
    rng = np.random.default_rng(3)
    a, y = rng.normal(size=(2, 600))
    bad = np.array([5, 250, 599])
    y[bad], a[7] = [np.nan, np.inf, 1e200], 1e200
    table = pa.table({"a": a, "y": y})
    (tmp_path / "spoilt").mkdir()
    for part in range(3):
        written(table.slice(200 * part, 200), tmp_path / "spoilt" / f"{part}.parquet")
    good = FileSource.of(written(table.take(np.delete(np.arange(600), bad)), tmp_path / "good.parquet"))
    blocks = FileSource.of(tmp_path / "spoilt")
    (whole, of_whole, none), (found, sample, n) = (opened(of, missing="auto") for of in (good, blocks))
    assert [rule.indicator for rule in found.encoder.columns] == [True]
    assert (found.size, whole.size, n, none) == (597, 597, 3, 0)
    np.testing.assert_array_equal(in_order(*pair(sample)), in_order(*pair(of_whole)))
    place = f"{tmp_path / 'spoilt' / '0.parquet'}: target column 'y' has 1 missing or infinite value"
    with pytest.raises(ValueError, match="the first at data row 6") as refused:
        rows_of(blocks)
    assert str(refused.value).startswith(place)


def test_faults_after_rows_that_were_left_out_have_their_place(tmp_path):
    """A level that the encoder does not know, behind a bad row of the same block."""
    rows = rows_of(
        FileSource.of(written(pa.table({"a": ["x", "z"], "y": [1.0, 2.0]}), tmp_path / "fit.parquet"))
    )
    later = pa.table({"a": ["x", "x", "why"], "y": [1.0, np.nan, 2.0]})
    blocks = FileSource.of(written(later, tmp_path / "later.parquet"))
    encoder = replace(rows.encoder, missing="refuse")
    with pytest.raises(ValueError, match="target column 'y' has 1 missing or infinite value"):
        list(replace(blocks, encoder=encoder, target="y").read())
    (block,) = with_targets(blocks, "y", "auto")
    with pytest.raises(ValueError, match=r"later\.parquet: odd at data row 3"), block.placing():
        raise ValueError("odd at data row 2")


def test_rows_of_weights_are_as_if_they_were_repeated(tmp_path):
    """Whole weights: means and scales of the repeated rows; the column is no input, and rows of weight 0 are not there."""
    rng = np.random.default_rng(0)
    a, y, weight = rng.normal(size=300), rng.normal(size=300), rng.integers(0, 4, 300)
    table = pa.table({"a": a, "w": weight, "y": y})
    found, sample, _ = opened(FileSource.of(written(table, tmp_path / "rows.parquet"), weight="w"))
    whole = data.Standardiser.fit(np.repeat(a, weight)[:, None])
    assert [rule.name for rule in found.encoder.columns] == ["a"]
    assert (found.size, found.count) == ((weight > 0).sum(), weight.sum())
    np.testing.assert_allclose(found.of_rows.standardiser().mean[:-1], whole.mean, rtol=1e-12)
    np.testing.assert_allclose(found.of_rows.standardiser().scale[:-1], whole.scale, rtol=1e-12)
    chosen = np.argsort(sample.X[:, 0])
    np.testing.assert_array_equal(sample.weight[chosen], weight[np.argsort(a)][weight[np.argsort(a)] > 0])
    wrong = pa.table({"a": a, "w": weight - 1.0, "y": y})
    with pytest.raises(ValueError, match="weight column 'w' is negative, -1, at data row"):
        rows_of(FileSource.of(written(wrong, tmp_path / "wrong.parquet"), weight="w"))


@pytest.mark.parametrize("column", ["text", "whole", "time"])
def test_rows_that_belong_together_are_on_one_side_of_a_division(table, tmp_path, column):
    """Whatever their other values and files; and a third of the groups is set aside, within 4 standard errors."""
    days = pa.array(np.datetime64("2013-01-30", "s") + 86_400 * np.random.default_rng(1).integers(0, 90, N))
    table = table.set_column(3, "time", days)
    sides = []
    for name, part in (("a", table.slice(0, 400)), ("b", table.slice(400))):
        written(part, tmp_path / f"{name}.parquet")
        blocks = FileSource.of(tmp_path / f"{name}.parquet", split_by=(column,))
        kept = blocks.only(tuple(name for name in table.column_names if name != column))
        encoder = data.TableEncoder.fit(table.drop_columns(["y", column]))
        for is_aside, half in enumerate(kept.divided(1 / 3, seed=2)):
            for rows in replace(half, encoder=encoder, target="y").read():
                sides += [(key, is_aside) for key in rows.group.tolist()]
    assert len(sides) == N
    groups = dict(sides)
    assert len(set(sides)) == len(groups) == len(table[column].unique())
    assert abs(sum(groups.values()) - len(groups) / 3) < 4 * np.sqrt(len(groups) * 2 / 9)


def test_columns_beside_the_inputs_must_be_there(tmp_path):
    path = written(pa.table({"a": [1.0, 2.0], "y": [1.0, 2.0]}), tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match="no column 'w'"):
        FileSource.of(path, weight="w")
    with pytest.raises(ValueError, match="no column 'day'"):
        FileSource.of(path, split_by=["day"])
    with pytest.raises(TypeError, match="tuple of names"):
        FileSource.of(path, split_by="day")


FAULTS = {
    "a missing value": ("a,y\n" + "1,1\n" * 500 + ",1\n", "column 'a' .* missing .* data row 501"),
    "a missing target": ("a,y\n" + "1,1\n" * 500 + "1,\n", "column 'y' .* data row 501"),
    "a huge value": ("a,y\n" + "1.5,1\n" * 500 + "1e200,1\n", "data row 501: 1e\\+200"),
    "text of too many kinds": ("a,y\n" + "".join(f"t{i},1\n" for i in range(60)), "61 different texts"),
    "no rows": ("a,y\n", "no"),
    "no target": ("a,b\n1,2\n", "column 'y' is not in the table"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_have_their_file_and_row(tmp_path, fault):
    text, message = FAULTS[fault]
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "a.csv").write_text("a,y\n2,1\n" if fault != "no target" else "a,b\n2,1\n")
    (tmp_path / "rows" / "b.csv").write_text(text)
    if fault == "no rows":
        (tmp_path / "rows" / "a.csv").unlink()
    with pytest.raises(ValueError, match=message) as found:
        rows_of(FileSource.of(tmp_path / "rows"))
    assert str(tmp_path) in str(found.value)
    assert "\n" not in str(found.value)


def test_files_that_cannot_be_read_are_named(tmp_path):
    """Before any row is read, when columns are looked for: text that is not UTF-8, ragged rows, a file cut short, no rows."""
    (tmp_path / "latin.csv").write_bytes("größe,y\n1,2\n".encode("latin-1"))
    (tmp_path / "ragged.csv").write_text("a,y\n1,2\n3\n")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1")
    pa_feather.write_feather(pa.table({"a": pa.array([], pa.float64())}), tmp_path / "empty.feather")
    messages = {
        "latin.csv": "no column 'a'",
        "ragged.csv": "cannot be read",
        "cut.parquet": "cannot be read",
        "empty.feather": "no",
    }
    for name, message in messages.items():
        with pytest.raises(ValueError, match=message) as found:
            rows_of(FileSource.of(tmp_path / name).only(("a", "y")))
        assert str(tmp_path / name) in str(found.value) and "\n" not in str(found.value)


def test_folders_of_no_one_type_and_missing_columns_are_refused(tmp_path):
    for name, text in (("a.csv", "a,y\n1,2\n"), ("b.csv", "b,y\n1,2\n")):
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=r"b\.csv.*no column 'a'"):
        rows_of(FileSource.of(tmp_path).only(("a", "y")))
    with pytest.raises(ValueError, match="no column 'c'"):
        FileSource.of(tmp_path).only(("c",))
    (tmp_path / "c.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match="more than one type"):
        FileSource.of(tmp_path)
    with pytest.raises(ValueError, match="no such file"):
        FileSource.of(tmp_path / "other.csv")
