"""Objectives: every loss, a function each."""

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
    "nlml_of_rows",
    "nlml_of_spectrum",
    "refit",
    "spectrum",
    "upper_bound",
]
