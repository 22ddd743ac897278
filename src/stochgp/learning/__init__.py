"""The loop of learning: `fit`, which runs any learner, and chains of runs."""

from .fit import fit

__all__ = ["fit"]
