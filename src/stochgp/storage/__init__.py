"""Models and checkpoints as files, without pickle."""

from .files import load_arrays, load_tree, save_arrays, save_tree

__all__ = ["load_arrays", "load_tree", "save_arrays", "save_tree"]
