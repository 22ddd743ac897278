"""What the estimators' settings must be: declared once, checked in `fit`."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from stochgp.names import lookup
from stochgp.observations import MEANS
from stochgp.solvers import AbstractSolver
from stochgp.solvers.choice import NAMES

DTYPES = {"float32": 4, "float64": 8}  # bytes of a number


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda v: isinstance(v, int | np.integer) and not isinstance(v, bool) and bool(v >= least)


def _positive(value: Any) -> bool:
    return _is_number(value) and bool(0 < value < math.inf)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


_AT_LEAST_ONE = (lambda v: v is None or _whole(1)(v), "None or a whole number of at least 1")
RULES: dict[str, tuple[Callable[[Any], bool], str]] = {  # what a value must be, and how that is said
    "n_features": _AT_LEAST_ONE,
    "batch_size": _AT_LEAST_ONE,
    "epochs": _AT_LEAST_ONE,
    "n_inducing": (_whole(1), "a whole number of at least 1"),
    "n_inducing_mean": (lambda v: v is None or _whole(0)(v), "None or a whole number of at least 0"),
    "n_samples": (_whole(0), "a whole number of at least 0"),
    "time_limit": (lambda v: v is None or (_is_number(v) and v > 0), "None or a positive number of seconds"),
    "mean": (
        lambda v: v is None or v in tuple(MEANS) or (_is_number(v) and math.isfinite(v)),
        f"None, {', '.join(map(repr, MEANS))} or a finite number",
    ),
    "point_mass": (
        lambda v: v is None or v == "auto" or (_is_number(v) and math.isfinite(v)),
        "'auto', None or a finite number",
    ),
    "members": (lambda v: len(v) > 0, "'auto', or name at least one estimator"),
    "rotate_inputs": (lambda v: v == "auto" or isinstance(v, bool), "'auto', True or False"),
    "noise_variance": (lambda v: v is None or _positive(v), "None, or positive and finite"),
}
CHOICES = {
    "dtype": tuple(DTYPES),
    "prediction": ("auto", "global", "local"),
    "missing": ("auto", "refuse", "skip"),
    "target": ("real", "positive", "count"),
    "new_rows": ("auto", "between", "after"),
    "target_outliers": ("warn", "refuse", "keep"),
}
CALIBRATIONS = (None, "pit", "conformal")


def check_settings(settings: dict[str, Any], choices: Mapping[str, tuple[str, ...]] = CHOICES) -> None:
    """Raises ValueError, naming the setting, its value and what it must be, or TypeError for another kind of thing."""
    for name, value in settings.items():
        if name in RULES:
            holds, what = RULES[name]
            if not holds(value):
                raise ValueError(f"{name} is {value!r}; it must be {what}")
        if name in choices:
            lookup(value, dict.fromkeys(choices[name]), name)
    if (calibration := settings.get("calibration")) is not None:
        lookup(calibration, dict.fromkeys(CALIBRATIONS[1:]), "calibration")
    solver = settings.get("solver", "auto")
    if isinstance(solver, str):
        lookup(solver, dict.fromkeys(("auto", *NAMES)), "solver")
    elif not isinstance(solver, AbstractSolver):
        raise TypeError(f"solver must be a name or a solver of stochgp.solvers, not {solver!r}")
