"""Likelihoods p(y | f) of the targets given latent functions."""

from .base import AbstractLikelihood, Shifted, Warped
from .classes import Bernoulli, Softmax
from .counts import NegativeBinomial, Poisson
from .gaussian import Gaussian, StudentT
from .noise import AbstractNoise, ConstantNoise, constant_noise

__all__ = [
    "AbstractLikelihood", "AbstractNoise", "Bernoulli", "ConstantNoise", "Gaussian", "NegativeBinomial", "Poisson", "Shifted", "Softmax", "StudentT", "Warped", "constant_noise",
]  # fmt: skip
