"""Data in memory and in files, standardisation and nearest rows."""

from stochgp.neighbours import Neighbours
from stochgp.numerics.clustered import train_test_indices
from stochgp.tables.columns import TableError
from stochgp.tables.encoding import TableEncoder
from stochgp.tables.files import read_table, write_table
from stochgp.tables.molecules import Fingerprints, Morgan
from stochgp.tables.targets import label_column, target_column

from .files import FileSource
from .rows import Standardiser

__all__ = [
    "FileSource", "Fingerprints", "Morgan", "Neighbours", "Standardiser", "TableEncoder", "TableError", "label_column", "read_table", "target_column",
    "train_test_indices", "write_table",
]  # fmt: skip
