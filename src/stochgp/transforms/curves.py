"""Transforms: logarithms, powers, skewness and tails by at most two parameters, and a smooth increasing curve through knots."""

import math
from typing import Any

import numpy as np

from stochgp.transforms.base import (
    LARGEST_EXPONENT,
    AbstractTransform,
    exp_of,
    log_of,
    logit,
    namespace,
    sigmoid,
)

BINS = 8  # of a spline
STIFFNESS = 1.0  # the weight of squared differences between logarithms of neighbouring slopes


class Log(AbstractTransform):
    """T = log y for positive y: predictions are lognormal, and positive."""

    @property
    def lower(self) -> float:
        return 0.0

    @property
    def growth(self) -> float:
        return math.inf

    def __call__(self, y: Any) -> Any:
        return namespace(y).log(y)

    def inverse(self, z: Any) -> Any:
        xp = namespace(z)
        return xp.exp(xp.minimum(z, LARGEST_EXPONENT))

    def log_slope(self, y: Any) -> Any:
        return -namespace(y).log(y)


class BoxCox(AbstractTransform):
    """T = (y^λ − 1)/λ for positive y and 0 < λ < 1; λ → 0 is the logarithm (Box and Cox 1964).

    Onto z > −1/λ only: a model's probability of smaller z belongs to no y, the density integrates to less than 1, and quantiles there are 0.

    Parameters
    ----------
    power : number
        λ, without unit; a fit starts from it.
    """

    power: Any = 0.5

    @property
    def lower(self) -> float:
        return 0.0

    @property
    def growth(self) -> float:
        return 1 / float(self.power)

    def __call__(self, y: Any) -> Any:
        xp = namespace(y)
        return xp.expm1(self.power * xp.log(y)) / self.power

    def inverse(self, z: Any) -> Any:
        xp = namespace(z)
        inside = xp.maximum(self.power * z, -1.0)
        return xp.where(inside > -1.0, xp.exp(xp.log1p(xp.maximum(inside, -1 + 1e-15)) / self.power), 0.0)

    def log_slope(self, y: Any) -> Any:
        return (self.power - 1) * namespace(y).log(y)

    @property
    def raw(self) -> list[float]:
        return [logit(float(self.power))]

    def from_raw(self, raw: Any) -> "BoxCox":
        return BoxCox(sigmoid(raw[0]))


class YeoJohnson(AbstractTransform):
    """T = ((1 + y)^λ − 1)/λ for y ≥ 0 and −((1 − y)^(2−λ) − 1)/(2 − λ) for y < 0, 0 < λ < 2, where it is onto all numbers.

    λ = 1 is the identity (Yeo and Johnson 2000).

    Parameters
    ----------
    power : number
        λ, without unit; a fit starts from it.
    """

    power: Any = 1.0

    @property
    def growth(self) -> float:
        return 1 / min(float(self.power), 2 - float(self.power))

    def __call__(self, y: Any) -> Any:
        xp = namespace(y)
        size, a, b = xp.log1p(xp.abs(y)), self.power, 2 - self.power
        return xp.where(y >= 0, xp.expm1(a * size) / a, -xp.expm1(b * size) / b)

    def inverse(self, z: Any) -> Any:
        xp = namespace(z)
        a, b, size = self.power, 2 - self.power, xp.abs(z)
        return xp.where(z >= 0, xp.expm1(xp.log1p(a * size) / a), -xp.expm1(xp.log1p(b * size) / b))

    def log_slope(self, y: Any) -> Any:
        xp = namespace(y)
        return xp.sign(y) * (self.power - 1) * xp.log1p(xp.abs(y))

    @property
    def raw(self) -> list[float]:
        return [logit(float(self.power) / 2)]

    def from_raw(self, raw: Any) -> "YeoJohnson":
        return YeoJohnson(2 * sigmoid(raw[0]))


class ShiftedLog(AbstractTransform):
    """T = log(y + shift) for y > −shift, for counts with shift ½.

    Parameters
    ----------
    shift : float
        In the units of y; it is not learned.
    """

    shift: float = 0.5

    @property
    def lower(self) -> float:
        return -self.shift

    @property
    def growth(self) -> float:
        return math.inf

    def __call__(self, y: Any) -> Any:
        return namespace(y).log(y + self.shift)

    def inverse(self, z: Any) -> Any:
        xp = namespace(z)
        return xp.exp(xp.minimum(z, LARGEST_EXPONENT)) - self.shift

    def log_slope(self, y: Any) -> Any:
        return -namespace(y).log(y + self.shift)


class SinhArcsinh(AbstractTransform):
    """T = sinh(δ asinh y − ε), onto all numbers (Jones and Pewsey 2009). δ < 1 makes y heavy-tailed, with all moments; ε > 0 skews it.

    T⁻¹(z) = sinh((asinh z + ε)/δ); log T' = log δ + |q| + log(1 + e^(−2|q|)) − log 2 − ½ log(1 + y²), q = δ asinh y − ε.

    Parameters
    ----------
    tail : number
        δ > 0, without unit; a fit starts from it.
    skew : number
        ε, without unit; a fit starts from it.
    """

    tail: Any = 1.0
    skew: Any = 0.0

    @property
    def growth(self) -> float:
        return 1 / float(self.tail)

    def __call__(self, y: Any) -> Any:
        xp = namespace(y)
        return xp.sinh(self.tail * xp.asinh(y) - self.skew)

    def inverse(self, z: Any) -> Any:
        xp = namespace(z)
        inner = (xp.asinh(z) + self.skew) / self.tail
        return xp.sinh(xp.minimum(xp.maximum(inner, -LARGEST_EXPONENT), LARGEST_EXPONENT))

    def log_slope(self, y: Any) -> Any:
        xp = namespace(y)
        q = xp.abs(self.tail * xp.asinh(y) - self.skew)
        return log_of(self.tail) + q + xp.log1p(xp.exp(-2 * q)) - math.log(2) - 0.5 * xp.log1p(y * y)

    @property
    def raw(self) -> list[float]:
        return [math.log(float(self.tail)), float(self.skew)]

    def from_raw(self, raw: Any) -> "SinhArcsinh":
        return SinhArcsinh(exp_of(raw[0]), raw[1])


