"""Objectives, the functions that learners minimise or maximise."""

from typing import Any

from stochgp.data.rows import Data
from stochgp.models import FeatureGP, KernelGP
from stochgp.results import ExactNLML

from . import feature, kernel
from .collapsed import lower_bound
from .elbo import bound_of_all as bound_of_all
from .elbo import elbo
from .feature import Spectrum as Spectrum
from .feature import nlml as nlml
from .feature import nlml_of_rows as nlml_of_rows
from .feature import nlml_of_spectrum as nlml_of_spectrum
from .feature import refit as refit
from .feature import spectrum as spectrum
from .moments import Moments as Moments
from .moments import moments_of_rows as moments_of_rows

__all__ = ["elbo", "lower_bound", "nlml_and_gradient"]


def nlml_and_gradient(gp: Any, rows: Data) -> ExactNLML:
    """Return the exact NLML per datum and its gradient, in float64.

    Raises TypeError for a model that is neither a feature GP nor a kernel GP.

    Parameters
    ----------
    gp, rows : FeatureGP or KernelGP, Data
        The model, and all rows as float64 arrays in host memory.
    """
    if isinstance(gp, FeatureGP):
        return feature.nlml_and_gradient(gp, rows)
    if isinstance(gp, KernelGP):
        return kernel.nlml_and_gradient(gp, rows)
    raise TypeError(f"{type(gp).__name__} has no exact marginal likelihood")
