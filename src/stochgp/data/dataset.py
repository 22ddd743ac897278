"""A regression data set with its training and test rows."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training rows X [N, D], y [N] and test rows X_test [P, D], y_test [P], as given: nothing is rescaled."""

    X: Float64[np.ndarray, "N D"]
    y: Float64[np.ndarray, " N"]
    X_test: Float64[np.ndarray, "P D"]
    y_test: Float64[np.ndarray, " P"]
    feature_names: tuple[str, ...]
    target_name: str
    name: str
