"""Estimators with the interface of scikit-learn."""

import os
from typing import Any

from stochgp.names import REGISTERED

from .classifier import SparseGPClassifier
from .feature import FeatureGPRegressor
from .function_draws import FunctionDraws
from .kernel import KernelGPRegressor
from .pooled_classifier import GPClassifier
from .pooled_regressor import GPRegressor
from .predictor import PosteriorRegressor
from .saving import load_estimator
from .sparse import SparseGPRegressor

__all__ = [
    "FeatureGPRegressor",
    "FunctionDraws",
    "GPClassifier",
    "GPRegressor",
    "KernelGPRegressor",
    "PosteriorRegressor",
    "SparseGPClassifier",
    "SparseGPRegressor",
    "load",
]

_KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        FeatureGPRegressor,
        GPClassifier,
        GPRegressor,
        KernelGPRegressor,
        SparseGPClassifier,
        SparseGPRegressor,
    )
}


def load(path: str | os.PathLike) -> Any:
    """The estimator that `save` wrote to `path`; it predicts the same, to the last bit.

    Raises ValueError in one line for a file that is not of stochgp, truncated, changed since it was written, or of a newer format.

    Parameters
    ----------
    path : str or path
        The file.
    """
    own = {kind.__name__: kind for kind in REGISTERED.get("model", {}).values()}
    return load_estimator(path, _KINDS | own)
