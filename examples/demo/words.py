"""The predictions of the demo in words, and their calibration."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from examples.demo.departures import Departures
from stochgp.distributions import AbstractDistribution
from stochgp.numerics.clustered import paired

MINUTES = (0, 15, 30, 60)  # maximum delays that a connection allows
SPREADS = (0.05, 0.5, 0.95, 0.998)  # ranks of the shown flights by the widths of their intervals
SURE = (0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0)  # edges of bins of predicted probabilities
WIDE = 0.8  # level of the intervals whose widths are compared


@dataclass(frozen=True, eq=False)
class Arrivals:
    """Predicted minutes lost after departure. Arrival delay = departure delay + minutes lost."""

    predicted: AbstractDistribution
    flights: Departures

    def column(self, name: str) -> np.ndarray:
        return self.flights.table[name].to_numpy()

    @property
    def late(self) -> Float64[np.ndarray, " N"]:
        """The observed arrival delays."""
        return self.flights.lost + self.column("dep_delay")

    def at_most(self, minutes: float) -> Float64[np.ndarray, " N"]:
        """Return P(arrival delay ≤ minutes). Half a minute is added, as delays are integers."""
        return self.predicted.cdf(minutes + 0.5 - self.column("dep_delay"))

    def width(self) -> Float64[np.ndarray, " N"]:
        """Return the widths of 80 % intervals in minutes."""
        lower, upper = self.predicted.interval(WIDE).T
        return upper - lower

    @property
    def day(self) -> np.ndarray:
        return np.unique(self.flights.day, return_inverse=True)[1]


def examples_of(found: Arrivals) -> list[dict[str, Any]]:
    """Return flights with narrow to wide intervals, chosen without their outcomes."""
    order = np.argsort(found.width(), kind="stable")
    rows = order[[min(int(share * len(order)), len(order) - 1) for share in SPREADS]]
    delay = found.column("dep_delay")[rows]
    ends = [found.predicted[rows].interval(level) + delay[:, None] for level in (0.5, 0.95)]
    chances = [found.at_most(minutes)[rows] for minutes in MINUTES]
    return [
        {
            "row": int(row),
            "route": " to ".join(str(found.column(name)[row]) for name in ("origin", "dest")),
            "carrier": str(found.column("carrier")[row]),
            "left_late": float(delay[k]),
            "interval_50": [float(end) for end in ends[0][k]],
            "interval_95": [float(end) for end in ends[1][k]],
            "at_most": {str(minutes): float(p[k]) for minutes, p in zip(MINUTES, chances, strict=True)},
            "was_late": float(found.late[row]),
        }
        for k, row in enumerate(rows)
    ]


def promises_of(found: Arrivals) -> list[dict[str, Any]]:
    """Return predicted and observed probabilities per bin, with errors over days."""
    promises = []
    for minutes in MINUTES:
        p, kept = found.at_most(minutes), (found.late <= minutes).astype(np.float64)
        part = np.clip(np.searchsorted(SURE, p, side="right") - 1, 0, len(SURE) - 2)
        for k in np.unique(part):
            rows = part == k
            share, error = paired(kept[rows], found.day[rows])
            promises.append({
                "minutes": minutes, "from": SURE[k], "to": SURE[k + 1], "flights": int(rows.sum()),
                "promised": float(p[rows].mean()), "kept": share, "stderr": error,
            })  # fmt: skip
    return promises


def widths_of(found: Arrivals) -> list[dict[str, Any]]:
    """Return widths and coverage of 80 % intervals for several groups of flights."""
    width = found.width()
    lower, upper = found.predicted.interval(WIDE).T
    held = ((lower <= found.flights.lost) & (found.flights.lost <= upper)).astype(np.float64)
    rows = []
    for cause, what, chosen in _parts(found):
        if chosen.any():
            share, error = paired(held[chosen], found.day[chosen])
            rows.append({
                "cause": cause, "what": what, "flights": int(chosen.sum()),
                "width": float(width[chosen].mean()), "held": share, "stderr": error,
            })  # fmt: skip
    return rows


def _parts(found: Arrivals) -> Iterator[tuple[str, str, Bool[np.ndarray, " N"]]]:
    """Yield the cause, its range, and the flights in this range."""
    delay, hours = found.column("dep_delay"), found.column("scheduled_duration") / 60
    yield "left the gate", "on time", delay <= 0
    yield "left the gate", "1 to 60 minutes late", (delay > 0) & (delay <= 60)
    yield "left the gate", "over an hour late", delay > 60
    yield "scheduled", "under 2 hours", hours < 2
    yield "scheduled", "2 to 4 hours", (hours >= 2) & (hours < 4)
    yield "scheduled", "4 hours and more", hours >= 4
    sight, rain = found.column("visib"), found.column("precip")
    yield "visibility", "10 miles", sight >= 10
    yield "visibility", "3 to 10 miles", (sight >= 3) & (sight < 10)
    yield "visibility", "under 3 miles", sight < 3
    yield "rain or snow", "none", rain <= 0
    yield "rain or snow", "some", rain > 0
    now = found.column("now_origin")
    yield "flights just landed lost", "no more than usual", now <= 0
    yield "flights just landed lost", "0 to 15 minutes more", (now > 0) & (now <= 15)
    yield "flights just landed lost", "over 15 minutes more", now > 15


def said_of(report: dict[str, Any]) -> list[str]:
    """Return text lines on some flights, on calibration, and on widths of intervals."""
    lines = [""]
    for one in report["flights"]:
        (a, b), (c, d) = one["interval_50"], one["interval_95"]
        chances = ", ".join(f"{100 * p:.0f} % by {minutes}" for minutes, p in one["at_most"].items())
        lines += [
            f"{one['route']} ({one['carrier']}) left {_late(one['left_late'])}. It will arrive {a:+.0f} to {b:+.0f} minutes late with a chance of 50 %, {c:+.0f} to {d:+.0f} with 95 %.",
            f"  Probability of at most this many minutes of delay: {chances}. It was {_late(one['was_late'])}.",
        ]
    lines.append(
        "\nCalibration: predicted probability of at most 15 minutes of delay, and the observed share"
    )
    for row in report["promises"]:
        if row["minutes"] == 15:
            lines.append(
                f"  {100 * row['from']:3.0f} to {100 * row['to']:3.0f} % (mean {100 * row['promised']:4.1f} %), {100 * row['kept']:5.1f} ± {100 * row['stderr']:.1f} % observed: {row['flights']:,} flights"
            )
    lines.append("\nMean width of 80 % intervals, and their coverage, by groups of flights")
    for row in report["widths"]:
        held = f"{100 * row['held']:5.1f} ± {100 * row['stderr']:.1f} %"
        lines.append(
            f"  {row['cause']:25} {row['what']:22} {row['width']:5.0f} minutes {held:>15}{row['flights']:8,} flights"
        )
    return lines


def _late(minutes: float) -> str:
    if minutes == 0:
        return "on time"
    unit = "minute" if abs(minutes) == 1 else "minutes"
    return f"{abs(minutes):.0f} {unit} {'late' if minutes > 0 else 'early'}"
