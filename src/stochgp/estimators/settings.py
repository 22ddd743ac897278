"""What the estimators' settings must be: declared once, checked in `fit`."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from stochgp.names import lookup
from stochgp.planning.solver import NAMES
from stochgp.solvers import AbstractSolver

DTYPES = {"float32": 4, "float64": 8}  # bytes of a number


class Rule(NamedTuple):
    """What a value must be, and how that is said."""

    holds: Callable[[Any], bool]
    what: str


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, int | np.integer) and not isinstance(v, bool) and bool(v >= least)


def _positive(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and bool(0 < value < math.inf)


_AT_LEAST_ONE = Rule(lambda v: v is None or _whole(1)(v), "None or a whole number of at least 1")
RULES = {
    "n_features": _AT_LEAST_ONE,
    "batch_size": _AT_LEAST_ONE,
    "epochs": _AT_LEAST_ONE,
    "n_inducing": Rule(_whole(1), "a whole number of at least 1"),
    "n_inducing_mean": Rule(lambda v: v is None or _whole(0)(v), "None or a whole number of at least 0"),
    "n_samples": Rule(_whole(0), "a whole number of at least 0"),
    "time_limit": Rule(lambda v: v is None or v > 0, "None or a positive number of seconds"),
    "mean": Rule(
        lambda v: v is None or v == "linear" or (not isinstance(v, str) and math.isfinite(v)),
        "None, 'linear' or a finite number",
    ),
    "noise_variance": Rule(lambda v: v is None or _positive(v), "None, or positive and finite"),
}
CHOICES = {
    "dtype": tuple(DTYPES),
    "prediction": ("auto", "global", "local"),
    "missing": ("auto", "impute", "refuse", "skip"),
    "target": ("real", "positive", "count"),
    "new_rows": ("auto", "between", "after"),
}
CALIBRATIONS = (None, "pit", "conformal")


def check_settings(settings: dict[str, Any]) -> None:
    """Raises ValueError, naming the setting, its value and what it must be, or TypeError for another kind of thing."""
    for name, value in settings.items():
        if name in RULES and not RULES[name].holds(value):
            raise ValueError(f"{name} is {value!r}; it must be {RULES[name].what}")
        if name in CHOICES:
            lookup(value, dict.fromkeys(CHOICES[name]), name)
    if (calibration := settings.get("calibration")) is not None:
        lookup(calibration, dict.fromkeys(CALIBRATIONS[1:]), "calibration")
    solver = settings.get("solver", "auto")
    if isinstance(solver, str):
        lookup(solver, dict.fromkeys(("auto", *NAMES)), "solver")
    elif not isinstance(solver, AbstractSolver):
        raise TypeError(f"solver must be a name or a solver of stochgp.solvers, not {solver!r}")
