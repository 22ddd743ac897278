"""Gaussian process regression and classification with mini-batches and a memory limit."""

import importlib
from typing import TYPE_CHECKING, Any

from stochgp.version import __version__

if TYPE_CHECKING:
    from stochgp import (
        data,
        distributions,
        exceptions,
        features,
        inspection,
        kernels,
        learners,
        likelihoods,
        metrics,
        networks,
        parameters,
        plots,
        solvers,
        thompson,
        transforms,
    )
    from stochgp.estimators.saving import load
    from stochgp.families import (
        FeatureGPRegressor,
        KernelGPRegressor,
        SparseGPClassifier,
        SparseGPRegressor,
    )
    from stochgp.names import register
    from stochgp.pools import GPClassifier, GPRegressor
    from stochgp.version import show_versions

__all__ = [
    "FeatureGPRegressor",
    "GPClassifier",
    "GPRegressor",
    "KernelGPRegressor",
    "SparseGPClassifier",
    "SparseGPRegressor",
    "__version__",
    "data",
    "distributions",
    "exceptions",
    "features",
    "inspection",
    "kernels",
    "learners",
    "likelihoods",
    "load",
    "metrics",
    "networks",
    "parameters",
    "plots",
    "register",
    "show_versions",
    "solvers",
    "thompson",
    "transforms",
]

_ROOMS = {
    "FeatureGPRegressor": "families",
    "GPClassifier": "pools",
    "GPRegressor": "pools",
    "KernelGPRegressor": "families",
    "SparseGPClassifier": "families",
    "SparseGPRegressor": "families",
    "load": "estimators.saving",
    "register": "names",
    "show_versions": "version",
}  # modules that define names which are not modules


def __getattr__(name: str) -> Any:
    """Import a public name at its first use (PEP 562), because JAX is slow to load."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _ROOMS:
        return importlib.import_module(f"{__name__}.{name}")
    value = getattr(importlib.import_module(f"{__name__}.{_ROOMS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
