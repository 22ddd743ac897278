"""How a fit decides: the default stays unless a rival clearly predicts rows better that neither was fitted to; and `plan_`, which says what was decided.

Scores are log densities in nats. Whoever compares them asks `prefer`.
"""

import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from stochgp.numerics.clustered import paired

WIDTH = 100  # of lines that are shown
SURE = 2.0  # standard errors that a gain is to exceed
LEAST_GAIN = 0.01  # nats a row: less is not worth another model, and between two that are the same but for rounding no error says more


class Gain(NamedTuple):
    """How much better a rival predicts rows than the default, in nats a row."""

    mean: float
    error: float  # its standard error
    n_rows: int


class Preference(NamedTuple):
    """The name of the rival that is preferred, None where the default stays; what each rival gains over the default."""

    name: str | None
    gains: dict[str, Gain]


def prefer(
    base: Float[np.ndarray, " R"],
    rivals: Mapping[str, Float[np.ndarray, " R"]],
    cell: Int[np.ndarray, " R"],
    weight: Float[np.ndarray, " R"] | None = None,
    *,
    least: float = LEAST_GAIN,
    fewest_rows: int = 0,
) -> Preference:
    """Of the rivals that gain more than 2 standard errors and `least` nats a row, the one that gains most; none by fewer rows than `fewest_rows`.

    Scores are log densities of the same rows under the default, `base`, and under each rival. A row of weight ρ counts as ρ equal ones.
    The sums of rows of one `cell`, a group or near rows (`numerics.clustered`), are taken as independent.
    """
    gains = {name: Gain(*paired(rival - base, cell, weight), len(base)) for name, rival in rivals.items()}
    clear = {name: gain for name, gain in gains.items() if gain.mean > max(SURE * gain.error, least)}
    clear = clear if len(base) >= fewest_rows else {}
    return Preference(max(clear, key=lambda name: clear[name].mean, default=None), gains)


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
