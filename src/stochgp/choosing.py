"""How a fit chooses between models: a rival replaces the default where it clearly predicts rows better that neither was fitted to."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from stochgp.numerics.clustered import paired

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
