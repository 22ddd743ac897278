"""Learning of the parameters of a model: `fit` runs any learner."""

from .fit import fit

__all__ = ["fit"]
