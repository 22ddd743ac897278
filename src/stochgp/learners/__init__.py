"""Learners: values that say how θ is learned, and `fit`, which runs them."""

from .base import AbstractLearner, Planned
from .fit import fit
from .schedules import PowerLaw, constant, cosine
from .scgd import SCGD

__all__ = ["SCGD", "AbstractLearner", "Planned", "PowerLaw", "constant", "cosine", "fit"]
