"""Gaussian processes trained and solved with mini-batches, in memory that the user sets."""

import importlib
from typing import TYPE_CHECKING, Any

from stochgp.version import __version__

if TYPE_CHECKING:
    from stochgp import (
        data,
        distributions,
        features,
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
    from stochgp.estimators import (
        FeatureGPRegressor,
        GPClassifier,
        GPRegressor,
        KernelGPRegressor,
        SparseGPClassifier,
        SparseGPRegressor,
        load,
    )
    from stochgp.extending import register

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
    "features",
    "kernels",
    "learners",
    "likelihoods",
    "load",
    "metrics",
    "networks",
    "parameters",
    "plots",
    "register",
    "solvers",
    "thompson",
    "transforms",
]

_OF_ESTIMATORS = (
    "FeatureGPRegressor",
    "GPClassifier",
    "GPRegressor",
    "KernelGPRegressor",
    "SparseGPClassifier",
    "SparseGPRegressor",
    "load",
)


def __getattr__(name: str) -> Any:
    """A public name at its first use (PEP 562): JAX and scikit-learn take seconds to load, which `stochgp --help` does not need."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _OF_ESTIMATORS and name != "register":
        return importlib.import_module(f"{__name__}.{name}")
    room = "extending" if name == "register" else "estimators"
    value = getattr(importlib.import_module(f"{__name__}.{room}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
