"""The posterior of a kernel GP from solutions of systems with A = K + Σ, as far as any solver came; and how it takes in new rows."""

import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stochgp import deadline
from stochgp.data.rows import Data
from stochgp.kernels import dense
from stochgp.neighbours import Neighbours
from stochgp.numerics.arrays import by_blocks, on_device
from stochgp.numerics.linalg import Factor, rounding_error, safe_covariance
from stochgp.numerics.precision import matmul
from stochgp.numerics.seeds import words_of
from stochgp.objectives.slq import estimate_bytes, nlml_estimate
from stochgp.operators import KernelOperator
from stochgp.operators.blocks import filled
from stochgp.posteriors.base import PerRow, Rows
from stochgp.posteriors.kernel import (
    AbstractKernelPosterior,
    KernelFunctions,
    KernelSystem,
    NoiseDraws,
    sample_targets,
    times,
    whole_product,
)
from stochgp.priors import PriorFunctions
from stochgp.results import Estimate, Solution
from stochgp.solvers import AbstractSolver, solve
from stochgp.solvers.sizes import covariance_bytes

SAMPLES = 64  # functions whose covariance stands for the posterior's, with a relative standard error of √(2/64) = 0.18
PRODUCT_ROWS = 1024  # rows of which products are computed at once
LEAST_ROWS, MOST_ROWS = 256, 4096  # of a block
ROWS_PER_ROOT = 16  # a block has 16 √N rows: then its factor takes about as long as its columns of K
BYTES_PER_ENTRY = 24  # of A_JJ, while it is solved with
MAX_NEAR = 64  # nearest rows of a new one that come before all others, in as many blocks as NEAR_BLOCKS
NEAR_BLOCKS = 4
ENOUGH = 0.98  # of the tolerance, to be reached
DAMPING = 8.0  # of a block, times the rounding error of products


class SampledKernelPosterior(AbstractKernelPosterior):
    """f | y for y = f(X) + ε, ε ~ N(0, Σ), A = K + Σ, with mean(x) = k(x, X)α and f_s(x) − mean(x) = f₀ₛ(x) − k(x, X)u_s, as far as the solver came.

    Parameters
    ----------
    system, weights, explained, prior, sample_weights : KernelSystem, array [N, 1], float, PriorFunctions or None, array [N, S] or None
        A, α = A⁻¹y, yᵀA⁻¹y; f₀ₛ and u_s = A⁻¹(f₀ₛ(X) + ε_s) of functions that were solved for with the mean.
    solver, tolerance : AbstractSolver, float
        For the right-hand sides that come later, to this relative residual.
    y, draws, left : array [N] or None, NoiseDraws or None, array [N, 1 + S] or None
        For new rows: the targets, where ε_s come from, and the residuals of α and u_s where they are known.
    information : float
        τ of variances.
    """

    system: KernelSystem
    weights: Float[Array, "N 1"]
    explained: float
    prior: PriorFunctions | None
    sample_weights: Float[Array, "N S"] | None
    solver: AbstractSolver
    tolerance: float
    y: Float[np.ndarray, " N"] | None = None
    draws: NoiseDraws | None = None
    left: Float[Array, "N C"] | None = None
    information: float = 1.0

    @property
    def n_samples(self) -> int:
        return 0 if self.sample_weights is None else self.sample_weights.shape[1]

    @functools.cached_property
    def samples(self) -> KernelFunctions:
        """The functions that were solved for with the mean; else 64, solved for when they are first wanted."""
        if self.prior is None or self.sample_weights is None:
            return self.functions(SAMPLES, key=jax.random.key(0))
        operator = self.system.operator
        return KernelFunctions(operator, self.prior, operator.pad(self.weights - self.sample_weights))

    @functools.cached_property
    def residual(self) -> Float[np.ndarray, " N"]:
        """y − A α, by one product with K where it is not held; 0 without the targets."""
        if self.left is not None:
            return np.asarray(self.left, np.float64)[:, 0]
        if self.y is None:
            return np.zeros(len(self.weights))
        return self.y - np.asarray(whole_product(self.system.operator, self.weights), np.float64)[:, 0]

    def mean_and_variance(self, X: Rows) -> tuple[PerRow, PerRow]:
        X = np.asarray(X)
        return self.mean(X), self.variance_near(X)

    def covariance(self, X: Rows) -> Float[np.ndarray, "N N"]:
        """From solutions C ≈ A⁻¹k(X, Z), the covariance of the error of the linear predictor Cᵀy, never below the exact one, and equal to it if C is exact:

            CᵀΣC + [k(Z, Z) − k(Z, X)C − Cᵀ(k(X, Z) − KC)],

        the bracket without eigenvalues below its rounding error (`numerics.linalg`).
        """
        Z, kernel, noise = np.asarray(X), self.system.kernel, self.system.row_noise[:, None]
        across = dense.block(kernel, np.asarray(self.system.X), Z)
        C = np.asarray(self._solve(across).value)
        AC = np.asarray(whole_product(self.system.operator, jnp.asarray(C, self.system.operator.dtype)))
        across, C, AC = (part.astype(np.float64) for part in (across, C, AC))
        rest = dense.block(kernel, Z, Z).astype(np.float64) - across.T @ C - C.T @ (across - AC + noise * C)
        rounding = rounding_error(dense.diagonal(kernel, Z), np.sum(C**2, axis=0), self.dtype)
        of_noise = C.T @ (noise * C)
        return safe_covariance((of_noise + of_noise.T) / 2, rest, rounding)

    def need_bytes(
        self, n_rows: int = 0, *, covariance: bool = False, n_samples: int = 0, likelihood: bool = False
    ) -> int:
        need, (N, D) = self.shared_bytes(n_rows, covariance, n_samples), self.system.X.shape
        if likelihood:
            need += estimate_bytes(N, D, self.system.X.dtype.itemsize)
        if covariance:
            need += covariance_bytes(N, n_rows) + self.system.peak_bytes(self.solver, n_rows)
        return need

    @functools.cached_property
    def nlml_estimate(self) -> Estimate:
        """The NLML per datum with an estimated log-determinant, and its standard error."""
        system, key = self.system, jax.random.key(0)
        return nlml_estimate(system.operator, self.explained, self.weights, key=key, weight=system.weight)

    def _solve(self, b: Any) -> Solution:
        return solve(self.system.operator, b, self.solver, key=jax.random.key(0), tolerance=self.tolerance)


