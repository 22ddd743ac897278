"""Average gradient outer products: along which directions of the inputs a function changes."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float, Int

from stochgp.data.streams import AbstractSource, Batch
from stochgp.kernels.rotated import Metric
from stochgp.models import KernelGP
from stochgp.numerics.precision import full_precision
from stochgp.numerics.small_matrices import safe_cholesky
from stochgp.objectives.conditionals import in_blocks, system

TOGETHER = 32  # neighbourhoods of one program: they are larger than those of a conditional density


def outer_products(
    gp: KernelGP, source: AbstractSource, near: Int[np.ndarray, "C m"], wide: bool
) -> Float[np.ndarray, "A A"]:
    """M = Σ_i ρ_i g_i g_iᵀ / Σ_i ρ_i over neighbourhoods with their centre i last, g_i = ∂m(z_i)/∂z the slope there of the mean given these rows.

    z are the coordinates of the kernel's `Metric` in lengthscales: m(z) = Σ_j α_j k(z, z_j), (K + Σ) α = y of the rows j of the neighbourhood. So M does not change
    with the units of the inputs. Its eigenvectors are directions along which slopes are uncorrelated, its eigenvalues how steep the function is along them
    (Radhakrishnan et al., Science 383, 2024; Beaglehole et al., xRFM, arXiv 2508.10053). Raises ValueError for kernels without a `Metric`.
    """
    metric = Metric.of(gp.kernel)
    if metric is None:
        raise ValueError(
            f"outer products are in units of the lengthscales of a stationary kernel, one for each input; a {type(gp.kernel).__name__} has none"
        )
    parts = in_blocks(_sums, (gp, metric), source, near, wide, TOGETHER)
    M, weight = (np.sum(part, axis=0) for part in zip(*parts, strict=True))
    return M / weight


@eqx.filter_jit
def _sums(gp: Any, metric: Metric, rows: Batch, there: Any) -> tuple[Array, Array]:
    """(Σρ g gᵀ, Σρ) of the centres that are there."""

    def slope(X: Array, y: Array, count: Array) -> Array:
        A, y = system(gp, X, y, count.at[-1].set(1))
        L, _ = safe_cholesky(A)
        alpha = cho_solve((L, True), y)
        U = metric.rows(X)

        def mean(u: Array) -> Array:  # but for the term of the centre, which is flat there, or has a kink
            return jnp.sum(alpha[:-1] * jax.vmap(lambda other: metric.kernel(other, u))(U[:-1]))

        return jax.grad(mean)(U[-1]) * metric.lengthscale(U.dtype)

    with full_precision():
        G = jax.vmap(slope)(rows.X, rows.y, rows.weight).astype(jnp.float64)
        weight = jnp.asarray(there, jnp.float64) * rows.weight[:, -1].astype(jnp.float64)
        return (G * weight[:, None]).T @ G, jnp.sum(weight)
