"""Between the units of the user and those of the model."""

import functools
import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from stochgp.data import Standardiser, TableEncoder
from stochgp.data.streams import AbstractSource, DeviceRows, HostRows
from stochgp.estimators.inputs import TrainingRows

_SHIFTED = ("nlml", "held_out_nlpd", "criterion")
_SCALED = ("variance", "noise_variance")


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Checked rows in the user's units, and what standardises them."""

    rows: TrainingRows
    inputs: Standardiser
    targets: Standardiser
    dtype: str

    @classmethod
    def of(cls, rows: TrainingRows, standardize: bool, mean: float | None, dtype: str) -> "TrainingData":
        """`mean`, in target units, takes the place of the targets' average; without `standardize` that is 0."""
        if not standardize:
            center = np.asarray(0.0 if mean is None else mean, np.float64)
            inputs = Standardiser.identity((rows.X.shape[1],))
            return cls(rows, inputs, Standardiser(center, np.ones((), np.float64)), dtype)
        inputs, targets = (Standardiser.fit(values, rows.weight) for values in (rows.X, rows.y))
        if mean is not None:
            targets = Standardiser(np.asarray(float(mean), np.float64), targets.scale)
        return cls(rows, inputs, targets, dtype)

    @property
    def encoder(self) -> TableEncoder | None:
        return self.rows.encoder

    @property
    def n_rows(self) -> int:
        return len(self.rows.y)

    @property
    def n_inputs(self) -> int:
        return self.rows.X.shape[1]

    @property
    def scale(self) -> float:
        """The targets' standard deviation, in the user's units."""
        return float(self.targets.scale)

    @functools.cached_property
    def X(self) -> Float[np.ndarray, "N D"]:
        """Standardised, in the model's dtype."""
        return self.inputs.transform(self.rows.X, self.dtype)

    @functools.cached_property
    def y(self) -> Float[np.ndarray, " N"]:
        """Standardised, in float64."""
        return self.targets.transform(self.rows.y)

    @property
    def count(self) -> Float[np.ndarray, " N"]:
        """How many rows each stands for."""
        return np.ones(self.n_rows) if self.rows.weight is None else self.rows.weight

    def source(self, on_device: bool) -> AbstractSource:
        """Standardised rows for a learner: on the device, or on the host and standardised as they are taken."""
        if on_device:
            return DeviceRows(self.X, self.y, self.rows.weight, dtype=self.dtype)
        X, y, weight, _ = self.rows
        return HostRows(X, y, weight, inputs=self.inputs, targets=self.targets, dtype=np.dtype(self.dtype))


def in_target_units(entry: dict[str, float], s: float, loss_shift: float) -> dict[str, float]:
    """An entry of the history for targets of standard deviation s instead of 1: densities gain log s, "loss" `loss_shift` · log s, variances s²."""
    shifts = dict.fromkeys(_SHIFTED, 1.0) | {"loss": loss_shift}
    shifted = {
        name: float(entry[name]) + part * math.log(s) for name, part in shifts.items() if name in entry
    }
    scaled = {name: float(entry[name]) * s**2 for name in _SCALED if name in entry}
    plain = {name: value if isinstance(value, int | str) else float(value) for name, value in entry.items()}
    return plain | shifted | scaled
