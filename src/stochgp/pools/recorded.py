"""Values that targets have far more often than those beside them: whether a pool is to know of them."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from jaxtyping import Int

from stochgp.choosing import choice, prefer
from stochgp.data.rows import Rows
from stochgp.distributions import AbstractDistribution, Heaping

HEAPS = "frequent values"


def heaping_of(
    rows: Rows,
    parts: Iterable[tuple[Rows, AbstractDistribution, Rows]],
    cell: Int[np.ndarray, " R"],
    above: float,
) -> tuple[Heaping | None, dict[str, Any]]:
    """(What is recorded of continuous predictions, where held-out rows clearly gain by it; what `plan_` says).

    Each part is held-out rows, their distributions, and the rows that were seen, whose targets alone are counted for these; then those of all `rows` are.
    Predictions are `above` a number. `cell` is of the held-out rows of all parts, one after the other.
    """
    scores, weights = [], []
    for new, found, seen in parts:
        heaping = counted(seen, above)
        if heaping is None:
            return None, {}
        scores.append((found.logpdf(new.y), heaping(found).logpdf(new.y)))
        weights.append(new.weights)
    made = counted(rows, above)
    if made is None:
        return None, {}
    without, with_heaps = (np.concatenate(each) for each in zip(*scores, strict=True))
    found = prefer(without, {HEAPS: with_heaps}, cell, np.concatenate(weights))
    taken = None if found.name is None else made
    n = 0 if taken is None else len(taken.value)
    return taken, {"frequent_values": choice(n, f"values that are recorded exactly: {found.why}")}


def counted(rows: Rows, above: float = -np.inf) -> Heaping | None:
    """What is recorded of predictions `above` a number, by the targets of these rows."""
    return Heaping.of(rows.y, rows.weights.astype(np.float64), above)
