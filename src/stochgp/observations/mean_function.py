"""A prior mean of f that is linear in the inputs."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from stochgp.data import Standardiser
from stochgp.data.rows import Rows
from stochgp.numerics.precision import matmul
from stochgp.numerics.seeds import random_rows

MOST_ROWS = 50_000  # that slopes are fitted to
# Of slopes in standard deviations of the inputs; left-out rows choose.
PENALTIES = tuple(10.0**k for k in range(-3, 6))


class LinearMean(eqx.Module):
    """m(x) = offset + slope · (x̃ − center), x̃ the inputs within `low` and `high`: in the user's units, m in those of T(y).

    Within one width of their range beyond it: dates go on, and one reading of 9,831 mm of rain does not count as such.

    Parameters
    ----------
    offset : float64 array []
    slope : float64 array [D]
        Units of T(y) for each unit of an input.
    center : float64 array [D]
        The means of the inputs.
    low, high : float64 array [D]
        Beyond which m is constant.
    """

    offset: Float[np.ndarray, ""]
    slope: Float[np.ndarray, " D"]
    center: Float[np.ndarray, " D"]
    low: Float[np.ndarray, " D"]
    high: Float[np.ndarray, " D"]

    @classmethod
    def fit(cls, rows: Rows) -> "LinearMean":
        """Ridge regression of at most 50,000 of the rows, at random, on their standardised inputs: the penalty is that of the least error of left-out rows."""
        from sklearn.linear_model import RidgeCV  # slow to import, and of no other use

        rows = rows.some(random_rows(len(rows), MOST_ROWS))
        inputs = Standardiser.fit(rows.X, rows.weight)
        low, high = (of(rows.X, axis=0).astype(np.float64) for of in (np.min, np.max))
        ridge = RidgeCV(PENALTIES).fit(inputs.transform(rows.X, np.float64), rows.y, rows.weight)
        offset, slope = np.asarray(ridge.intercept_, np.float64), ridge.coef_ / inputs.scale
        return cls(offset, slope, inputs.mean, 2 * low - high, 2 * high - low)

    def __call__(self, X: Float[np.ndarray, "*N D"]) -> Float[np.ndarray, "*N"]:
        """In float64, on the host."""
        within = np.clip(np.asarray(X, np.float64), self.low, self.high)
        return float(self.offset) + (within - self.center) @ self.slope

    def gradient(self, X: Float[np.ndarray, "*N D"]) -> Float[np.ndarray, "*N D"]:
        """∂m/∂x: the slope, 0 in inputs beyond `low` and `high`."""
        return self.slope * ((self.low <= X) & (self.high >= X))

    def on_device(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """In the dtype of X, differentiable in X."""
        given = self.offset, self.slope, self.center, self.low, self.high
        offset, slope, center, low, high = (jnp.asarray(part, X.dtype) for part in given)
        return offset + matmul(jnp.clip(X, low, high) - center, slope)

    def taken_out(self, rows: Rows) -> Rows:
        """The rows with y − m(x) in place of y."""
        return dataclasses.replace(rows, y=rows.y - self(rows.X))
