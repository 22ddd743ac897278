"""Average gradient outer products: along which directions of the inputs a function changes."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float, Int

from stochgp.data.streams import AbstractSource, Batch
from stochgp.kernels.dense import slopes
from stochgp.kernels.rotated import Metric
from stochgp.models import KernelGP
from stochgp.numerics.linalg import safe_cholesky
from stochgp.numerics.precision import einsum, full_precision
from stochgp.objectives.conditionals import in_blocks, system
from stochgp.objectives.kernel import weights_of_mean

TOGETHER = 32  # neighbourhoods of one program: they are larger than those of a conditional density


def outer_products(
    gp: KernelGP, source: AbstractSource, near: Int[np.ndarray, "C m"], wide: bool, n_sloping: int = 1
) -> Float[np.ndarray, "A A"]:
    """M = Σ_i ρ_i g_i g_iᵀ / Σ_i ρ_i over the last rows of neighbourhoods, g_i = ∂m(z_i)/∂z the slope of the mean given the rows of the neighbourhood.

    z are the coordinates of the kernel's `Metric` in lengthscales: m(z) = Σ_j α_j k(z, z_j), (K + Σ) α = y of the rows j of the neighbourhood. So M does not change
    with the units of the inputs. Its eigenvectors are directions along which slopes are uncorrelated, its eigenvalues how steep the function is along them
    (Radhakrishnan et al., Science 383, 2024; Beaglehole et al., xRFM, arXiv 2508.10053). Raises ValueError for kernels without a `Metric`.
    """
    parts = in_blocks(_sums, (gp, _metric(gp.kernel), n_sloping), source, near, wide, TOGETHER)
    M, weight = (np.sum(part, axis=0) for part in zip(*parts, strict=True))
    return M / weight


def outer_products_of_few(
    gp: KernelGP, rows: Batch, sloping: Int[np.ndarray, " P"]
) -> Float[np.ndarray, "A A"]:
    """The same over these rows, of the mean given all rows: for N² numbers and N³/3 products in float64."""
    metric = _metric(gp.kernel)
    with jax.enable_x64(True):
        X, _, weight = (np.asarray(part, np.float64) for part in rows)
        U = X @ np.asarray(metric.directions, np.float64)
        G = slopes(metric.kernel, U[sloping], U, weights_of_mean(gp, rows))
        G *= np.asarray(metric.lengthscale(np.float64))
    return (weight[sloping, None] * G).T @ G / weight[sloping].sum()


def _metric(kernel: Any) -> Metric:
    metric = Metric.of(kernel)
    if metric is None:
        what = "outer products are in units of the lengthscales of a stationary kernel, one for each input"
        raise ValueError(f"{what}; a {type(kernel).__name__} has none")
    return metric


@eqx.filter_jit
def _sums(gp: Any, metric: Metric, n_sloping: int, rows: Batch, there: Any) -> tuple[Array, Array]:
    """(Σρ g gᵀ, Σρ) of the neighbourhoods that are there."""

    def slopes(X: Array, y: Array, count: Array) -> Array:
        A, y = system(gp, X, y, count)
        L, _ = safe_cholesky(A)
        alpha, U = cho_solve((L, True), y), metric.rows(X)

        def slope(i: Array) -> Array:
            """Without the term of the row itself, which is flat there, or has a kink: another row of weight 0 replaces it."""
            own = jnp.arange(len(y)) == i
            others, weights = jnp.where(own[:, None], U + 1, U), jnp.where(own, 0, alpha)
            mean = lambda u: jnp.sum(weights * jax.vmap(lambda other: metric.kernel(other, u))(others))
            return jax.grad(mean)(U[i]) * metric.lengthscale(U.dtype)

        return jax.vmap(slope)(jnp.arange(len(y) - n_sloping, len(y)))

    with full_precision():
        G = jax.vmap(slopes)(rows.X, rows.y, rows.weight).astype(jnp.float64)
        weight = jnp.asarray(there, jnp.float64)[:, None] * rows.weight[:, -n_sloping:].astype(jnp.float64)
        return einsum("cr,cri,crj->ij", weight, G, G), jnp.sum(weight)
