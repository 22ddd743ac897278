"""Learners learn the parameters θ of a model; `learning.fit` runs a learner."""

from .base import AbstractBatchLearner, AbstractLearner, Problem
from .bsgd import BSGD
from .conditionals import LeaveOneOut, Vecchia
from .decoupled import IVSGPR, SVDGP
from .descent import InverseRoot, NearestNeighbours, PowerLaw, Uniform, constant, cosine, muon
from .evaluators import ByLoss
from .evidence import ByEvidence
from .full_batch import FullBatch
from .minimax import Minimax
from .scgd import SCGD
from .svgp import SGPR, SVGP, VGP

__all__ = [
    "BSGD", "IVSGPR", "SCGD", "SGPR", "SVDGP", "SVGP", "VGP", "AbstractBatchLearner", "AbstractLearner", "ByEvidence", "ByLoss", "FullBatch", "InverseRoot",
    "LeaveOneOut", "Minimax", "NearestNeighbours", "PowerLaw", "Problem", "Uniform", "Vecchia", "constant", "cosine", "muon",
]  # fmt: skip
