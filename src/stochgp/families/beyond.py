"""What a feature GP on a network says of rows beyond the range of those it was learned from."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.data.training import TrainingData
from stochgp.features import Extrapolation
from stochgp.features.fourier import N_EXTRAPOLATION
from stochgp.numerics.arrays import filled_up
from stochgp.numerics.precision import matmul
from stochgp.posteriors import FeaturePosterior

SLOPE_ROWS = 1_000  # at which slopes are taken
# Standard deviations beyond the range after which no input is without effect. On pol, whose noise has a standard deviation of a thousandth, four of 1,500 test
# rows lie 0.6 to 8 of them beyond: 10 in place of 100 costs 0.01 nats a row.
LONGEST = 100.0
MEDIAN = 0.6745  # of |z|, z ~ N(0, 1)
BEYOND = (
    N_EXTRAPOLATION,
    "0 in the range of the training rows; beyond it f's standard deviation grows to that of the targets",
)


def beyond_limits(
    posterior: FeaturePosterior, variance: float, data: TrainingData, *, key: PRNGKeyArray
) -> Extrapolation:
    """Features of the excess of rows over the range of the training rows, for a model whose k is multiplied by `variance`.

    Far from the range f varies as the targets do, and near it with the slopes of the posterior mean inside: as a stationary function of that variance and
    these slopes would. Slopes of a stationary Gaussian process are Gaussian; their root mean square is median |slope| / 0.6745, which jumps do not move.
    """
    some = np.linspace(0, data.n_rows - 1, min(data.n_rows, SLOPE_ROWS)).astype(np.int64)
    X = data.inputs.transform(data.rows.X[some], data.dtype)
    found = np.asarray(_slopes(posterior, filled_up(np.asarray(X), SLOPE_ROWS)))[: len(X)]
    slopes = np.asarray(np.median(np.abs(found), axis=0) / found.dtype.type(MEDIAN), np.float64)
    limits = data.inputs.transform(data.limits, data.dtype)
    scale = 1.0 if data.standardized else np.maximum(data.rows.X[some].std(axis=0), 1e-30)
    return Extrapolation.init(
        limits,
        data.spread / variance,
        slopes / variance**0.5,
        longest=LONGEST * scale,
        key=key,
        dtype=data.dtype,
    )


@eqx.filter_jit
def _slopes(posterior: FeaturePosterior, X: Float[Any, "n D"]) -> Float[Array, "n D"]:
    """∂m/∂x_d of each row."""

    def mean(x: Array) -> Array:
        return matmul(posterior.features(x[None]).astype(posterior.weights.dtype), posterior.weights)[0]

    return jax.vmap(jax.grad(mean))(jnp.asarray(X))
