"""DATA of more rows than should be in memory at once: folders, and large files, block by block."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pa_parquet

from stochgp import data
from stochgp.budget import Budget
from stochgp.cli.reports import scores
from stochgp.cli.tables import Divided, Labelled, Wanted, columns_left_out, left_out, split_off, without
from stochgp.data.blocks import Block, TooNarrowError, are_bad
from stochgp.data.splits import hash_keys
from stochgp.tables.files import DAMAGE
from stochgp.tables.targets import LABELS, ClassTargets
from stochgp.warning import warn

SHARE = 0.1  # of what is free: a table that may take more is read block by block
# Bytes in memory, the matrix of numbers included, for a byte of the file.
TIMES = {".csv": 3, ".csv.gz": 12, ".tsv": 3, ".tsv.gz": 12, ".parquet": 5, ".feather": 3}
NUMBERS = 3  # times that the numbers of a table are in memory: its columns, the matrix, the rows learned from
TYPES = {"number": pa.float64(), "text": pa.string()}  # of a text file's columns at predict


def is_large(source: str, memory_limit: Any) -> bool:
    """Whether DATA is a folder, an .npy file, or a file that may take much of the memory."""
    path = Path(source)
    if path.is_dir():
        return True
    if not path.is_file():
        return False
    if path.name.lower().endswith(".npy"):
        return True
    suffix = next((suffix for suffix in reversed(TIMES) if path.name.lower().endswith(suffix)), None)
    return suffix is not None and _table_bytes(path, suffix) > SHARE * Budget.of(memory_limit).free()


def _table_bytes(path: Path, suffix: str) -> int:
    """Memory that the table may take: by the size of the file, and by what it says of its content, since equal values take no room in it."""
    size = TIMES[suffix] * path.stat().st_size
    if suffix == ".parquet":
        with contextlib.suppress(*DAMAGE):  # which reading it will say
            found = pa_parquet.read_metadata(path)
            size = max(size, NUMBERS * 8 * found.num_rows * found.num_columns)
    if suffix.endswith(".gz"):  # whose last four bytes are the length of the text, modulo 2³²
        with path.open("rb") as file:
            file.seek(-min(4, path.stat().st_size), 2)
            size = max(size, TIMES[".csv"] * int.from_bytes(file.read(4), "little"))
    return size


def divided_blocks(
    source: str, wanted: Wanted, test_fraction: float | None, seed: int, **options: Any
) -> Divided[data.Blocks]:
    """The rows of DATA to learn from, and those set aside by their values; `options` are those of `Blocks.of`.

    Raises ValueError as `tables.read_divided` does.
    """
    if wanted.target is None:
        raise ValueError(f"{source}: name the column to learn with --target")
    blocks = blocks_with(source, wanted.target, **options)
    names = [name for name in blocks.names() if name != blocks.weight]
    left_out = columns_left_out(
        [name for name in names if name != wanted.target], wanted.target, wanted, source
    )
    blocks = blocks.only(tuple(name for name in names if name not in left_out))
    left_out = left_out if blocks.weight is None else (*left_out, blocks.weight)
    kind = _kind_of(blocks, wanted.target) if wanted.targets == "auto" else wanted.targets
    train, test = (blocks, None) if test_fraction is None else blocks.divided(test_fraction, seed)
    return Divided(train, test, wanted.target, left_out, kind == "classes")


def _kind_of(blocks: data.Blocks, target: str) -> str:
    """The task of a target: "classes" for text and booleans, as `data.holds_classes` has it, else "numbers". Raises TableError as that does, of all rows."""
    levels: set[Any] = set()
    try:
        for block in blocks.only((target,)):
            with placing(block):
                if not data.holds_classes(block.table, target):
                    return "numbers"
            levels.update(block.table[target].unique().to_pylist())
            if len(levels) > data.MAX_LEVELS + 1:  # None among them
                raise data.TableError(
                    f"{blocks.path}: target column {target!r} holds text with more than {data.MAX_LEVELS} different values{LABELS}"
                )
    except TooNarrowError as narrow:
        return _kind_of(blocks.widened(narrow), target)
    return "classes"


def blocks_with(source: str, target: str | None, **options: Any) -> data.Blocks:
    """All rows and columns. Raises ValueError where the target is not known, or no column is called so."""
    if target is None:
        raise ValueError("the model does not know its target's name: give --target")
    blocks = data.Blocks.of(source, **options)
    blocks.only((target,))
    return blocks


def blocks_of(source: str, estimator: Any) -> Iterator[Block]:
    """The rows of DATA in blocks, for a fitted estimator: columns of a text file have the types that they had at its fit."""
    rules = estimator._fitted.encoder.columns if estimator._fitted.encoder is not None else ()
    kind_of = lambda rule: rule.kind if rule.reading is None else "text"
    types = {rule.name: TYPES[kind_of(rule)] for rule in rules if kind_of(rule) in TYPES}
    try:
        yield from data.Blocks(Path(source), types=types)
    except TooNarrowError as narrow:
        raise ValueError(
            f"{source}: column {narrow.name!r} holds other values than its first rows, and than at fit"
        ) from None


@contextlib.contextmanager
def placing(block: Block) -> Iterator[None]:
    """Puts the file, and the rows' numbers in it, into what is wrong with a block."""
    try:
        yield
    except data.TableError as error:
        raise block.placed(data.TableError(str(error).removeprefix("the table, "))) from error


