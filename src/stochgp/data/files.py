"""Rows in files as a source: the rules of their columns, their numbers, a sample, and all of them block by block."""

import typing
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from jax.sharding import Mesh
from jaxtyping import Float

from stochgp.budget import Budget
from stochgp.context import FitContext
from stochgp.names import lookup
from stochgp.tables.bounds import checked_targets
from stochgp.tables.columns import TableError, read_column, table_columns
from stochgp.tables.encoding import TableEncoder
from stochgp.tables.files import TooNarrowError
from stochgp.tables.molecules import name_inputs
from stochgp.tables.targets import REAL, FileTargets, checked_weights
from stochgp.warning import warn

from .blocks import Block, Blocks, hash_again, hash_keys, with_targets
from .memory import Source, padded
from .reading import note_columns
from .rows import Data
from .standardise import NO_ROWS, Standardiser, Summary
from .time_order import groups_in_time
from .training import TrainingData

SAMPLE_SEED = 0x5EED  # added to the user's, so that a sample does not follow the division
# Rows to learn θ from: more change it by less than 0.01 nats a row, at some 20,000 parameters.
MOST_ROWS = 1_000_000
SHARE = 0.1  # of what is free, for the rows of a sample


@dataclass(frozen=True, eq=False)
class FileSource(Source):
    """Rows in files: inputs as numbers of `encoder`, the column `target` as those of `rule`; for a model standardised.

    `of_inputs` and `of_targets` are summaries of all rows, `sample` is a uniform one, and `n_dropped` rows have no target.
    """

    files: Blocks
    encoder: TableEncoder
    target: str
    rule: FileTargets = REAL
    n_dropped: int = 0
    size: int = 0
    of_inputs: Summary = NO_ROWS
    of_targets: Summary = NO_ROWS
    sample: Data | None = None
    scales: tuple[Standardiser, Standardiser] | None = None  # of inputs and targets
    dtype: str = "float64"
    mesh: Mesh | None = None

    @property
    def count(self) -> float:
        """Σρ of all rows."""
        return self.of_inputs.count

    @property
    def limits(self) -> Float[np.ndarray, "2 D"]:
        """The smallest and the largest value of each input."""
        return np.stack([self.of_inputs.low, self.of_inputs.high])

    def read(self) -> Iterator[tuple[Data, Block]]:
        """Yield rows of positive weight with the block they are of; the hash of the `split_by` columns is their group.

        Raises TableError, with file and row, for values that cannot be used.
        """
        for block in with_targets(self.files, self.target, self.encoder.missing):
            with block.placing():
                rows = self.numbers(block.table)
            if len(rows):
                yield rows, block

    def numbers(self, table: pa.Table) -> Data:
        """The rows of positive weight of a part of the files."""
        files = self.files
        y, weight = self.rule.numbers(table, self.target), _weights(table, files.weight)
        key = hash_keys(table, files.split_by) if files.split_by else None
        X = self.encoder.encoded(table, new_levels=True)[0]  # a sample may lack some
        rows = Data(X, y, weight, key).counted()
        return replace(rows, y=self.rule.learned(rows.y))

    def local_blocks(self, size: int) -> Iterator[Data]:
        """All rows in order, in blocks of `size` rows on the device; rows of weight 0 fill up the last of a file's block."""
        assert self.scales is not None  # as `read_files` returns it
        for rows, block in self.read():
            for start in range(0, len(rows), size):
                with block.placing():
                    part = rows.take(slice(start, start + size)).standardised(*self.scales, self.dtype)
                yield padded(part, size, self.dtype)


