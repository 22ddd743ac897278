"""Calibrations of predictive distributions, fitted to rows that neither the fit nor its choices have seen.

All of them are for exchangeable rows: not for later times, nor for rows of groups that the fit has seen. Each `group` counts as one row, drawn at
random, ρ times as likely for a row of `weight` ρ. Without groups a row of weight ρ counts as ρ equal ones in means and quantiles. The evidence is
that of n = (Σρ)²/Σρ² rows (Kish 1965), the number of rows if weights are equal.
"""

import math
import typing
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
    n_rows : int
        The number of rows, or groups, of the fit.
    """

    lower: ClassVar[float] = -np.inf  # observations are above it
    kinks: ClassVar[Float64[np.ndarray, " K"]] = np.empty(0)  # where R is not smooth
    a: float
    b: float
    gain: float = 0.0
    n_rows: int = 0

    @classmethod
    def fit(
        cls, found: AbstractDistribution, y: Any, *, groups: Any = None, seed: int = 0, weight: Any = None
    ) -> "PITRecalibration | None":
        """Fit the Beta(a, b) of the highest mean of log R'(u_i), u_i the PIT values of n held-out rows; None unless 2n times that mean exceeds 9.2.

        Raises ValueError for fewer than 100 rows (or groups), and if a tenth of them have repeated targets that stand further apart than half a
        standard deviation: their PIT values are no continuous numbers.

        Parameters
        ----------
        found : distribution
            Predicted for the n held-out rows.
        y : array [n]
            Their targets.
        groups : array [n] or None
            Groups by numbers or text; one random row of each is used. None: every row is used.
        seed : int
            Of the choice of rows from groups, and of the PIT values of counts.
        weight : array [n] or None
            ρ of each row, positive; None: 1.
        """
        found, y, weight = one_of_each(found, y, groups, seed, weight, FEWEST)
        # Repeated targets without another one within half of the width between the quantiles Φ(±½).
        values, number, counts = np.unique(y, return_inverse=True, return_counts=True)
        apart = np.diff(values, prepend=-np.inf, append=np.inf)
        is_far = (
            np.minimum(apart[:-1], apart[1:])[number] > np.diff(found.quantile([0.3085, 0.6915]))[:, 0] / 2
        )
        n, n_coarse = len(y), int(np.sum((counts[number] > 1) & is_far))
        if n_coarse > MAX_COARSE * n:
            raise ValueError(
                f"{n_coarse} of {n} left-out targets are repeated and stand apart, in {len(values)} values: a density at repeated targets cannot be recalibrated"
            )
        u = np.clip(found.pit(y, seed), NEAREST, 1 - NEAREST)
        loss = lambda raw: -float(np.average(cls(*np.exp(raw)).log_slope(u, 1 - u), weights=weight))
        options = {"xatol": 1e-6, "fatol": 1e-10}
        best: Any = scipy.optimize.minimize(loss, np.zeros(2), method="Nelder-Mead", options=options)
        if -2 * effective_number(weight) * best.fun <= MIN_RATIO_OF_CURVE:
            return None
        a, b = np.exp(best.x).tolist()
        return cls(a, b, -float(best.fun), n)

    @property
    def tail_power(self) -> float:
        """The least power of u, and of 1 − u, with which R and 1 − R fall at the ends."""
        return min(self.a, self.b)

    @property
    def name(self) -> str:
        return f"Beta({self.a:.3g}, {self.b:.3g}) of F"

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

    r is the k-th smallest score, k = ⌈(n + 1) level⌉; with weights the smallest that a share of at least (1 + 1/n) level of the rows does not
    exceed. For exchangeable rows the intervals hold a new observation with a probability in [level, level + 1/(n + 1)], on average over rows.
    Given the n rows, that probability is distributed as Beta(k, n + 1 − k). At r = ½ they reach as far as the distribution does.

    Parameters
    ----------
    scores : array [n]
        |u_i − ½|, in increasing order.
    weight : array [n]
        ρ of each, positive, in the order of the scores.
    """

    scores: Float64[np.ndarray, " n"]
    weight: Float64[np.ndarray, " n"]

    @classmethod
    def fit(
        cls, found: AbstractDistribution, y: Any, *, groups: Any = None, seed: int = 0, weight: Any = None
    ) -> "ConformalScores":
        """Compute the scores of these rows, or of a random one of each group. Parameters are those of `PITRecalibration.fit`."""
        found, y, weight = one_of_each(found, y, groups, seed, weight)
        scores = np.abs(found.pit(y, seed) - 0.5)
        order = np.argsort(scores, kind="stable")
        return cls(scores[order], weight[order])

    @property
    def n_rows(self) -> int:
        return len(self.scores)

    def reach(self, level: float) -> float:
        """r, a probability from 0 to ½. Raises ValueError if this level needs more rows."""
        n = effective_number(self.weight)
        if n < rows_for(level):
            raise ValueError(
                f"{n:.4g} left-out rows are too few for intervals of {level:g}; at least {rows_for(level)} are needed"
            )
        below = np.cumsum(self.weight) * (n / self.weight.sum())
        k = int(np.searchsorted(below, min((n + 1) * level, n) - 1e-9))
        return float(self.scores[min(k, len(below) - 1)])

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
    n_rows : int
        The number of rows, or groups, of the fit.

    Examples
    --------
    >>> import numpy as np
    >>> from stochgp.distributions import Categorical, TemperatureScaling
    >>> found = Categorical(np.log([[0.8, 0.2]]))
    >>> TemperatureScaling(0.5, 0.0, 0)(found).probabilities.round(3).tolist()
    [[0.941, 0.059]]
    """

    temperature: float
    gain: float
    n_rows: int

    @classmethod
    def fit(
        cls, found: Categorical, y: Any, *, groups: Any = None, seed: int = 0, weight: Any = None
    ) -> "TemperatureScaling | None":
        """Fit the T of the highest Σ log P_T(y_i) − (log T)²/2 over n held-out rows; None unless 2 Σ log P_T(y_i)/P(y_i) exceeds 6.63.

        The second term is a log-normal prior of T. Parameters and errors are those of `PITRecalibration.fit`; y has the numbers of classes.
        """
        some, y, weight = one_of_each(found, y, groups, seed, weight, FEWEST)
        logs, number = typing.cast(Categorical, some).log_probabilities, effective_number(weight)
        at = np.arange(len(y)), y.astype(np.int64)
        of_true = lambda raw: float(np.average(_scaled(logs, np.exp(-raw))[at], weights=weight))
        if np.isfinite(of_true(0.0)):  # else an impossible class came, and stays impossible
            loss = lambda raw: raw**2 / (2 * number) - of_true(raw)
            ends = (-MAX_LOG_TEMPERATURE, MAX_LOG_TEMPERATURE)
            best: Any = scipy.optimize.minimize_scalar(loss, bounds=ends, method="bounded")
            gain = of_true(best.x) - of_true(0.0)
            if 2 * number * gain > MIN_RATIO_OF_TEMPERATURE:
                return cls(float(np.exp(best.x)), gain, len(y))
        return None

    @property
    def name(self) -> str:
        return f"temperature {self.temperature:.3g}"

    def __call__(self, found: Categorical) -> Categorical:
        return Categorical(_scaled(found.log_probabilities, 1 / self.temperature))


def rows_for(level: float) -> int:
    """Return the least n with (n + 1) level ≤ n."""
    return math.ceil(level / (1 - level) - 1e-9)


def one_of_each(
    found: AbstractDistribution, y: Any, groups: Any, seed: int, weight: Any, fewest: int = 1
) -> tuple[AbstractDistribution, np.ndarray, np.ndarray]:
    """Return (Distributions, targets, weights) of the rows, or of a random one of each group, which then count as one."""
    y = np.asarray(y, np.float64)
    if y.shape != (found.n_rows,):
        raise ValueError(f"y has shape {y.shape}; {found.n_rows} left-out targets are wanted")
    rho = np.ones(len(y)) if weight is None else np.asarray(weight, np.float64)
    if rho.shape != y.shape or not (np.isfinite(rho) & (rho > 0)).all():
        raise ValueError(f"weight must be {len(y)} positive numbers, one for each left-out row")
    if groups is not None:  # the first of exponential waiting times of rate ρ
        order = np.argsort(np.random.default_rng(seed).exponential(size=len(y)) / rho)
        rows = order[np.unique(np.asarray(groups)[order], return_index=True)[1]]
        found, y, rho = found[rows], y[rows], np.ones(len(rows))
    if len(y) < fewest:
        raise ValueError(
            f"{len(y)} left-out rows are too few for a calibration; at least {fewest} are needed"
        )
    return found, y, rho


def _scaled(log_probabilities: np.ndarray, factor: float) -> Float64[np.ndarray, "N C"]:
    """Probabilities to a power, normalised; the impossible stays so."""
    return log_softmax(factor * np.asarray(log_probabilities, np.float64), axis=1)
