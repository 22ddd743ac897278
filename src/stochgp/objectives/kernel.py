"""The exact negative log marginal likelihood of a kernel GP and its gradient, by a Cholesky factor of A = K + Σ.

    n · 2 · nlml = yᵀA⁻¹y + log|A| + N log 2π + Σᵢ [(ρᵢ − 1) log 2πρᵢΣᵢ + log ρᵢ],   n = Σρ,

which is that of n rows, of which row i stands ρᵢ times: ρᵢΣᵢ = σ²s(xᵢ) is the noise variance of one of them. With counts of 1 the sum is 0. The
derivatives go through A and, beside it, through the noise:

    ∂nlml/∂A = (A⁻¹ − ααᵀ)/(2n), α = A⁻¹y.
"""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float

from stochgp.data.streams import Rows, padded_size
from stochgp.kernels.gradients import Kernel, Tiles, dense_gradient, equal_tiles, prepared
from stochgp.likelihoods.noise import SMALLEST_COUNT
from stochgp.models import KernelGP
from stochgp.numerics import dense_factor
from stochgp.numerics.dense_factor import NEGLIGIBLE, Factor
from stochgp.objectives.evaluation import Evaluation
from stochgp.parameters import partition, value_of

TILE = 1024  # rows and columns of K that are computed at a time
SMALLEST_RATIO = 1e-4  # of noise to signal, below which float32 is not trusted
SOME_ROWS = 100  # on which the signal is looked at
SMALL = 1024  # rows up to which K and its derivatives are two compiled programs, in float64


class _OnHost(NamedTuple):
    """Rows in float64 with the noise variances that the model gives them."""

    X: Float[np.ndarray, "N D"]
    y: Float[np.ndarray, " N"]
    count: Float[np.ndarray, " N"]
    noise: Float[np.ndarray, " N"]


def nlml_and_gradient(gp: KernelGP, rows: Rows, *, dtype: str | None = "float64") -> Evaluation:
    """NLML per datum and its gradient: N² numbers of `dtype` on the host, N³ products, O(N² D) for the kernel and its derivatives.

    Entries of A are computed in float64. With `dtype` "float32" the factor, the inverse and the derivatives of the kernel are in
    float32, which is twice as fast and takes half the memory. None = float32, and float64 for up to 1,024 rows, where the noise is below 1e-4 of
    the mean variance, or where float32 has no factor. Raises ValueError where A has no factor even with a jitter of
    1e-3 of its mean diagonal.
    """
    with jax.enable_x64(True):
        at = _on_host(gp, rows)
        factor = _factor(gp, at, dtype)
        dtype = factor.L.dtype.name
        value, alpha = _value(factor, at)
        G = _minus_outer(_inverse(factor.L), alpha.astype(dtype))
        twice = 2 * float(at.count.sum())
        if len(at.y) <= SMALL:
            gradient = _small_gradient(gp, at, G, twice)
        else:
            by_kernel = dense_gradient(gp.kernel, at.X.astype(dtype), G)
            X, count = _padded(at.X, at.count)
            by_noise = np.zeros(len(X))
            by_noise[: len(at.y)] = np.diagonal(G) + (at.count - 1) / at.noise
            gradient = _gradient(gp, by_kernel, X, count, by_noise / twice, np.asarray(1 / twice))
        return Evaluation(value, gradient, factor.jitter)


