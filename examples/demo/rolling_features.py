"""Sums over past events, for inputs without information from the future."""

import numpy as np
from jaxtyping import Float64, Int, Shaped

Rows = Float64[np.ndarray, " Q"]


def recent_sums(
    event: Shaped[np.ndarray, " E"],
    event_minute: Int[np.ndarray, " E"],
    value: Float64[np.ndarray, " E"],
    asked: Shaped[np.ndarray, " Q"],
    asked_minute: Int[np.ndarray, " Q"],
    window: int,
) -> tuple[Rows, Rows]:
    """Return sums and counts of recent events, for each requested label and minute t.

    Events have the same label and t − window ≤ t_e < t. Minutes are non-negative integers.
    """
    place, start, order = _in_order(event, event_minute, asked, asked_minute)
    sums = np.concatenate([[0.0], np.cumsum(value[order])])
    first = np.searchsorted(place, start + np.maximum(asked_minute - window, 0))
    last = np.searchsorted(place, start + asked_minute)
    return sums[last] - sums[first], (last - first).astype(np.float64)


def recent_means(sums: tuple[Rows, Rows], prior: Rows | float, weight: float) -> Rows:
    """Return (Σ v + w · prior) / (n + w), means that are shrunk towards the prior."""
    total, count = sums
    return (total + weight * prior) / (count + weight)


def last_known(
    event: Shaped[np.ndarray, " E"],
    event_minute: Int[np.ndarray, " E"],
    value: Float64[np.ndarray, " E"],
    asked: Shaped[np.ndarray, " Q"],
    asked_minute: Int[np.ndarray, " Q"],
) -> Rows:
    """Return the last known value of the same label with t_e ≤ t, or NaN."""
    there = ~np.isnan(value)
    event, event_minute, value = event[there], event_minute[there], value[there]
    place, start, order = _in_order(event, event_minute, asked, asked_minute)
    place, value = np.append(-1, place), np.append(np.nan, value[order])
    at = np.searchsorted(place, start + asked_minute, side="right") - 1
    return np.where(place[at] >= start, value[at], np.nan)


def _in_order(
    event: np.ndarray, event_minute: np.ndarray, asked: np.ndarray, asked_minute: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return sorted keys of events, the keys at which queries start, and the order of events."""
    label = np.unique(np.concatenate([event, asked]), return_inverse=True)[1].astype(np.int64)
    span = int(max(event_minute.max(initial=0), asked_minute.max())) + 1
    place = label[: len(event)] * span + event_minute
    order = np.argsort(place, kind="stable")
    return place[order], label[len(event) :] * span, order
