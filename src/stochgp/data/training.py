"""Training data: rows in the user's units and their standardisation for a model."""

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Int

from stochgp.tables.molecules import Encoder

from .memory import MemorySource, Source
from .rows import Data, Standardiser

RANGE = 1e12  # variances may differ from the mean square of the targets by this factor
_SHIFTED = ("nlml", "held_out_nlpd", "criterion", "loss")
_SCALED = ("variance", "noise_variance")


@dataclass(frozen=True, eq=False)
class TrainingData:
    """The checked training rows in the user's units, and the standardisation of these rows."""

    rows: Data  # in the user's units
    inputs: Standardiser
    targets: Standardiser
    dtype: str
    standardized: bool = True
    everything: Any = None  # the `files.FileSource` of all rows, if `rows` is a sample
    leaves_inputs: bool = False  # True if inputs are not standardised
    transform: Any = None  # an `AbstractTransform` T of targets; `rows` contains T(y)
    log_slope: float = 0.0  # the mean of log T'(y) over the rows
    encoder: Encoder | None = None  # the encoder of the inputs
    mean_function: Any = None  # an `AbstractMeanFunction` m; `rows` contains T(y) − m(x)
    mean_values: Float[np.ndarray, " N"] | None = None  # the values of m that were subtracted

    @classmethod
    def of(
        cls, rows: Data, standardize: bool, mean: float | None, dtype: str, leaves_inputs: bool = False, leaves_targets: bool = False,
    ) -> "TrainingData":  # fmt: skip
        """Compute the standardisation; `mean`, in target units, replaces the targets' mean."""
        scaled = standardize and not leaves_targets
        inputs, targets = (
            Standardiser.fit(values, rows.weight) if has_scale else Standardiser.identity(values.shape[1:])
            for values, has_scale in ((rows.X, standardize and not leaves_inputs), (rows.y, scaled))
        )
        if mean is not None:
            targets = Standardiser(np.asarray(float(mean), np.float64), targets.scale)
        return cls(rows, inputs, targets, dtype, scaled, leaves_inputs=leaves_inputs)

    @property
    def n_rows(self) -> int:
        return len(self.rows.y)

    @property
    def n_all(self) -> int:
        """The number of all rows, including rows outside the sample."""
        return self.n_rows if self.everything is None else self.everything.size

    @property
    def n_inputs(self) -> int:
        return self.rows.X.shape[1]

    @property
    def scale(self) -> float:
        """The standard deviation of the targets, in the user's units."""
        return float(self.targets.scale)

    @property
    def log_unit(self) -> float:
        """The NLML per row in the user's units minus the NLML per row in the model's units."""
        return math.log(self.scale) - self.log_slope

    @functools.cached_property
    def spread(self) -> float:
        """The initial variance, the mean square of the targets; extremes raise ValueError."""
        found = 1.0 if self.standardized else float(np.mean(np.square(self.y))) or 1.0
        limits, wide = np.finfo(self.dtype), np.finfo(np.float64)
        least = max(float(limits.tiny), float(wide.tiny) ** 0.5)
        most = min(float(limits.max), float(wide.max) ** 0.5)
        if not least < found / RANGE < found * RANGE < most:
            what = f"the mean square of the targets is {found:.3g}, too small or too large for {self.dtype}"
            raise ValueError(f'{what}: set standardize=True or dtype="float64"')
        return found

    @functools.cached_property
    def X(self) -> Float[np.ndarray, "N D"]:
        """Standardised inputs in the model's dtype."""
        return self.inputs.transform(self.rows.X, self.dtype)

    @functools.cached_property
    def y(self) -> Float[np.ndarray, " N"]:
        """Standardised targets in float64."""
        return self.targets.transform(self.rows.y)

    @functools.cached_property
    def limits(self) -> Float[np.ndarray, "2 D"]:
        """The smallest and the largest value of each input over all rows, in the user's units."""
        if self.everything is not None:
            return np.stack([self.everything.of_rows.low, self.everything.of_rows.high])[:, :-1]
        return np.stack([self.rows.X.min(axis=0), self.rows.X.max(axis=0)]).astype(np.float64)

    def some(self, indices: Int[np.ndarray, " n"]) -> "TrainingData":
        """Return the rows at `indices`, with the standardisation of all rows."""
        values = None if self.mean_values is None else self.mean_values[indices]
        return dataclasses.replace(self, rows=self.rows.take(indices), everything=None, mean_values=values)

    def given_targets(self, are_counts: bool) -> Float[np.ndarray, " N"]:
        """Return the user's targets, before transforms and without subtracting the mean function."""
        y = self.rows.y if self.mean_values is None else self.rows.y + self.mean_values
        if self.transform is None:
            return y
        found = self.transform.inverse(y)
        return np.rint(found) if are_counts else found

    def passes(self, mesh: Mesh | None = None) -> Source:
        """Return a source of all standardised rows; `mesh` shares each pass."""
        if self.everything is None:
            return self.source(False, mesh)
        return dataclasses.replace(self.everything, mesh=mesh)

    def source(self, on_device: bool, mesh: Mesh | None = None) -> MemorySource:
        """Return a source of standardised rows in memory; `mesh` shares each pass."""
        rows, of = self.rows, {"group": self.rows.group, "dtype": np.dtype(self.dtype), "mesh": mesh}
        if on_device:
            return MemorySource(self.X, self.y, rows.weight, **of)
        scales = {"inputs": self.inputs, "targets": self.targets, "on_device": False}
        return MemorySource(rows.X, rows.y, rows.weight, **of, **scales)


def in_target_units(entry: dict[str, float], s: float, log_unit: float) -> dict[str, float]:
    """Convert a history entry to target units: variances times s², losses plus `log_unit`."""
    units = dict.fromkeys(_SHIFTED, (1.0, log_unit)) | dict.fromkeys(_SCALED, (s**2, 0.0))
    found = {name: value if isinstance(value, int | str) else float(value) for name, value in entry.items()}
    return found | {name: found[name] * a + b for name, (a, b) in units.items() if name in entry}
