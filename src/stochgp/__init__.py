"""Gaussian processes trained and solved with mini-batches, in memory that the user sets."""

from stochgp import data, features, kernels, networks, parameters
from stochgp.version import __version__

__all__ = ["__version__", "data", "features", "kernels", "networks", "parameters"]
