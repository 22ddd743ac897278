"""A posterior of a kernel GP takes in new rows: the solve begins where the one before ended.

With n new rows the system is A' = [[A, B'ᵀ], [B', C]], and the right-hand sides b are those of before with n more rows. The old rows keep their
weights, the new ones have none: α = (α_old, 0). Then, for one block J of rows after the other,

    α_J ← α_J + A'_JJ⁻¹ r_J,    r ← r − A'_{:,J} A'_JJ⁻¹ r_J,    r = b − A'α,

the exact minimiser of the dual objective ½ αᵀA'α − αᵀb over the rows of the block (alternating projections: Wu, Wenger, Jones, Pleiss and
Gardner, 2024). The first blocks are the new rows and those nearest to them: new rows are not overlooked because they are few. Further rows
follow in a random order until r is within the tolerance, or would not be by the last row at the rate at which it falls. A block of m rows
costs m/N of a product with A', and m³/3.
"""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stochgp import deadline
from stochgp.data.rows import Data
from stochgp.kernels import dense
from stochgp.neighbours import Neighbours
from stochgp.numerics.arrays import by_blocks, on_device
from stochgp.numerics.linalg import Factor
from stochgp.numerics.precision import matmul
from stochgp.numerics.seeds import words_of
from stochgp.operators import KernelOperator
from stochgp.operators.blocks import filled
from stochgp.posteriors.kernel import KernelSystem, NoiseDraws, sample_targets, times, whole_product
from stochgp.posteriors.sampled import SampledKernelPosterior
from stochgp.priors import PriorFunctions

BLOCK = 1024  # rows of which products are computed at once
LEAST_ROWS, MOST_ROWS = 256, 4096  # of a block
ROWS_PER_ROOT = 16  # a block has 16 √N rows: then its factor takes about as long as its columns of K
BYTES_PER_ENTRY = 24  # of A_JJ, while it is solved with
NEAR = 64  # nearest rows of a new one that come before all others, in as many blocks as NEAR_BLOCKS
NEAR_BLOCKS = 4
ENOUGH = 0.98  # of the tolerance, to be reached
DAMPING = 8.0  # of a block, times the rounding error of products


def joined(system: KernelSystem, new: Data) -> KernelSystem:
    """The system of the rows so far and, after them, the new ones."""
    X = np.concatenate([np.asarray(system.X), np.asarray(new.X, system.X.dtype)])
    weight = np.concatenate([system.weight, new.weights])
    return KernelSystem(system.kernel, on_device(X), weight, system.noise, system.tile)


def grown_draws(posterior: SampledKernelPosterior, n_new: int, *, key: PRNGKeyArray) -> NoiseDraws:
    """The draws of ε so far, and new ones for `n_new` more rows."""
    held = posterior.draws or NoiseDraws((), ())
    return NoiseDraws((*held.n_rows, n_new), (*held.keys, key))


def sides(
    operator: KernelOperator,
    X: Float[Array, "N D"],
    y: Float[np.ndarray, " N"],
    prior: PriorFunctions | None,
    draws: NoiseDraws,
) -> Float[Array, "N C"]:
    """[y | f₀(X) + ε], the right-hand sides of the mean and of pathwise samples; ε of each part of the rows is `draws`' own."""
    b = on_device(y[:, None], operator.dtype)
    return b if prior is None else jnp.concatenate([b, sample_targets(operator, prior, X, draws)], axis=1)


