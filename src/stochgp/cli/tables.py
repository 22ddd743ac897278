"""DATA of the command line: files as tables, and the columns that the user wants of them."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
from jaxtyping import Shaped

from stochgp import data
from stochgp.names import did_you_mean, quoted
from stochgp.tables.levels import LevelTargets

Rows = TypeVar("Rows")


class Wanted(NamedTuple):
    """What the user says of the columns: None = all for `inputs`, none for `ignore`. `missing` is "auto" (or "impute") or "refuse".

    `targets`: "numbers", "classes", or "auto": classes where they are text or booleans.
    """

    target: str | None
    inputs: tuple[str, ...] | None
    ignore: tuple[str, ...] | None
    missing: str
    holds_molecules: bool = False
    targets: str = "numbers"
    memory_limit: Any = None  # of reading a file


class Labelled(NamedTuple):
    """Input columns, and the targets of the same rows: numbers, or labels of classes."""

    inputs: pa.Table
    targets: Shaped[np.ndarray, " N"]


@dataclass(frozen=True)
class Divided(Generic[Rows]):
    """Training and test rows, `Labelled` or `data.Blocks`; `test` is None where nothing was set aside.

    `left_out` names the columns that are not learned from.
    """

    train: Rows
    test: Rows | None
    target: str
    left_out: tuple[str, ...]
    are_classes: bool = False


def read_divided(source: str, wanted: Wanted, test_fraction: float | None, seed: int) -> Divided[Labelled]:
    """Divide the rows of a file at random into training and test rows.

    Raises ValueError if the target is not named, and for columns that do not exist.
    """
    if wanted.target is None:
        raise ValueError(f"{source}: name the column to learn with --target")
    table = data.read_table(source, wanted.memory_limit)
    targets = wanted.targets
    if targets == "auto":
        targets = "classes" if data.holds_classes(table, wanted.target, source) else "numbers"
    imputes, are_classes = wanted.missing != "refuse", targets == "classes"
    everything = split_off(table, wanted.target, source, targets, allow_missing=imputes)
    left_out = columns_left_out(everything.inputs.column_names, wanted.target, wanted, source)
    everything = everything._replace(inputs=without(everything.inputs, left_out))
    if test_fraction is None:
        return Divided(everything, None, wanted.target, left_out, are_classes)
    if not wanted.holds_molecules and not imputes:
        of_levels = None if are_classes else LevelTargets.of(everything.targets, seed)
        with naming(source):  # before the division, so that the rows of messages are those of the file
            data.TableEncoder.fit(everything.inputs, missing=wanted.missing, targets=of_levels)
    train, test = data.train_test_indices(len(everything.targets), test_fraction, seed)
    if not are_classes:  # rows without a target cannot be scored
        test = test[~np.isnan(everything.targets[test])]
    return Divided(_take(everything, train), _take(everything, test), wanted.target, left_out, are_classes)


def read_labelled(
    source: str,
    target: str | None,
    targets: str = "numbers",
    memory_limit: Any = None,
    usable: Callable[[pa.Table], pa.Table] = lambda table: table,
) -> Labelled:
    """Inputs and targets of the `usable` rows of a file. `targets` is "numbers" or "classes"."""
    if target is None:
        raise ValueError("the model does not know its target's name: give --target")
    return split_off(usable(data.read_table(source, memory_limit)), target, source, targets)


def split_off(
    table: pa.Table, target: str, source: str, kind: str = "numbers", allow_missing: bool = False
) -> Labelled:
    """The inputs and the target column of a table, "numbers" (NaN where missing, if that is allowed) or "classes".

    Raises ValueError where there is no such column, or no other.
    """
    if kind == "classes":
        targets = data.label_column(table, target, source)
    else:
        targets = data.target_column(table, target, source, allow_missing)
    inputs = table.drop_columns([target])
    if not inputs.column_names:
        raise ValueError(f"{source}: there are no columns beside the target {target!r}")
    return Labelled(inputs, targets)


def columns_left_out(names: Sequence[str], target: str, wanted: Wanted, source: str) -> tuple[str, ...]:
    """The input columns, of these names, that are not to be learned from.

    Raises ValueError for a name that no input column has (with the nearest), the target among them, a column that is both wanted and
    ignored, and where no input is left.
    """
    for option, given in (("--inputs", wanted.inputs), ("--ignore", wanted.ignore)):
        for name in given or ():
            if name == target:
                raise ValueError(f"{option} names {name!r}, which is the target")
            if name not in names:
                raise ValueError(f"{option}: no column {name!r} in {source}; {did_you_mean(name, names)}")
    both = [name for name in wanted.inputs or () if name in (wanted.ignore or ())]
    if both:
        raise ValueError(f"{quoted(both)} is named by --inputs and by --ignore")
    kept = [name for name in wanted.inputs or names if name not in (wanted.ignore or ())]
    if not kept:
        raise ValueError(f"{source}: --ignore leaves no columns beside the target {target!r}")
    return tuple(name for name in names if name not in kept)


def names_in(text: str | None) -> tuple[str, ...] | None:
    """The names in "A,B"; None stays None. Raises ValueError where a name is empty."""
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise ValueError(f"{text!r}: expected column names with commas between them, such as A,B")
    return names


def left_out(estimator: Any) -> tuple[str, ...]:
    """The columns that `stochgp fit` was asked to leave out."""
    return tuple((getattr(estimator, "trained_on_", None) or {}).get("left_out", ()))


def without(table: pa.Table, names: Iterable[str]) -> pa.Table:
    """The table without those of the columns that it has."""
    return table.drop_columns([name for name in names if name in table.column_names])


@contextlib.contextmanager
def naming(source: str) -> Iterator[None]:
    """Puts the name of the data in front of what is wrong with them."""
    try:
        yield
    except data.TableError as error:
        named = str(error).startswith(source)  # rows of blocks know their file
        raise data.TableError(str(error) if named else f"{source}: {error}") from error


def _take(rows: Labelled, indices: np.ndarray) -> Labelled:
    return Labelled(rows.inputs.take(pa.array(indices)), rows.targets[indices])
