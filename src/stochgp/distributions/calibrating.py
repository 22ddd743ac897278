"""Calibrations of predictive distributions, fitted to held-out, exchangeable rows."""

import math
from typing import Any, ClassVar

import equinox as eqx
import numpy as np
import scipy.optimize
from jaxtyping import Float64
from scipy.special import betainc, betaincinv, betaln, log_softmax, xlogy

from stochgp.distributions.base import AbstractDistribution, once
from stochgp.distributions.discrete import MIN_MASS, Categorical
from stochgp.distributions.transformed import Recalibrated
from stochgp.numerics.arrays import effective_number

FEWEST = 100  # minimum number of rows for a recalibration or a temperature
# Critical values of likelihood ratio tests at the 1 % level: χ² with 2 degrees of freedom, and with 1.
MIN_RATIO_OF_CURVE, MIN_RATIO_OF_TEMPERATURE = 9.2, 6.63
MAX_COARSE = 0.1  # maximum share of rows with repeated, isolated targets
NEAREST = 1e-12  # minimum distance of PIT values from 0 and 1
Probabilities = Any  # arrays of one shape, in [0, 1]
MAX_LOG_TEMPERATURE = 2.5  # limit of |log T|, reached if no held-out row has a wrong class


class PITRecalibration(eqx.Module):
    """A map of probabilities u to R(u), where R is the distribution function of Beta(a, b).

    R has the density u^(a−1) (1 − u)^(b−1)/B(a, b). With a = b = 1, R changes nothing.

    Parameters
    ----------
    a, b : float
        Parameters of the beta distribution, positive.
    gain : float
        Mean improvement of the log density per row, on the rows used for the fit.
    """

    lower: ClassVar[float] = -np.inf  # lower bound of observations
    kinks: ClassVar[Float64[np.ndarray, " K"]] = np.empty(0)  # points u at which R is not smooth
    a: float
    b: float
    gain: float = 0.0

    @classmethod
    def fit(
        cls, found: AbstractDistribution, y: Any, weight: Any = None, *, seed: int = 0
    ) -> "PITRecalibration | None":
        """Fit Beta(a, b) to the PIT values of n held-out rows by maximum likelihood.

        Returns None if twice the improvement of the log likelihood is at most 9.2. Raises ValueError for
        fewer than 100 rows, or if more than 10 % of the targets are repeated values far from other targets.

        Parameters
        ----------
        found, y : distribution, array [n]
            Predictive distribution of the held-out rows, and their targets.
        weight : array [n] or None
            Weights of the rows, as in `TemperatureScaling.fit`.
        seed : int
            Seed of the random PIT values of counts.
        """
        y = _targets(found, y, FEWEST)
        # A target is far if no other target is within half of the width between the quantiles Φ(−½) and Φ(½).
        values, number, counts = np.unique(y, return_inverse=True, return_counts=True)
        apart = np.diff(values, prepend=-np.inf, append=np.inf)
        width = np.diff(found.quantile([0.3085, 0.6915]))[:, 0]
        is_far = np.minimum(apart[:-1], apart[1:])[number] > width / 2
        n_coarse = int(np.sum((counts[number] > 1) & is_far))
        if n_coarse > MAX_COARSE * len(y):
            raise ValueError(
                f"recalibration is not available: {n_coarse} of {len(y)} held-out targets are repeated and far from all different targets (there are {len(values)} distinct targets)"
            )
        u = np.clip(found.pit(y, seed), NEAREST, 1 - NEAREST)
        number = len(y) if weight is None else effective_number(weight)
        loss = lambda raw: -float(np.average(cls(*np.exp(raw)).log_slope(u, 1 - u), weights=weight))
        options = {"xatol": 1e-6, "fatol": 1e-10}
        best: Any = scipy.optimize.minimize(loss, np.zeros(2), method="Nelder-Mead", options=options)
        a, b = np.exp(best.x).tolist()
        return None if -2 * number * best.fun <= MIN_RATIO_OF_CURVE else cls(a, b, -float(best.fun))

    @property
    def name(self) -> str:
        """The curve as text."""
        return f"Beta({self.a:.3g}, {self.b:.3g}) of F"

    @property
    def tail_power(self) -> float:
        """The smaller of a and b, the exponents of the tails of R."""
        return min(self.a, self.b)

    def __call__(self, found: AbstractDistribution) -> AbstractDistribution:
        return Recalibrated(found, self)

    def log_slope(self, below: Probabilities, above: Probabilities) -> Probabilities:
        """Return log R'(u) for u = `below` = 1 − `above`."""
        below, above = np.maximum(below, MIN_MASS), np.maximum(above, MIN_MASS)
        return xlogy(self.a - 1, below) + xlogy(self.b - 1, above) - betaln(self.a, self.b)

    def tails(self, below: Probabilities, above: Probabilities) -> tuple[Probabilities, Probabilities]:
        """Return R(u) and 1 − R(u), accurate even for small values."""
        low = below < betaincinv(self.a, self.b, 0.5)
        a, b = np.where(low, self.a, self.b), np.where(low, self.b, self.a)
        near = np.asarray(betainc(a, b, np.where(low, below, above)))
        return np.where(low, near, 1 - near), np.where(low, 1 - near, near)

    def inverse(self, p: Probabilities) -> Probabilities:
        """Return u with R(u) = p."""
        return np.broadcast_to(betaincinv(self.a, self.b, once(p)), p.shape)


