"""Natural parameters of q(v): what stochastic natural gradients move."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stochgp.numerics.precision import einsum, matmul
from stochgp.numerics.small_matrices import cholesky, invert_lower
from stochgp.numerics.triangular import symmetric_product


class Naturals(eqx.Module):
    """Λ = S⁻¹ and h = S⁻¹m of q(v) = N(m, S), for each latent function. Beside the prior N(0, I), Λ ⪰ I.

    They are in float64 where x64 is enabled: the largest eigenvalue of Λ is about N/σ², and float32 would lose the smallest, 1.
    """

    precision: Float[Array, "L M M"]
    linear: Float[Array, "L M"]

    @classmethod
    def of_gaussian(cls, mean: Float[Array, "L M"], root: Float[Array, "L M M"]) -> "Naturals":
        """Those of N(m, RRᵀ)."""
        wide = jax.dtypes.canonicalize_dtype(jnp.float64)
        inverse = jax.vmap(invert_lower)(jnp.tril(root.astype(wide)))
        precision = einsum("lki,lkj->lij", inverse, inverse)
        return cls(precision, einsum("lij,lj->li", precision, mean.astype(wide)))

    def towards(self, other: "Naturals", step: Float[Array, ""] | float) -> "Naturals":
        """(1 − γ) of these and γ of the others: a natural-gradient step of size γ, if the others are `optimum`."""
        gamma = jnp.asarray(step, self.linear.dtype)
        mix = lambda mine, theirs: (1 - gamma) * mine + gamma * theirs
        return Naturals(mix(self.precision, other.precision), mix(self.linear, other.linear))

    def gaussian(self) -> tuple[Float[Array, "L M"], Float[Array, "L M M"]]:
        """(m, R), S = RRᵀ, R lower triangular: with Λ = UUᵀ, U upper triangular, R = U⁻ᵀ."""

        def root_of(precision: Array) -> Array:
            L = cholesky(precision[::-1, ::-1])  # Λ ⪰ I, in float64: nothing to retry
            return invert_lower(L)[::-1, ::-1].T

        R = jax.vmap(root_of)(self.precision)
        return einsum("lij,lkj,lk->li", R, R, self.linear), R


def optimum(
    W: Float[Array, "M N"],
    precision: Float[Array, "N L"],
    linear: Float[Array, "N L"],
    scale: Float[Array, ""] | float = 1.0,
) -> Naturals:
    """(I + c Σ_i β_i w_i w_iᵀ, c Σ_i r_i w_i): of the prior times the sites β and r of rows, each `scale` c times."""
    wide = jax.dtypes.canonicalize_dtype(jnp.float64)
    W, beta, r = W.astype(wide), scale * precision.astype(wide), scale * linear.astype(wide)
    eye = jnp.eye(W.shape[0], dtype=wide)
    return Naturals(eye + jax.vmap(lambda b: symmetric_product(W * b, W), in_axes=1)(beta), matmul(r.T, W.T))
