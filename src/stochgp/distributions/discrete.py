"""Probabilities of classes, and of counts whose log rate is normal."""

import math

import numpy as np
from jaxtyping import Float64
from scipy.special import betainc, gammainc, gammaincc, gammaln, logsumexp, ndtr

from stochgp.distributions.base import AbstractDistribution, PerRow, Points, crps_of_counts, solve_increasing

REACH, STEP = 4.2, 0.1  # of the trapezoid rule in t, f = mode + s sinh t
FAR = 9.0  # standard deviations that the trapezoid rule of the distribution function covers
MAX_NODES = 4000  # of that rule
LEAST_TAIL = 1e-13  # outside of the counts of a sum
# Counts from MANY on, if the rate varies over SHARP or more standard deviations of a count, have a rule whose nodes do not grow with them.
MANY, SHARP = 50, 4.0
FROM, TO, OF_GAMMA = -13.0, 11.0, 0.4  # of its trapezoid rule, and its step
MAX_LOG_RATE, MAX_COUNT = 300.0, 1e300
LARGEST_RATE = 1e18  # of NumPy's generator of Poisson counts
CLOSEST = 1e-15  # relative difference of counts that are distinguished


class Categorical(AbstractDistribution):
    """P(Y = c) for the classes c = 0, …, C − 1, in logarithms.

    `logpdf` of another number is −inf. `mean`, `std`, `cdf`, `quantile` and `crps` (the ranked probability score) are those of the
    number of the class: of two classes the probability of the second, of more only meaningful where their order is.

    Parameters
    ----------
    log_probabilities : array [N, C]
        log P(Y = c) of each row and class.
    """

    log_probabilities: Float64[np.ndarray, "N C"]

    @property
    def probabilities(self) -> Float64[np.ndarray, "N C"]:
        return np.exp(self.log_probabilities)

    @property
    def mean(self) -> PerRow:
        return self.probabilities @ self._classes

    @property
    def std(self) -> PerRow:
        from_mean = self._classes - self.mean[:, None]
        return np.sqrt(np.sum(self.probabilities * from_mean**2, axis=1))

    @property
    def is_discrete(self) -> bool:
        return True

    @property
    def _held(self) -> int:
        return self.log_probabilities.shape[1]

    @property
    def _classes(self) -> np.ndarray:
        return np.arange(self.log_probabilities.shape[1], dtype=np.float64)

    def _logpdf(self, y: Points) -> Points:
        known = np.isin(y, self._classes)
        at = np.where(known, y, 0).astype(np.int64)
        return np.where(known, np.take_along_axis(self.log_probabilities, at, axis=1), -np.inf)

    def _tails(self, y: Points) -> tuple[Points, Points]:
        reached = self._classes <= y[..., None]  # [N, Q, C]
        log_p = np.broadcast_to(self.log_probabilities[:, None], reached.shape)
        with np.errstate(divide="ignore"):
            masked = (np.where(where, log_p, -np.inf) for where in (reached, ~reached))
            below, above = (np.exp(np.asarray(logsumexp(part, axis=-1))) for part in masked)
        return below, above

    def _quantile(self, p: Points) -> Points:
        reached = np.cumsum(self.probabilities, axis=1)[:, None, :-1] < p[..., None]
        return np.count_nonzero(reached, axis=-1).astype(np.float64)

    def _crps(self, y: Points) -> Points:
        """Σ_c (F(c) − 1[c ≥ y])² for classes y."""
        F = np.cumsum(self.probabilities, axis=1)[:, None, :-1]
        return np.sum((F - (self._classes[:-1] >= y[..., None])) ** 2, axis=-1)


