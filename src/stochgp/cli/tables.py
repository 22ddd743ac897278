"""DATA of the command line: files and named sets as tables."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from jaxtyping import Float

from stochgp import data


class Labelled(NamedTuple):
    """Input columns, and the targets of the same rows."""

    inputs: pa.Table
    targets: Float[np.ndarray, " N"]


class Divided(NamedTuple):
    """Training and test rows; `test` is None where nothing was set aside."""

    train: Labelled
    test: Labelled | None
    target: str


def read_divided(source: str, target: str | None, test_fraction: float | None, seed: int) -> Divided:
    """Training and test rows of DATA: a named set's own division, a random one of a file.

    Raises ValueError where the target is not named or does not exist, and where a named set that has its own test rows is to be divided
    otherwise.
    """
    if data.is_named(source):
        if test_fraction is not None and source.startswith("uci"):
            raise ValueError(f"{source} has its own test rows: leave --test-fraction out")
        options = {} if test_fraction is None else {"test_fraction": test_fraction}
        found = data.load(source, seed=seed, **options)
        if target not in (None, found.target_name):
            raise ValueError(f"the target of {source} is {found.target_name!r}, not {target!r}")
        train = Labelled(as_table(found.X, found.feature_names), found.y)
        test = Labelled(as_table(found.X_test, found.feature_names), found.y_test)
        return Divided(train, test, found.target_name)
    if target is None:
        raise ValueError(f"{source}: name the column to learn with --target")
    table = data.read_table(source)
    everything = split_off(table, target, source)
    if test_fraction is None:
        return Divided(everything, None, target)
    train, test = data.train_test_indices(table.num_rows, test_fraction, seed)
    return Divided(_take(everything, train), _take(everything, test), target)


def read_inputs(source: str, division: Mapping[str, Any]) -> pa.Table:
    """A file's table, or the inputs of a named set's test rows in this division."""
    if not data.is_named(source):
        return data.read_table(source)
    found = data.load(source, **division)
    return as_table(found.X_test, found.feature_names)


def read_labelled(source: str, target: str | None, division: Mapping[str, Any]) -> Labelled:
    """Inputs and targets: all rows of a file, the test rows of a named set in this division."""
    if data.is_named(source):
        found = data.load(source, **division)
        return Labelled(as_table(found.X_test, found.feature_names), found.y_test)
    if target is None:
        raise ValueError("the model does not know its target's name: give --target")
    return split_off(data.read_table(source), target, source)


def split_off(table: pa.Table, target: str, source: str) -> Labelled:
    """The inputs and the target column of a table. Raises ValueError where there is no such column, or no other."""
    targets = data.target_column(table, target, source)
    inputs = table.drop_columns([target])
    if not inputs.column_names:
        raise ValueError(f"{source}: there are no columns beside the target {target!r}")
    return Labelled(inputs, targets)


def as_table(X: Float[np.ndarray, "N D"], names: tuple[str, ...]) -> pa.Table:
    """A table with one column per input."""
    return pa.table({name: X[:, j] for j, name in enumerate(names)})


def _take(rows: Labelled, indices: np.ndarray) -> Labelled:
    return Labelled(rows.inputs.take(pa.array(indices)), rows.targets[indices])
