"""The decision rule of fits, on held-out rows, and the record of decisions, `plan_`.

The default stays unless a challenger clearly predicts better rows to which neither was fitted. Scores are log densities in nats. All comparisons use `prefer`.
"""

import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from stochgp.numerics.clustered import paired

AS_ASKED, AS_GIVEN = "as asked", "as given"  # by name, by object
SURE = 2.0  # standard errors that a gain must exceed
LEAST_GAIN = 0.01  # nats per row: a smaller gain is not worth another model, and models equal up to rounding have an error as small as the gain
MOST_OF_ROW = 5.0  # nats that one row may contribute for a challenger: a density ratio of 148
FEWEST_ROWS = 100
FEWEST_GROUPS = 10  # 2 standard errors have a level of 3.8 %, with many groups of 2.3 %
WIDTH = 100  # of printed lines


class Gain(NamedTuple):
    """The gain of a challenger over the default on the same rows, in nats per row."""

    mean: float
    error: float  # its standard error
    n_rows: int

    def __str__(self) -> str:
        return f"gains {self.mean:.4f} ± {self.error:.4f} nats per row on {self.n_rows:,} rows"


class Preference(NamedTuple):
    """The preferred challenger, None for the default; the gains over the default; the reason."""

    name: str | None
    gains: dict[str, Gain]
    why: str


def too_few(n_rows: int, group: Int[np.ndarray, " R"] | None = None, fewest: int = FEWEST_ROWS) -> str | None:
    """Return the reason why rows and groups are too few to compare two models, or None."""
    if n_rows < fewest:
        return f"{n_rows:,} rows are too few to tell: {fewest:,} are wanted"
    if group is not None and len(np.unique(group)) < FEWEST_GROUPS:
        return f"fewer than {FEWEST_GROUPS} groups are too few to tell"
    return None


def prefer(
    base: Float[np.ndarray, " R"],
    challengers: Mapping[str, Float[np.ndarray, " R"]],
    cell: Int[np.ndarray, " R"],
    weight: Float[np.ndarray, " R"] | None = None,
    *,
    least: float = LEAST_GAIN,
    fewest: int = FEWEST_ROWS,
    sure: float = SURE,
) -> Preference:
    """Return the challenger with the largest gain over the default, or None if no gain is clear.

    A gain must exceed `sure` (2) standard errors and `least` nats per row, also if each row counts at most 5 nats. Scores are log densities of the same rows
    under the default, `base`, and each challenger, with frequency weights. The sums of rows of one `cell`, a group or near rows (`numerics.clustered`), count as
    independent. With fewer than `fewest` rows or 10 cells none is preferred. A model with a score that is not finite loses.
    """
    left = {name: challenger for name, challenger in challengers.items() if np.isfinite(challenger).all()}
    if not np.isfinite(base).all():
        best = max(left, key=lambda name: float(np.average(left[name], weights=weight)), default=None)
        return Preference(best, {}, "the default has no finite scores")
    gains, clear = dict[str, Gain](), dict[str, float]()
    for name, challenger in left.items():
        gain = gains[name] = Gain(*paired(challenger - base, cell, weight), len(base))
        # One very bad row of the default makes the error of a gain as large as the gain. The mean of min(d, MOST_OF_ROW) is a lower bound.
        bound = paired(np.minimum(challenger - base, MOST_OF_ROW), cell, weight)
        if any(mean > max(sure * error, least) for mean, error in (gain[:2], bound)):
            clear[name] = gain.mean
    gained = "; ".join(f"{name!r} {gains.get(name, 'has no finite scores')}" for name in challengers)
    if few := too_few(len(base), cell, fewest):
        return Preference(None, gains, f"{few}; {gained}" if gained else few)
    return Preference(max(clear, key=clear.__getitem__, default=None), gains, gained)


class Decisions(dict[str, dict[str, Any]]):
    """The record `plan_`: name → {"choice": …, "why": …}, of JSON values, which `print` shows a line for each."""

    def __or__(self, others: Mapping[str, Any]) -> "Decisions":
        return Decisions({**self, **others})

    def without(self, *names: str) -> "Decisions":
        """Return the other decisions."""
        return Decisions({name: entry for name, entry in self.items() if name not in names})

    def __str__(self) -> str:
        lines = (f"{name} = {_short(entry['choice'])}: {entry['why']}" for name, entry in self.items())
        wrapped = (
            textwrap.fill(line, WIDTH, initial_indent="  ", subsequent_indent="      ") for line in lines
        )
        return "\n".join(wrapped)


def choice(choice: Any, why: str) -> dict[str, Any]:
    """Return an entry of `plan_`."""
    return {"choice": choice, "why": why}


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_short(item)}" for name, item in value.items()) + "}"
    return str(value)