class Counts(AbstractDistribution):
    """Y | f ~ Poisson(e^f), f ~ N(m, v); with a `shape` r negative binomial of mean μ = e^f and variance μ + μ²/r instead.

    `logpdf` is the log probability, −inf for what is no count. The integrals over f are trapezoid rules as fine as the counts are sharp.

    Parameters
    ----------
    center : array [N]
        m, the mean of the log rate f.
    variance : array [N]
        v, the variance of f.
    shape : float or None
        r, positive, the same for all rows. None: Poisson.
    """

    center: PerRow
    variance: PerRow
    shape: float | None = None

    @property
    def mean(self) -> PerRow:
        """e^(m + v/2)."""
        return np.exp(self.center + self.variance / 2)

    @property
    def std(self) -> PerRow:
        squared, more = self.mean**2, 0.0 if self.shape is None else 1 / self.shape
        return np.sqrt(self.mean + squared * (np.expm1(self.variance) + more * np.exp(self.variance)))

    @property
    def is_discrete(self) -> bool:
        return True

    @property
    def _held(self) -> int:
        return 512

    def _logpdf(self, y: Points) -> Points:
        """Around the mode of p(y|f) N(f), f = m + √v e, which is log-concave, with s² = −1/(second derivative by e): e = e* + s sinh t."""
        known = (y >= 0) & (y == np.floor(y))
        at = np.where(known, y, 0.0)
        m, std = self.center[:, None], np.sqrt(self.variance)[:, None]
        mode = self._mode(at, m, std)
        s = 1 / np.sqrt(std**2 * self._curvature(at, m + std * mode) + 1)
        t = np.arange(-REACH, REACH + STEP / 2, STEP)
        e = mode[..., None] + s[..., None] * np.sinh(t)
        log_p = self._log_probability(at[..., None], m[..., None] + std[..., None] * e) - 0.5 * e**2
        total = logsumexp(log_p + np.log(np.cosh(t) * STEP), axis=-1)
        return np.where(known, total + np.log(s) - 0.5 * math.log(2 * math.pi), -np.inf)

    def _tails(self, y: Points) -> tuple[Points, Points]:
        k = np.floor(y)
        below, above = self._smooth_tails(np.maximum(k, 0.0) + 0.5)
        return np.where(k >= 0, below, 0.0), np.where(k >= 0, above, 1.0)

    def _smooth_tails(self, y: Points) -> tuple[Points, Points]:
        """`_tails` of the counts k = y − ½ > −1, continued between them by the incomplete gamma and beta functions."""
        k = y - 0.5
        m, std = (np.broadcast_to(part[:, None], k.shape) for part in (self.center, np.sqrt(self.variance)))
        below, above = np.empty(k.shape), np.empty(k.shape)
        sharp = (k >= MANY) & (std * np.sqrt(np.maximum(k, 0.0)) >= SHARP) & (self.shape is None)
        for rows, rule in ((sharp, _tails_of_many), (~sharp, self._tails_by_rate)):
            if rows.any():
                below[rows], above[rows] = rule(k[rows], m[rows], std[rows])
        return below, above

    def _tails_by_rate(self, k: PerRow, m: PerRow, std: PerRow) -> tuple[PerRow, PerRow]:
        """E P(Y ≤ k | f) and E P(Y > k | f), by the trapezoid rule in z, f = m + √v z."""
        at, m, std = k[:, None], m[:, None], std[:, None]
        sharp = float(np.max(std * np.sqrt(np.maximum(at, np.exp(np.minimum(m, 40.0))) + 1)))
        n = min(MAX_NODES, math.ceil(2 * FAR * max(2.0, sharp)) + 1)
        z = np.linspace(-FAR, FAR, n)
        w = np.exp(-0.5 * z**2)
        mu = np.exp(m + std * z)
        if self.shape is None:
            below, above = gammaincc(at + 1, mu), gammainc(at + 1, mu)
        else:
            r, p = self.shape, self.shape / (self.shape + mu)
            below, above = betainc(r, at + 1, p), betainc(at + 1, r, 1 - p)
        w = w / w.sum()
        return below @ w, above @ w

    def _quantile(self, p: Points) -> Points:
        """The least count k with F(k) ≥ p: a count that is doubled until it is not below, then halving."""

        def reached(k: Points) -> np.ndarray:
            below, above = self._tails(k)
            return np.where(p < 0.5, below >= p, above <= 1 - p)

        rate = np.exp(np.minimum(self.center, MAX_LOG_RATE))[:, None]
        low, high = np.full(p.shape, -1.0), np.broadcast_to(np.ceil(rate) + 1, p.shape)
        while not (there := reached(high)).all():
            low, high = np.where(there, low, high), np.where(there, high, 2 * high)
        while (high - low > np.maximum(1.0, CLOSEST * high)).any():  # counts beyond 2⁵³ are not all numbers
            middle = np.floor((low + high) / 2)
            is_there = reached(middle)
            low, high = np.where(is_there, low, middle), np.where(is_there, middle, high)
        return high

    def _crps(self, y: Points) -> Points:
        """Σ_k (F(k) − 1[k ≥ y])², of at most 10⁴ counts one by one."""
        F = lambda rows, k: np.cumsum(np.exp(rows.logpdf(k)), axis=1)
        return crps_of_counts(self, y, LEAST_TAIL, F, self)

    def _draw(self, generator: np.random.Generator, n: int) -> Points:
        normal = generator.standard_normal((self.n_rows, n))
        rate = np.exp(self.center[:, None] + np.sqrt(self.variance)[:, None] * normal)
        if self.shape is not None:
            rate = rate * generator.gamma(self.shape, 1 / self.shape, rate.shape)
        drawn = generator.poisson(np.minimum(rate, LARGEST_RATE)).astype(np.float64)
        if (large := rate > LARGEST_RATE).any():  # normal to within 1/√rate, and any number is whole there
            drawn[large] = rate[large] + np.sqrt(rate[large]) * generator.standard_normal(int(large.sum()))
        return drawn

    def _log_probability(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        if self.shape is None:
            return y * f - np.exp(f) - gammaln(y + 1)
        r, log_r = self.shape, math.log(self.shape)
        same = gammaln(y + r) - gammaln(r) - gammaln(y + 1)
        return same + y * (f - log_r) - (r + y) * np.logaddexp(0.0, f - log_r)

    def _slope(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        """∂ log p(y|f)/∂f: y − μ, or (y − μ) r/(r + μ)."""
        mu = np.exp(f)
        return y - mu if self.shape is None else (y - mu) * self.shape / (self.shape + mu)

    def _curvature(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        """−∂² log p(y|f)/∂f²: μ, or (r + y) r μ/(r + μ)²."""
        mu, r = np.exp(f), self.shape
        return mu if r is None else (r + y) * r * mu / (r + mu) ** 2

    def _mode(self, y: np.ndarray, m: np.ndarray, std: np.ndarray) -> np.ndarray:
        """e with ∂ log p/∂e = e: between 0 and (log y − m)/√v, and not below √v · (slope at m)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            of_y = np.where(std > 0, (np.log(y) - m) / std, 0.0)
        first = std * self._slope(y, m)
        low, high = np.minimum(0, np.maximum(of_y, first)), np.maximum(0, of_y)

        def value_and_slope(e: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            f = m + std * e
            return e - std * self._slope(y, f), 1 + std**2 * self._curvature(y, f)

        return solve_increasing(
            value_and_slope, low, np.where(std > 0, np.minimum(high, np.maximum(first, 0)), 0.0)
        )


def _tails_of_many(k: PerRow, m: PerRow, std: PerRow) -> tuple[PerRow, PerRow]:
    """E Φ(z) and E Φ(−z), z = (log G − m)/√v, G ~ Gamma(k + 1): P(Y ≤ k | f) = P(G > e^f) for a Poisson count Y.

    By the trapezoid rule in t, log G = log(k + 1) + t/√(k + 1).
    """
    n = np.minimum(k[:, None], MAX_COUNT) + 1
    d = np.arange(FROM, TO + OF_GAMMA / 2, OF_GAMMA) / np.sqrt(n)
    w = np.exp(-n * (np.expm1(d) - d))
    w = w / w.sum(axis=1, keepdims=True)
    z = (np.log(n) + d - m[:, None]) / std[:, None]
    return np.sum(w * ndtr(z), axis=1), np.sum(w * ndtr(-z), axis=1)
