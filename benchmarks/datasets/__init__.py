"""Benchmark data sets by name."""

from .dataset import Dataset
from .functions import load_function
from .named import load

__all__ = ["Dataset", "load", "load_function"]
