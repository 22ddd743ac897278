"""What a variational approximation is: a Gaussian process q(f) in the place of the posterior; the natural parameters of q(v), which stochastic natural gradients move."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.numerics.precision import einsum, matmul
from stochgp.numerics.small_matrices import cholesky, invert_lower, one_by_one, symmetric_product


class AbstractProcess(eqx.Module):
    """q(f) at one value of the kernel's parameters: what is computed once for many rows.

    There are L latent functions, independent under q and of the same prior GP(0, k).
    """

    @abc.abstractmethod
    def moments(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "N L"], Float[Array, "N L"]]:
        """(Mean, variance) of each latent function at each row; variances above 0."""

    @abc.abstractmethod
    def mean(self, X: Float[Array, "N D"]) -> Float[Array, "N L"]:
        """Means alone."""

    @abc.abstractmethod
    def covariance_parts(
        self, X: Float[Array, "N D"]
    ) -> tuple[Float[Array, "N N"], Float[Array, "R N"], Float[Array, "L Q N"]]:
        """(K, W, V) with cov(f_l(X)) = K − WᵀW + V_lᵀV_l: the prior, what inducing variables explain of it, what q knows not of these."""

    @abc.abstractmethod
    def divergence(self) -> Float[Array, ""]:
        """KL(q ‖ p), the sum over the latent functions; at least 0."""

    @abc.abstractmethod
    def correction(self, prior: Any, n_samples: int, *, key: PRNGKeyArray) -> Any:
        """The function X ↦ [N, S] that makes of `prior`, S draws X ↦ [N, S] from GP(0, k), draws of the first latent function."""


class AbstractApproximation(eqx.Module):
    """The parameters of q(f). Every floating array trains that is not frozen, apart from those that a learner moves in its own way."""

    @property
    @abc.abstractmethod
    def n_inducing(self) -> int:
        """M, of the covariance."""

    @property
    @abc.abstractmethod
    def n_latent(self) -> int:
        """L."""

    @abc.abstractmethod
    def process(self, kernel: Any) -> AbstractProcess:
        """q(f) with this kernel. Pure: losses differentiate through it."""


class Naturals(eqx.Module):
    """Λ = S⁻¹ and h = S⁻¹m of q(v) = N(m, S), for each latent function. Beside the prior N(0, I), Λ ⪰ I.

    They are in float64 where x64 is enabled: the largest eigenvalue of Λ is about N/σ², and float32 would lose the smallest, 1.

    Parameters
    ----------
    precision : array [L, M, M]
        Λ, symmetric, without unit, as v is.
    linear : array [L, M]
        h, without unit.
    """

    precision: Float[Array, "L M M"]
    linear: Float[Array, "L M"]

    @classmethod
    def of_gaussian(cls, mean: Float[Array, "L M"], root: Float[Array, "L M M"]) -> "Naturals":
        """Those of N(m, RRᵀ)."""
        wide = jax.dtypes.canonicalize_dtype(jnp.float64)
        inverse = one_by_one(invert_lower, jnp.tril(root.astype(wide)))
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

        R = one_by_one(root_of, self.precision)
        return einsum("lij,lkj,lk->li", R, R, self.linear), R


def optimum(
    W: Float[Array, "M N"],
    precision: Float[Array, "N L"],
    linear: Float[Array, "N L"],
    scale: Float[Array, ""] | float = 1.0,
) -> Naturals:
    """(I + c Σ_i β_i w_i w_iᵀ, c Σ_i r_i w_i): of the prior times the sites β and r of rows, each `scale` c times.

    Parameters
    ----------
    W : array [M, N]
        The columns w_i = L⁻¹k(Z, x_i) of the rows (`InducingProcess.whitened`).
    precision : array [N, L]
        β of each row and latent function, at least 0: the precision of its site, one over a variance.
    linear : array [N, L]
        r of each row and latent function, the other natural parameter of its site: β times its mean.
    scale : number
        c: for a mini-batch, the number of all rows over that of the rows given.
    """
    wide = jax.dtypes.canonicalize_dtype(jnp.float64)
    W, beta, r = W.astype(wide), scale * precision.astype(wide), scale * linear.astype(wide)
    eye = jnp.eye(W.shape[0], dtype=wide)
    return Naturals(eye + jax.vmap(lambda b: symmetric_product(W * b, W), in_axes=1)(beta), matmul(r.T, W.T))
