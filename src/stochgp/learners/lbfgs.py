"""Limited-memory BFGS for expensive losses: one step at a time, on the host, in float64.

The direction follows Nocedal and Wright (2006), algorithm 7.4. The line search follows Lewis and Overton (2013): brackets for the weak Wolfe
conditions, with parabolas instead of halves. Values that are not finite count as too high; rises within the rounding of the loss are accepted.
"""

import dataclasses
import math
from collections.abc import Callable

import equinox as eqx
import numpy as np
from jaxtyping import Float

Loss = Callable[[Float[np.ndarray, " P"]], tuple[float, Float[np.ndarray, " P"]]]

PAIRS = 30
DECREASE, CURVATURE = 1e-4, 0.9  # of Wolfe's conditions
MOST_EVALUATIONS = 12  # of one line search
LARGEST_MOVE = 2.0  # of any coordinate in one step
LEAST_GAIN = 10.0  # in roundings of the loss; a step that promises less is not taken
STRAIGHT = 1e-10  # a pair with less curvature is not kept


class Quasi(eqx.Module):
    """The state: a point, its value (NaN: unknown), and the last steps and gradient changes."""

    x: Float[np.ndarray, " P"]
    value: np.float64
    gradient: Float[np.ndarray, " P"]
    steps: Float[np.ndarray, "H P"]
    changes: Float[np.ndarray, "H P"]
    n_pairs: np.int64
    stuck: np.bool_  # no step lowers the loss: rounding, or a minimum


def begin(x: Float[np.ndarray, " P"], hessian: Float[np.ndarray, "P P"] | None = None) -> Quasi:
    """Return the unevaluated state at x, with the steepest directions of `hessian` in memory."""
    steps, changes, n_pairs = np.zeros((PAIRS, len(x))), np.zeros((PAIRS, len(x))), 0
    if hessian is not None and np.isfinite(hessian).all():
        curvatures, directions = np.linalg.eigh(hessian)
        known = np.flatnonzero(curvatures > STRAIGHT * curvatures[-1])[::-1][:PAIRS]
        n_pairs = len(known)
        steps[PAIRS - n_pairs :] = directions[:, known].T
        changes[PAIRS - n_pairs :] = (directions[:, known] * curvatures[known]).T
    nan, zero, false = np.float64(np.nan), np.zeros(len(x)), np.bool_(False)
    return Quasi(x, nan, zero, steps, changes, np.int64(n_pairs), false)


def promised(at: Quasi) -> float:
    """Return the decrease of the loss that the memory's quadratic promises; inf without a memory."""
    return -0.5 * float(at.gradient @ _direction(at)) if at.n_pairs > 0 else math.inf


def step(at: Quasi, loss: Loss, rounding: float) -> Quasi:
    """Return the state after one step; `rounding` is the relative error of the loss's values."""
    at = _at(at, at.x, loss) if math.isnan(at.value) else at
    found = None
    if at.n_pairs > 0:
        direction = _direction(at)
        if -0.5 * float(at.gradient @ direction) < LEAST_GAIN * rounding * (1 + abs(float(at.value))):
            return dataclasses.replace(at, stuck=np.bool_(True))
        found = _search(at, direction, loss, rounding)
    if found is None:  # no memory, or a misleading one
        at = dataclasses.replace(at, n_pairs=np.int64(0))
        found = _search(at, -at.gradient / max(1.0, float(np.linalg.norm(at.gradient))), loss, rounding)
    return dataclasses.replace(at, stuck=np.bool_(True)) if found is None else _moved(at, found)


def _at(at: Quasi, x: Float[np.ndarray, " P"], loss: Loss) -> Quasi:
    value, gradient = loss(x)
    return dataclasses.replace(at, x=x, value=np.float64(value), gradient=gradient)


def _moved(at: Quasi, to: Quasi) -> Quasi:
    """Return the state `to`, with this step in the memory."""
    s, c = to.x - at.x, to.gradient - at.gradient
    if not s @ c > STRAIGHT * np.linalg.norm(s) * np.linalg.norm(c):
        return to
    steps, changes = np.vstack([at.steps[1:], s]), np.vstack([at.changes[1:], c])
    return dataclasses.replace(to, steps=steps, changes=changes, n_pairs=np.int64(min(at.n_pairs + 1, PAIRS)))


def _direction(at: Quasi) -> np.ndarray:
    """−H g with the inverse Hessian H of the pairs."""
    q = -at.gradient
    pairs = [(at.steps[-i], at.changes[-i]) for i in range(1, int(at.n_pairs) + 1)]
    weights = []
    for s, c in pairs:
        weights.append((s @ q) / (s @ c))
        q = q - weights[-1] * c
    s, c = pairs[0]
    q = q * (s @ c) / (c @ c)
    for (s, c), weight in zip(reversed(pairs), reversed(weights), strict=True):
        q = q + (weight - (c @ q) / (s @ c)) * s
    return q


def _search(at: Quasi, direction: np.ndarray, loss: Loss, rounding: float) -> Quasi | None:
    """Return a point along the direction with both conditions, else the lowest tried, or None."""
    direction = direction * min(1.0, LARGEST_MOVE / max(float(np.abs(direction).max(initial=0.0)), 1e-300))
    slope, value = float(at.gradient @ direction), float(at.value)
    if not slope < 0:
        return None
    slack = rounding * (1 + abs(value))
    low, high, t, best = 0.0, math.inf, 1.0, None
    for _ in range(MOST_EVALUATIONS):
        if t * -slope < slack and t < 1:  # less than the rounding of the loss
            break
        trial = _at(at, at.x + t * direction, loss)
        if math.isfinite(trial.value) and trial.value <= value + DECREASE * t * slope + slack:
            best = trial if best is None or trial.value < best.value else best
            if trial.gradient @ direction >= CURVATURE * slope:
                return trial
            low = t
        else:
            high = t
        rise = float(trial.value) - value
        if low == 0 and t == high and math.isfinite(rise):  # a parabola through the start and t
            t = min(max(-slope * high**2 / (2 * (rise - slope * high)), 0.1 * high), 0.5 * high)
        else:
            t = 2 * t if high == math.inf else (low + high) / 2
    return best
