"""The law of standardised errors of predictions: Gaussian or Student-t, of a scale that depends on the input.

A row is predicted to be m ± √V, and z² = (y − m)²/V. Its law is y = m + √(V κ e^η) T: η is a function of the input, κ a number, and T a
standard normal or Student-t with ν degrees of freedom. Up to −½ log V, which all such laws share,

    log p = −½(η + log κ) + log f(√(z² e^(−η)/κ)),   f the density of T.
"""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.optimize import minimize
from scipy.special import ndtr, stdtr

from stochgp.distributions.location_scale import log_student
from stochgp.numerics.clustered import median

LEAST_DF, MOST_DF = 2.1, 1000.0  # so that there is a standard deviation
LOG_2PI = math.log(2 * math.pi)
MOST_LOG = 60.0  # |log κ|
SMALLEST = 1e-280

Squares = Float[np.ndarray, " N"]
Eta = Float[np.ndarray, "#N"]


class Shape(NamedTuple):
    """κ, and ν: None for a Gaussian."""

    factor: float
    df: float | None

    @property
    def variance(self) -> float:
        """What κ makes of V: κ, times the variance ν/(ν − 2) of T."""
        return self.factor * (1.0 if self.df is None else self.df / (self.df - 2))

    def log_density(self, squares: Squares, eta: Eta) -> Squares:
        """log p + ½ log V of each row: in the units of √V."""
        zeta = squares * np.exp(-eta) / self.factor
        return -0.5 * (eta + math.log(self.factor)) + _log_f(zeta, self.df)

    def probability(self, z: Squares) -> Squares:
        """P(Y ≤ y) of z = (y − m) e^(−η/2)/√V."""
        t = z / math.sqrt(self.factor)
        return ndtr(t) if self.df is None else stdtr(self.df, t)


def slopes(squares: Squares, eta: Eta, shape: Shape) -> tuple[Squares, Squares]:
    """(∂/∂η of −log p, its expected second derivative) of each row, ζ = z² e^(−η)/κ:

    ½(1 − (ν + 1)ζ/(ν + ζ)) and ν/(2(ν + 3)); ½(1 − ζ) and ½ for a Gaussian.
    """
    zeta = squares * np.exp(-eta) / shape.factor
    if shape.df is None:
        return 0.5 * (1 - zeta), np.full_like(zeta, 0.5)
    nu = shape.df
    return 0.5 * (1 - (nu + 1) * zeta / (nu + zeta)), np.full_like(zeta, 0.5 * nu / (nu + 3))


def gaussian_shape(squares: Squares, weight: Squares | None = None) -> Shape:
    """Of the highest likelihood: κ = mean z², with one more z² = 1. A row of weight ρ counts as ρ equal ones."""
    weight = np.ones(len(squares)) if weight is None else weight
    return Shape(float((1 + (weight * squares).sum()) / (1 + weight.sum())), None)


def student_shape(squares: Squares, df: float | None = None, weight: Squares | None = None) -> Shape:
    """Of the highest likelihood, with this ν, or with 2.1 ≤ ν ≤ 1000: from the median of z² and ν = 4, by L-BFGS in log κ and log(ν − 2).

    A row of weight ρ counts as ρ equal ones.
    """
    start = math.log(max(median(squares, weight), SMALLEST) / 0.55)

    def loss(x: np.ndarray) -> float:
        shape = Shape(math.exp(x[0]), 2 + math.exp(x[1]))
        return -float(np.average(shape.log_density(squares, np.zeros(1)), weights=weight))

    first = math.log((4.0 if df is None else df) - 2)
    ends = (math.log(LEAST_DF - 2), math.log(MOST_DF - 2)) if df is None else (first, first)
    x0 = np.array([np.clip(start, -MOST_LOG, MOST_LOG), first])
    found = minimize(loss, x0, method="L-BFGS-B", bounds=((-MOST_LOG, MOST_LOG), ends))
    return Shape(math.exp(found.x[0]), 2 + math.exp(found.x[1]) if df is None else df)


def _log_f(zeta: Squares, df: float | None) -> Squares:
    """Log density of T at T² = ζ."""
    if df is None:
        return -0.5 * (LOG_2PI + zeta)
    return log_student(zeta, df)