def warm_start(
    operator: KernelOperator,
    b: Float[Any, "N C"],
    weights: Float[Any, "O C"],
    left: Float[Any, "O C"] | None = None,
    *,
    tolerance: float | Float[np.ndarray, " C"],
    key: PRNGKeyArray,
    most_bytes: float = math.inf,
) -> Float[Array, "N C"]:
    """The α of the module's text, from the weights of the first O rows; `left` is their residual, where it is known.

    `tolerance` is of ‖r‖/‖b‖, column by column. Blocks take at most `most_bytes`, but are not smaller than 256 rows.
    """
    n_old, N = len(weights), operator.size
    b = jnp.asarray(b)
    V = jnp.concatenate([jnp.asarray(weights, b.dtype), jnp.zeros((N - n_old, b.shape[1]), b.dtype)])
    r = b - whole_product(operator, V) if left is None else _left(operator, b, V, left)
    goal = ENOUGH * np.asarray(tolerance) * np.linalg.norm(np.asarray(b, np.float64), axis=0)
    m = min(MOST_ROWS, ROWS_PER_ROOT * math.isqrt(N), N)
    m = min(max(int(min(m, math.sqrt(most_bytes / BYTES_PER_ENTRY))), LEAST_ROWS), N)
    order = _new_first(operator, n_old, m, np.random.default_rng(words_of(key)))
    worst = math.inf
    for first in range(0, N, m):
        rows = order[min(first, N - m) :][:m]
        delta = _minimiser(operator, r, rows)
        V, r = _moved(operator, V, r, jnp.asarray(rows), delta)
        before, worst = worst, float(np.max(np.linalg.norm(np.asarray(r, np.float64), axis=0) / goal))
        falls = (
            worst * (worst / before) ** ((N - first) // m) <= 1
        )  # by the last block, if it goes on like this
        if worst <= 1 or deadline.left() <= 0 or (first + m >= N - n_old and not falls):
            break
    return V


def extended(factor: Factor, system: KernelSystem, n_old: int) -> Factor | None:
    """The factor of the joined system from that of its first `n_old` rows, with the same jitter; None where rounding allows none.

    [[L, 0], [Wᵀ, M]] with W = L⁻¹B'ᵀ and MMᵀ = C − WᵀW: n N² products instead of N³/3, and the memory of both factors.
    """
    N, dtype = len(system.X), factor.L.dtype
    X, L = np.asarray(system.X, dtype), np.zeros((N, N), dtype)
    L[:n_old, :n_old] = factor.L
    for first in range(n_old, N, BLOCK):
        last = min(first + BLOCK, N)
        across = dense.block(system.kernel, X[first:last], X[:last])
        W = Factor(L[:first, :first], 0.0).half(across[:, :first].T.copy())
        C = across[:, first:].astype(np.float64) - (W.T @ W).astype(np.float64)
        C[np.diag_indices(last - first)] += system.row_noise[first:last] + factor.jitter
        try:
            L[first:last, first:last] = np.linalg.cholesky(C)
        except np.linalg.LinAlgError:
            return None
        L[first:last, :first] = W.T
    return Factor(L, factor.jitter)


def _left(
    operator: KernelOperator, b: Float[Array, "N C"], V: Float[Array, "N C"], left: Float[Any, "O C"]
) -> Float[Array, "N C"]:
    """b − A V, where V is 0 beyond the first rows, whose residual is `left`."""
    X, padded = np.asarray(operator.inputs)[len(left) : len(b)], operator.pad(V)
    (products,) = by_blocks(lambda rows: (_product(operator, rows, padded),), BLOCK, X)
    return jnp.concatenate([jnp.asarray(left, b.dtype), b[len(left) :] - jnp.asarray(products, b.dtype)])


def _new_first(
    operator: KernelOperator, n_old: int, m: int, generator: np.random.Generator
) -> Int[np.ndarray, " N"]:
    """All rows: the new ones, the rows nearest to them, the others; in a random order where nothing else is said."""
    N, X = operator.size, np.asarray(operator.inputs, np.float64)
    new = n_old + generator.permutation(N - n_old)
    k = min(NEAR, n_old, max(1, NEAR_BLOCKS * m // len(new)))
    near = Neighbours(X[:n_old], operator.kernel).query(X[new], k).T.ravel()
    order = np.concatenate([new, near, generator.permutation(n_old)])
    return order[np.sort(np.unique(order, return_index=True)[1])]


def _minimiser(
    operator: KernelOperator, r: Float[Array, "N C"], rows: Int[np.ndarray, " m"]
) -> Float[Array, "m C"]:
    """A_JJ⁻¹ r_J in float64, A_JJ damped by the rounding of products."""
    A = np.array(_within(operator, jnp.asarray(rows)), np.float64)
    rounding = float(jnp.finfo(operator.dtype).eps) * operator.size**0.5
    A[np.diag_indices(len(A))] += DAMPING * rounding * A.diagonal().mean()
    error = np.asarray(r[rows], np.float64)
    delta = scipy.linalg.solve(A, error, assume_a="pos", overwrite_a=True, check_finite=False)
    return on_device(delta, operator.dtype)


@eqx.filter_jit
def _product(operator: KernelOperator, X: Float[Any, "n D"], V: Array) -> Float[Array, "n C"]:
    return times(operator, X, V)


@eqx.filter_jit
def _within(operator: KernelOperator, rows: Int[Array, " m"]) -> Float[Array, "m m"]:
    some = operator.take(rows)
    return operator.kernel.between(some, some) + jnp.diag(operator.noise[rows])


@eqx.filter_jit
def _moved(
    operator: KernelOperator, V: Array, r: Array, rows: Int[Array, " m"], delta: Array
) -> tuple[Float[Array, "N C"], Float[Array, "N C"]]:
    """(V with δ added in these rows, r − A δ)."""
    N, columns = operator.size, operator.take(rows)
    n = min(BLOCK, N)
    block = lambda start: matmul(operator.kernel.between(operator.block(start, n), columns), delta)
    Kd = filled(jnp.zeros_like(r), N, n, block)
    return V.at[rows].add(delta), (r - Kd).at[rows].add(-operator.noise[rows][:, None] * delta)
