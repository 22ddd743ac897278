"""The exact marginal likelihood of any model: one name, a function for every family."""

import functools
from typing import Any

from stochgp.data.streams import Batch
from stochgp.models import FeatureGP, KernelGP
from stochgp.objectives import feature, kernel
from stochgp.results import ExactNLML


@functools.singledispatch
def nlml_and_gradient(gp: Any, rows: Batch, *, dtype: str | None = None) -> ExactNLML:
    """The exact NLML per datum of `rows` (on the host, in float64) and its gradient by what trains in `gp`.

    `dtype` of what the family factorises: "float32", "float64", or None = as small as is safe. Raises TypeError for a model without one.
    """
    raise TypeError(f"{type(gp).__name__} has no exact marginal likelihood")


nlml_and_gradient.register(FeatureGP, feature.nlml_and_gradient)
nlml_and_gradient.register(KernelGP, kernel.nlml_and_gradient)
