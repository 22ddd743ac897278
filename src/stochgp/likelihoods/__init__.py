"""Likelihoods p(y | f) of the targets given latent functions."""

from .base import AbstractLikelihood
from .classes import Bernoulli, Softmax
from .counts import NegativeBinomial, Poisson
from .gaussian import Gaussian, StudentT
from .noise import AbstractNoise, ConstantNoise, TreeNoise, constant_noise
from .warped import Shifted, Warped

__all__ = [
    "AbstractLikelihood", "AbstractNoise", "Bernoulli", "ConstantNoise", "Gaussian", "NegativeBinomial", "Poisson", "Shifted", "Softmax", "StudentT", "TreeNoise", "Warped", "constant_noise",
]  # fmt: skip
