"""Between the units of the user and those of the model."""

import math

import numpy as np

from stochgp.data import Standardiser
from stochgp.estimators.inputs import TrainingRows

_SHIFTED = ("nlml", "held_out_nlpd", "criterion", "loss")
_SCALED = ("variance", "noise_variance")


def standardisers(
    rows: TrainingRows, standardize: bool, mean: float | None
) -> tuple[Standardiser, Standardiser]:
    """(of the inputs, of the targets); `mean`, in target units, takes the place of the targets' average."""
    if not standardize:
        center = np.asarray(0.0 if mean is None else mean, np.float64)
        return Standardiser.identity((rows.X.shape[1],)), Standardiser(center, np.ones((), np.float64))
    inputs, targets = (Standardiser.fit(values, rows.weight) for values in (rows.X, rows.y))
    if mean is not None:
        targets = Standardiser(np.asarray(float(mean), np.float64), targets.scale)
    return inputs, targets


def in_target_units(entry: dict[str, float], s: float) -> dict[str, float]:
    """An entry of the history for targets of standard deviation s instead of 1: densities gain log s, variances s²."""
    shifted = {name: float(entry[name]) + math.log(s) for name in _SHIFTED if name in entry}
    scaled = {name: float(entry[name]) * s**2 for name in _SCALED if name in entry}
    plain = {name: value if isinstance(value, int | str) else float(value) for name, value in entry.items()}
    return plain | shifted | scaled
