"""The exact negative log marginal likelihood of a kernel GP and its gradient, by a Cholesky factor of A = K + σ² diag(1/ρ).

    n · 2 · nlml = yᵀA⁻¹y + log|A| + N log 2π + Σᵢ [(ρᵢ − 1) log 2πσ² + log ρᵢ],   n = Σρ,

which is that of n rows, of which row i stands ρᵢ times; with weights 1 the sum is 0. The derivatives go through A and σ²:

    ∂nlml/∂A = (A⁻¹ − ααᵀ)/(2n), α = A⁻¹y.
"""

import math
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float

from stochgp.data.streams import Rows
from stochgp.kernels.gradients import Kernel, Tiles, dense_gradient, equal_tiles, prepared
from stochgp.models import SMALLEST_WEIGHT, KernelGP
from stochgp.numerics import dense_factor
from stochgp.numerics.dense_factor import NEGLIGIBLE, Factor
from stochgp.parameters import partition, value_of

TILE = 1024  # rows and columns of K that are computed at a time


class Evaluation(NamedTuple):
    """The exact NLML at one θ."""

    nlml: float  # per datum
    gradient: KernelGP  # by what trains; None elsewhere
    jitter: float  # added to the diagonal of A so that it could be factorised; 0 = none


def nlml_and_gradient(gp: KernelGP, rows: Rows, *, dtype: str = "float64") -> Evaluation:
    """NLML per datum and its gradient: N² numbers of `dtype` on the host, N³ products, O(N² D) for the kernel and its derivatives.

    Entries of A are computed in float64. With `dtype` "float32" the factor, the inverse and the derivatives of the kernel are in
    float32, which is twice as fast and takes half the memory. Raises ValueError where A has no factor even with a jitter of 1e-3 of its
    mean diagonal.
    """
    with jax.enable_x64(True):
        X, y, weight = (np.asarray(part, np.float64) for part in rows)
        weight = np.maximum(weight, SMALLEST_WEIGHT)
        noise = float(value_of(gp.noise_variance))
        factor = factorised(gp.kernel, X, noise / weight, dtype)
        value, alpha = _value(factor, y, weight, noise)
        G = _minus_outer(_inverse(factor.L), alpha.astype(dtype))
        twice = 2 * float(weight.sum())
        by_noise = float(np.sum(np.diagonal(G).astype(np.float64) / weight) + np.sum(weight - 1) / noise)
        by_kernel = dense_gradient(gp.kernel, jnp.asarray(X, dtype), G)
        gradient = _gradient(gp, by_kernel, jnp.asarray(by_noise), jnp.asarray(twice))
        return Evaluation(value, gradient, factor.jitter)


def nlml(gp: KernelGP, rows: Rows, *, dtype: str = "float64") -> float:
    """NLML per datum: N² numbers of `dtype`, N³/3 products."""
    with jax.enable_x64(True):
        X, y, weight = (np.asarray(part, np.float64) for part in rows)
        weight = np.maximum(weight, SMALLEST_WEIGHT)
        noise = float(value_of(gp.noise_variance))
        return _value(factorised(gp.kernel, X, noise / weight, dtype), y, weight, noise)[0]


def factorised(
    kernel: Kernel, X: Float[np.ndarray, "N D"], noise: Float[np.ndarray, " N"], dtype: str
) -> Factor:
    """The factor of k(X, X) + diag(noise), with the first jitter that makes it possible."""
    return dense_factor.factorised(lambda: covariance(kernel, X, noise, dtype))


def covariance(
    kernel: Kernel, X: Float[np.ndarray, "N D"], noise: Float[np.ndarray, " N"], dtype: str
) -> Float[np.ndarray, "N N"]:
    """k(X, X) + diag(noise), of which what is left of the diagonal tiles is not filled; in float32, negligible entries are 0."""
    N = len(X)
    rows = _prepared(kernel, jnp.asarray(X), equal_tiles(N, TILE))
    A, T = np.empty((N, N), dtype), rows.tile
    least = 0.0
    for i in range(0, N, T):
        for j in range(i, N, T):
            tile = _tile(kernel, rows, jnp.asarray(i // T), jnp.asarray(j // T), jnp.asarray(least), dtype)
            A[i : i + T, j : j + T] = np.asarray(tile)[: N - i, : N - j]
            if dtype == "float32" and i == j == 0:
                least = NEGLIGIBLE * float(np.abs(A[:T, :T]).max())
    A[np.diag_indices(N)] += noise.astype(dtype)
    return A


@eqx.filter_jit
def _prepared(kernel: Kernel, X: Array, tile: int) -> Tiles:
    return prepared(kernel, X, tile)


@eqx.filter_jit
def _tile(kernel: Kernel, rows: Tiles, i: Array, j: Array, least: Array, dtype: str) -> Array:
    K = value_of(kernel).between(rows.part(i), rows.part(j))
    return jnp.where(jnp.abs(K) < least, jnp.zeros_like(K), K).astype(dtype)


def _value(
    factor: Factor, y: np.ndarray, weight: np.ndarray, noise: float
) -> tuple[float, Float[np.ndarray, " N"]]:
    """(NLML per datum, α)."""
    half = factor.half(y[:, None])[:, 0].astype(np.float64)
    repeated = np.sum((weight - 1) * math.log(2 * math.pi * noise) + np.log(weight))
    total = half @ half + factor.log_determinant() + len(y) * math.log(2 * math.pi) + repeated
    return float(total) / (2 * float(weight.sum())), factor.solve(y[:, None])[:, 0]


def _inverse(L: Float[np.ndarray, "N N"]) -> Float[np.ndarray, "N N"]:
    """A⁻¹ on and right of the diagonal, in the place of L."""
    (potri,) = scipy.linalg.get_lapack_funcs(("potri",), (L,))
    return potri(L, lower=True, overwrite_c=True)[0].T


def _minus_outer(Q: Float[np.ndarray, "N N"], alpha: Float[np.ndarray, " N"]) -> Float[np.ndarray, "N N"]:
    """Q − ααᵀ on and right of the diagonal, in the place of Q."""
    (syr,) = scipy.linalg.get_blas_funcs(("syr",), (Q,))
    return syr(-1.0, alpha, a=Q.T, lower=True, overwrite_a=True).T


@eqx.filter_jit
def _gradient(gp: KernelGP, by_kernel: Kernel, by_noise: Array, twice: Array) -> KernelGP:
    """The gradient per datum by what trains, from the sums by the kernel's parameters and by σ²; n = twice/2."""
    theta, rest = partition(gp.noise_variance)
    s2, pull = jax.vjp(lambda t: value_of(eqx.combine(t, rest)), theta)
    (by_raw,) = pull((by_noise / twice).astype(s2.dtype))
    by_kernel = jax.tree.map(lambda g: g / twice.astype(g.dtype), by_kernel)
    return eqx.tree_at(
        lambda g: (g.kernel, g.noise_variance), gp, (by_kernel, by_raw), is_leaf=lambda x: x is None
    )
