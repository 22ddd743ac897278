"""Learners: values that say how θ is learned, a file each; and of `stochgp.learning` what they are given and `fit`, which runs them."""

from stochgp.learning.base import AbstractLearner, Problem
from stochgp.learning.evidence import ByEvidence, Evidence
from stochgp.learning.fit import fit
from stochgp.learning.judge import AbstractJudge, ByLoss
from stochgp.learning.sampling import AbstractSampling, HeavyInAll, NearestNeighbours, Uniform
from stochgp.learning.schedules import InverseRoot, PowerLaw, constant, cosine, muon
from stochgp.learning.stream import Stream, begin_stream, continue_run, feed

from .bsgd import BSGD
from .chain import Chain
from .full_batch import FullBatch
from .iterative import Iterative
from .ivsgpr import IVSGPR
from .leave_one_out import LeaveOneOut
from .minimax import Minimax
from .probes import AbstractProbes, Hutchinson, Pathwise
from .scgd import SCGD
from .sgpr import SGPR
from .svdgp import SVDGP
from .svgp import SVGP
from .vecchia import Vecchia

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
