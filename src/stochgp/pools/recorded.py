"""Values that targets have far more often than those beside them: whether a pool is to know of them."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from jaxtyping import Int

from stochgp.choosing import choice, prefer
from stochgp.data.rows import Rows
from stochgp.distributions import AbstractDistribution, Heaping, PITRecalibration

HEAPS = "frequent values"


def heaping_of(
    rows: Rows,
    parts: Iterable[tuple[Rows, AbstractDistribution, Rows]],
    cells: Callable[[], Int[np.ndarray, " R"]],
    curve: PITRecalibration | None,
    above: float,
) -> tuple[Heaping | None, dict[str, Any]]:
    """(What is recorded of continuous predictions, after the `curve`, where held-out rows clearly gain by it; what `plan_` says).

    Each part is held-out rows, their distributions, and the rows that were seen, whose targets alone are counted for these; then those of all `rows` are.
    Predictions are `above` a number. `cells` are those of the held-out rows of all parts, one after the other.
    """
    scores, weights = [], []
    for new, found, seen in parts:
        heaping = counted(seen, above)
        if heaping is None:
            return None, {}
        scores.append((found.logpdf(new.y), heaping(found).logpdf(new.y)))
        weights.append(new.weights)
    made = counted(rows, above) if scores else None
    if made is None:
        return None, {}
    without, with_heaps = (np.concatenate(each) for each in zip(*scores, strict=True))
    found = prefer(without, {HEAPS: with_heaps}, cells(), np.concatenate(weights))
    n = 0 if found.name is None else len(made.value)
    entry = {"frequent_values": choice(n, f"values that are recorded exactly: {found.why}")}
    return (dataclasses.replace(made, curve=curve) if n else None), entry


def counted(rows: Rows, above: float = -np.inf) -> Heaping | None:
    """What is recorded of predictions `above` a number, by the targets of these rows."""
    return Heaping.of(rows.y, rows.weights.astype(np.float64), above)
