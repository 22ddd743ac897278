"""Likelihoods: how targets are observed."""

from .base import AbstractLikelihood
from .bernoulli import AbstractLink, Bernoulli, Logit, Probit
from .counts import NegativeBinomial, Poisson
from .gaussian import Gaussian
from .latent_noise import LatentNoiseGaussian
from .noise import AbstractNoise, ConstantNoise, TreeNoise, constant_noise
from .softmax import Softmax
from .student_t import StudentT
from .warped import Shifted, Warped

__all__ = [
    "AbstractLikelihood",
    "AbstractLink",
    "AbstractNoise",
    "Bernoulli",
    "ConstantNoise",
    "Gaussian",
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
