"""How good predictions are. `mean` and `std` are those of observations: `std` is a standard deviation, noise included.

Arguments are arrays [N] or lists of N numbers; results are floats in float64. Every function raises ValueError when their shapes
differ, when there is no row, or for values that are not finite or standard deviations that are not positive.
"""

import math
from typing import Any

import numpy as np
from jaxtyping import Float64
from scipy.special import ndtr, ndtri


def rmse(y: Any, mean: Any) -> float:
    """√(Σ (y_i − m_i)² / N), in the units of y."""
    y, mean = _checked(y=y, mean=mean)
    return float(np.sqrt(np.mean(np.square(y - mean))))


def r2(y: Any, mean: Any) -> float:
    """1 − Σ (y_i − m_i)² / Σ (y_i − ȳ)². Where all y are equal: 1 for an exact prediction, else 0, as in scikit-learn."""
    y, mean = _checked(y=y, mean=mean)
    errors, spread = np.sum(np.square(y - mean)), np.sum(np.square(y - y.mean()))
    if np.ptp(y) == 0:
        return float(errors == 0)
    return float(1 - errors / spread)


def nlpd(y: Any, mean: Any, std: Any) -> float:
    """Mean negative log density of the observations: Σ [½ log(2π s_i²) + (y_i − m_i)² / (2 s_i²)] / N. Lower is better."""
    y, mean, std = _checked(y=y, mean=mean, std=std)
    return float(np.mean(0.5 * math.log(2 * math.pi) + np.log(std) + 0.5 * np.square((y - mean) / std)))


def crps(y: Any, mean: Any, std: Any) -> float:
    """Mean continuous ranked probability score of N(m_i, s_i²), in the units of y. Lower is better.

    ∫ (F(t) − 1[t ≥ y])² dt = s [z (2Φ(z) − 1) + 2 φ(z) − 1/√π] with z = (y − m)/s (Gneiting and Raftery 2007, section 4.2).
    """
    y, mean, std = _checked(y=y, mean=mean, std=std)
    z = (y - mean) / std
    density = np.exp(-0.5 * np.square(z)) / math.sqrt(2 * math.pi)
    return float(np.mean(std * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))))


def coverage(y: Any, mean: Any, std: Any, level: float = 0.95) -> float:
    """Fraction of the y_i inside the central interval of probability `level`: |y_i − m_i| ≤ Φ⁻¹((1 + level)/2) s_i."""
    y, mean, std = _checked(y=y, mean=mean, std=std)
    if not 0 < level < 1:
        raise ValueError(f"level is {level}; it must lie between 0 and 1")
    return float(np.mean(np.abs(y - mean) <= ndtri((1 + level) / 2) * std))


def pit(y: Any, mean: Any, std: Any) -> Float64[np.ndarray, " N"]:
    """Probability integral transform, Φ((y_i − m_i)/s_i): uniform on [0, 1] if the predictions are calibrated."""
    y, mean, std = _checked(y=y, mean=mean, std=std)
    return ndtr((y - mean) / std)


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
