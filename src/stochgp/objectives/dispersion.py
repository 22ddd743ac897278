"""Fits of the errors of predictions, z² = (y − m)²/V: their factor κ and degrees of freedom, and slopes in the logarithm of their scale."""

import math

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize

from stochgp.numerics.clustered import median
from stochgp.observations import Dispersion

LEAST_DF, MOST_DF = 2.1, 1000.0  # so that there is a standard deviation
MOST_LOG = 60.0  # |log κ|
SMALLEST = 1e-280

Squares = Float[np.ndarray, " N"]
Eta = Float[np.ndarray, "#N"]


def check_df(df: float | None) -> None:
    """Raises ValueError for degrees of freedom of a Student-t without a variance; None = Gaussian."""
    if df is not None and not df > 2:
        raise ValueError(f"df is {df}; it must be above 2, so that there is a variance")


def slopes(squares: Squares, eta: Eta, shape: Dispersion) -> tuple[Squares, Squares]:
    """(∂/∂η of −log p, its expected second derivative) of each row, ζ = z² e^(−η)/κ:

    ½(1 − (ν + 1)ζ/(ν + ζ)) and ν/(2(ν + 3)); ½(1 − ζ) and ½ for a Gaussian.
    """
    zeta = squares * np.exp(-eta) / shape.kappa
    if shape.df is None:
        return 0.5 * (1 - zeta), np.full_like(zeta, 0.5)
    nu = shape.df
    return 0.5 * (1 - (nu + 1) * zeta / (nu + zeta)), np.full_like(zeta, 0.5 * nu / (nu + 3))


def gaussian_dispersion(squares: Squares, weight: Squares | None = None) -> Dispersion:
    """Of the highest likelihood: κ = mean z², with one more z² = 1. A row of weight ρ counts as ρ equal ones."""
    weight = np.ones(len(squares)) if weight is None else weight
    return Dispersion(float((1 + (weight * squares).sum()) / (1 + weight.sum())))


def student_dispersion(
    squares: Squares, df: float | None = None, weight: Squares | None = None
) -> Dispersion:
    """Of the highest likelihood, with this ν, or with 2.1 ≤ ν ≤ 1000: from the median of z² and ν = 4, by L-BFGS in log κ and log(ν − 2).

    A row of weight ρ counts as ρ equal ones.
    """
    start = math.log(max(median(squares, weight), SMALLEST) / 0.55)

    def loss(x: np.ndarray) -> float:
        shape = Dispersion(math.exp(x[0]), 2 + math.exp(x[1]))
        return -float(np.average(shape.log_density(squares, np.zeros(1)), weights=weight))

    first = math.log((4.0 if df is None else df) - 2)
    ends = (math.log(LEAST_DF - 2), math.log(MOST_DF - 2)) if df is None else (first, first)
    x0 = np.array([np.clip(start, -MOST_LOG, MOST_LOG), first])
    found = minimize(loss, x0, method="L-BFGS-B", bounds=((-MOST_LOG, MOST_LOG), ends))
    return Dispersion(math.exp(found.x[0]), 2 + math.exp(found.x[1]) if df is None else df)
