"""How good predictions are: of observations, noise included.

They are a predictive distribution (`predict_distribution`), or the mean and the standard deviation of a normal one. Arguments are
arrays [N] or lists of N numbers; results are floats in float64. Every function raises ValueError when shapes differ, when there is no
row, or for values that are not finite or standard deviations that are not positive.
"""

import math
from typing import Any

import numpy as np
from jaxtyping import Float64
from scipy.special import ndtr, ndtri

LEVELS = (0.5, 0.8, 0.95, 0.99)


def rmse(y: Any, mean: Any) -> float:
    """√(Σ (y_i − m_i)² / N), in the units of y.

    Parameters
    ----------
    y, mean : array [N]
        Observations, and what was predicted of them.
    """
    y, mean = _checked(y=y, mean=mean)
    return float(np.sqrt(np.mean(np.square(y - mean))))


def r2(y: Any, mean: Any) -> float:
    """1 − Σ (y_i − m_i)² / Σ (y_i − ȳ)². Where all y are equal: 1 for an exact prediction, else 0, as in scikit-learn.

    Parameters
    ----------
    y, mean : array [N]
        Observations, and what was predicted of them.
    """
    y, mean = _checked(y=y, mean=mean)
    errors, spread = np.sum(np.square(y - mean)), np.sum(np.square(y - y.mean()))
    if np.ptp(y) == 0:
        return float(errors == 0)
    return float(1 - errors / spread)


def nlpd(y: Any, mean: Any, std: Any = None) -> float:
    """Mean negative log density of the observations, Σ −log p_i(y_i) / N; lower is better.

    `nlpd(y, distribution)`, or `nlpd(y, mean, std)`: Σ [½ log(2π s_i²) + (y_i − m_i)² / (2 s_i²)] / N. Of counts and classes it is of
    their probabilities; infinite where one was held to be impossible.

    Parameters
    ----------
    y : array [N]
        Observations.
    mean : distribution or array [N]
        The predictive distribution of N rows, or the means m_i of normal ones.
    std : None or array [N]
        None beside a distribution, else the standard deviations s_i, noise included.
    """
    if _is_distribution(mean, std):
        return float(np.mean(-mean.logpdf(_targets(y, mean))))
    y, mean, std = _checked(y=y, mean=mean, std=std)
    return float(np.mean(0.5 * math.log(2 * math.pi) + np.log(std) + 0.5 * np.square((y - mean) / std)))


def crps(y: Any, mean: Any, std: Any = None) -> float:
    """Mean continuous ranked probability score, in the units of y: `crps(y, distribution)`, or of N(m_i, s_i²). Lower is better.

    ∫ (F(t) − 1[t ≥ y])² dt = s [z (2Φ(z) − 1) + 2 φ(z) − 1/√π] with z = (y − m)/s (Gneiting and Raftery 2007, section 4.2).

    Parameters
    ----------
    y : array [N]
        Observations.
    mean : distribution or array [N]
        The predictive distribution of N rows, or the means m_i of normal ones.
    std : None or array [N]
        None beside a distribution, else the standard deviations s_i, noise included.
    """
    if _is_distribution(mean, std):
        return float(np.mean(mean.crps(_targets(y, mean))))
    y, mean, std = _checked(y=y, mean=mean, std=std)
    z = (y - mean) / std
    density = np.exp(-0.5 * np.square(z)) / math.sqrt(2 * math.pi)
    return float(np.mean(std * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))))


def coverage(y: Any, mean: Any, std: Any = None, level: float = 0.95) -> float:
    """Fraction of the y_i inside the central interval of probability `level`, ends included.

    The interval is that of the distribution in `coverage(y, distribution)`, else |y_i − m_i| ≤ Φ⁻¹((1 + level)/2) s_i.

    Parameters
    ----------
    y : array [N]
        Observations.
    mean : distribution or array [N]
        The predictive distribution of N rows, or the means m_i of normal ones.
    std : None or array [N]
        None beside a distribution, else the standard deviations s_i, noise included.
    level : float
        Above 0 and below 1.
    """
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; it must lie between 0 and 1")
    if _is_distribution(mean, std):
        y = _targets(y, mean)
        lower, upper = mean.interval(level).T
        return float(np.mean((lower <= y) & (y <= upper)))
    y, mean, std = _checked(y=y, mean=mean, std=std)
    return float(np.mean(np.abs(y - mean) <= ndtri((1 + level) / 2) * std))


def coverages(y: Any, mean: Any, std: Any = None) -> dict[float, tuple[float, float]]:
    """{level: (coverage, its standard error under calibration √(p(1 − p)/N))} at 50, 80, 95 and 99 %.

    Parameters
    ----------
    y : array [N]
        Observations.
    mean : distribution or array [N]
        The predictive distribution of N rows, or the means of normal ones.
    std : None or array [N]
        None beside a distribution, else the standard deviations, noise included.
    """
    n = len(y)
    return {p: (coverage(y, mean, std, p), math.sqrt(p * (1 - p) / n)) for p in LEVELS}


