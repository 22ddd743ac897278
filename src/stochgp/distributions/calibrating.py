"""Calibrations of predictive distributions, fitted to rows that neither the fit nor its choices have seen.

All of them are for exchangeable rows: not for later times, nor for rows of groups that the fit has seen. Of new groups give one row each.
"""

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

FEWEST = 100  # rows of a recalibration or a temperature
# Twice the log likelihood ratio: 1 % points of χ², 2 and 1 degrees of freedom.
MIN_RATIO_OF_CURVE, MIN_RATIO_OF_TEMPERATURE = 9.2, 6.63
MAX_COARSE = 0.1  # of the rows
NEAREST = 1e-12  # of PIT values to 0 and 1
Probabilities = Any  # arrays of one shape, in [0, 1]
MAX_LOG_TEMPERATURE = 2.5  # if no held-out row is mistaken the likelihood alone has no optimum


class PITRecalibration(eqx.Module):
    """F → R(F), R the distribution function of Beta(a, b): R' = u^(a−1) (1 − u)^(b−1)/B(a, b); a = b = 1 is the identity.

    R is of the order of u^a near u = 0, and 1 − R of the order of (1 − u)^b near u = 1.

    Parameters
    ----------
    a, b : float
        Positive.
    gain : float
        The gain in log density, in nats per row, on average over the rows of the fit.
    """

    lower: ClassVar[float] = -np.inf  # observations are above it
    kinks: ClassVar[Float64[np.ndarray, " K"]] = np.empty(0)  # where R is not smooth
    a: float
    b: float
    gain: float = 0.0

    @classmethod
    def fit(
        cls, found: AbstractDistribution, y: Any, weight: Any = None, *, seed: int = 0
    ) -> "PITRecalibration | None":
        """Fit the Beta(a, b) of the highest mean of log R'(u_i), u_i the PIT values of n held-out rows; None unless 2n times that mean exceeds 9.2.

        Raises ValueError for fewer than 100 rows, and if a tenth of them have repeated targets that stand further apart than half a standard
        deviation: their PIT values are no continuous numbers.

        Parameters
        ----------
        found, y : distribution, array [n]
            Predicted for the held-out rows; their targets.
        weight : array [n] or None
            As in `TemperatureScaling.fit`.
        seed : int
            Of the PIT values of counts.
        """
        y = _targets(found, y, FEWEST)
        # Repeated targets without another one within half of the width between the quantiles Φ(±½).
        values, number, counts = np.unique(y, return_inverse=True, return_counts=True)
        apart = np.diff(values, prepend=-np.inf, append=np.inf)
        width = np.diff(found.quantile([0.3085, 0.6915]))[:, 0]
        is_far = np.minimum(apart[:-1], apart[1:])[number] > width / 2
        n_coarse = int(np.sum((counts[number] > 1) & is_far))
        if n_coarse > MAX_COARSE * len(y):
            raise ValueError(
                f"{n_coarse} of {len(y)} left-out targets are repeated and stand apart, in {len(values)} values: a density at repeated targets cannot be recalibrated"
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
        """The curve in words."""
        return f"Beta({self.a:.3g}, {self.b:.3g}) of F"

    @property
    def tail_power(self) -> float:
        """The least power of u, and of 1 − u, with which R and 1 − R fall at the ends."""
        return min(self.a, self.b)

    def __call__(self, found: AbstractDistribution) -> AbstractDistribution:
        return Recalibrated(found, self)

    def log_slope(self, below: Probabilities, above: Probabilities) -> Probabilities:
        """log R'(u), u = `below` = 1 − `above`."""
        below, above = np.maximum(below, MIN_MASS), np.maximum(above, MIN_MASS)
        return xlogy(self.a - 1, below) + xlogy(self.b - 1, above) - betaln(self.a, self.b)

    def tails(self, below: Probabilities, above: Probabilities) -> tuple[Probabilities, Probabilities]:
        """Return (R(u), 1 − R(u)), each accurate where it is small."""
        low = below < betaincinv(self.a, self.b, 0.5)
        a, b = np.where(low, self.a, self.b), np.where(low, self.b, self.a)
        near = np.asarray(betainc(a, b, np.where(low, below, above)))
        return np.where(low, near, 1 - near), np.where(low, 1 - near, near)

    def inverse(self, p: Probabilities) -> Probabilities:
        """u with R(u) = p."""
        return np.broadcast_to(betaincinv(self.a, self.b, once(p)), p.shape)


class ConformalScores(eqx.Module):
    """Split conformal intervals (q(½ − r), q(½ + r)) from |u_i − ½| of n held-out rows, u_i their `pit`.

    r is the k-th smallest score, k = ⌈(n + 1) level⌉. For exchangeable rows the intervals hold a new observation with a probability in
    [level, level + 1/(n + 1)], on average over rows. Given the n rows, that probability is distributed as Beta(k, n + 1 − k). At r = ½ they reach as
    far as the distribution does.

    Parameters
    ----------
    scores : array [n]
        |u_i − ½|, in increasing order.
    """

    scores: Float64[np.ndarray, " n"]

    @classmethod
    def fit(cls, found: AbstractDistribution, y: Any, *, seed: int = 0) -> "ConformalScores":
        """Compute the scores of these rows. Parameters are those of `PITRecalibration.fit`."""
        return cls(np.sort(np.abs(found.pit(_targets(found, y, 1), seed) - 0.5)))

    def reach(self, level: float) -> float:
        """r, a probability from 0 to ½. Raises ValueError if this level needs more rows."""
        n, fewest = len(self.scores), math.ceil(level / (1 - level) - 1e-9)  # (n + 1) level ≤ n
        if n < fewest:
            raise ValueError(
                f"{n} left-out rows are too few for intervals of {level:g}; at least {fewest} are needed"
            )
        return float(self.scores[min(math.ceil((n + 1) * level - 1e-9), n) - 1])

    def interval(self, found: AbstractDistribution, level: float) -> Float64[np.ndarray, "N 2"]:
        """Return the intervals that hold a new observation with the probability `level`."""
        r = min(self.reach(level), 0.5 - NEAREST)
        return found.quantile([0.5 - r, 0.5 + r])


class TemperatureScaling(eqx.Module):
    """P(c) → P(c)^(1/T) / Σ_c' P(c')^(1/T); the most probable class stays (Guo et al. 2017, arXiv 1706.04599).

    Parameters
    ----------
    temperature : float
        T, positive; 1 changes nothing, and probabilities below 1 become surer.
    gain : float
        The gain in log probability, in nats per row, on average over the rows of the fit.

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
        """Fit the T of the highest Σ log P_T(y_i) − (log T)²/2 over n held-out rows; None unless 2 Σ log P_T(y_i)/P(y_i) exceeds 6.63.

        The second term is a log-normal prior of T. Raises ValueError for fewer than 100 rows.

        Parameters
        ----------
        found, y : Categorical, array [n]
            Predicted for the held-out rows; their numbers of classes.
        weight : array [n] or None
            ρ of each row, positive: it counts ρ times, and all as (Σρ)²/Σρ² rows (Kish 1965). None: 1.
        """
        y, logs = _targets(found, y, FEWEST), found.log_probabilities
        number = len(y) if weight is None else effective_number(weight)
        at = np.arange(len(y)), y.astype(np.int64)
        of_true = lambda raw: float(np.average(_scaled(logs, np.exp(-raw))[at], weights=weight))
        if np.isfinite(of_true(0.0)):  # else an impossible class came, and stays impossible
            loss = lambda raw: raw**2 / (2 * number) - of_true(raw)
            ends = (-MAX_LOG_TEMPERATURE, MAX_LOG_TEMPERATURE)
            best: Any = scipy.optimize.minimize_scalar(loss, bounds=ends, method="bounded")
            gain = of_true(best.x) - of_true(0.0)
            if 2 * number * gain > MIN_RATIO_OF_TEMPERATURE:
                return cls(float(np.exp(best.x)), gain)
        return None

    @property
    def name(self) -> str:
        """The temperature in words."""
        return f"temperature {self.temperature:.3g}"

    def __call__(self, found: Categorical) -> Categorical:
        return Categorical(_scaled(found.log_probabilities, 1 / self.temperature))


def _targets(found: AbstractDistribution, y: Any, fewest: int) -> Float64[np.ndarray, " n"]:
    """Return the targets of these rows, if they are as many as the distributions, and enough."""
    y = np.asarray(y, np.float64)
    if y.shape != (found.n_rows,):
        raise ValueError(f"y has shape {y.shape}; {found.n_rows} left-out targets are wanted")
    if len(y) < fewest:
        raise ValueError(
            f"{len(y)} left-out rows are too few for a calibration; at least {fewest} are needed"
        )
    return y


def _scaled(log_probabilities: np.ndarray, factor: float) -> Float64[np.ndarray, "N C"]:
    """Probabilities to a power, normalised; the impossible stays so."""
    return log_softmax(factor * np.asarray(log_probabilities, np.float64), axis=1)
