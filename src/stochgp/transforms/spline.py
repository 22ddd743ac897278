"""A smooth increasing curve through knots."""

from typing import Any

import numpy as np

from stochgp.transforms.base import AbstractTransform, exp_of, namespace

BINS = 8
STIFFNESS = 1.0  # the weight of squared differences between logarithms of neighbouring slopes


class Spline(AbstractTransform):
    """A monotone rational-quadratic spline (Durkan et al. 2019) with straight tails, onto all numbers.

    In the bin [x_k, x_(k+1)], ξ = (y − x_k)/Δx, s = Δz/Δx, knot slopes d_0, d_1, D = s + (d_0 + d_1 − 2s) ξ(1 − ξ):

        T = z_k + Δz (s ξ² + d_0 ξ(1 − ξ))/D,   T' = s² (d_1 ξ² + 2s ξ(1 − ξ) + d_0 (1 − ξ)²)/D².

    Parameters
    ----------
    knots : array [K + 1] or None
        x, increasing, in the units of y; None: a fit starts from `spline_of` its targets.
    values : array [K + 1] or None
        z, increasing.
    slopes : array [K + 1] or None
        d, positive: T' at the knots, and beyond the first and the last.
    """

    knots: Any = None
    values: Any = None
    slopes: Any = None

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
        """(x_k, z_k, Δx, s, d_0, d_1) of the bin in which each number lies, among the edges of the bins."""
        xp = namespace(at)
        knots, values, slopes = (xp.asarray(part) for part in (self.knots, self.values, self.slopes))
        k = xp.clip(xp.searchsorted(xp.asarray(edges), at, side="right") - 1, 0, len(self.knots) - 2)
        dx = knots[k + 1] - knots[k]
        return knots[k], values[k], dx, (values[k + 1] - values[k]) / dx, slopes[k], slopes[k + 1]


def spline_of(y: np.ndarray) -> Spline:
    """The identity, with knots at quantiles of y that lie apart.

    Parameters
    ----------
    y : array [N]
        Targets, in their units or those of an `Anchored` transform: nine quantiles from 0.01 to 0.99 are the knots, fewer where some lie close together.
    """
    found = np.unique(np.quantile(y, np.linspace(0.01, 0.99, BINS + 1)))
    apart = 1e-3 * (found[-1] - found[0])
    knots = np.concatenate([found[:1], found[1:][np.diff(found) > apart]])
    if len(knots) < 2:
        knots = np.array([found[0] - 0.5, found[0] + 0.5])
    return Spline(knots, knots.copy(), np.ones(len(knots)))
