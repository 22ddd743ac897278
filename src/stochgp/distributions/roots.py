"""Quantiles of distributions whose distribution function alone is known in closed form."""

from collections.abc import Callable

import numpy as np

MOST_STEPS = 200  # of bisection in the worst case; Newton needs five to ten
CLOSE = 1e-13  # relative, of the probability, and of the bracket


def solve_increasing(
    value_and_slope: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    low: np.ndarray,
    high: np.ndarray,
    start: np.ndarray | None = None,
) -> np.ndarray:
    """x in [low, high] with value(x) = 0, for each entry, by Newton's steps that stay in a bracket, which is halved where they leave it.

    The first is from `start`, in the bracket; None is its middle.

    `value` increases in x; at `low` it is at most and at `high` at least 0, to rounding.
    """
    x = 0.5 * (low + high) if start is None else start
    for _ in range(MOST_STEPS):
        value, slope = value_and_slope(x)
        low, high = np.where(value < 0, x, low), np.where(value < 0, high, x)
        done = (np.abs(value) <= CLOSE) | (high - low <= CLOSE * np.maximum(np.abs(low), np.abs(high)))
        if done.all():
            break
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            newton = x - value / slope
        inside = (newton > low) & (newton < high)  # False for NaN
        x = np.where(done, x, np.where(inside, newton, 0.5 * (low + high)))
    return x


def solve_quantile(
    tails: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    log_density: Callable[[np.ndarray], np.ndarray],
    p: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    start: np.ndarray,
) -> np.ndarray:
    """y in [low, high] with F(y) = p, from (F, 1 − F) = `tails(y)` and the log density: log F(y) = log p, or log(1 − F) = log(1 − p) where p ≥ ½."""

    def value_and_slope(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        below, above = tails(y)
        tail = np.maximum(np.where(p < 0.5, below, above), 1e-300)
        value = np.log(tail) - np.log(np.minimum(p, 1 - p))
        return np.where(p < 0.5, value, -value), np.exp(log_density(y)) / tail

    return solve_increasing(value_and_slope, low, high, start)
