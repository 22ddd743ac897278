"""Learners: values that say how θ is learned, and `fit`, which runs them."""

from .base import AbstractLearner, Planned
from .bsgd import BSGD
from .fit import fit
from .full_batch import FullBatch
from .minimax import Minimax
from .optimizers import muon
from .schedules import PowerLaw, constant, cosine
from .scgd import SCGD

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
