"""Likelihoods: how targets are observed."""

from .base import AbstractLikelihood
from .bernoulli import AbstractLink, Bernoulli, Logit, Probit
from .counts import NegativeBinomial, Poisson
from .gaussian import Gaussian
from .heads import HeadNoise
from .latent_noise import LatentNoiseGaussian
from .noise import AbstractNoise, ConstantNoise, constant_noise
from .shifted import Shifted
from .softmax import Softmax
from .student_t import StudentT
from .tree_noise import TreeNoise
from .warped import Warped

__all__ = [
    "AbstractLikelihood",
    "AbstractLink",
    "AbstractNoise",
    "Bernoulli",
    "ConstantNoise",
    "Gaussian",
    "HeadNoise",
    "LatentNoiseGaussian",
    "Logit",
    "NegativeBinomial",
    "Poisson",
    "Probit",
    "Shifted",
    "Softmax",
    "StudentT",
    "TreeNoise",
    "Warped",
    "constant_noise",
]
