"""The collapsed lower bound of a sparse GP with inducing points and Gaussian noise."""

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

CHUNK_BYTES = 8_000_000  # maximum size of k(Z, X) for a chunk of rows; larger chunks are slower
WIDE = np.float64

Gaussian = tuple[Float[np.ndarray, "1 M"], Float[np.ndarray, "1 M M"]]  # m and R of q(v) = N(m, RRᵀ)


def lower_bound(gp: SparseGP, source: Source) -> tuple[float, Gaussian]:
    """Return the collapsed bound on all rows (Titsias 2009), and the optimal q(v), in float64.

    v = L⁻¹f(Z) are the whitened values at the inducing points Z, k(Z, Z) = LLᵀ. Row i has the weight ρ_i, the
    noise variance ν_i of one observation, ω_i = ρ_i/ν_i, and w_i = L⁻¹k(Z, x_i). With Λ = I + Σ ω_i w_i w_iᵀ
    and b = Σ ω_i y_i w_i, q(v) = N(Λ⁻¹b, Λ⁻¹), and the bound is

        −½ [Σ ρ_i log 2πν_i + Σ ω_i y_i² − bᵀΛ⁻¹b + log|Λ| + Σ ω_i (k(x_i, x_i) − ‖w_i‖²)].

    Raises TimeIsUpError if the deadline is near.

    Parameters
    ----------
    gp, source : SparseGP, Source
        The model, with Gaussian noise and inducing points, and all rows.
    """
    with jax.enable_x64(True):
        gp = cast(gp, WIDE)
        chunks = in_time(source.blocks(_pass_rows(gp)))
        return _optimum(sum_over_rows(_statistics, gp, chunks, process_of(gp)))


def lower_bound_and_gradient(
    gp: SparseGP, source: MemorySource, split: Callable[[Any], tuple[Any, Any]] = partition
) -> tuple[float, Any, Gaussian]:
    """Return `lower_bound` per datum, its exact gradient, and the optimal q(v).

    With m = Λ⁻¹b, P = L⁻ᵀ(I − Λ⁻¹)L⁻¹ and p = L⁻ᵀm, the derivatives with respect to kernel values are

        k(Z, x_i)    ω_i [P k(Z, x_i) + (y_i − p·k(Z, x_i)) p]
        k(x_i, x_i)  −½ ω_i
        k(Z, Z)      −½ L⁻ᵀ(Λ + Λ⁻¹ − 2I + mmᵀ)L⁻¹.

    `split` returns the part of the model to differentiate, and the rest.
    """
    with jax.enable_x64(True):
        gp, size = cast(gp, WIDE), _pass_rows(gp)
        process: Any = process_of(gp)
        bound, gaussian = _optimum(sum_over_rows(_statistics, gp, source.blocks(size), process))
        theta, rest = split(gp)
        weights = tuple(map(on_device, (*_weights(np.asarray(process.inverse), *gaussian), source.count)))
        total = sum_over_rows(_slopes, theta, source.blocks(size), rest, weights)
        gradient = jax.tree.map(lambda g: np.asarray(g) / source.count, when_ready(total))
        return bound / source.count, gradient, gaussian


def _pass_rows(gp: SparseGP) -> int:
    """Return the number of rows in a chunk, from 256 to 8192."""
    return min(8192, max(256, CHUNK_BYTES // (8 * gp.approximation.n_inducing)))


def _statistics(gp: SparseGP, rows: Data, process: Any) -> tuple[Array, ...]:
    """Return the sums Σ ω w wᵀ, Σ ω y w and Σ ω y² + Σ ρ log 2πν + Σ ω (k(x, x) − ‖w‖²)."""
    rows = cast(rows, WIDE)
    nu = row_variances(gp.noise, rows.X, rows.y.dtype)
    omega = rows.weight / nu
    root = jnp.sqrt(omega)
    W = process.whitened(rows.X) * root
    unexplained = jnp.maximum(omega * process.kernel.diag(rows.X) - jnp.sum(W**2, axis=0), 0)
    constants = omega * rows.y**2 + rows.weight * jnp.log(2 * jnp.pi * nu) + unexplained
    return matmul(W, W.T), matmul(W, root * rows.y), jnp.sum(constants)


def _optimum(sums: tuple[Array, ...]) -> tuple[float, Gaussian]:
    """Return the bound and q(v) from the sums of `_statistics`; NaN if these are not finite."""
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
    """Return P, p and the derivative with respect to k(Z, Z)."""
    (m,), (R,), eye = mean, root, np.eye(len(inverse))
    S, U = R @ R.T, np.linalg.inv(R)
    among = U.T @ U + S - 2 * eye + np.outer(m, m)
    within = lambda A: inverse.T @ A @ inverse
    return within(eye - S), inverse.T @ m, -0.5 * within(among)


def _slopes(theta: Any, rows: Data, rest: Any, weights: tuple[Array, ...]) -> Any:
    """Return the contribution of some rows to the gradient with respect to `theta`."""
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
