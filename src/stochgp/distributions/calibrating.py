"""Corrections of predictive distributions by rows that neither the fit nor its choices have seen.

All of them are for exchangeable rows: not for later times, nor for rows of groups that are on both sides. Rows of one `group` count as one,
of which a random one is taken, ρ times as likely for a row of `weight` ρ.

Without groups a row of weight ρ counts as ρ equal ones in what is fitted: log densities and shares weigh ρ. How sure that is depends on how many
rows differ: there n is (Σρ)²/Σρ² (Kish 1965), the number of rows where weights are equal.
"""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import numpy as np
import scipy.optimize
from jaxtyping import Bool, Float64

from stochgp.distributions.base import AbstractDistribution
from stochgp.distributions.curves import BetaCurve, Recalibrated
from stochgp.numerics.arrays import effective_number

FEWEST = 100  # rows of a recalibration
SURE = 9.2  # of twice the log likelihood ratio: the 1 % point of χ² with two degrees of freedom
STEADY = 475  # rows from which the coverage of 95 % intervals varies by less than 1 %
MOST_COARSE = 0.1  # of the rows
NEAREST = 1e-12  # of PIT values to 0 and 1


class PITRecalibration(eqx.Module):
    """F → R(F), R the distribution function of Beta(a, b), fitted to PIT values; a = b = 1 where these do not clearly differ from uniform ones.

    Parameters
    ----------
    a, b : float
        Of Beta(a, b), both positive.
    gain : float
        The log density in nats that a row gains, on average over the rows it was fitted to; 0 where a = b = 1.
    n_rows : int
        How many rows, or groups, it was fitted to.
    """

    a: float
    b: float
    gain: float
    n_rows: int

    @property
    def is_identity(self) -> bool:
        return self.a == self.b == 1.0

    def __call__(
        self, found: AbstractDistribution, strength: Float64[np.ndarray, " N"] | None = None
    ) -> AbstractDistribution:
        """Of each row by Beta(a^s, b^s), s its `strength` from 0 to 1; None: 1 of all."""
        return found if self.is_identity else Recalibrated(found, _curve(self.a, self.b, strength))


class Conformal(eqx.Module):
    """Intervals (q(½ − r), q(½ + r)), r the k-th smallest |u_i − ½| of n held-out rows, k = ⌈(n + 1) level⌉.

    With weights r is the smallest |u_i − ½| that a share of at least (1 + 1/n) level of the rows does not exceed. For exchangeable rows the
    intervals hold a new observation with a probability in [level, level + 1/(n + 1)], on average over rows. Given the n rows, that probability
    is distributed as Beta(k, n + 1 − k). Where r is ½ they reach as far as the distribution does.

    Parameters
    ----------
    reach : float
        r, a probability from 0 to ½.
    level : float
        The probability with which an interval is to hold a new observation.
    n_rows : int
        How many held-out rows, or groups, r is taken from.
    """

    reach: float
    level: float
    n_rows: int

    def interval(self, found: AbstractDistribution) -> Float64[np.ndarray, "N 2"]:
        r = min(self.reach, 0.5 - NEAREST)
        return found.quantile([0.5 - r, 0.5 + r])


class ConformalScores(eqx.Module):
    """|u_i − ½| of held-out rows, u_i their `pit`, from the smallest: split conformal intervals of any level that they are enough for.

    Parameters
    ----------
    scores : array [n]
        |u_i − ½|, from the smallest.
    weight : array [n]
        ρ of each, positive, in the order of the scores.
    """

    scores: Float64[np.ndarray, " n"]
    weight: Float64[np.ndarray, " n"]

    @classmethod
    def of(
        cls, found: AbstractDistribution, y: Any, *, groups: Any = None, seed: int = 0, weight: Any = None
    ) -> "ConformalScores":
        """Of these rows, or of a random one of each group."""
        found, y, weight = one_of_each(found, y, groups, seed, weight)
        scores = np.abs(found.pit(y, seed) - 0.5)
        order = np.argsort(scores, kind="stable")
        return cls(scores[order], weight[order])

    @property
    def number(self) -> float:
        """How many rows of equal weight are as sure."""
        return effective_number(self.weight)

    def at(self, level: float) -> Conformal:
        """Raises ValueError for a level that needs more rows."""
        n = self.number
        if n < rows_for(level):
            raise ValueError(
                f"{n:.4g} left-out rows are too few for intervals of {level:g}; at least {rows_for(level)} are needed"
            )
        below = np.cumsum(self.weight) * (n / self.weight.sum())
        k = int(np.searchsorted(below, min((n + 1) * level, n) - 1e-9))
        return Conformal(float(self.scores[min(k, len(below) - 1)]), level, len(self.scores))


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
    strength: Float64[np.ndarray, " N"] | None = None,
) -> PITRecalibration:
    """The Beta(a, b) of the highest mean of log R'(u_i), u_i the PIT values of n held-out rows, if 2n times that mean exceeds 9.2, else the identity.

    Raises ValueError for fewer than 100 rows (or groups), and where a tenth of them have repeated targets that stand further apart than half a
    standard deviation: their PIT values are no continuous numbers.

    Parameters
    ----------
    found : distribution
        Predicted for the n held-out rows.
    y : array [n]
        Their targets.
    groups : array [n] or None
        Which rows belong together, by numbers or text: of each group one random row is used. None: every row is.
    seed : int
        Of the choice of rows from groups, and of the PIT values of counts.
    weight : array [n] or None
        ρ of each row, positive: it counts as ρ equal rows, or is ρ times as likely to be the row of its group. None: 1 for all.
    strength : array [n] or None
        s of each row, from 0 to 1, whose curve is that of Beta(a^s, b^s); without groups only. None: 1 for all.
    """
    if strength is not None and groups is not None:
        raise ValueError("strength is of rows; it is not taken with groups")
    return recalibration_of_parts([(found, y, groups, weight)], seed=seed, strength=strength)


