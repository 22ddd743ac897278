"""Calibrations of predictive distributions, fitted to rows that neither the fit nor its choices have seen.

All of them are for exchangeable rows: not for later times, nor for rows of groups that the fit has seen. Each `group` counts as one row, drawn at
random, ρ times as likely for a row of `weight` ρ. Without groups a row of weight ρ counts as ρ equal ones in means and quantiles. The evidence is
that of n = (Σρ)²/Σρ² rows (Kish 1965), the number of rows if weights are equal.
"""

import dataclasses
import math
import typing
from typing import Any, ClassVar

import equinox as eqx
import numpy as np
import scipy.optimize
from jaxtyping import Bool, Float64
from scipy.special import betainc, betaincc, betaincinv, betaln, log_softmax, xlogy

from stochgp.distributions.base import MIN_MASS, AbstractDistribution, once
from stochgp.distributions.discrete import Categorical
from stochgp.distributions.transformed import Recalibrated
from stochgp.numerics.arrays import effective_number

FEWEST = 100  # rows of a recalibration or a temperature
# Twice the log likelihood ratio: 1 % points of χ², 2 and 1 degrees of freedom.
SURE_OF_CURVE, SURE_OF_TEMPERATURE = 9.2, 6.63
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
        The gain in log density, in nats a row, on average over the rows of the fit.
    n_rows : int
        The number of rows, or groups, of the fit.
    """

    lower: ClassVar[float] = -np.inf  # observations are above it
    kinks: ClassVar[Float64[np.ndarray, " K"]] = np.empty(0)  # where R is not smooth
    a: float
    b: float
    gain: float = 0.0
    n_rows: int = 0

    def __getitem__(self, rows: Any) -> "PITRecalibration":
        """Return the curve, which is that of all rows."""
        return self

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
        """(R(u), 1 − R(u)), each accurate where it is small."""
        low = below < 0.5
        a, b, x = np.broadcast_arrays(
            np.where(low, self.a, self.b), np.where(low, self.b, self.a), np.where(low, below, above)
        )
        near = np.asarray(betainc(a, b, x))
        far = np.asarray(1 - near)
        large = near > 0.5  # there the difference has lost its digits
        far[large] = betaincc(a[large], b[large], x[large])
        return np.where(low, near, far), np.where(low, far, near)

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
    level : float
        The probability with which `interval` is to hold a new observation.
    """

    scores: Float64[np.ndarray, " n"]
    weight: Float64[np.ndarray, " n"]
    level: float = 0.95

    @classmethod
    def of(
        cls, found: AbstractDistribution, y: Any, *, groups: Any = None, seed: int = 0, weight: Any = None
    ) -> "ConformalScores":
        """The scores of these rows, or of a random one of each group."""
        found, y, weight = one_of_each(found, y, groups, seed, weight)
        scores = np.abs(found.pit(y, seed) - 0.5)
        order = np.argsort(scores, kind="stable")
        return cls(scores[order], weight[order])

    @property
    def n_rows(self) -> int:
        return len(self.scores)

    @property
    def number(self) -> float:
        """The number of rows of equal weight with the same evidence."""
        return effective_number(self.weight)

    @property
    def reach(self) -> float:
        """r, a probability from 0 to ½."""
        n = self.number
        below = np.cumsum(self.weight) * (n / self.weight.sum())
        k = int(np.searchsorted(below, min((n + 1) * self.level, n) - 1e-9))
        return float(self.scores[min(k, len(below) - 1)])

    def at(self, level: float) -> "ConformalScores":
        """Intervals of this level. Raises ValueError if it needs more rows."""
        if self.number < rows_for(level):
            raise ValueError(
                f"{self.number:.4g} left-out rows are too few for intervals of {level:g}; at least {rows_for(level)} are needed"
            )
        return dataclasses.replace(self, level=level)

    def interval(self, found: AbstractDistribution) -> Float64[np.ndarray, "N 2"]:
        r = min(self.reach, 0.5 - NEAREST)
        return found.quantile([0.5 - r, 0.5 + r])


