"""Learners: values that say how θ is learned, and `fit`, which runs them."""

from .base import AbstractLearner, Problem
from .bsgd import BSGD
from .chain import Chain
from .conditionals import LeaveOneOut, Vecchia
from .evidence import ByEvidence, Evidence
from .fit import fit
from .full_batch import FullBatch
from .iterative import Iterative
from .ivsgpr import IVSGPR
from .judge import AbstractJudge, ByLoss
from .minimax import Minimax
from .probes import AbstractProbes, Hutchinson, Pathwise
from .sampling import AbstractSampling, HeavyInAll, NearestNeighbours, Uniform
from .scgd import SCGD
from .schedules import InverseRoot, PowerLaw, constant, cosine, muon
from .sgpr import SGPR
from .stream import Stream, begin_stream, continue_run, feed
from .svdgp import SVDGP
from .svgp import SVGP

__all__ = [
    "BSGD",
    "IVSGPR",
    "SCGD",
    "SGPR",
    "SVDGP",
    "SVGP",
    "AbstractJudge",
    "AbstractLearner",
    "AbstractProbes",
    "AbstractSampling",
    "ByEvidence",
    "ByLoss",
    "Chain",
    "Evidence",
    "FullBatch",
    "HeavyInAll",
    "Hutchinson",
    "InverseRoot",
    "Iterative",
    "LeaveOneOut",
    "Minimax",
    "NearestNeighbours",
    "Pathwise",
    "PowerLaw",
    "Problem",
    "Stream",
    "Uniform",
    "Vecchia",
    "begin_stream",
    "constant",
    "continue_run",
    "cosine",
    "feed",
    "fit",
    "muon",
]
