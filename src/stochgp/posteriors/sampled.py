"""The posterior of a kernel GP from solutions of systems with A = K + Σ, as far as any solver came; and how it takes in new rows."""

import dataclasses
import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float, Int

from stochgp.data.rows import Data
from stochgp.kernels import dense
from stochgp.neighbours import Neighbours
from stochgp.numerics.arrays import by_blocks, on_device
from stochgp.numerics.linalg import Factor, rounding_error, safe_covariance
from stochgp.operators import KernelOperator
from stochgp.posteriors.base import PerRow, Rows
from stochgp.posteriors.kernel import (
    AbstractKernelPosterior,
    KernelFunctions,
    KernelSystem,
    NoiseDraws,
    divided,
    sample_targets,
    times,
    whole_product,
)
from stochgp.priors import PriorFunctions
from stochgp.results import Solution
from stochgp.solvers import AbstractSolver, solve
from stochgp.solvers.base import covariance_bytes

SAMPLES = 64  # functions whose covariance stands for the posterior's, with a relative standard error of √(2/64) = 0.18
PRODUCT_ROWS = 1024  # rows of which products are computed at once
LEAST_ROWS, MOST_ROWS = 256, 4096  # of a block
ROWS_PER_ROOT = 16  # a block has 16 √N rows: then its factor takes about as long as its columns of K
BYTES_PER_ENTRY = 24  # of A_JJ, while it is solved with
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

    def scaled(self, c: float) -> "SampledKernelPosterior":
        """Right-hand sides of samples are multiplied by √c, so their solutions are divided by it."""
        made, more = super().scaled(c), dict[str, Any]()
        if self.left is not None:
            more["left"] = divided(self.left, np.array([1.0] + [c**-0.5] * self.n_samples))
        if self.prior is not None:
            more["prior"] = dataclasses.replace(self.prior, kernel=self.prior.kernel.times(c))
            more["sample_weights"] = divided(self.sample_weights, c**0.5)
        made = made.changed(**more)
        vars(made)["residual"] = self.residual  # the same, and it takes a product with K
        return made

    def mean_and_variance(self, X: Rows) -> tuple[PerRow, PerRow]:
        X = np.asarray(X)
        return self.mean(X), self.variance_near(X)

    def covariance(self, X: Rows) -> Float[np.ndarray, "N N"]:
        """From solutions C ≈ A⁻¹k(X, Z), the covariance of the error of the linear predictor Cᵀy, never below the exact one, and equal to it if C is exact.

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

    def need_bytes(self, n_rows: int = 0, *, covariance: bool = False, n_samples: int = 0) -> int:
        need, N = self.shared_bytes(n_rows, covariance, n_samples), len(self.system.X)
        if covariance:
            need += covariance_bytes(N, n_rows) + self.system.peak_bytes(self.solver, n_rows)
        return need

    def _solve(self, b: Any) -> Solution:
        return solve(self.system.operator, b, self.solver, key=jax.random.key(0), tolerance=self.tolerance)


def joined(system: KernelSystem, new: Data) -> KernelSystem:
    """Return the system of the rows so far and, after them, the new ones."""
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
    *,
    most_bytes: float = math.inf,
) -> Float[Array, "N C"]:
    """α for the rows so far and n new ones, from the weights α_old of the first O rows.

    The new rows begin without weights. For a block J of them and the rows nearest to them then

        α_J ← α_J + A_JJ⁻¹(b − Aα)_J,

    the exact minimiser over the block of the dual objective ½ αᵀAα − αᵀb (alternating projections: Wu, Wenger, Jones, Pleiss and Gardner, 2024): new rows
    are not overlooked because they are few. The block takes at most `most_bytes`, but is not smaller than 256 rows. m rows cost m/N of a product with A, and m³/3.
    """
    n_old, N = len(weights), operator.size
    b = jnp.asarray(b)
    V = jnp.concatenate([jnp.asarray(weights, b.dtype), jnp.zeros((N - n_old, b.shape[1]), b.dtype)])
    m = max(
        int(min(MOST_ROWS, ROWS_PER_ROOT * math.isqrt(N), math.sqrt(most_bytes / BYTES_PER_ENTRY))),
        LEAST_ROWS,
    )
    rows = _new_and_near(operator, n_old, m)
    X, padded = np.asarray(operator.inputs)[rows], operator.pad(V)
    (products,) = by_blocks(lambda part: (_product(operator, part, padded),), PRODUCT_ROWS, X)
    A = np.array(_within(operator, jnp.asarray(rows)), np.float64)
    of_noise = np.asarray(operator.noise, np.float64)[rows, None] * np.asarray(V, np.float64)[rows]
    error = np.asarray(b, np.float64)[rows] - products - of_noise
    rounding = float(jnp.finfo(operator.dtype).eps) * N**0.5
    A[np.diag_indices(len(A))] += DAMPING * rounding * A.diagonal().mean()
    delta = scipy.linalg.solve(A, error, assume_a="pos", overwrite_a=True, check_finite=False)
    return V.at[rows].add(on_device(delta, b.dtype))


def extended(factor: Factor, system: KernelSystem, n_old: int) -> Factor | None:
    """Return the factor of the joined system from that of its first `n_old` rows, with the same jitter; None where rounding allows none.

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


def _new_and_near(operator: KernelOperator, n_old: int, m: int) -> Int[np.ndarray, " m"]:
    """At most m rows: the new ones, those nearest to them, others."""
    N, X = operator.size, np.asarray(operator.inputs, np.float64)
    k = min(n_old, -(-m // (N - n_old)))
    near = Neighbours(X[:n_old], operator.kernel).query(X[n_old:], k).T.ravel()
    order = np.concatenate([np.arange(n_old, N), near, np.arange(n_old)])
    return order[np.sort(np.unique(order, return_index=True)[1])][:m]


@eqx.filter_jit
def _product(operator: KernelOperator, X: Float[Any, "n D"], V: Array) -> Float[Array, "n C"]:
    return times(operator, X, V)


@eqx.filter_jit
def _within(operator: KernelOperator, rows: Int[Array, " m"]) -> Float[Array, "m m"]:
    some = operator.take(rows)
    return operator.kernel.between(some, some) + jnp.diag(operator.noise[rows])
