"""Learners: values that say how θ is learned, and `fit`, which runs them."""

from .base import AbstractLearner, Planned
from .bsgd import BSGD
from .fit import fit
from .full_batch import FullBatch
from .minimax import Minimax
from .optimizers import muon
from .scgd import SCGD
from .schedules import PowerLaw, constant, cosine

__all__ = [
    "BSGD",
    "SCGD",
    "AbstractLearner",
    "FullBatch",
    "Minimax",
    "Planned",
    "PowerLaw",
    "constant",
    "cosine",
    "fit",
    "muon",
]
