"""Data: tables from frames and files, numbers from their columns, standardising, splits, named sets, nearest rows."""

from .blocks import Blocks
from .columns import Column, TableError, read_column, table_columns
from .dataset import Dataset
from .encoding import TableEncoder, holds_classes, label_column, target_column
from .files import SUFFIXES, read_table, table_writer, write_table
from .fingerprints import Fingerprints
from .functions import load_function
from .molecules import Morgan
from .named import NamedSet, is_named, list_named, load
from .neighbours import Neighbours
from .rules import MAX_LEVELS, ColumnRule
from .splits import train_test_indices
from .standardise import Standardiser

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