def scores_by_blocks(estimator: Any, blocks: data.Blocks, target: str, source: str) -> dict[str, float]:
    """`reports.scores` of all rows: means over the blocks, of the squared error for rmse."""
    total, n_rows, n_skipped = dict[str, float](), 0, 0
    for block in blocks_of(str(blocks.path), estimator):
        table = block.table
        if blocks.bad_rows == "skip":
            table = _good_rows(table, estimator, blocks, target)
            n_skipped += block.table.num_rows - table.num_rows
            if table.num_rows == 0:
                continue
        with placing(block):
            part = _set_aside(estimator, table, blocks, target)
            if len(part.targets) == 0:
                continue
            found = scores(estimator, part, "")
        n = int(found.pop("n"))
        n_rows += n
        for name, value in found.items():
            total[name] = total.get(name, 0.0) + n * (value**2 if name == "rmse" else value)
    if n_rows == 0:
        raise ValueError(f"{source}: there are no rows to score")
    if blocks.part is None:
        _note_skipped(n_skipped, n_skipped + n_rows)
    means = {name: value / n_rows for name, value in total.items()}
    return {"n": n_rows} | {name: v**0.5 if name == "rmse" else v for name, v in means.items()}


def usable_rows(table: pa.Table, estimator: Any, target: str, bad_rows: str) -> pa.Table:
    """The rows of a table in memory that can be scored, as its fit took them: those with a target where missing values are filled in, the good ones with "skip"."""
    if target not in table.column_names or bad_rows == "refuse" and estimator.missing == "refuse":
        return table
    if bad_rows == "skip":
        found = _good_rows(table, estimator, data.Blocks(Path(), bad_rows=bad_rows), target)
    else:
        found = table.filter(pa.array(~table[target].is_null(nan_is_null=True).to_numpy()))
    _note_skipped(table.num_rows - found.num_rows, table.num_rows)
    return found


def _note_skipped(n_skipped: int, n_rows: int) -> None:
    if n_skipped:
        warn(f"{n_skipped} of {n_rows} rows are left out of the scores, as a fit would leave them out")


def _good_rows(table: pa.Table, estimator: Any, blocks: data.Blocks, target: str) -> pa.Table:
    """The rows whose target, inputs of the model and columns beside them can be used."""
    encoder = estimator._fitted.encoder
    read = dict.fromkeys((*(rule.name for rule in encoder.columns), target, *blocks.beside))
    return table.filter(pa.array(~are_bad(table.select(list(read)), blocks, target, encoder.missing)))


def _set_aside(estimator: Any, table: pa.Table, blocks: data.Blocks, target: str) -> Labelled:
    """The rows of the block that are in the part."""
    classify = hasattr(estimator, "classes_")
    found = split_off(table, target, "the table", "classes" if classify else "numbers")
    if blocks.part is None:
        return found
    numbers = estimator._fitted.encoder.transform(without(found.inputs, left_out(estimator)))
    key = hash_keys(table, blocks.split_by) if blocks.split_by else None
    y = found.targets
    if classify:  # as the fit divided them
        y = ClassTargets(estimator.classes_).numbers(table, target)
    among = blocks.part.holds(numbers, y, key)
    return Labelled(found.inputs.filter(pa.array(among)), found.targets[among])
