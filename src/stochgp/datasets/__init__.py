"""Named data sets, and the division of rows into training and test rows. `stochgp.data` has these names too."""

from .dataset import Dataset, train_test_indices
from .functions import load_function
from .named import NamedSet, is_named, list_named, load

__all__ = [
    "Dataset",
    "NamedSet",
    "is_named",
    "list_named",
    "load",
    "load_function",
    "train_test_indices",
]
