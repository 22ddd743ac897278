"""The evidence lower bound of a sparse GP: Σ ρ_i E_q log p(y_i | f(x_i)) − KL(q ‖ p) ≤ log p(y)."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from stochgp.data.streams import AbstractPasses, Rows
from stochgp.devices import ONE, Devices
from stochgp.models import SparseGP
from stochgp.objectives.moments import add_up_in_order
from stochgp.parameters import cast

CHUNK_ROWS = 2048  # of a pass over all rows


class Sites(NamedTuple):
    """A Gaussian factor exp(−½ β f² + r f) of each row and latent function: what a natural-gradient step puts in the likelihood's place."""

    precision: Float[Array, "N L"]  # β, at least 0
    linear: Float[Array, "N L"]  # r


def expected_log_density(
    gp: SparseGP, rows: Rows, mean: Float[Array, "N L"], variance: Float[Array, "N L"]
) -> Float[Array, " N"]:
    """ρ_i E log p(y_i | f), f ~ N(mean, diag variance)."""
    return rows.count * gp.likelihood.expected_log_density(rows.y, mean, variance, rows.X)


def sites(gp: SparseGP, rows: Rows, mean: Float[Array, "N L"], variance: Float[Array, "N L"]) -> Sites:
    """β = −2 ∂_v E, but at least 0, and r = ∂_m E + β m, with E = ρ E_q log p(y | f) (Khan and Lin 2017).

    A step of size 1 from any q to the prior times these factors is the natural gradient's; for a Gaussian likelihood they do not depend
    on q.
    """
    total = lambda m, v: jnp.sum(expected_log_density(gp, rows, m, v))
    by_mean, by_variance = jax.grad(total, (0, 1))(mean, variance)
    beta = jnp.maximum(-2 * by_variance, 0)
    return Sites(beta, by_mean + beta * mean)


def elbo(gp: SparseGP, rows: Rows, n_rows: Any) -> Float[Array, ""]:
    """(N/B) Σ_i ρ_i E log p(y_i | f(x_i)) − KL: for B of N rows drawn uniformly, an unbiased estimate of the bound of all."""
    process = gp.process()
    total = jnp.sum(expected_log_density(gp, rows, *process.moments(rows.X)))
    return n_rows / rows.y.shape[0] * total - process.divergence()


def elbo_of_all(gp: SparseGP, source: AbstractPasses, devices: Devices = ONE) -> float:
    """The bound of all rows, per datum, in float64: one pass, which devices share, memory for one chunk."""
    with jax.enable_x64(True):
        wide = cast(gp, np.float64)
        process = _process(wide)
        if devices.mesh is None:
            total = sum(float(_expected(wide, rows, process)) for rows in source.chunks(CHUNK_ROWS))
        else:
            chunks = source.chunks(devices.shards * CHUNK_ROWS)
            total = float(add_up_in_order(_expected, wide, chunks, devices, process))
        return (total - float(process.divergence())) / source.count


@eqx.filter_jit
def _process(gp: SparseGP) -> Any:
    return gp.process()


@eqx.filter_jit
def _expected(gp: SparseGP, rows: Rows, process: Any) -> Array:
    rows = cast(rows, jnp.float64)
    return jnp.sum(expected_log_density(gp, rows, *process.moments(rows.X)))
