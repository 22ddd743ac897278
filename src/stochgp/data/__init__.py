"""Data: tables from frames and files, numbers from their columns, standardising, splits and named sets."""

from .columns import Column, read_column, table_columns
from .dataset import Dataset
from .encoding import MAX_LEVELS, ColumnRule, TableEncoder, target_column
from .files import SUFFIXES, read_table, write_table
from .named import NamedSet, is_named, list_named, load
from .nearest import did_you_mean
from .splits import train_test_indices
from .standardise import Standardiser

__all__ = [
    "MAX_LEVELS",
    "SUFFIXES",
    "Column",
    "ColumnRule",
    "Dataset",
    "NamedSet",
    "Standardiser",
    "TableEncoder",
    "did_you_mean",
    "is_named",
    "list_named",
    "load",
    "read_column",
    "read_table",
    "table_columns",
    "target_column",
    "train_test_indices",
    "write_table",
]
