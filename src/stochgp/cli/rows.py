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
from stochgp.names import did_you_mean, quoted
from stochgp.tables.columns import TableError, rewording
from stochgp.tables.files import DAMAGE, TooNarrowError
from stochgp.tables.levels import LevelTargets
from stochgp.tables.targets import holds_classes
from stochgp.warning import warn

SHARE = 0.1  # of what is free: a table that may take more is read block by block
# Bytes in memory, the matrix of numbers included, for a byte of the file.
TIMES = {".csv": 3, ".csv.gz": 12, ".tsv": 3, ".tsv.gz": 12, ".parquet": 5, ".feather": 3}
NUMBERS = 3  # copies of the numbers of a table in memory: its columns, the matrix, the training rows
TYPES = {"number": pa.float64(), "text": pa.string()}  # of a text file's columns at predict

Labelled = tuple[pa.Table, Shaped[np.ndarray, " N"]]  # input columns, and the targets of the same rows


def is_large(source: str, memory_limit: Any) -> bool:
    """Whether DATA is a folder, or a file that may take much of the memory."""
    path = Path(source)
    if path.is_dir() or not path.is_file():
        return path.is_dir()
    name = path.name.lower()
    suffix = next((suffix for suffix in reversed(TIMES) if name.endswith(suffix)), None)
    if suffix is None:
        return False
    size = TIMES[suffix] * path.stat().st_size
    if suffix == ".parquet":  # equal values take no room in the file
        with contextlib.suppress(*DAMAGE):  # raised again when the file is read
            found = pa_parquet.read_metadata(path)
            size = max(size, NUMBERS * 8 * found.num_rows * found.num_columns)
    if suffix.endswith(".gz"):  # the last four bytes are the length of the text, modulo 2³²
        with path.open("rb") as file:
            file.seek(-min(4, path.stat().st_size), 2)
            size = max(size, TIMES[".csv"] * int.from_bytes(file.read(4), "little"))
    return size > SHARE * Budget.of(memory_limit).free()


def divide_table(
    source: str,
    estimator: Any,
    target: str,
    chosen: tuple[Any, Any],
    task: str,
    test_fraction: float | None,
    seed: int,
) -> tuple[Labelled, Labelled | None, tuple[str, ...], bool]:
    """Training rows, test rows, the columns left out, and whether targets are classes, of a file in memory.

    `chosen` holds the names of --inputs and --ignore. Raises ValueError for columns that do not exist.
    """
    table, imputes = data.read_table(source), estimator.missing != "refuse"
    with naming(source):
        classify = holds_classes(table, target) if task == "auto" else task == "classes"
        X, y = split_off(table, target, classify, allow_missing=imputes)
    left_out = columns_left_out(X.column_names, target, chosen, source)
    X = without(X, left_out)
    if test_fraction is None:
        return (X, y), None, left_out, classify
    if getattr(estimator, "smiles", None) is None and not imputes:
        of_levels = None if classify else LevelTargets.of(y, seed)
        with naming(source):  # before the division, so that the rows of messages are those of the file
            data.TableEncoder.fit(X, missing="refuse", targets=of_levels)
    train, test = data.train_test_indices(len(y), test_fraction, seed)
    if not classify:  # rows without a target cannot be scored
        test = test[~np.isnan(y[test])]
    take = lambda rows: (X.take(pa.array(rows)), y[rows])
    return take(train), take(test), left_out, classify


def divide_blocks(
    source: str,
    target: str,
    chosen: tuple[Any, Any],
    task: str,
    test_fraction: float | None,
    seed: int,
    **options: Any,
) -> tuple[tuple[data.FileSource, str], data.FileSource | None, tuple[str, ...], bool]:
    """As `divide_table`, block by block: test rows are chosen by their values. `options` are those of `FileSource.of`."""
    blocks = data.FileSource.of(source, **options)
    blocks.only((target,))
    names = [name for name in blocks.names() if name != blocks.weight]
    left_out = columns_left_out([name for name in names if name != target], target, chosen, source)
    blocks = blocks.only(tuple(name for name in names if name not in left_out))
    left_out = left_out if blocks.weight is None else (*left_out, blocks.weight)
    classify = _holds_classes(blocks, target) if task == "auto" else task == "classes"
    train, test = (blocks, None) if test_fraction is None else blocks.divided(test_fraction, seed)
    return (train, target), test, left_out, classify


def _holds_classes(blocks: data.FileSource, target: str) -> bool:
    """`holds_classes` of the first block that has rows."""
    block = next(iter(blocks.only((target,))))
    with block.placing():
        return holds_classes(block.table, target)


def parts_of(source: str, estimator: Any, blocks: data.FileSource | None = None) -> Iterator[Block]:
    """Yield the rows of DATA for a fitted estimator, as one block if they are few; or those of `blocks`.

    Columns of a text file in blocks have the types that they had at the fit.
    """
    if blocks is None and not is_large(source, estimator.memory_limit):
        table = data.read_table(source)
        yield Block(table, Path(source), np.arange(table.num_rows))
        return
    rules = estimator._fitted.encoder.columns if estimator._fitted.encoder is not None else ()
    kind_of = lambda rule: rule.kind if rule.reading is None else "text"
    types = {rule.name: TYPES[kind_of(rule)] for rule in rules if kind_of(rule) in TYPES}
    try:
        yield from replace(blocks or data.FileSource(Path(source)), types=types)
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


def columns_left_out(
    names: Sequence[str], target: str, chosen: tuple[Any, Any], source: str
) -> tuple[str, ...]:
    """The input columns, of these names, that --inputs and --ignore leave out (`chosen`, None = not given).

    Raises ValueError for an unknown name, the target, a column in both options, and if no input is left.
    """
    inputs, ignored = chosen[0], chosen[1] or ()
    for option, given in (("--inputs", inputs), ("--ignore", ignored)):
        for name in given or ():
            if name == target:
                raise ValueError(f"{option} names {name!r}, which is the target")
            if name not in names:
                raise ValueError(f"{option}: no column {name!r} in {source}; {did_you_mean(name, names)}")
    both = [name for name in inputs or () if name in ignored]
    if both:
        raise ValueError(f"{quoted(both)} is named by --inputs and by --ignore")
    kept = [name for name in inputs or names if name not in ignored]
    if not kept:
        raise ValueError(f"{source}: --ignore leaves no columns beside the target {target!r}")
    return tuple(name for name in names if name not in kept)


def without(table: pa.Table, names: Iterable[str]) -> pa.Table:
    """The table without those of the columns that it has."""
    return table.drop_columns([name for name in names if name in table.column_names])


def naming(source: str) -> contextlib.AbstractContextManager:
    """Add the name of the data to what is wrong with them; rows of blocks know their file."""
    return rewording(lambda text: text if text.startswith(source) else f"{source}: {text}")
