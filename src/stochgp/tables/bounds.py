"""Numbers far beyond all others of their column: inputs such as 9,831 mm of rain in an hour are moved near them, targets such as −9999 are named."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

FAR = 10.0  # interquartile ranges from the median, beyond which a value may be isolated
ISOLATED = 7.0  # times as far as 99.9 % of the values: of 161 real columns errors reach 8 to 730, honest values at most 6.6
BULK = 0.999
FEWEST = 20  # rows
MOST_APART = 0.05  # of the rows, that may be isolated inputs, or equal targets of no usual code
# Of targets: robust standard deviations from the median; times as far as the next one; robust deviations of log |y| beyond it if all
# targets have one sign. Of 1,000 log-normal targets the second holds with probability 0.003 (σ = 1) to 0.05 (σ = 2), the third with 10⁻⁵.
FAR_TARGET, ISOLATED_TARGET, ISOLATED_LOG = 20.0, 5.0, 4.0
REPEATED = 3  # times
SHOWN = 5  # targets
FILLS = ("32767", "32768", "65535", "2.147484e+09", "9.223372e+18")  # the ends of integer types


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


def checked_targets(
    y: Float[np.ndarray, " N"],
    weight: Any,
    outliers: str,
    refuses_codes: bool = False,
    leaves_out: bool = True,
) -> tuple[Bool[np.ndarray, " N"], str]:
    """(Which targets of weight above 0 are codes that are left out, a note on others far from all) (`target_outliers`).

    `outliers` is "warn", "refuse" (ValueError for both kinds) or "keep" (none is looked for). `refuses_codes`: ValueError for codes.
    """
    if outliers == "keep":
        return np.zeros(len(y), bool), ""
    has_weights = np.shape(weight) == y.shape
    codes, far = target_outliers(np.where(np.asarray(weight) == 0, np.nan, y) if has_weights else y)
    is_refused = (codes | far).any() if outliers == "refuse" else refuses_codes and codes.any()
    rows = np.flatnonzero(far if leaves_out and not is_refused else codes | far)
    if len(rows) == 0:
        return codes, ""
    place = lambda row: f" at data row {row + 1}" if leaves_out else ""  # a sample is in another order
    shown = ", ".join(f"{y[row]:.10g}{place(row)}" for row in rows[:SHOWN])
    said = f"{len(rows)} target(s) more than {FAR_TARGET:g} robust standard deviations from the median, beyond a gap: {shown}"
    if is_refused:
        raise ValueError(f"{said}; target_outliers='keep' learns from them")
    return codes, said


def target_outliers(y: Float[np.ndarray, " N"]) -> tuple[Bool[np.ndarray, " N"], Bool[np.ndarray, " N"]]:
    """(Which targets are codes for missing values, which others are far from all; NaN is neither).

    Both lie beyond a gap, more than 20 robust standard deviations from the median: 1.4826 times the median distance from it, of other values if that is 0.
    A code is different from 0, and 99, 999, −99.9 …, a power of ten from 10⁵, the end of an integer type, at least 10³⁰, or the target of 3 rows.
    """
    there = np.flatnonzero(~np.isnan(y))
    codes, far, values = np.zeros(len(y), bool), np.zeros(len(y), bool), y[there]
    if len(values) < FEWEST or np.ptp(values) == 0:
        return codes, far
    center = float(np.median(values))
    distance = np.abs(values - center)
    scale = 1.4826 * float(np.median(distance) or np.median(distance[distance > 0]))
    apart = _isolated(values, center, FAR_TARGET * scale, ISOLATED_TARGET)
    for value, count in zip(*np.unique(values[apart], return_counts=True), strict=True):
        is_code = REPEATED <= count <= MOST_APART * len(values) or _is_fill(abs(value))
        is_code = is_code and value != 0 and _is_beyond_in_logs(value, values[~apart])
        (codes if is_code else far)[there[values == value]] = True
    return codes, far & (far.sum() <= MOST_APART * len(values))


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


def _is_fill(size: float) -> bool:
    """Whether a number of this size usually stands for a missing one."""
    text = f"{size:.7g}"
    digits = text.replace(".", "")
    is_power = size >= 1e5 and text.split("e", 1)[0].rstrip("0") == "1"
    return is_power or text in FILLS or size >= 1e30 or (len(digits) > 1 and set(digits) == {"9"})


def _is_beyond_in_logs(value: float, bulk: Float[np.ndarray, " n"]) -> bool:
    """Whether a value is far from all others in logarithms too, or these have the other sign or both."""
    sizes = np.sign(value) * bulk
    if (sizes < 0).any() or not (sizes > 0).any():
        return True
    logs = np.log(sizes[sizes > 0])
    spread = 1.4826 * float(np.median(np.abs(logs - np.median(logs))))
    return bool(np.log(abs(value)) - logs.max() > ISOLATED_LOG * spread)
