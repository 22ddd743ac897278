"""Gaussian processes trained and solved with mini-batches, in memory that the user sets."""

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
}  # where a name is that is no room of its own


def __getattr__(name: str) -> Any:
    """Return a public name at its first use (PEP 562): JAX and scikit-learn take seconds to load, which `stochgp --help` does not need."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _ROOMS:
        return importlib.import_module(f"{__name__}.{name}")
    value = getattr(importlib.import_module(f"{__name__}.{_ROOMS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
