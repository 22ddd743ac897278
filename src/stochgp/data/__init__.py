"""Data: rows in memory and in files, standardising, nearest rows; and what users need of `stochgp.tables`."""

from stochgp.neighbours import Neighbours
from stochgp.tables.columns import Column, TableError, read_column, table_columns
from stochgp.tables.encoding import TableEncoder
from stochgp.tables.files import SUFFIXES, read_table, table_writer, write_table
from stochgp.tables.molecules import Fingerprints, Morgan
from stochgp.tables.rules import MAX_LEVELS, ColumnRule
from stochgp.tables.targets import holds_classes, label_column, target_column

from .blocks import Blocks
from .splits import train_test_indices
from .standardise import Standardiser

__all__ = [
    "MAX_LEVELS",
    "SUFFIXES",
    "Blocks",
    "Column",
    "ColumnRule",
    "Fingerprints",
    "Morgan",
    "Neighbours",
    "Standardiser",
    "TableEncoder",
    "TableError",
    "holds_classes",
    "label_column",
    "read_column",
    "read_table",
    "table_columns",
    "table_writer",
    "target_column",
    "train_test_indices",
    "write_table",
]