class ConformalScores(eqx.Module):
    """Split-conformal calibration of intervals, using the PIT values of n held-out rows.

    The score of a row with the PIT value u is |u − ½|. The number r is the k-th smallest score, with
    k = ⌈(n + 1) · `level`⌉. An interval reaches from the quantile at ½ − r to the quantile at ½ + r. For
    exchangeable rows, the average coverage is between `level` and `level` + 1/(n + 1).

    Parameters
    ----------
    scores : array [n]
        The scores in increasing order.
    """

    scores: Float64[np.ndarray, " n"]

    @classmethod
    def fit(cls, found: AbstractDistribution, y: Any, *, seed: int = 0) -> "ConformalScores":
        """Compute the scores of held-out rows. `PITRecalibration.fit` explains the parameters."""
        return cls(np.sort(np.abs(found.pit(_targets(found, y, 1), seed) - 0.5)))

    def reach(self, level: float) -> float:
        """Return the score r for a level. Raises ValueError if the level needs more rows."""
        n, fewest = len(self.scores), math.ceil(level / (1 - level) - 1e-9)  # (n + 1) level ≤ n
        if n < fewest:
            raise ValueError(
                f"{n} held-out rows are too few for intervals with level {level:g}; at least {fewest} are needed"
            )
        return float(self.scores[min(math.ceil((n + 1) * level - 1e-9), n) - 1])

    def interval(self, found: AbstractDistribution, level: float) -> Float64[np.ndarray, "N 2"]:
        """Return intervals that contain a new observation with the probability `level`."""
        r = min(self.reach(level), 0.5 - NEAREST)
        return found.quantile([0.5 - r, 0.5 + r])


class TemperatureScaling(eqx.Module):
    """A map of class probabilities P(c) to P(c)^(1/T) / Σ_k P(k)^(1/T).

    The most probable class remains the same (Guo et al. 2017, arXiv 1706.04599).

    Parameters
    ----------
    temperature : float
        T, positive. T = 1 changes nothing. T < 1 moves probabilities towards 0 and 1.
    gain : float
        Mean improvement of the log probability per row, on the rows used for the fit.

    Examples
    --------
    >>> import numpy as np
    >>> from stochgp.distributions import Categorical, TemperatureScaling
    >>> found = Categorical(np.log([[0.8, 0.2]]))
    >>> TemperatureScaling(0.5)(found).probabilities.round(3).tolist()
    [[0.941, 0.059]]
    """

    temperature: float
    gain: float = 0.0

    @classmethod
    def fit(cls, found: Categorical, y: Any, weight: Any = None) -> "TemperatureScaling | None":
        """Fit T to n held-out rows, with the prior log T ~ N(0, 1).

        Returns None if twice the improvement of the log likelihood is at most 6.63.
        Raises ValueError for fewer than 100 rows.

        Parameters
        ----------
        found, y : Categorical, array [n]
            Predicted probabilities of the held-out rows, and their class indices.
        weight : array [n] or None
            Positive weight ρ of each row (None: 1). The effective number of rows is (Σρ)²/Σρ² (Kish 1965).
        """
        y, logs = _targets(found, y, FEWEST), found.log_probabilities
        number = len(y) if weight is None else effective_number(weight)
        at = np.arange(len(y)), y.astype(np.int64)
        of_true = lambda raw: float(np.average(_scaled(logs, np.exp(-raw))[at], weights=weight))
        if np.isfinite(of_true(0.0)):  # otherwise the true class of a row has probability 0, for every T
            loss = lambda raw: raw**2 / (2 * number) - of_true(raw)
            ends = (-MAX_LOG_TEMPERATURE, MAX_LOG_TEMPERATURE)
            best: Any = scipy.optimize.minimize_scalar(loss, bounds=ends, method="bounded")
            gain = of_true(best.x) - of_true(0.0)
            if 2 * number * gain > MIN_RATIO_OF_TEMPERATURE:
                return cls(float(np.exp(best.x)), gain)
        return None

    @property
    def name(self) -> str:
        """The temperature as text."""
        return f"temperature {self.temperature:.3g}"

    def __call__(self, found: Categorical) -> Categorical:
        return Categorical(_scaled(found.log_probabilities, 1 / self.temperature))


def _targets(found: AbstractDistribution, y: Any, fewest: int) -> Float64[np.ndarray, " n"]:
    """Return the targets as an array. Raises ValueError for a wrong shape or too few rows."""
    y = np.asarray(y, np.float64)
    if y.shape != (found.n_rows,):
        raise ValueError(f"y must contain {found.n_rows} held-out targets, but has the shape {y.shape}")
    if len(y) < fewest:
        raise ValueError(
            f"{len(y)} held-out rows are too few for a calibration; at least {fewest} are needed"
        )
    return y


def _scaled(log_probabilities: np.ndarray, factor: float) -> Float64[np.ndarray, "N C"]:
    """Raise probabilities to the power `factor`, normalise them and return their logarithms."""
    return log_softmax(factor * np.asarray(log_probabilities, np.float64), axis=1)