def open_files(
    blocks: Blocks,
    target: str,
    *,
    missing: str,
    seed: int,
    sample: Callable[[int], int],
    rule: FileTargets = REAL,
) -> FileSource:
    """The rows of files: the rules that `TableEncoder.fit` finds for a uniform sample of them, and summaries of the numbers of all.

    `sample` returns the size of a sample for a number of inputs. Memory is for a block and twice the sample. Raises TableError, with
    file and row, for values that cannot be used.
    """
    seed, most = seed + SAMPLE_SEED, sample(len(blocks.names()))
    while True:
        try:
            hashes, table, size, n_dropped, rule = _sampled(blocks, target, missing, rule, seed, most)
            break
        except TooNarrowError as narrow:
            if blocks.types.get(narrow.name) == narrow.wider:
                what = f"column {narrow.name!r} holds numbers or dates in some files and text in others"
                raise TableError(f"{blocks.path}: {what}") from None
            blocks = replace(blocks, types={**blocks.types, narrow.name: narrow.wider})
    try:
        encoder = TableEncoder.fit(table.select(blocks.inputs(table, target)), missing)
    except TableError as error:
        raise TableError(f"{blocks.path}: {error}") from error
    rows = FileSource(blocks, encoder, target, rule, n_dropped)
    order = np.argsort(hashes, kind="stable")[: sample(len(encoder.output_names))]
    few = rows.numbers(table.take(pa.array(order)))
    parts = (part for part, _ in rows.read()) if len(order) < size else (few,)
    X, y, size = NO_ROWS, NO_ROWS, 0
    for part in parts:
        X = X.merged(Summary.of(part.X, part.weight))
        y = y.merged(Summary.of(part.y[:, None], part.weight))
        size += len(part)
    if not size:
        raise TableError(f"{blocks.path}: there are no rows to learn from")
    return replace(rows, size=size, of_inputs=X, of_targets=y, sample=few)


def _sampled(
    blocks: Blocks, target: str, missing: str, rule: FileTargets, seed: int, most: int
) -> tuple[np.ndarray, pa.Table, int, int, FileTargets]:
    """(Hashes of sampled rows, their table in the order of the files, how many rows there are, and without a target; the rule with all labels).

    The rows of the smallest hashes are a uniform sample without replacement, in whatever order rows come.
    """
    parts: list[tuple[np.ndarray, pa.Table]] = []
    dropped, size, largest = list[int](), 0, np.uint64(2**64 - 1)
    for block in with_targets(blocks, target, missing, dropped):
        with block.placing():
            rule, inputs = rule.sees(block.table, target), blocks.inputs(block.table, target)
            rule.numbers(block.table, target)
            _weights(block.table, blocks.weight)
            hashes = hash_again(hash_keys(block.table, sorted([*inputs, target]), missing != "refuse"), seed)
        near = hashes <= largest
        parts.append((hashes[near], block.table.filter(pa.array(near))))
        size += block.table.num_rows
        if sum(len(part[0]) for part in parts) > 2 * most:
            parts = [_smallest(parts, most)]
            largest = parts[0][0].max()
    if not size or not inputs:
        raise TableError(f"{blocks.path}: there are no input columns with rows beside the target {target!r}")
    return *_smallest(parts, most), size, sum(dropped), rule


def _smallest(parts: list[tuple[np.ndarray, pa.Table]], most: int) -> tuple[np.ndarray, pa.Table]:
    """Raises TooNarrowError for a column that holds text in some parts, and other values in others."""
    hashes = np.concatenate([part for part, _ in parts])
    kept = np.sort(np.argsort(hashes, kind="stable")[:most])
    try:
        table = pa.concat_tables([table for _, table in parts], promote_options="permissive")
    except pa.ArrowTypeError as error:
        raise TooNarrowError(str(error).partition("Field ")[2].partition(" has incompatible")[0]) from error
    return hashes[kept], table.take(pa.array(kept))


def _weights(table: pa.Table, name: str | None) -> Float[np.ndarray, " N"] | None:
    if name is None:
        return None
    column, what = read_column(name, table_columns(table)[name]), f"the column of weights {name!r}"
    if column.kind != "number":
        raise TableError(f"{what} holds no numbers")
    return checked_weights(column.values, what, "data row")


