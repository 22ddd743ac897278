"""What was known at a minute: sums over the events before it, for inputs that hold nothing of the future."""

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
    """(Σ_e v_e, their number) over the events e of the same label with t − window ≤ t_e < t, for each label and minute t asked.

    An event of the minute t itself is not before it. Minutes are whole numbers from 0 on.
    """
    place, start, order = _in_order(event, event_minute, asked, asked_minute)
    sums = np.concatenate([[0.0], np.cumsum(value[order])])
    first = np.searchsorted(place, start + np.maximum(asked_minute - window, 0))
    last = np.searchsorted(place, start + asked_minute)
    return sums[last] - sums[first], (last - first).astype(np.float64)


def recent_means(sums: tuple[Rows, Rows], prior: Rows | float, weight: float) -> Rows:
    """(Σ v + w · prior) / (n + w): the mean of few events is drawn to the prior, that of none is the prior."""
    total, count = sums
    return (total + weight * prior) / (count + weight)


def last_known(
    event: Shaped[np.ndarray, " E"],
    event_minute: Int[np.ndarray, " E"],
    value: Float64[np.ndarray, " E"],
    asked: Shaped[np.ndarray, " Q"],
    asked_minute: Int[np.ndarray, " Q"],
) -> Rows:
    """The value of the last event of the same label with t_e ≤ t whose value is known; NaN where there is none."""
    there = ~np.isnan(value)
    event, event_minute, value = event[there], event_minute[there], value[there]
    place, start, order = _in_order(event, event_minute, asked, asked_minute)
    place, value = np.append(-1, place), np.append(np.nan, value[order])
    at = np.searchsorted(place, start + asked_minute, side="right") - 1
    return np.where(place[at] >= start, value[at], np.nan)


def _in_order(
    event: np.ndarray, event_minute: np.ndarray, asked: np.ndarray, asked_minute: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(label · span + minute of the events, ascending; label · span of what is asked; the order of the events), where span is more than any minute."""
    label = np.unique(np.concatenate([event, asked]), return_inverse=True)[1].astype(np.int64)
    span = int(max(event_minute.max(initial=0), asked_minute.max())) + 1
    place = label[: len(event)] * span + event_minute
    order = np.argsort(place, kind="stable")
    return place[order], label[len(event) :] * span, order
