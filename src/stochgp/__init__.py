"""Gaussian processes trained and solved with mini-batches, in memory that the user sets."""

from stochgp import data, features, kernels, learners, metrics, networks, parameters, solvers
from stochgp.estimators import FeatureGPRegressor, KernelGPRegressor, load
from stochgp.version import __version__

__all__ = [
    "FeatureGPRegressor",
    "KernelGPRegressor",
    "__version__",
    "data",
    "features",
    "kernels",
    "learners",
    "load",
    "metrics",
    "networks",
    "parameters",
    "solvers",
]
