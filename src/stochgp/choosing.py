"""The decision rule of fits, `prefer`, and the record of decisions, `plan_`.

A challenger replaces the default only if the log density of held-out rows, in nats, clearly improves.
"""

import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from stochgp.numerics.clustered import paired

AS_ASKED, AS_GIVEN = "set by the user", "set by the user"  # as a name, as an object
SURE = 2.0  # minimum gain in standard errors
LEAST_GAIN = 0.01  # minimum gain in nats per row
MOST_OF_ROW = 5.0  # maximum gain of one row in nats: a density ratio of 148
FEWEST_ROWS = 100
FEWEST_GROUPS = 10  # with fewer groups, standard errors are unreliable
WIDTH = 100  # characters per printed line


class Gain(NamedTuple):
    """The increase of the mean log density per row, in nats, compared with the default."""

    mean: float
    error: float  # standard error of the mean
    n_rows: int

    def __str__(self) -> str:
        return f"gains {self.mean:.4f} ± {self.error:.4f} nats per row on {self.n_rows:,} rows"


class Preference(NamedTuple):
    """The preferred alternative (None if the default is preferred), all gains, and the reason."""

    name: str | None
    gains: dict[str, Gain]
    why: str


def too_few(n_rows: int, group: Int[np.ndarray, " R"] | None = None, fewest: int = FEWEST_ROWS) -> str | None:
    """Return a reason if there are too few rows or groups to compare models, else None."""
    if n_rows < fewest:
        return f"{n_rows:,} rows are too few to compare models: at least {fewest:,} are needed"
    if group is not None and len(np.unique(group)) < FEWEST_GROUPS:
        return f"fewer than {FEWEST_GROUPS} groups are too few to compare models"
    return None


def prefer(
    base: Float[np.ndarray, " R"],
    challengers: Mapping[str, Float[np.ndarray, " R"]],
    cell: Int[np.ndarray, " R"],
    weight: Float[np.ndarray, " R"] | None = None,
    *,
    least: float = LEAST_GAIN,
    fewest: int = FEWEST_ROWS,
) -> Preference:
    """Return the challenger with the largest clear gain over the default, or None.

    `base` and `challengers` are log densities of the same held-out rows; `weight` contains frequency weights.
    A gain is clear if its mean exceeds two standard errors and `least` nats per row. The mean may be taken
    over rows limited to 5 nats. Sums over cells (groups or clusters of rows) count as independent. With fewer
    than `fewest` rows or 10 cells, the default stays. A model with scores that are not finite loses.
    """
    left = {name: challenger for name, challenger in challengers.items() if np.isfinite(challenger).all()}
    if not np.isfinite(base).all():
        best = max(left, key=lambda name: float(np.average(left[name], weights=weight)), default=None)
        return Preference(best, {}, "the default has no finite scores")
    gains, clear = dict[str, Gain](), dict[str, float]()
    for name, challenger in left.items():
        gain = gains[name] = Gain(*paired(challenger - base, cell, weight), len(base))
        # One very bad row inflates the standard error; a limit for each row gives a lower bound of the gain.
        bound = paired(np.minimum(challenger - base, MOST_OF_ROW), cell, weight)
        if any(mean > max(SURE * error, least) for mean, error in (gain[:2], bound)):
            clear[name] = gain.mean
    gained = "; ".join(f"{name!r} {gains.get(name, 'has no finite scores')}" for name in challengers)
    if few := too_few(len(base), cell, fewest):
        return Preference(None, gains, f"{few}; {gained}" if gained else few)
    return Preference(max(clear, key=clear.__getitem__, default=None), gains, gained)


class Decisions(dict[str, dict[str, Any]]):
    """The record `plan_`, a dictionary from names to {"choice": …, "why": …}."""

    def __or__(self, others: Mapping[str, Any]) -> "Decisions":
        return Decisions({**self, **others})

    def without(self, *names: str) -> "Decisions":
        """Return the record without these names."""
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
