"""DATA of the command line: a table in memory, or blocks of a folder or a large file, and its columns."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet
from jaxtyping import Shaped

from stochgp import data
from stochgp.budget import Budget
from stochgp.cli import reports
from stochgp.data.files import Block, with_targets
from stochgp.tables.categories import CategoryTargets
from stochgp.tables.columns import TableError, rewording
from stochgp.tables.files import DAMAGE, SUFFIXES, TooNarrowError, file_suffix
from stochgp.tables.targets import holds_classes
from stochgp.warning import warn

MAX_SHARE = 0.1  # of the free memory: a table that may take more is read block by block
# Bytes in memory, the matrix of numbers included, for a byte of the file; of .gz for a byte of the text.
EXPANSION = {".parquet": 5}
DEFAULT_EXPANSION = 3
N_COPIES = 3  # of the numbers of a table in memory: its columns, the matrix, the training rows
TYPES = {"number": pa.float64(), "text": pa.string()}  # of a text file's columns at predict

Labelled = tuple[pa.Table, Shaped[np.ndarray, " N"]]  # input columns, and the targets of the same rows


def is_large(source: str, memory_limit: Any) -> bool:
    """Return True for a folder, and for a file that may take much of the memory."""
    path = Path(source)
    if path.is_dir() or not path.is_file():
        return path.is_dir()
    suffix, size = file_suffix(path, SUFFIXES), path.stat().st_size
    if suffix.endswith(".gz"):  # the last four bytes are the length of the text, modulo 2³²
        with path.open("rb") as file:
            file.seek(-min(4, size), 2)
            size = max(4 * size, int.from_bytes(file.read(4), "little"))
    size *= EXPANSION.get(suffix, DEFAULT_EXPANSION)
    if suffix == ".parquet":  # equal values take no room in the file
        with contextlib.suppress(*DAMAGE):  # raised again when the file is read
            found = pa_parquet.read_metadata(path)
            size = max(size, N_COPIES * 8 * found.num_rows * found.num_columns)
    return size > MAX_SHARE * Budget.of(memory_limit).free()


def divided(
    source: str,
    estimator: Any,
    target: str,
    left_out: Sequence[str],
    task: str,
    test_fraction: float | None,
    seed: int,
    **options: Any,
) -> tuple[tuple[Any, Any], Any, bool]:
    """X and y of `fit`, the test rows (None without a fraction) and whether targets are classes.

    Rows are a table, or with `options` of `FileSource.of`, and of much data, blocks. Test rows of blocks are chosen by their values.
    """
    is_of_molecules = getattr(estimator, "smiles", None) is not None
    if any(options.values()) and is_of_molecules:
        raise ValueError("--weight and --split-by are not for molecules")
    classify = task == "classes"
    if any(options.values()) or (is_large(source, estimator.memory_limit) and not is_of_molecules):
        rows = data.FileSource.of(source, **options)
        rows = rows.only(tuple(name for name in rows.names() if name not in left_out))
        if task == "auto":
            block = next(iter(rows.only((target,))))
            with block.placing():
                classify = holds_classes(block.table, target)
        train, test = (rows, None) if test_fraction is None else rows.divided(test_fraction, seed)
        return (train, target), test, classify
    table, imputes = data.read_table(source), estimator.missing != "refuse"
    with naming(source):
        classify = holds_classes(table, target) if task == "auto" else classify
        X, y = split_off(table, target, classify, allow_missing=imputes)
        X = without(X, left_out)
        if test_fraction is None:
            return (X, y), None, classify
        if not is_of_molecules and not imputes:  # before the division: rows of messages are those of the file
            targets = None if classify else CategoryTargets.of(y, seed)
            data.TableEncoder.fit(X, missing="refuse", targets=targets)
    train, test = data.train_test_indices(len(y), test_fraction, seed)
    if not classify:  # rows without a target cannot be scored
        test = test[~np.isnan(y[test])]
    return (X.take(pa.array(train)), y[train]), (X.take(pa.array(test)), y[test]), classify


def parts_of(source: str, estimator: Any, rows: data.FileSource | None = None) -> Iterator[Block]:
    """Yield the rows of DATA for a fitted estimator, as one block if they are few; or those of `rows`.

    Columns of a text file in blocks have the types that they had at the fit.
    """
    if rows is None and not is_large(source, estimator.memory_limit):
        table = data.read_table(source)
        yield Block(table, Path(source), np.arange(table.num_rows))
        return
    rules = estimator._fitted.encoder.columns if estimator._fitted.encoder is not None else ()
    kind_of = lambda rule: rule.kind if rule.reading is None else "text"
    types = {rule.name: TYPES[kind_of(rule)] for rule in rules if kind_of(rule) in TYPES}
    try:
        yield from replace(rows or data.FileSource(Path(source)), types=types)
    except TooNarrowError as narrow:
        raise ValueError(
            f"{source}: column {narrow.name!r} holds other values than its first rows, and than at fit"
        ) from None


def labelled_parts(
    estimator: Any, source: str, target: str, aside: data.FileSource | None = None
) -> Iterator[tuple[Labelled, Block]]:
    """Yield the rows of DATA, or of `aside`, that can be scored, as `parts_of` does.

    Warns of rows without a target, which are left out if missing values are imputed.
    """
    n_rows, dropped = 0, list[int]()
    for block in with_targets(parts_of(source, estimator, aside), target, estimator.missing, dropped):
        with block.placing():
            part = split_off(block.table, target, hasattr(estimator, "classes_"))
        n_rows += len(part[1])
        yield part, block
    if (n_left := sum(dropped)) and aside is None:
        warn(f"{n_left} of {n_rows + n_left} rows are left out of the scores, as a fit would leave them out")


def mean_scores(estimator: Any, parts: Iterable[tuple[Labelled, Block]], source: str) -> dict[str, float]:
    """`reports.scores` of all rows: means over the parts, of the squared error for rmse."""
    total, n_rows = dict[str, float](), 0
    for part, block in parts:
        with block.placing():
            found = reports.scores(estimator, *part)
        n = int(found.pop("n"))
        n_rows += n
        for name, value in found.items():
            total[name] = total.get(name, 0.0) + n * (value**2 if name == "rmse" else value)
    if n_rows == 0:
        raise ValueError(f"{source}: there are no rows to score")
    means = {name: value / n_rows for name, value in total.items()}
    return {"n": n_rows} | {name: v**0.5 if name == "rmse" else v for name, v in means.items()}


def split_off(table: pa.Table, target: str, classify: bool = False, allow_missing: bool = False) -> Labelled:
    """The inputs and the target column of a table: numbers (NaN if missing) or labels.

    Raises ValueError without such a column, or without any other.
    """
    if classify:
        targets = data.label_column(table, target)
    else:
        targets = data.target_column(table, target, allow_missing)
    inputs = without(table, [target])
    if not inputs.column_names:
        raise TableError(f"there are no columns beside the target {target!r}")
    return inputs, targets


def without(table: pa.Table, names: Iterable[str]) -> pa.Table:
    """The table without those of the columns that it has."""
    return table.drop_columns([name for name in names if name in table.column_names])


def naming(source: str) -> contextlib.AbstractContextManager:
    """Add the name of the data to what is wrong with them; rows of blocks know their file."""
    return rewording(lambda text: text if text.startswith(source) else f"{source}: {text}")
