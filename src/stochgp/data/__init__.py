"""Data: rows in memory and in files, standardising, nearest rows; what users need of `stochgp.tables`, and the named sets of `stochgp.datasets`."""

from typing import TYPE_CHECKING, Any

from stochgp.tables.columns import Column, TableError, read_column, table_columns
from stochgp.tables.encoding import TableEncoder
from stochgp.tables.files import SUFFIXES, read_table, table_writer, write_table
from stochgp.tables.fingerprints import Fingerprints
from stochgp.tables.molecules import Morgan
from stochgp.tables.rules import MAX_LEVELS, ColumnRule
from stochgp.tables.targets import holds_classes, label_column, target_column

from .blocks import Blocks
from .neighbours import Neighbours
from .standardise import Standardiser

if TYPE_CHECKING:
    from stochgp.datasets import (
        Dataset,
        NamedSet,
        is_named,
        list_named,
        load,
        load_function,
        train_test_indices,
    )

__all__ = [
    "MAX_LEVELS",
    "SUFFIXES",
    "Blocks",
    "Column",
    "ColumnRule",
    "Dataset",
    "Fingerprints",
    "Morgan",
    "NamedSet",
    "Neighbours",
    "Standardiser",
    "TableEncoder",
    "TableError",
    "holds_classes",
    "is_named",
    "label_column",
    "list_named",
    "load",
    "load_function",
    "read_column",
    "read_table",
    "table_columns",
    "table_writer",
    "target_column",
    "train_test_indices",
    "write_table",
]


def __getattr__(name: str) -> Any:
    """A name of `stochgp.datasets`, which is made from this room, at its first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from stochgp import datasets

    return getattr(datasets, name)
