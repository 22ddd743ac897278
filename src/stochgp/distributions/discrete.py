"""Distributions of classes, of rounded numbers, and of counts with a normal log rate."""

import math

import numpy as np
from jaxtyping import Float64
from scipy.special import betainc, gammainc, gammaincc, gammaln, logsumexp, ndtr

from stochgp.distributions.base import AbstractDistribution, PerRow, Points, solve_increasing

REACH, STEP = 4.2, 0.1  # end and step of the trapezoid rule in t for f = mode + s sinh t
FAR = 9.0  # half-width of the trapezoid rule for the distribution function, in standard deviations of f
MIN_TAIL = 1e-13  # probability that a sum over counts may omit
MIN_MASS = 1e-280  # smaller probabilities of counts are replaced by densities
MAX_HALF = 256  # number of counts on either side of the median in a sum; integrals replace other terms
# `_tails_of_many` is for counts ≥ MANY whose rate has a standard deviation of at least SHARP times √count.
MANY, SHARP = 50, 4.0
FROM, TO, OF_GAMMA = -13.0, 11.0, 0.4  # ends and step of the trapezoid rule in `_tails_of_many`
MAX_LOG_RATE, MAX_COUNT = 300.0, 1e300
MAX_RATE = 1e18  # maximum rate of NumPy's generator of Poisson counts
CLOSEST = 1e-15  # relative tolerance of large counts