def joined(system: KernelSystem, new: Data) -> KernelSystem:
    """The system of the rows so far and, after them, the new ones."""
    X = np.concatenate([np.asarray(system.X), np.asarray(new.X, system.X.dtype)])
    weight = np.concatenate([system.weight, new.weights])
    return KernelSystem(system.kernel, on_device(X), weight, system.noise, system.tile)


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
    """α for the rows so far and n new ones, from the weights α_old of the first O rows; `left` is their residual, where it is known.

    The new rows begin without weights. Then, for one block J of rows after the other,

        α_J ← α_J + A_JJ⁻¹ r_J,    r ← r − A_{:,J} A_JJ⁻¹ r_J,    r = b − Aα,

    the exact minimiser of the dual objective ½ αᵀAα − αᵀb over the rows of the block (alternating projections: Wu, Wenger, Jones, Pleiss and Gardner, 2024).
    The first blocks are the new rows and those nearest to them. Further rows follow in a random order until r is within the tolerance, or would not be by the
    last row at the rate at which it falls. A block of m rows costs m/N of a product with A, and m³/3.

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
    for first in range(n_old, N, PRODUCT_ROWS):
        last = min(first + PRODUCT_ROWS, N)
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
    (products,) = by_blocks(lambda rows: (_product(operator, rows, padded),), PRODUCT_ROWS, X)
    return jnp.concatenate([jnp.asarray(left, b.dtype), b[len(left) :] - jnp.asarray(products, b.dtype)])


def _new_first(
    operator: KernelOperator, n_old: int, m: int, generator: np.random.Generator
) -> Int[np.ndarray, " N"]:
    """All rows: the new ones, the rows nearest to them, the others; in a random order where nothing else is said."""
    N, X = operator.size, np.asarray(operator.inputs, np.float64)
    new = n_old + generator.permutation(N - n_old)
    k = min(MAX_NEAR, n_old, max(1, NEAR_BLOCKS * m // len(new)))
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
    n = min(PRODUCT_ROWS, N)
    block = lambda start: matmul(operator.kernel.between(operator.block(start, n), columns), delta)
    Kd = filled(jnp.zeros_like(r), N, n, block)
    return V.at[rows].add(delta), (r - Kd).at[rows].add(-operator.noise[rows][:, None] * delta)
