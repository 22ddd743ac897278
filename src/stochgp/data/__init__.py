"""Data: tables from frames and files, numbers from their columns, standardising, nearest rows; and the named sets of `stochgp.datasets`."""

from typing import TYPE_CHECKING, Any

from .blocks import Blocks
from .columns import Column, TableError, read_column, table_columns
from .encoding import TableEncoder
from .files import SUFFIXES, read_table, table_writer, write_table
from .fingerprints import Fingerprints
from .molecules import Morgan
from .neighbours import Neighbours
from .rules import MAX_LEVELS, ColumnRule
from .standardise import Standardiser
from .targets import holds_classes, label_column, target_column

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
