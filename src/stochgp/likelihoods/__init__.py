"""Likelihoods: how targets are observed."""

from .base import AbstractLikelihood
from .classes import Bernoulli, Logit, Probit, Softmax
from .counts import NegativeBinomial, Poisson
from .gaussian import Gaussian, LatentNoiseGaussian, StudentT
from .noise import AbstractNoise, ConstantNoise, TreeNoise, constant_noise
from .warped import Shifted, Warped

__all__ = [
    "AbstractLikelihood", "AbstractNoise", "Bernoulli", "ConstantNoise", "Gaussian", "LatentNoiseGaussian", "Logit", "NegativeBinomial", "Poisson", "Probit",
    "Shifted", "Softmax", "StudentT", "TreeNoise", "Warped", "constant_noise",
]  # fmt: skip