def pit(y: Any, mean: Any, std: Any = None, *, seed: int = 0) -> Float64[np.ndarray, " N"]:
    """Probability integral transform, F_i(y_i), Φ((y_i − m_i)/s_i) of normal ones: uniform on [0, 1] if the predictions are calibrated.

    Of counts and classes uniform numbers between P(Y < y_i) and P(Y ≤ y_i): F_i(y_i) alone would not be uniform.

    Parameters
    ----------
    y : array [N]
        Observations.
    mean : distribution or array [N]
        The predictive distribution of N rows, or the means m_i of normal ones.
    std : None or array [N]
        None beside a distribution, else the standard deviations s_i, noise included.
    seed : int
        Of the uniform numbers.
    """
    if _is_distribution(mean, std):
        return mean.pit(_targets(y, mean), seed)
    y, mean, std = _checked(y=y, mean=mean, std=std)
    return ndtr((y - mean) / std)


def calibration_error(y: Any, mean: Any, std: Any = None, *, seed: int = 0) -> tuple[float, float]:
    """(√∫ (F̂_u(p) − p)² dp, √(1/(6N))): how far the PIT values u_i are from uniform, and how far N calibrated ones are on average.

    F̂_u is their empirical distribution function. N times the square is Cramér and von Mises's W: under calibration, for independent
    rows, it has mean 1/6, and is above 0.46 in one of 20 cases.

    Parameters
    ----------
    y : array [N]
        Observations.
    mean : distribution or array [N]
        The predictive distribution of N rows, or the means of normal ones.
    std : None or array [N]
        None beside a distribution, else the standard deviations, noise included.
    seed : int
        Of the PIT values of counts and classes, as in `pit`.
    """
    u = np.sort(pit(y, mean, std, seed=seed))
    n = len(u)
    middle = (2 * np.arange(1, n + 1) - 1) / (2 * n)
    return math.sqrt(1 / (12 * n**2) + float(np.mean((u - middle) ** 2))), math.sqrt(1 / (6 * n))


def _is_distribution(mean: Any, std: Any) -> bool:
    """Whether `mean` is a predictive distribution, which knows its own spread."""
    if not hasattr(mean, "logpdf"):
        return False
    if std is not None:
        raise ValueError("std was given beside a distribution, which has its own; give only one of them")
    return True


def _targets(y: Any, distribution: Any) -> np.ndarray:
    """The targets, one for each row of the distribution."""
    found = np.asarray(y, np.float64)
    if found.shape != (distribution.n_rows,) or found.size == 0:
        raise ValueError(
            f"predictions are scored on arrays of one shape [N] with N at least 1, but got y {found.shape} and {distribution.n_rows} distributions"
        )
    if not np.isfinite(found).all():
        row = int(np.argmin(np.isfinite(found)))
        raise ValueError(
            f"y[{row}] is {found[row]}; {np.sum(~np.isfinite(found))} of {found.size} values are not finite"
        )
    return found


def _checked(**named: Any) -> list[np.ndarray]:
    """The arguments as float64 arrays of one shape [N]."""
    arrays = {name: np.asarray(value, np.float64) for name, value in named.items()}
    shapes = {array.shape for array in arrays.values()}
    if len(shapes) > 1 or arrays["y"].ndim != 1 or arrays["y"].size == 0:
        given = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise ValueError(
            f"predictions are scored on arrays of one shape [N] with N at least 1, but got {given}"
        )
    for name, array in arrays.items():
        bad = ~np.isfinite(array) | ((array <= 0) if name == "std" else False)
        if bad.any():
            row = int(np.argmax(bad))
            wanted = "positive and finite" if name == "std" else "finite"
            raise ValueError(
                f"{name}[{row}] is {array[row]}; {bad.sum()} of {bad.size} values are not {wanted}"
            )
    return list(arrays.values())


def accuracy(y: Any, predicted: Any) -> float:
    """The share of the labels that were predicted.

    Parameters
    ----------
    y, predicted : array [N]
        The labels, of any kind, and those that were predicted.
    """
    y, predicted = np.asarray(y), np.asarray(predicted)
    if y.shape != predicted.shape or y.ndim != 1 or len(y) == 0:
        raise ValueError(
            f"expected labels [N] and as many predicted, but got {y.shape} and {predicted.shape}"
        )
    return float(np.mean(y == predicted))


def log_loss(y: Any, log_probabilities: Any, classes: Any) -> float:
    """Mean negative logarithm of the probability of each label. Lower is better.

    Raises ValueError for a label that is none of the classes.

    Parameters
    ----------
    y : array [N]
        The labels, of any kind.
    log_probabilities : array [N, C]
        Logarithms of the predicted probability of each class at each row.
    classes : array [C]
        The labels of the classes, in the order of the columns of `log_probabilities`.
    """
    y, classes = np.asarray(y), np.asarray(classes)
    found = np.asarray(log_probabilities, np.float64)
    if found.shape != (len(y), len(classes)) or len(y) == 0:
        raise ValueError(f"expected log probabilities [{len(y)}, {len(classes)}], but got {found.shape}")
    hit = y[:, None] == classes
    if not hit.any(axis=1).all():
        row = int(np.argmin(hit.any(axis=1)))
        raise ValueError(
            f"label {y.tolist()[row]!r} at row {row + 1} is none of the classes {', '.join(map(repr, classes.tolist()))}"
        )
    return float(-np.mean(found[hit]))
