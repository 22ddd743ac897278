"""Scores of predictions of observations, noise included.

Predictions are a distribution from `predict_distribution`, or means and standard deviations of normal
distributions. Other arguments are arrays or lists of N numbers. Functions raise ValueError if shapes differ,
if N = 0, if a value is not finite, or if a standard deviation is not positive.
"""

import math
from typing import Any

import numpy as np
from jaxtyping import Float64

from stochgp.distributions import Normal

LEVELS = (0.5, 0.8, 0.95, 0.99)


def rmse(y: Any, mean: Any) -> float:
    """Root mean square error √(Σ (y_i − mean_i)² / N), in the units of y.

    Parameters
    ----------
    y, mean : array [N]
        Observations and their predictions.
    """
    y, mean = _checked(y=y, mean=mean)
    return float(np.sqrt(np.mean(np.square(y - mean))))


def nlpd(y: Any, mean: Any, std: Any = None) -> float:
    """Mean negative log density of the observations, Σ −log p_i(y_i) / N; lower is better.

    p_i is the predictive density of row i; for counts and classes, p_i is a probability. Call
    `nlpd(y, distribution)`, or `nlpd(y, mean, std)` for normal distributions. The result is infinite if the
    predicted probability of an observation is 0.

    Parameters
    ----------
    y : array [N]
        The observations.
    mean : distribution or array [N]
        The predictive distribution, or the means of normal distributions.
    std : None or array [N]
        The standard deviations of normal distributions; None if `mean` is a distribution.
    """
    y, predicted = _read(y, mean, std)
    return float(np.mean(-predicted.logpdf(y)))


def crps(y: Any, mean: Any, std: Any = None) -> float:
    """Mean continuous ranked probability score, in the units of y; lower is better.

    The score of one row is ∫ (F(t) − 1[t ≥ y])² dt, where F is the predictive distribution function.

    Parameters
    ----------
    y, mean, std
        As in `nlpd`.
    """
    y, predicted = _read(y, mean, std)
    return float(np.mean(predicted.crps(y)))


def coverage(y: Any, mean: Any, std: Any = None, level: float = 0.95) -> float:
    """Fraction of observations inside their central intervals of probability `level`.

    Parameters
    ----------
    y, mean, std
        As in `nlpd`.
    level : float
        Probability of the interval, between 0 and 1.
    """
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; it must lie between 0 and 1")
    y, predicted = _read(y, mean, std)
    lower, upper = predicted.interval(level).T
    return float(np.mean((lower <= y) & (y <= upper)))


def coverages(y: Any, mean: Any, std: Any = None) -> dict[float, tuple[float, float]]:
    """Return the coverages of 50, 80, 95 and 99 % intervals, with standard errors.

    The standard errors hold for calibrated predictions.

    Parameters
    ----------
    y, mean, std
        As in `nlpd`.
    """
    return {p: (coverage(y, mean, std, p), math.sqrt(p * (1 - p) / len(y))) for p in LEVELS}


def pit(y: Any, mean: Any, std: Any = None, *, seed: int = 0) -> Float64[np.ndarray, " N"]:
    """Probability integral transform F_i(y_i), uniform on [0, 1] for calibrated predictions.

    F_i is the distribution function of row i. For counts and classes, the result is a uniform random number
    between P(Y < y_i) and P(Y ≤ y_i).

    Parameters
    ----------
    y, mean, std
        As in `nlpd`.
    seed : int
        Seed of the random numbers.
    """
    y, predicted = _read(y, mean, std)
    return predicted.pit(y, seed)


def calibration_error(y: Any, mean: Any, std: Any = None, *, seed: int = 0) -> tuple[float, float]:
    """Return the distance of PIT values from the uniform distribution, and √(1/(6N)).

    The distance is √∫ (F̂(p) − p)² dp, where F̂ is the empirical distribution function of the PIT values.
    For N calibrated predictions, the distance is typically about √(1/(6N)). N · distance² is the
    Cramér–von Mises statistic.

    Parameters
    ----------
    y, mean, std
        As in `nlpd`.
    seed : int
        Seed of the PIT values of counts and classes (see `pit`).
    """
    u = np.sort(pit(y, mean, std, seed=seed))
    n = len(u)
    middle = (2 * np.arange(1, n + 1) - 1) / (2 * n)
    return math.sqrt(1 / (12 * n**2) + float(np.mean((u - middle) ** 2))), math.sqrt(1 / (6 * n))


def log_loss(y: Any, log_probabilities: Any, classes: Any) -> float:
    """Mean negative logarithm of the probability of each label; lower is better.

    Parameters
    ----------
    y : array [N]
        The labels.
    log_probabilities : array [N, C]
        The logarithms of the predicted probabilities.
    classes : array [C]
        The class of each column. Every label must be one of the classes.
    """
    y, classes = np.asarray(y), np.asarray(classes)
    logs = np.asarray(log_probabilities, np.float64)
    if logs.shape != (len(y), len(classes)) or len(y) == 0:
        raise ValueError(f"log probabilities must have shape [{len(y)}, {len(classes)}], not {logs.shape}")
    hit = y[:, None] == classes
    if not hit.any(axis=1).all():
        row = int(np.argmin(hit.any(axis=1)))
        raise ValueError(
            f"label {y.tolist()[row]!r} at row {row + 1} is not one of the classes {', '.join(map(repr, classes.tolist()))}"
        )
    return float(-np.mean(logs[hit]))


def _read(y: Any, mean: Any, std: Any) -> tuple[np.ndarray, Any]:
    """Return observations and their predictive distribution."""
    if not hasattr(mean, "logpdf"):
        y, mean, std = _checked(y=y, mean=mean, std=std)
        return y, Normal(mean, std)
    if std is not None:
        raise ValueError("std must be None if the predictions are a distribution")
    (y,) = _checked(y=y)
    if y.shape != (mean.n_rows,):
        raise ValueError(
            f"y and the predictions must have the same shape [N], but got y {y.shape} and {mean.n_rows} distributions"
        )
    return y, mean


def _checked(**named: Any) -> list[np.ndarray]:
    """Return the arguments as float64 arrays of one shape [N]."""
    arrays = {name: np.asarray(value, np.float64) for name, value in named.items()}
    shapes = {array.shape for array in arrays.values()}
    if len(shapes) > 1 or arrays["y"].ndim != 1 or arrays["y"].size == 0:
        given = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise ValueError(
            f"y and the predictions must have the same shape [N] with N at least 1, but got {given}"
        )
    for name, array in arrays.items():
        bad = ~np.isfinite(array) | ((array <= 0) if name == "std" else False)
        if bad.any():
            row, wanted = int(np.argmax(bad)), "positive and finite" if name == "std" else "finite"
            raise ValueError(
                f"{name}[{row}] is {array[row]}; {bad.sum()} of {bad.size} values are not {wanted}"
            )
    return list(arrays.values())
