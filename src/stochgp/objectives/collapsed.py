"""The lower bound of a sparse GP with Gaussian noise at its optimal q(u), in chunks."""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from stochgp.data.memory import MemorySource, Source
from stochgp.data.rows import Data
from stochgp.deadline import in_time
from stochgp.likelihoods.noise import row_variances
from stochgp.models import SparseGP, process_of
from stochgp.numerics.arrays import matmul, on_device, when_ready
from stochgp.numerics.linalg import inverse_root
from stochgp.objectives.elbo import expected_log_density
from stochgp.objectives.moments import sum_over_rows
from stochgp.parameters import cast, partition, value_of

CHUNK_BYTES = 8_000_000  # of k(Z, X) for one chunk; twice this size is slower
WIDE = np.float64

Gaussian = tuple[Float[np.ndarray, "1 M"], Float[np.ndarray, "1 M M"]]  # m and R of q(v) = N(m, RRᵀ)


def lower_bound(gp: SparseGP, source: Source) -> tuple[float, Gaussian]:
    """Return the collapsed bound (Titsias 2009) in nats over all rows, and the optimal q(v).

    The bound is log N(y | 0, Q + Σ) − Σ_i ρ_i (k_ii − Q_ii)/(2ν_i), Q = WᵀW, for noise variances ν. With w = L⁻¹k(Z, x), ω = ρ/ν, Λ = I + Σ ω w wᵀ and
    b = Σ ω y w it is −½ [Σ ρ log 2πν + Σ ω y² − bᵀΛ⁻¹b + log|Λ| + Σ ω (k − ‖w‖²)], and q(v) = N(Λ⁻¹b, Λ⁻¹). It takes one pass in float64
    and memory for one chunk. Raises TimeIsUpError before a chunk that would end after the deadline.

    Parameters
    ----------
    gp, source : SparseGP, Source
        The model at θ, with Gaussian noise and inducing points (its own q(v) is not used); all rows, read once in order.
    """
    with jax.enable_x64(True):
        gp = cast(gp, WIDE)
        chunks = in_time(source.blocks(_pass_rows(gp)))
        return _optimum(sum_over_rows(_statistics, gp, chunks, process_of(gp)))


def lower_bound_and_gradient(
    gp: SparseGP, source: MemorySource, split: Callable[[Any], tuple[Any, Any]] = partition
) -> tuple[float, Any, Gaussian]:
    """Return `lower_bound` per datum, its exact gradient, and the optimal q(v), in two passes.

    With m = Λ⁻¹b, P = L⁻ᵀ(I − Λ⁻¹)L⁻¹ and p = L⁻ᵀm, the derivatives with respect to the kernel's values are

        k(Z, x_i)    ω_i [P k(Z, x_i) + (y_i − p·k(Z, x_i)) p]
        k(x_i, x_i)  −½ ω_i
        k(Z, Z)      −½ L⁻ᵀ(Λ + Λ⁻¹ − 2I + mmᵀ)L⁻¹,

    so that the second pass has one product of O(N M²). The derivatives by the noise are those of E log p(y_i | f) at the optimal q(f). The memory is that of
    one chunk. `split` returns the part of the model to differentiate and the rest, like `eqx.partition`.
    """
    with jax.enable_x64(True):
        gp, size = cast(gp, WIDE), _pass_rows(gp)
        process: Any = process_of(gp)  # of inducing points
        bound, gaussian = _optimum(sum_over_rows(_statistics, gp, source.blocks(size), process))
        theta, rest = split(gp)
        weights = tuple(map(on_device, (*_weights(np.asarray(process.inverse), *gaussian), source.count)))
        total = sum_over_rows(_slopes, theta, source.blocks(size), rest, weights)
        gradient = jax.tree.map(lambda g: np.asarray(g) / source.count, when_ready(total))
        return bound / source.count, gradient, gaussian


def _pass_rows(gp: SparseGP) -> int:
    """Rows of a chunk of a pass, with k(Z, X) within CHUNK_BYTES."""
    return min(8192, max(256, CHUNK_BYTES // (8 * gp.approximation.n_inducing)))


def _statistics(gp: SparseGP, rows: Data, process: Any) -> tuple[Array, ...]:
    """Return Σ ω w wᵀ, Σ ω y w, Σ ω y² + Σ ρ log 2πν + Σ ω (k − ‖w‖²); ν: noise variances."""
    rows = cast(rows, WIDE)
    nu = row_variances(gp.noise, rows.X, rows.y.dtype)
    omega = rows.weight / nu
    root = jnp.sqrt(omega)
    W = process.whitened(rows.X) * root
    unexplained = jnp.maximum(omega * process.kernel.diag(rows.X) - jnp.sum(W**2, axis=0), 0)
    constants = omega * rows.y**2 + rows.weight * jnp.log(2 * jnp.pi * nu) + unexplained
    return matmul(W, W.T), matmul(W, root * rows.y), jnp.sum(constants)


def _optimum(sums: tuple[Array, ...]) -> tuple[float, Gaussian]:
    """Return the bound and q(v) with R = U⁻ᵀ, Λ = UUᵀ; NaN if `_statistics` are not finite."""
    gram, cross, constants = map(np.asarray, sums)
    M = len(cross)
    if not all(np.isfinite(part).all() for part in (gram, cross, constants)):
        return math.nan, (np.full((1, M), np.nan), np.full((1, M, M), np.nan))
    R = inverse_root(np.eye(M) + gram)
    half = R.T @ cross
    log_determinant = -2 * float(np.sum(np.log(np.diagonal(R))))
    bound = -0.5 * (float(constants) - float(half @ half) + log_determinant)
    return bound, ((R @ half)[None], np.ascontiguousarray(R)[None])


def _weights(inverse: np.ndarray, mean: np.ndarray, root: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return P, p and the derivative by k(Z, Z) of `lower_bound_and_gradient`."""
    (m,), (R,), eye = mean, root, np.eye(len(inverse))
    S, U = R @ R.T, np.linalg.inv(R)
    among = U.T @ U + S - 2 * eye + np.outer(m, m)
    within = lambda A: inverse.T @ A @ inverse
    return within(eye - S), inverse.T @ m, -0.5 * within(among)


def _slopes(theta: Any, rows: Data, rest: Any, weights: tuple[Array, ...]) -> Any:
    """Return the derivatives through k(Z, X), k(x, x), noise, and the rows' part by k(Z, Z)."""
    rows, gp = cast(rows, WIDE), eqx.combine(theta, rest)

    def values(theta: Any) -> tuple[Array, Array, Array]:
        gp: Any = eqx.combine(theta, rest)
        kernel, points = value_of(gp.kernel), value_of(gp.approximation.points)
        return kernel.matrix(rows.X, points).T, kernel.diag(rows.X), gp.approximation.among(kernel)[0]

    (K, prior, _), pull = jax.vjp(values, theta)
    omega = rows.weight / row_variances(gp.noise, rows.X, rows.y.dtype)
    P, p, among, count = weights
    PK, mean = matmul(P, K), matmul(p, K)
    share = jnp.sum(rows.weight) / count
    (by_kernel,) = pull((omega * (PK + jnp.outer(p, rows.y - mean)), -0.5 * omega, share * among))
    variance = jnp.maximum(prior - jnp.sum(K * PK, axis=0), 0)

    def expected(theta: Any) -> Array:
        return jnp.sum(expected_log_density(eqx.combine(theta, rest), rows, mean[:, None], variance[:, None]))

    return jax.tree.map(jnp.add, by_kernel, jax.grad(expected)(theta))
