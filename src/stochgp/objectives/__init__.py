"""Objectives: the loss functions."""

import functools
from typing import Any

from stochgp.data.rows import Data
from stochgp.models import FeatureGP, KernelGP
from stochgp.results import ExactNLML

from . import feature, kernel
from .collapsed import lower_bound
from .elbo import bound_of_all, elbo
from .feature import Spectrum, nlml, nlml_of_rows, nlml_of_spectrum, refit, spectrum
from .moments import Moments, moments_of_rows

__all__ = [
    "Moments",
    "Spectrum",
    "bound_of_all",
    "elbo",
    "lower_bound",
    "moments_of_rows",
    "nlml",
    "nlml_and_gradient",
    "nlml_of_rows",
    "nlml_of_spectrum",
    "refit",
    "spectrum",
]


@functools.singledispatch
def nlml_and_gradient(gp: Any, rows: Data, *, dtype: str | None = None) -> ExactNLML:
    """Return the exact NLML per datum and its gradient. Raises TypeError if there is none.

    Parameters
    ----------
    gp, rows, dtype : FeatureGP or KernelGP, Data, "float32", "float64" or None
        The model at θ; all of the data, on the host in float64; the dtype of the factor, None = the smallest safe dtype.
    """
    raise TypeError(f"{type(gp).__name__} has no exact marginal likelihood")


nlml_and_gradient.register(FeatureGP, feature.nlml_and_gradient)
nlml_and_gradient.register(KernelGP, kernel.nlml_and_gradient)
