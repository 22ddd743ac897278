"""Numbers far beyond all others of their column: inputs such as 9,831 mm of rain in an hour are moved near them, targets far from all others are named."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

FAR = 10.0  # interquartile ranges from the median, beyond which a value may be isolated
ISOLATED = 7.0  # times as far as 99.9 % of the values: of 161 real columns errors reach 8 to 730, honest values at most 6.6
BULK = 0.999
FEWEST = 20  # rows
MOST_APART = 0.05  # of the rows, that may be isolated
# Of targets: robust standard deviations from the median; times as far as the next one. Of 1,000 log-normal targets both hold with probability 0.003 (σ = 1).
FAR_TARGET, ISOLATED_TARGET = 20.0, 5.0
SHOWN = 5  # targets


@dataclass(frozen=True)
class Bound:
    """x ↦ m + s g((x − m)/s), g(z) = z for |z| ≤ c, else sign(z) (c + log(1 + |z| − c)): smooth, increasing, and the identity for 99.9 % of the rows.

    m is the median; s the interquartile range, or twice the median distance of other values from m where that is 0.
    """

    center: float
    scale: float
    limit: float

    def __call__(self, x: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        z = (x - self.center) / self.scale
        size = np.abs(z)
        beyond = size > self.limit
        if not beyond.any():
            return x
        moved = self.limit + np.log1p(np.where(beyond, size - self.limit, 0.0))
        return np.where(beyond, self.center + self.scale * np.sign(z) * moved, x)


def bound_of(x: Float[np.ndarray, " N"]) -> Bound | None:
    """Of finite values; None if none is far beyond 99.9 % of them (or all but one)."""
    if len(x) < FEWEST:
        return None
    center = float(np.median(x))
    low, high = np.quantile(x, (0.25, 0.75))
    scale, distance = float(high - low), np.abs(x - center)
    if scale == 0.0:
        others = distance[distance > 0]
        scale = 2 * float(np.median(others)) if len(others) else 0.0
    if not 0.0 < scale < np.inf or not distance.max() > FAR * scale:
        return None
    apart = int(_isolated(x, center, FAR * scale, ISOLATED).sum())
    last = len(x) - 1 - max(1, round((1 - BULK) * len(x)), apart if apart <= MOST_APART * len(x) else 0)
    limit = max(1.0, float(np.partition(distance, last)[last]) / scale)
    return Bound(center, scale, limit) if distance.max() > ISOLATED * limit * scale else None


def far_targets(y: Float[np.ndarray, " N"], weight: Any, outliers: str, has_rows: bool = True) -> str:
    """What to say of targets of weight above 0 that are far from all others; "" for none, and if `outliers` is "keep".

    They lie beyond a gap, more than 20 robust standard deviations from the median: 1.4826 times the median distance from it, of other values if that is 0.
    `has_rows` says whether the targets are in the order of the data rows. Raises ValueError for such targets if `outliers` is "refuse".
    """
    if outliers == "keep":
        return ""
    there = ~np.isnan(y) if np.shape(weight) != y.shape else ~np.isnan(y) & (np.asarray(weight) != 0)
    rows, values = np.flatnonzero(there), y[there]
    if len(values) < FEWEST or np.ptp(values) == 0:
        return ""
    center = float(np.median(values))
    distance = np.abs(values - center)
    scale = 1.4826 * float(np.median(distance) or np.median(distance[distance > 0]))
    far = rows[_isolated(values, center, FAR_TARGET * scale, ISOLATED_TARGET)]
    if not 0 < len(far) <= MOST_APART * len(values):
        return ""
    place = lambda row: f" at data row {row + 1}" if has_rows else ""
    shown = ", ".join(f"{y[row]:.10g}{place(row)}" for row in far[:SHOWN])
    said = f"{len(far)} target(s) more than {FAR_TARGET:g} robust standard deviations from the median, beyond a gap: {shown}"
    if outliers == "refuse":
        raise ValueError(f"{said}; target_outliers='keep' learns from them")
    return f"{said}; they are learned from. Are they errors, or codes for missing values?"


def _isolated(
    x: Float[np.ndarray, " N"], center: float, least: float, ratio: float
) -> Bool[np.ndarray, " N"]:
    """Values more than `least` from the centre and `ratio` times as far as the next nearer one on their side, and all beyond them."""
    found = np.zeros(len(x), bool)
    for distance in (x - center, center - x):
        ordered = np.sort(np.append(distance[distance > 0], 0.0))
        starts = np.flatnonzero(ordered[1:] > np.maximum(least, ratio * ordered[:-1]))
        found |= distance >= (ordered[1 + starts[0]] if len(starts) else np.inf)
    return found