def recalibration_of_parts(
    parts: Sequence[tuple[AbstractDistribution, Any, Any, Any]],
    *,
    seed: int = 0,
    strength: Float64[np.ndarray, " N"] | None = None,
) -> PITRecalibration:
    """`recalibration` of rows in several parts, each (distributions, targets, groups, weights)."""
    picked = [one_of_each(found, y, groups, seed, weight) for found, y, groups, weight in parts]
    y, weight = (np.concatenate(parts) for parts in zip(*(part[1:] for part in picked), strict=True))
    n = len(y)
    if n < FEWEST:
        raise ValueError(f"{n} left-out rows are too few to recalibrate by; at least {FEWEST} are needed")
    widths = [np.diff(found.quantile([0.3085, 0.6915]))[:, 0] for found, _, _ in picked]
    n_coarse = int(_are_coarse(np.concatenate(widths), y).sum())
    if n_coarse > MOST_COARSE * n:
        raise ValueError(
            f"{n_coarse} of {n} left-out targets are repeated and stand apart, in {len(np.unique(y))} values: a density at repeated targets cannot be recalibrated"
        )
    u = np.concatenate([found.pit(y, seed) for found, y, _ in picked])
    u = np.clip(u, NEAREST, 1 - NEAREST)
    slope = lambda a, b: _curve(a, b, strength).log_slope(u[:, None], 1 - u[:, None])[:, 0]
    loss = lambda raw: -float(np.average(slope(*np.exp(raw)), weights=weight))
    best = scipy.optimize.minimize(
        loss, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-6, "fatol": 1e-10}
    )
    gain = -float(best.fun)
    if 2 * effective_number(weight) * gain <= SURE:
        return PITRecalibration(1.0, 1.0, 0.0, n)
    a, b = (float(v) for v in np.exp(best.x))
    return PITRecalibration(a, b, gain, n)


def _curve(a: float, b: float, strength: Float64[np.ndarray, " N"] | None) -> BetaCurve:
    """Of Beta(a^s, b^s)."""
    return BetaCurve(a, b) if strength is None else BetaCurve(a ** strength[:, None], b ** strength[:, None])


def _are_coarse(width: Float64[np.ndarray, " N"], y: Float64[np.ndarray, " N"]) -> Bool[np.ndarray, " N"]:
    """Which targets occur again, and have no other within half of the width between the quantiles Φ(±½), a standard deviation of a Gaussian."""
    values, number, counts = np.unique(y, return_inverse=True, return_counts=True)
    apart = np.diff(values, prepend=-np.inf, append=np.inf)
    gap = np.minimum(apart[:-1], apart[1:])[number]
    return (counts[number] > 1) & (gap > width / 2)


def conformal(
    found: AbstractDistribution,
    y: Any,
    level: float = 0.95,
    *,
    groups: Any = None,
    seed: int = 0,
    weight: Any = None,
) -> Conformal:
    """Split conformal intervals of this level from held-out rows, by |F(y) − ½| (Vovk et al. 2005).

    Raises ValueError for fewer rows than such a level needs: 19 for 95 %, 99 for 99 %. Warns of fewer than 475, whose coverage varies.

    Parameters
    ----------
    found : distribution
        Predicted for the n held-out rows.
    y : array [n]
        Their targets.
    level : float
        The probability with which an interval is to hold a new observation, above 0 and below 1.
    groups : array [n] or None
        Which rows belong together, by numbers or text: of each group one random row is used. None: every row is.
    seed : int
        Of the choice of rows from groups, and of the PIT values of counts and classes.
    weight : array [n] or None
        ρ of each row, positive: it counts as ρ equal rows, or is ρ times as likely to be the row of its group. None: 1 for all.
    """
    if not 0 < level < 1:
        raise ValueError(f"level is {level!r}; it must be above 0 and below 1")
    scores = ConformalScores.of(found, y, groups=groups, seed=seed, weight=weight)
    made, n = scores.at(level), scores.number
    if n < STEADY:
        deviation = math.sqrt(level * (1 - level) / n)
        warnings.warn(
            f"from {n:.4g} left-out rows, coverage of {level:g} varies by ± {deviation:.3f}", stacklevel=2
        )
    return made


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
