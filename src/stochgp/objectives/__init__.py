"""Objectives: every loss, a function each."""

import functools
from typing import Any

from stochgp.data.streams import Batch
from stochgp.models import FeatureGP, KernelGP
from stochgp.results import ExactNLML

from . import feature, kernel
from .collapsed import lower_bound, lower_bound_and_gradient, upper_bound
from .elbo import bound_of_all, elbo
from .feature import Spectrum, nlml, nlml_of_rows, nlml_of_spectrum, refit, spectrum
from .moments import Moments, add_up, chunk_rows, moments_of_rows

__all__ = [
    "Moments",
    "Spectrum",
    "add_up",
    "bound_of_all",
    "chunk_rows",
    "elbo",
    "lower_bound",
    "lower_bound_and_gradient",
    "moments_of_rows",
    "nlml",
    "nlml_and_gradient",
    "nlml_of_rows",
    "nlml_of_spectrum",
    "refit",
    "spectrum",
    "upper_bound",
]


@functools.singledispatch
def nlml_and_gradient(gp: Any, rows: Batch, *, dtype: str | None = None) -> ExactNLML:
    """The exact NLML per datum and its gradient by what trains in the model; further families register theirs. Raises TypeError for a model without one.

    Parameters
    ----------
    gp : FeatureGP or KernelGP
        The model at θ.
    rows : Batch
        All of the data, on the host in float64.
    dtype : "float32", "float64" or None
        Of what the family factorises; None = as small as is safe.
    """
    raise TypeError(f"{type(gp).__name__} has no exact marginal likelihood")


nlml_and_gradient.register(FeatureGP, feature.nlml_and_gradient)
nlml_and_gradient.register(KernelGP, kernel.nlml_and_gradient)