class TemperatureScaling(eqx.Module):
    """P(c) → P(c)^(1/T) / Σ_c' P(c')^(1/T); the most probable class stays (Guo et al. 2017, arXiv 1706.04599).

    Parameters
    ----------
    temperature : float
        T, positive; 1 changes nothing, and probabilities below 1 become surer.
    gain : float
        The gain in log probability, in nats a row, on average over the rows of the fit.
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

    @property
    def name(self) -> str:
        return f"temperature {self.temperature:.3g}"

    def __call__(self, found: Categorical) -> Categorical:
        return Categorical(_scaled(found.log_probabilities, 1 / self.temperature))


def rows_for(level: float) -> int:
    """The least n with (n + 1) level ≤ n."""
    return math.ceil(level / (1 - level) - 1e-9)


def recalibration(
    found: AbstractDistribution,
    y: Any,
    *,
    groups: Any = None,
    seed: int = 0,
    weight: Any = None,
) -> PITRecalibration | None:
    """The Beta(a, b) of the highest mean of log R'(u_i), u_i the PIT values of n held-out rows, if 2n times that mean exceeds 9.2, else None.

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
    found, y, weight = one_of_each(found, y, groups, seed, weight)
    n = _enough(y)
    n_coarse = int(_are_coarse(np.diff(found.quantile([0.3085, 0.6915]))[:, 0], y).sum())
    if n_coarse > MAX_COARSE * n:
        raise ValueError(
            f"{n_coarse} of {n} left-out targets are repeated and stand apart, in {len(np.unique(y))} values: a density at repeated targets cannot be recalibrated"
        )
    u = np.clip(found.pit(y, seed), NEAREST, 1 - NEAREST)
    slope = lambda a, b: PITRecalibration(a, b).log_slope(u, 1 - u)
    loss = lambda raw: -float(np.average(slope(*np.exp(raw)), weights=weight))
    best = scipy.optimize.minimize(
        loss, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-10}
    )
    gain = -float(best.fun)
    if 2 * effective_number(weight) * gain <= SURE_OF_CURVE:
        return None
    a, b = np.exp(best.x).tolist()
    return PITRecalibration(a, b, gain, n)


def temperature_scaling(
    found: Categorical, y: Any, *, groups: Any = None, seed: int = 0, weight: Any = None
) -> TemperatureScaling | None:
    """The T of the highest Σ log P_T(y_i) − (log T)²/2 over n held-out rows, if 2 Σ log P_T(y_i)/P(y_i) exceeds 6.63, else None.

    The second term is a log-normal prior of T. Raises ValueError for fewer than 100 rows (or groups), and if y or weight are not of these rows.

    Parameters
    ----------
    found : Categorical
        Predicted for the n held-out rows.
    y : array [n]
        The numbers of their classes.
    groups, seed, weight
        As in `recalibration`.
    """
    some, y, weight = one_of_each(found, y, groups, seed, weight)
    n = _enough(y)
    logs, number = typing.cast(Categorical, some).log_probabilities, effective_number(weight)
    at = np.arange(n), y.astype(np.int64)
    of_true = lambda raw: float(np.average(_scaled(logs, np.exp(-raw))[at], weights=weight))
    if np.isfinite(of_true(0.0)):  # else an impossible class came, and stays impossible
        loss = lambda raw: raw**2 / (2 * number) - of_true(raw)
        ends = (-MAX_LOG_TEMPERATURE, MAX_LOG_TEMPERATURE)
        best = scipy.optimize.minimize_scalar(loss, bounds=ends, method="bounded")
        gain = of_true(best.x) - of_true(0.0)
        if 2 * number * gain > SURE_OF_TEMPERATURE:
            return TemperatureScaling(float(np.exp(best.x)), gain, n)
    return None


def one_of_each(
    found: AbstractDistribution, y: Any, groups: Any, seed: int, weight: Any
) -> tuple[AbstractDistribution, np.ndarray, np.ndarray]:
    """(Distributions, targets, weights) of the rows, or of a random one of each group, which then count as one."""
    y = np.asarray(y, np.float64)
    if y.shape != (found.n_rows,):
        raise ValueError(f"y has shape {y.shape}; {found.n_rows} left-out targets are wanted")
    rho = np.ones(len(y)) if weight is None else np.asarray(weight, np.float64)
    if rho.shape != y.shape or not (np.isfinite(rho) & (rho > 0)).all():
        raise ValueError(f"weight must be {len(y)} positive numbers, one for each left-out row")
    if groups is None:
        return found, y, rho
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(y))
    if weight is not None:  # the first of exponential waiting times of rate ρ
        order = np.argsort(generator.exponential(size=len(y)) / rho)
    rows = order[np.unique(np.asarray(groups)[order], return_index=True)[1]]
    return found[rows], y[rows], np.ones(len(rows))


def _enough(y: np.ndarray) -> int:
    """The number of rows. Raises ValueError for fewer than 100."""
    if len(y) < FEWEST:
        raise ValueError(
            f"{len(y)} left-out rows are too few for a calibration; at least {FEWEST} are needed"
        )
    return len(y)


def _are_coarse(width: Float64[np.ndarray, " N"], y: Float64[np.ndarray, " N"]) -> Bool[np.ndarray, " N"]:
    """Mark targets that occur again, and have no other within half of the width between the quantiles Φ(±½)."""
    values, number, counts = np.unique(y, return_inverse=True, return_counts=True)
    apart = np.diff(values, prepend=-np.inf, append=np.inf)
    gap = np.minimum(apart[:-1], apart[1:])[number]
    return (counts[number] > 1) & (gap > width / 2)


def _scaled(log_probabilities: np.ndarray, factor: float) -> Float64[np.ndarray, "N C"]:
    """Probabilities to a power, normalised; the impossible stays so."""
    return log_softmax(factor * np.asarray(log_probabilities, np.float64), axis=1)