def read_files(
    estimator: Any,
    X: Any,
    target: Any,
    others: dict[str, Any],
    context: FitContext,
    *,
    keeps_all: bool,
    rule: FileTargets = REAL,
) -> tuple[TrainingData, FileSource]:
    """A uniform sample of the rows in files, standardised by all of them, with the source of all.

    `rule` makes numbers of the target's column, and `others` are arguments of `fit` for rows in memory. Sets `n_features_in_` and
    `feature_names_in_`. Raises ValueError or TypeError, with file and row, for values that cannot be used, and if a family
    that `keeps_all` rows has no memory for them.
    """
    lookup(estimator.missing, dict.fromkeys(("auto", "refuse")), "missing")
    if not isinstance(target, str):
        raise TypeError(
            f"y must be the name of the target's column where X names files, but is {type(target).__name__}"
        )
    for name, value in others.items():
        if value is not None:
            raise ValueError(f"{name} is for rows in memory: X names files")
    blocks, budget = X if isinstance(X, Blocks) else Blocks.of(X), context.budget
    found = open_files(
        blocks, target, missing=estimator.missing, seed=context.sample_seed,
        sample=lambda n_inputs: _sample_size(n_inputs, budget, keeps_all), rule=rule,
    )  # fmt: skip
    sample, n_inputs, mean = typing.cast(Data, found.sample), len(found.encoder.output_names), None
    if rule.scaled:
        mean = getattr(estimator, "mean", None)
        mean = None if mean is None else float(rule.learned(np.array([mean], np.float64))[0])
        if said := checked_targets(sample.y, None, estimator.target_outliers, leaves_out=False)[1]:
            warn(f"of {len(sample)} rows of the files: {said}", UserWarning, stacklevel=2)
    if keeps_all and found.size > len(sample):
        need, what = 2 * found.size * _row_bytes(n_inputs), f"{found.size} rows of {n_inputs} inputs"
        budget.refuse(need, f"a model that keeps {what}")
    names = [rule.name for rule in found.encoder.columns]
    name_inputs(estimator, len(names), names)
    data = _training_data(found, estimator, mean, context)
    if found.n_dropped:
        why = "of the files are not learned from: they have no target"
        warn(f"{found.n_dropped} rows {why}", UserWarning, stacklevel=2)
        context.record("unused_rows", found.n_dropped, why)
    note_columns(found.encoder, context)
    return data, found


def _training_data(
    found: FileSource, estimator: Any, mean: float | None, context: FitContext
) -> TrainingData:
    """The sample, standardised by all rows, and the source of all rows, if the sample is not all of them.

    Classes and counts are not standardised. Rows without `split_by` may be grouped in blocks of time.
    """
    rows, standardize = typing.cast(Data, found.sample), bool(estimator.standardize)
    if rows.group is None:
        group = groups_in_time(
            rows.X, rows.y, found.encoder, estimator.new_rows, context.record, in_order=False
        )
    else:
        group = np.unique(rows.group, return_inverse=True)[1].astype(np.int32)
        if group.max() == 0:
            raise ValueError("split_by puts all rows into one group; at least two are needed")
    rows = replace(rows, group=group)
    is_whole, unscaled = found.size == len(rows), not found.rule.scaled
    data = TrainingData.of(
        rows.merged() if is_whole else rows, standardize, mean, estimator.dtype, leaves_targets=unscaled
    )
    data = replace(data, encoder=found.encoder)
    if is_whole:
        return data
    inputs, targets = data.inputs, data.targets
    if standardize:
        inputs, of_y = found.of_inputs.standardiser(), found.of_targets.standardiser()
        center = of_y.mean[0] if mean is None else np.float64(mean)
        targets = targets if unscaled else Standardiser(np.asarray(center), np.asarray(of_y.scale[0]))
    everything = replace(found, sample=None, scales=(inputs, targets), dtype=estimator.dtype)
    return replace(data, inputs=inputs, targets=targets, everything=everything)


def _sample_size(n_inputs: int, budget: Budget, keeps_all: bool) -> int:
    """How many rows θ is learned from if a posterior can take in the others one by one; else as many as memory holds."""
    free = budget.free() / _row_bytes(n_inputs)
    return max(1, int(free / 2)) if keeps_all else min(MOST_ROWS, max(1, int(SHARE * free)))


def _row_bytes(n_inputs: int) -> int:
    """In float64, with its hash, twice while a sample grows; and once in float32 on the device."""
    return 2 * 8 * (n_inputs + 2) + 4 * (n_inputs + 2)