def _factor(gp: KernelGP, at: _OnHost, dtype: str | None) -> Factor:
    if dtype is None and len(at.y) <= SMALL:
        dtype = "float64"
    if dtype is not None:
        return factorised(gp.kernel, at.X, at.noise, dtype)
    signal = float(_mean_variance(gp.kernel, at.X[:: max(1, len(at.y) // SOME_ROWS)][:SOME_ROWS]))
    if float(at.noise.min()) > SMALLEST_RATIO * signal:
        factor = factorised(gp.kernel, at.X, at.noise, "float32")
        if factor.jitter == 0:
            return factor
    return factorised(gp.kernel, at.X, at.noise, "float64")


@eqx.filter_jit
def _mean_variance(kernel: Any, X: Any) -> Array:
    """The mean of k(x, x)."""
    return jnp.mean(kernel.diag(X))


def nlml(gp: KernelGP, rows: Rows, *, dtype: str = "float64") -> float:
    """NLML per datum: N² numbers of `dtype`, N³/3 products."""
    with jax.enable_x64(True):
        at = _on_host(gp, rows)
        return _value(factorised(gp.kernel, at.X, at.noise, dtype), at)[0]


def factorised(
    kernel: Kernel, X: Float[np.ndarray, "N D"], noise: Float[np.ndarray, " N"], dtype: str
) -> Factor:
    """The factor of k(X, X) + diag(noise), with the first jitter that makes it possible."""
    return dense_factor.factorised(lambda: covariance(kernel, X, noise, dtype))


def covariance(
    kernel: Kernel, X: Float[np.ndarray, "N D"], noise: Float[np.ndarray, " N"], dtype: str
) -> Float[np.ndarray, "N N"]:
    """k(X, X) + diag(noise), of which what is left of the diagonal tiles is not filled; in float32, negligible entries are 0."""
    N, (Z,) = len(X), _padded(X)
    rows = _prepared(kernel, Z, SMALL if N <= SMALL else equal_tiles(len(Z), TILE))
    A, T = np.empty((N, N), dtype), rows.tile
    least = 0.0
    for i in range(0, N, T):
        for j in range(i, N, T):
            place = (
                np.asarray(i // T),
                np.asarray(j // T),
                np.asarray(least),
            )  # plain numbers would be compiled in
            tile = _tile(kernel, rows, *place, dtype)
            A[i : i + T, j : j + T] = np.asarray(tile)[: N - i, : N - j]
            if dtype == "float32" and i == j == 0:
                least = NEGLIGIBLE * float(np.abs(A[:T, :T]).max())
    A[np.diag_indices(N)] += noise.astype(dtype)
    return A


@eqx.filter_jit
def _prepared(kernel: Kernel, X: Any, tile: int) -> Tiles:
    return prepared(kernel, X, min(tile, X.shape[0]))


@eqx.filter_jit
def _tile(kernel: Kernel, rows: Tiles, i: Any, j: Any, least: Any, dtype: str) -> Array:
    K = value_of(kernel).between(rows.part(i), rows.part(j))
    return jnp.where(jnp.abs(K) < least, jnp.zeros_like(K), K).astype(dtype)


def _on_host(gp: KernelGP, rows: Rows) -> _OnHost:
    X, y, count = (np.asarray(part, np.float64) for part in rows)
    count = np.maximum(count, SMALLEST_COUNT)
    noise = np.asarray(_noise(gp, *_padded(X, count)))[: len(y)]
    return _OnHost(X, y, count, noise)


def _padded(*parts: Float[np.ndarray, "N ..."]) -> tuple[Float[np.ndarray, "P ..."], ...]:
    """The last row repeated up to the padded size."""
    missing = padded_size(len(parts[0])) - len(parts[0])
    return tuple(np.concatenate([part, np.repeat(part[-1:], missing, axis=0)]) for part in parts)


@eqx.filter_jit
def _noise(gp: KernelGP, X: Any, count: Any) -> Array:
    """Σ."""
    return gp.noise.variance(X, count)


def _value(factor: Factor, at: _OnHost) -> tuple[float, Float[np.ndarray, " N"]]:
    """(NLML per datum, α)."""
    half = factor.half(at.y[:, None])[:, 0].astype(np.float64)
    repeated = np.sum((at.count - 1) * np.log(2 * math.pi * at.count * at.noise) + np.log(at.count))
    total = half @ half + factor.log_determinant() + len(at.y) * math.log(2 * math.pi) + repeated
    return float(total) / (2 * float(at.count.sum())), factor.solve(at.y[:, None])[:, 0]


def _inverse(L: Float[np.ndarray, "N N"]) -> Float[np.ndarray, "N N"]:
    """A⁻¹ on and right of the diagonal, in the place of L."""
    (potri,) = scipy.linalg.get_lapack_funcs(("potri",), (L,))
    return potri(L, lower=True, overwrite_c=True)[0].T


def _minus_outer(Q: Float[np.ndarray, "N N"], alpha: Float[np.ndarray, " N"]) -> Float[np.ndarray, "N N"]:
    """Q − ααᵀ on and right of the diagonal, in the place of Q."""
    (syr,) = scipy.linalg.get_blas_funcs(("syr",), (Q,))
    return syr(-1.0, alpha, a=Q.T, lower=True, overwrite_a=True).T


def _small_gradient(gp: KernelGP, at: _OnHost, G: Float[np.ndarray, "N N"], twice: float) -> KernelGP:
    """By one program. Padding rows have weight 0 in it."""
    N, (X, count) = len(at.y), _padded(at.X, at.count)
    weights, repeated = np.zeros((len(X), len(X))), np.zeros(len(X))
    weights[:N, :N] = np.triu(G) + np.triu(G, 1)
    repeated[:N] = (at.count - 1) / at.noise
    return _all_at_once(*partition(gp), X, count, weights / twice, repeated / twice)


@eqx.filter_jit
def _all_at_once(theta: Any, rest: Any, X: Any, count: Any, weights: Any, repeated: Any) -> Any:
    """The gradient of Σ_ij W_ij A_ij + Σ_i r_i Σ_i by what trains."""

    def total(theta: Any) -> Array:
        gp = eqx.combine(theta, rest)
        noise, K = gp.noise.variance(X, count), _symmetric(value_of(gp.kernel), X)
        return jnp.sum(weights * K) + jnp.sum((jnp.diagonal(weights) + repeated) * noise)

    return jax.grad(total)(theta)


def _symmetric(kernel: Any, X: Array) -> Array:
    rows = kernel.prepare(X, jax.lax.stop_gradient(jnp.mean(X, axis=0)))
    return kernel.between(rows, rows)


@eqx.filter_jit
def _gradient(gp: KernelGP, by_kernel: Any, X: Any, count: Any, by_noise: Any, share: Any) -> Any:
    """The gradient by what trains, from `share` times that by the kernel's parameters and that by the rows' noise variances."""
    theta, rest = partition(gp.noise)
    _, pull = jax.vjp(lambda t: eqx.combine(t, rest).variance(X, count), theta)
    (by_theta,) = pull(by_noise)
    by_kernel = jax.tree.map(lambda g: g * share.astype(g.dtype), by_kernel)
    return eqx.tree_at(lambda g: (g.kernel, g.noise), gp, (by_kernel, by_theta), is_leaf=lambda x: x is None)
