"""A regression data set with its training and test rows."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training rows X [N, D], y [N] and test rows X_test [P, D], y_test [P], as given: nothing is rescaled.

    noise_std is the standard deviation of the noise in the targets, in their units, where it is known because the targets are
    simulated: no prediction has a smaller root mean squared error on average.
    """

    X: Float[np.ndarray, "N D"]
    y: Float[np.ndarray, " N"]
    X_test: Float[np.ndarray, "P D"]
    y_test: Float[np.ndarray, " P"]
    feature_names: tuple[str, ...]
    target_name: str
    name: str
    noise_std: float | None = None
