"""Learners: values that say how θ is learned, and `fit`, which runs them."""

from .base import AbstractLearner, Planned
from .bsgd import BSGD
from .chain import Chain
from .fit import fit
from .full_batch import FullBatch
from .iterative import Iterative
from .kernel_base import AbstractKernelLearner, KernelPlan, KernelProblem
from .kernel_bsgd import KernelBSGD
from .kernel_fit import KernelFitResult, fit_kernel
from .kernel_full_batch import KernelFullBatch
from .minimax import Minimax
from .optimizers import muon
from .probes import AbstractProbes, Hutchinson, Pathwise
from .sampling import AbstractSampling, NearestNeighbours, Uniform
from .scgd import SCGD
from .schedules import PowerLaw, constant, cosine

__all__ = [
    "BSGD",
    "SCGD",
    "AbstractKernelLearner",
    "AbstractLearner",
    "AbstractProbes",
    "AbstractSampling",
    "Chain",
    "FullBatch",
    "Hutchinson",
    "Iterative",
    "KernelBSGD",
    "KernelFitResult",
    "KernelFullBatch",
    "KernelPlan",
    "KernelProblem",
    "Minimax",
    "NearestNeighbours",
    "Pathwise",
    "Planned",
    "PowerLaw",
    "Uniform",
    "constant",
    "cosine",
    "fit",
    "fit_kernel",
    "muon",
]