class Spline(AbstractTransform):
    """A monotone rational-quadratic spline (Durkan et al. 2019) with straight tails, onto all numbers.

    In the bin [x_k, x_(k+1)], ξ = (y − x_k)/Δx, s = Δz/Δx, knot slopes d_0, d_1, D = s + (d_0 + d_1 − 2s) ξ(1 − ξ):

        T = z_k + Δz (s ξ² + d_0 ξ(1 − ξ))/D,   T' = s² (d_1 ξ² + 2s ξ(1 − ξ) + d_0 (1 − ξ)²)/D².
    """

    knots: Any = None  # x [K + 1], increasing, in the units of y; None: a fit starts from `spline_of(y)`
    values: Any = None  # z, increasing
    slopes: Any = None  # d, positive: T' at the knots and in the tails

    def started(self, y: np.ndarray) -> "Spline":
        return spline_of(y) if self.knots is None else self

    def __call__(self, y: Any) -> Any:
        x0, z0, dx, s, d0, d1 = self._bin(y, self.knots)
        xp = namespace(y)
        xi = xp.clip((y - x0) / dx, 0.0, 1.0)
        product = xi * (1 - xi)
        inside = z0 + s * dx * (s * xi**2 + d0 * product) / (s + (d0 + d1 - 2 * s) * product)
        below, above = y - self.knots[0], y - self.knots[-1]
        return inside + xp.minimum(below, 0.0) * self.slopes[0] + xp.maximum(above, 0.0) * self.slopes[-1]

    def inverse(self, z: Any) -> Any:
        x0, z0, dx, s, d0, d1 = self._bin(z, self.values)
        xp = namespace(z)
        dz, bend = s * dx, d0 + d1 - 2 * s
        rise = xp.clip(z - z0, 0.0, dz)
        a, b, c = dz * (s - d0) + rise * bend, dz * d0 - rise * bend, -s * rise
        xi = 2 * c / (-b - xp.sqrt(xp.maximum(b * b - 4 * a * c, 0.0)))
        below, above = z - self.values[0], z - self.values[-1]
        tails = xp.minimum(below, 0.0) / self.slopes[0] + xp.maximum(above, 0.0) / self.slopes[-1]
        return x0 + xi * dx + tails

    def log_slope(self, y: Any) -> Any:
        x0, _, dx, s, d0, d1 = self._bin(y, self.knots)
        xp = namespace(y)
        xi = xp.clip((y - x0) / dx, 0.0, 1.0)
        product = xi * (1 - xi)
        top = d1 * xi**2 + 2 * s * product + d0 * (1 - xi) ** 2
        return 2 * xp.log(s) + xp.log(top) - 2 * xp.log(s + (d0 + d1 - 2 * s) * product)

    @property
    def raw(self) -> list[float]:
        """Logarithms of the mean slopes of the bins, and of the slopes at the knots."""
        values, knots = (np.asarray(part, np.float64) for part in (self.values, self.knots))
        means = np.diff(values) / np.diff(knots)
        return [float(v) for v in np.log(np.concatenate([means, np.asarray(self.slopes)]))]

    def from_raw(self, raw: Any) -> "Spline":
        n = len(self.knots) - 1
        xp = namespace(raw) if hasattr(raw, "__array_namespace__") else np
        slopes = exp_of(xp.asarray(raw))
        steps = slopes[:n] * xp.asarray(np.diff(np.asarray(self.knots)))
        values = float(self.knots[0]) + xp.concatenate([xp.zeros_like(steps[:1]), xp.cumsum(steps)])
        return Spline(self.knots, values, slopes[n:])

    @property
    def roughness(self) -> Any:
        xp = namespace(self.slopes)
        means = xp.log((self.values[1:] - self.values[:-1]) / xp.asarray(np.diff(np.asarray(self.knots))))
        steps = (means - xp.log(self.slopes[:-1]), xp.log(self.slopes[1:]) - means)
        return STIFFNESS * sum(xp.sum(step**2) for step in steps)

    def _bin(self, at: Any, edges: Any) -> tuple[Any, ...]:
        """(x_k, z_k, Δx, s, d_0, d_1) of each number's bin, given the edges of the bins."""
        xp = namespace(at)
        knots, values, slopes = (xp.asarray(part) for part in (self.knots, self.values, self.slopes))
        k = xp.clip(xp.searchsorted(xp.asarray(edges), at, side="right") - 1, 0, len(self.knots) - 2)
        dx = knots[k + 1] - knots[k]
        return knots[k], values[k], dx, (values[k + 1] - values[k]) / dx, slopes[k], slopes[k + 1]


def spline_of(y: np.ndarray) -> Spline:
    """The identity, with knots at nine quantiles of y from 0.01 to 0.99, without those close together."""
    found = np.unique(np.quantile(y, np.linspace(0.01, 0.99, BINS + 1)))
    apart = 1e-3 * (found[-1] - found[0])
    knots = np.concatenate([found[:1], found[1:][np.diff(found) > apart]])
    if len(knots) < 2:
        knots = np.array([found[0] - 0.5, found[0] + 0.5])
    return Spline(knots, knots.copy(), np.ones(len(knots)))