class Categorical(AbstractDistribution):
    """The distribution of a class c = 0, …, C − 1.

    `logpdf` is −inf for numbers other than class indices. `mean`, `std`, `cdf`, `quantile` and `crps` treat
    the class index as a number. With two classes, `mean` is the probability of class 1. With more than two
    classes, use these five methods only if the classes are ordered.

    Parameters
    ----------
    log_probabilities : array [N, C]
        Logarithm of the probability of each class.
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
    def _classes(self) -> np.ndarray:
        return np.arange(self.log_probabilities.shape[1], dtype=np.float64)

    def _logpdf(self, y: Points) -> Points:
        known = np.isin(y, self._classes)
        at = np.where(known, y, 0).astype(np.int64)
        return np.where(known, np.take_along_axis(self.log_probabilities, at, axis=1), -np.inf)

    def _tails(self, y: Points) -> tuple[Points, Points]:
        p, nothing = self.probabilities, np.zeros((self.n_rows, 1))
        below = np.concatenate([nothing, np.cumsum(p, axis=1)], axis=1)  # classes < c
        above = np.concatenate([np.cumsum(p[:, ::-1], axis=1)[:, ::-1], nothing], axis=1)  # classes ≥ c
        c = np.clip(np.floor(y) + 1, 0, p.shape[1]).astype(np.int64)
        return np.take_along_axis(below, c, axis=1), np.take_along_axis(above, c, axis=1)

    def _quantile(self, p: Points) -> Points:
        reached = np.cumsum(self.probabilities, axis=1)[:, None, :-1] < p[..., None]
        return np.count_nonzero(reached, axis=-1).astype(np.float64)

    def _crps(self, y: Points) -> Points:
        """Return the ranked probability score Σ_c (F(c) − 1[c ≥ y])² of class y."""
        F = np.cumsum(self.probabilities, axis=1)[:, None, :-1]
        return np.sum((F - (self._classes[:-1] >= y[..., None])) ** 2, axis=-1)


class Rounded(AbstractDistribution):
    """A continuous distribution rounded to the nearest whole number ≥ 0.

    P(Y = 0) = F(½) and P(Y = k) = F(k + ½) − F(k − ½) for k ≥ 1, where F is the distribution function of
    `base`. `logpdf` is the log probability of a count, and −inf for other numbers.

    Parameters
    ----------
    base : distribution
        A continuous distribution of N rows.
    """

    base: AbstractDistribution

    @property
    def is_discrete(self) -> bool:
        return True

    def _logpdf(self, y: Points) -> Points:
        known = (y >= 0) & (y == np.floor(y))
        at = np.where(known, y, 0.0)
        (below, above), (lower, upper) = self.base._tails(at - 0.5), self.base._tails(at + 0.5)
        mass = np.where(at == 0, lower, np.where(below < 0.5, lower - below, above - upper))
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.where(mass > MIN_MASS, np.log(mass), self.base._logpdf(at))
        return np.where(known, found, -np.inf)

    def _tails(self, y: Points) -> tuple[Points, Points]:
        below, above = self.base._tails(np.floor(y) + 0.5)
        return np.where(y >= 0, below, 0.0), np.where(y >= 0, above, 1.0)

    def _quantile(self, p: Points) -> Points:
        return np.maximum(np.ceil(self.base._quantile(p) - 0.5), 0.0)

    def _draw(self, generator: np.random.Generator, n: int) -> Points:
        return np.maximum(np.rint(self.base._draw(generator, n)), 0.0)

    def _crps(self, y: Points) -> Points:
        k, _ = self._counts()
        return crps_of_counts(y, k, self.base._tails(k + 0.5)[0], self.base)

    def _moments(self, low: float = -math.inf, high: float = math.inf) -> tuple[Points, Points]:
        """Return mean and standard deviation [N, 1]; for large counts, integrals replace sums."""
        if high < math.inf:  # only for a standard deviation that exceeds the width of `limits`
            return self.base._moments(max(low, 0.0), high)
        k, c = self._counts()
        below, above = self.base._tails(k + 0.5)
        tail = np.where(k < c, -below, above)
        first, second = (np.sum(part, axis=1, keepdims=True) for part in (tail, (2 * (k - c) + 1) * tail))
        if k.shape[1] == 2 * MAX_HALF:
            breaks = self.base._own_breaks()
            for part in (np.clip(breaks, 0.0, k[:, :1]), np.maximum(breaks, k[:, -1:] + 1)):
                more = self.base._from(c, part)
                first, second = first + more[0], second + more[1]
        return c + first, np.sqrt(np.maximum(second - first**2, 0.0))

    def _counts(self) -> tuple[Points, Points]:
        """Return counts [N, K] around the medians, and the medians [N, 1]; K is at most 512."""
        low, k, high = self._quantile(np.tile([MIN_TAIL, 0.5, 1 - MIN_TAIL], (self.n_rows, 1))).T
        n = int(min(MAX_HALF, np.max(np.maximum(high - k, k - low)) + 1))
        return np.maximum(k - n, 0.0)[:, None] + np.arange(2.0 * n), k[:, None]


class Counts(AbstractDistribution):
    """Counts Y | f ~ Poisson(e^f) with a normally distributed log rate f ~ N(m, v).

    If `shape` is a number r, the distribution of Y | f is negative binomial with mean μ = e^f and variance
    μ + μ²/r. `logpdf` is the log probability of a count, and −inf for other numbers.

    Parameters
    ----------
    center : array [N]
        The mean m of the log rate f.
    variance : array [N]
        The variance v of f.
    shape : float or None
        The positive number r, the same for all rows. None: Poisson distribution.
    """

    center: PerRow
    variance: PerRow
    shape: float | None = None

    @property
    def mean(self) -> PerRow:
        """The mean e^(m + v/2)."""
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
        return 32

    def _logpdf(self, y: Points) -> Points:
        """Integrate p(y|f) over f = m + √v e by a trapezoid rule in t, with e = mode + s sinh t."""
        known = (y >= 0) & (y == np.floor(y))
        at = np.where(known, y, 0.0)
        m, std = self.center[:, None], np.sqrt(self.variance)[:, None]
        mode = self._mode(at, m, std)
        s = 1 / np.sqrt(std**2 * self._slopes(at, m + std * mode)[1] + 1)
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
        """Return the tails at k = y − ½ as continuous functions of k."""
        k = y - 0.5
        m, std = (np.broadcast_to(part[:, None], k.shape) for part in (self.center, np.sqrt(self.variance)))
        below, above = np.empty(k.shape), np.empty(k.shape)
        sharp = (k >= MANY) & (std * np.sqrt(np.maximum(k, 0.0)) >= SHARP) & (self.shape is None)
        for rows, rule in ((sharp, _tails_of_many), (~sharp, self._tails_by_rate)):
            if rows.any():
                below[rows], above[rows] = rule(k[rows], m[rows], std[rows])
        return below, above

    def _tails_by_rate(self, k: PerRow, m: PerRow, std: PerRow) -> tuple[PerRow, PerRow]:
        """Return E P(Y ≤ k | f) and E P(Y > k | f) by a trapezoid rule in f."""
        mu, w, at = *self._rates(k, m, std), k[:, None]
        if self.shape is None:
            return gammaincc(at + 1, mu) @ w, gammainc(at + 1, mu) @ w
        r, p = self.shape, self.shape / (self.shape + mu)
        return betainc(r, at + 1, p) @ w, betainc(at + 1, r, 1 - p) @ w

    def _rates(
        self, k: PerRow | np.floating | float, m: PerRow, std: PerRow
    ) -> tuple[Float64[np.ndarray, "N J"], Float64[np.ndarray, " J"]]:
        """Return nodes μ and weights of a trapezoid rule in z, with log μ = m + √v z."""
        sharp = std / np.sqrt(1 / (k + 1) + (0.0 if self.shape is None else 1 / self.shape))
        z = np.linspace(-FAR, FAR, math.ceil(3 * FAR * max(2.0, float(sharp.max()))) + 1)
        w = np.exp(-0.5 * z**2)
        return np.exp(m[:, None] + std[:, None] * z), w / w.sum()

    def _small(self) -> Float64[np.ndarray, "N K"]:
        """Return F(0), …, F(K − 1), where K ≤ 512 ends at the count at which all F are 1."""
        std, r = np.sqrt(self.variance), self.shape
        last = np.exp(np.minimum(np.max(self.center + FAR * std), 7.0))
        mu, w = self._rates(np.minimum(last + FAR * np.sqrt(last) + FAR, 2.0 * MAX_HALF), self.center, std)
        P = w * (np.exp(-mu) if r is None else (r / (r + mu)) ** r)
        F, ratio = [P.sum(axis=1)], mu if r is None else mu / (r + mu)
        while len(F) < 2 * MAX_HALF and F[-1].min() < 1 - MIN_TAIL:
            P *= ratio * ((1 if r is None else len(F) - 1 + r) / len(F))
            F.append(F[-1] + P.sum(axis=1))
        return np.stack(F, axis=1)

    def _quantile(self, p: Points) -> Points:
        """Return the smallest count k with F(k) ≥ p; counts ≥ 512 need a bisection."""
        F = self._small()
        found = sum((F[:, [k]] < p for k in range(F.shape[1])), np.zeros(p.shape))
        if len(rows := np.flatnonzero((found == F.shape[1]).any(axis=1))):
            found[rows] = self[rows]._large_quantile(p[rows])
        return found

    def _large_quantile(self, p: Points) -> Points:
        def reached(k: Points) -> np.ndarray:
            below, above = self._tails(k)
            return np.where(p < 0.5, below >= p, above <= 1 - p)

        rate = np.exp(np.minimum(self.center, MAX_LOG_RATE))[:, None]
        low, high = np.full(p.shape, -1.0), np.broadcast_to(np.ceil(rate) + 1, p.shape)
        while not (there := reached(high)).all():
            low, high = np.where(there, low, high), np.where(there, high, 2 * high)
        while (high - low > np.maximum(1.0, CLOSEST * high)).any():  # float64 skips counts above 2⁵³
            middle = np.floor((low + high) / 2)
            is_there = reached(middle)
            low, high = np.where(is_there, low, middle), np.where(is_there, middle, high)
        return high

    def _crps(self, y: Points) -> Points:
        F = self._small()
        return crps_of_counts(y, np.broadcast_to(np.arange(float(F.shape[1])), F.shape), F, self)

    def _draw(self, generator: np.random.Generator, n: int) -> Points:
        normal = generator.standard_normal((self.n_rows, n))
        rate = np.exp(self.center[:, None] + np.sqrt(self.variance)[:, None] * normal)
        if self.shape is not None:
            rate = rate * generator.gamma(self.shape, 1 / self.shape, rate.shape)
        return np.where(rate > MAX_RATE, rate, generator.poisson(np.minimum(rate, MAX_RATE)))

    def _log_probability(self, y: np.ndarray, f: np.ndarray) -> np.ndarray:
        if self.shape is None:
            return y * f - np.exp(f) - gammaln(y + 1)
        r, log_r = self.shape, math.log(self.shape)
        same = gammaln(y + r) - gammaln(r) - gammaln(y + 1)
        return same + y * (f - log_r) - (r + y) * np.logaddexp(0.0, f - log_r)

    def _slopes(self, y: np.ndarray, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return ∂ log p(y|f)/∂f and −∂² log p(y|f)/∂f²."""
        mu, r = np.exp(f), self.shape
        return (y - mu, mu) if r is None else ((y - mu) * r / (r + mu), (r + y) * r * mu / (r + mu) ** 2)

    def _mode(self, y: np.ndarray, m: np.ndarray, std: np.ndarray) -> np.ndarray:
        """Return the mode of p(y|f) N(f; m, v) as e = (f − m)/√v."""
        with np.errstate(divide="ignore", invalid="ignore"):
            of_y = np.where(std > 0, (np.log(y) - m) / std, 0.0)
        first = std * self._slopes(y, m)[0]
        low, high = np.minimum(0, np.maximum(of_y, first)), np.maximum(0, of_y)

        def value_and_slope(e: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            slope, curvature = self._slopes(y, m + std * e)
            return e - std * slope, 1 + std**2 * curvature

        return solve_increasing(
            value_and_slope, low, np.where(std > 0, np.minimum(high, np.maximum(first, 0)), 0.0)
        )


def _tails_of_many(k: PerRow, m: PerRow, std: PerRow) -> tuple[PerRow, PerRow]:
    """Return P(Y ≤ k) and P(Y > k) of a Poisson count for large k."""
    n = np.minimum(k[:, None], MAX_COUNT) + 1
    d = np.arange(FROM, TO + OF_GAMMA / 2, OF_GAMMA) / np.sqrt(n)
    w = np.exp(-n * (np.expm1(d) - d))
    w = w / w.sum(axis=1, keepdims=True)
    z = (np.log(n) + d - m[:, None]) / std[:, None]
    return np.sum(w * ndtr(z), axis=1), np.sum(w * ndtr(-z), axis=1)


def crps_of_counts(y: Points, k: Points, F: Points, smooth: AbstractDistribution) -> Points:
    """Return the CRPS of counts: a sum over counts k, plus integrals of `smooth` beyond k."""
    first, end = k[:, :1], k[:, -1:] + 1
    found = np.stack([np.sum((F - (k >= at[:, None])) ** 2, axis=1) for at in y.T], axis=1)
    outside = np.maximum(first - y, 0.0) + np.maximum(y - end, 0.0)
    rows = np.flatnonzero((F[:, -1] < 1 - MIN_TAIL) | (first[:, 0] > 0) & (F[:, 0] > MIN_TAIL))
    if len(rows):
        y, first, end = y[rows], first[rows], end[rows]
        points = np.zeros_like(first), first, end, np.clip(y, 0.0, first), np.maximum(y, end)
        below, above = smooth[rows]._squares(np.concatenate(points, axis=1))
        low, high = np.split((below + above)[:, 3:], 2, axis=1)
        outside[rows] = low + high - below[:, [0]] - above[:, [1]] - below[:, [2]] + np.maximum(-y, 0.0)
    return found + outside
