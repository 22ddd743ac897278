"""The lower bound of a sparse GP at its optimal q(u), which Gaussian noise has in closed form: passes over chunks of rows."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import solve_triangular

from stochgp.compiled import quick_jit
from stochgp.data.memory import MemorySource, Source
from stochgp.data.rows import Data
from stochgp.deadline import in_time
from stochgp.likelihoods.noise import row_variances
from stochgp.models import SparseGP, process_of
from stochgp.numerics.arrays import on_device, when_ready
from stochgp.numerics.linalg import inverse_factor, symmetric_product, transposed_times
from stochgp.numerics.precision import matmul
from stochgp.objectives.elbo import expected_log_density
from stochgp.objectives.moments import sum_over_rows, total_of
from stochgp.parameters import cast, partition, value_of
from stochgp.variational import Naturals

CHUNK_BYTES = 8_000_000  # of k(Z, X) of one chunk; twice as many are slower
WIDE = np.float64


class Statistics(NamedTuple):
    """Sums over rows with noise variances ν_i, which count as ρ_i rows; ω = ρ/ν, w = L⁻¹k(Z, x)."""

    gram: Float[Array, "M M"]  # Σ ω w wᵀ
    cross: Float[Array, " M"]  # Σ ω y w
    square: Float[Array, ""]  # Σ ω y²
    log_noise: Float[Array, ""]  # Σ ρ log 2πν
    unexplained: Float[Array, ""]  # Σ ω (k(x, x) − ‖w‖²)


class Collapsed(NamedTuple):
    """The lower bound at the optimal q(v), in nats of all rows, and that q(v)."""

    bound: float
    naturals: Naturals


def lower_bound(gp: SparseGP, source: Source) -> Collapsed:
    """log N(y | 0, Q + Σ) − Σ_i ρ_i (k_ii − Q_ii)/(2ν_i), Q = WᵀW (Titsias 2009), in float64: one pass, memory for one chunk.

    With Λ = I + Σ ω w wᵀ and b = Σ ω y w it is −½ [Σ ρ log 2πν + Σ ω y² − bᵀΛ⁻¹b + log|Λ| + Σ ω (k − ‖w‖²)], and q(v) = N(Λ⁻¹b, Λ⁻¹).
    Raises TimeIsUpError before a chunk that would end after the deadline.

    Parameters
    ----------
    gp, source : SparseGP, Source
        The model at θ, of Gaussian noise and inducing points, whose own q(v) does not enter; all rows, read once in their order.
    """
    with jax.enable_x64(True):
        gp = cast(gp, WIDE)
        return _collapsed(_statistics(gp, process_of(gp), in_time(source.blocks(_pass_rows(gp)))))


def lower_bound_and_gradient(
    gp: SparseGP,
    source: MemorySource,
    split: Callable[[Any], tuple[Any, Any]] = partition,
) -> tuple[float, Any, Naturals]:
    """(`lower_bound` per datum, its exact gradient by the first part of `split`, the optimal q(v)): two passes, memory for one chunk.

    With m = Λ⁻¹b, P = L⁻ᵀ(I − Λ⁻¹)L⁻¹ and p = L⁻ᵀm its derivatives by the kernel's values are

        by k(Z, x_i)    ω_i [P k(Z, x_i) + (y_i − p·k(Z, x_i)) p]
        by k(x_i, x_i)  −½ ω_i
        by k(Z, Z)      −½ L⁻ᵀ(Λ + Λ⁻¹ − 2I + mmᵀ)L⁻¹,

    so that the second pass has one product of O(N M²). Those by the noise are of E log p(y_i | f) at the optimal q(f).

    `split` is (the parts by which the gradient is taken, the rest) of the model, as by `eqx.partition`.
    """
    with jax.enable_x64(True):
        gp = cast(gp, WIDE)
        process: Any = process_of(gp)  # of inducing points
        found = _collapsed(_statistics(gp, process, source.blocks(_pass_rows(gp))))
        theta, rest = split(gp)
        weights = _weights(process.inverse, found.naturals)
        total = _slope_among(theta, rest, weights)
        slopes = sum_over_rows(_slopes, theta, source.blocks(_pass_rows(gp)), rest, weights)
        total = total_of((total, slopes))
        gradient = jax.tree.map(lambda g: np.asarray(g) / source.count, when_ready(total))
        return found.bound / source.count, gradient, found.naturals


def _pass_rows(gp: SparseGP) -> int:
    """The rows of a chunk of a pass: k(Z, X) within CHUNK_BYTES."""
    return min(8192, max(256, CHUNK_BYTES // (8 * gp.approximation.n_inducing)))


def _statistics(gp: SparseGP, process: Any, blocks: Iterator[Data]) -> Statistics:
    return sum_over_rows(_of_rows, gp, blocks, process)


def _of_rows(gp: SparseGP, rows: Data, process: Any) -> Statistics:
    rows = cast(rows, WIDE)
    nu = row_variances(gp.noise, rows.X, rows.y.dtype)
    omega = rows.weight / nu
    root = jnp.sqrt(omega)
    W = process.whitened(rows.X) * root
    left = jnp.maximum(omega * process.kernel.diag(rows.X) - jnp.sum(W**2, axis=0), 0)
    return Statistics(
        gram=symmetric_product(W, W),
        cross=matmul(W, root * rows.y),
        square=jnp.sum(omega * rows.y**2),
        log_noise=jnp.sum(rows.weight * jnp.log(2 * jnp.pi * nu)),
        unexplained=jnp.sum(left),
    )


def _collapsed(s: Statistics) -> Collapsed:
    """NaN where the statistics are not finite."""
    gram, cross = np.asarray(s.gram), np.asarray(s.cross)
    precision, total = np.eye(len(gram), dtype=gram.dtype) + gram, math.nan
    if all(np.all(np.isfinite(np.asarray(part))) for part in s):
        L = np.linalg.cholesky(precision)
        half = solve_triangular(L, cross, lower=True)
        log_determinant = 2 * float(np.sum(np.log(np.diagonal(L))))
        total = float(s.log_noise) + float(s.square) + float(s.unexplained) - half @ half + log_determinant
    return Collapsed(-0.5 * float(total), Naturals(on_device(precision[None]), on_device(cross[None])))


@quick_jit
def _weights(inverse: Array, naturals: Naturals) -> tuple[Array, Array, Array]:
    """(P, p, the derivative by k(Z, Z))."""
    eye = jnp.eye(inverse.shape[0], dtype=inverse.dtype)
    precision, half = naturals.precision[0], inverse_factor(naturals.precision[0])
    S = transposed_times(half, half)
    m = matmul(S, naturals.linear[0])
    within = lambda A: transposed_times(inverse, transposed_times(inverse, A).T)  # of a symmetric A
    among = -0.5 * within(precision + S - 2 * eye + jnp.outer(m, m))
    return within(eye - S), matmul(inverse.T, m), among


@quick_jit
def _slope_among(theta: Any, rest: Any, weights: tuple[Array, Array, Array]) -> Any:
    """The derivatives through k(Z, Z)."""

    def among(theta: Any) -> Array:
        gp = eqx.combine(theta, rest)
        return jnp.sum(weights[2] * gp.approximation.among(gp.kernel)[0])

    return jax.grad(among)(theta)


def _slopes(theta: Any, rows: Data, rest: Any, weights: tuple[Array, Array, Array]) -> Any:
    """The derivatives through k(Z, X), k(x, x) and the noise of these rows."""
    rows, gp = cast(rows, WIDE), eqx.combine(theta, rest)

    def values(theta: Any) -> tuple[Array, Array]:
        gp = eqx.combine(theta, rest)
        return gp.approximation.across(gp.kernel, rows.X), value_of(gp.kernel).diag(rows.X)

    (K, prior), pull = jax.vjp(values, theta)
    omega = rows.weight / row_variances(gp.noise, rows.X, rows.y.dtype)
    P, p, _ = weights
    PK, mean = matmul(P, K), matmul(p, K)
    (by_kernel,) = pull((omega * (PK + jnp.outer(p, rows.y - mean)), -0.5 * omega))
    variance = jnp.maximum(prior - jnp.sum(K * PK, axis=0), 0)

    def expected(theta: Any) -> Array:
        return jnp.sum(expected_log_density(eqx.combine(theta, rest), rows, mean[:, None], variance[:, None]))

    return jax.tree.map(jnp.add, by_kernel, jax.grad(expected)(theta))
