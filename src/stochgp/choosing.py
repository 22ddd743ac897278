"""How a fit decides: the default stays unless a rival clearly predicts rows better that neither was fitted to; and `plan_`, which says what was decided.

Scores are log densities in nats. Whoever compares them asks `prefer`.
"""

import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from stochgp.numerics.clustered import paired

AS_ASKED, AS_GIVEN = "as asked", "as given"  # by a name, by a value
SURE = 2.0  # standard errors that a gain is to exceed
LEAST_GAIN = 0.01  # nats a row: less is not worth another model, and of two that are the same but for rounding the error is as small as the gain
MOST_OF_ROW = 5.0  # nats that one row may say for a rival: that its density is 148 times as high
FEWEST_ROWS = 100
FEWEST_GROUPS = 10  # between two models of the same worth 2 standard errors are then exceeded in 3.8 of 100 draws, with many groups in 2.3
WIDTH = 100  # of lines that are shown


class Gain(NamedTuple):
    """How much better a rival predicts rows than the default, in nats a row."""

    mean: float
    error: float  # its standard error
    n_rows: int

    def __str__(self) -> str:
        return f"gains {self.mean:.4f} ± {self.error:.4f} nats a row by {self.n_rows:,} rows"


class Preference(NamedTuple):
    """The name of the rival that is preferred, None where the default stays; what each gains over the default; why."""

    name: str | None
    gains: dict[str, Gain]
    why: str


def too_few(n_rows: int, group: Int[np.ndarray, " R"] | None = None, fewest: int = FEWEST_ROWS) -> str | None:
    """Why so many rows, of these groups, tell nothing of two models; None where they may tell something."""
    if n_rows < fewest:
        return f"{n_rows:,} rows are too few to tell: {fewest:,} are wanted"
    if group is not None and len(np.unique(group)) < FEWEST_GROUPS:
        return f"fewer than {FEWEST_GROUPS} groups are too few to tell"
    return None


def prefer(
    base: Float[np.ndarray, " R"],
    rivals: Mapping[str, Float[np.ndarray, " R"]],
    cell: Int[np.ndarray, " R"],
    weight: Float[np.ndarray, " R"] | None = None,
    *,
    least: float = LEAST_GAIN,
    fewest: int = FEWEST_ROWS,
    sure: float = SURE,
) -> Preference:
    """Of the rivals that gain more than `sure` (2) standard errors and `least` nats a row, as they are or with at most 5 nats of each row, the one that gains most.

    Scores are log densities of the same rows under the default, `base`, and under each rival. A row of weight ρ counts as ρ equal ones.
    The sums of rows of one `cell`, a group or near rows (`numerics.clustered`), are taken as independent. Fewer than `fewest` rows or 10 cells
    prefer none. A model with a score that is not finite is lost: such a rival is never preferred, and to such a default the best rival is.
    """
    left = {name: rival for name, rival in rivals.items() if np.isfinite(rival).all()}
    if not np.isfinite(base).all():
        best = max(left, key=lambda name: float(np.average(left[name], weights=weight)), default=None)
        return Preference(best, {}, "the default has no finite scores")
    gains, clear = dict[str, Gain](), dict[str, float]()
    for name, rival in left.items():
        gain = gains[name] = Gain(*paired(rival - base, cell, weight), len(base))
        # A row at which the default fails altogether makes the error of a gain as large as the gain. The mean of min(d, MOST_OF_ROW) is a lower bound of it.
        bound = paired(np.minimum(rival - base, MOST_OF_ROW), cell, weight)
        if any(mean > max(sure * error, least) for mean, error in (gain[:2], bound)):
            clear[name] = gain.mean
    gained = "; ".join(f"{name!r} {gains.get(name, 'has no finite scores')}" for name in rivals)
    if few := too_few(len(base), cell, fewest):
        return Preference(None, gains, f"{few}; {gained}" if gained else few)
    return Preference(max(clear, key=clear.__getitem__, default=None), gains, gained)


class Decision(NamedTuple):
    """What was taken, and why."""

    choice: Any
    why: str


class Decisions(dict[str, dict[str, Any]]):
    """`plan_`: name → {"choice": …, "why": …}, of JSON values. `plan_.solver.choice` is `plan_["solver"]["choice"]`; `print(plan_)` shows a line for each."""

    def __getattr__(self, name: str) -> Decision:
        if name not in self:
            raise AttributeError(f"the plan has no {name!r}")
        return Decision(self[name]["choice"], self[name].get("why", ""))

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self]

    def __or__(self, others: Mapping[str, Any]) -> "Decisions":
        return Decisions({**self, **others})

    def without(self, *names: str) -> "Decisions":
        """The others."""
        return Decisions({name: entry for name, entry in self.items() if name not in names})

    def __str__(self) -> str:
        lines = (f"{name} = {_short(entry['choice'])}: {entry['why']}" for name, entry in self.items())
        wrapped = (
            textwrap.fill(line, WIDTH, initial_indent="  ", subsequent_indent="      ") for line in lines
        )
        return "\n".join(wrapped)


def choice(choice: Any, why: str) -> dict[str, Any]:
    """An entry of `plan_`."""
    return {"choice": choice, "why": why}


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_short(item)}" for name, item in value.items()) + "}"
    return str(value)
