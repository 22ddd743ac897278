"""Posteriors of a kernel GP from a Cholesky factor or an iterative solver, and mixtures."""

import dataclasses
import functools
import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stochgp.data.rows import Data
from stochgp.kernels import dense
from stochgp.likelihoods import AbstractNoise
from stochgp.likelihoods.noise import noise_of_rows, with_level
from stochgp.numerics.arrays import on_device, on_host
from stochgp.numerics.linalg import factorised, rounding_error, safe_covariance
from stochgp.numerics.seeds import random_rows, split_key, words_of
from stochgp.posteriors.base import AbstractFunctions, AbstractPosterior, PerRow, Rows
from stochgp.posteriors.kernel import (
    BLOCK,
    EXACT_ROWS,
    AbstractKernelPosterior,
    KernelFunctions,
    KernelSystem,
    whole_product,
)
from stochgp.results import Solution
from stochgp.solvers import AbstractSolver, Cholesky, Factor, solve
from stochgp.solvers.base import covariance_bytes
from stochgp.solvers.cholesky import refined

COLUMNS = 500  # number of columns of L⁻¹ that are computed at a time
BY_FACTOR = 256  # number of left-out rows that calibrate τ


class ExactKernelPosterior(AbstractKernelPosterior):
    """The posterior of f given y = f(X) + ε with ε ~ N(0, Σ), using the factor L of K + Σ.

        mean(x) = k(x, X) A⁻¹y,    cov(x, z) = k(x, z) − (L⁻¹k(X, x))·(L⁻¹k(X, z)),    A = K + Σ.

    Variances are exact for up to 2,000 training rows. L is computed at its first use and is not saved.

    Parameters
    ----------
    system : KernelSystem
        The matrix A = K + Σ, with the training rows and the kernel.
    weights, explained, y
        `weights` is the column A⁻¹y, `explained` is the number yᵀA⁻¹y, and `y` contains the targets.
    information : float
        The number τ that calibrates the variances if there are more than 2,000 training rows (see
        `AbstractKernelPosterior`).
    """

    solver: ClassVar[Cholesky] = Cholesky()
    system: KernelSystem
    weights: Float[np.ndarray, "N 1"]
    explained: float
    y: Float[np.ndarray, " N"]
    information: float = 1.0

    @functools.cached_property
    def factor(self) -> Factor:
        """The Cholesky factor L, in host memory."""
        return factorised(self.system.upper)

    @property
    def is_exact(self) -> bool:
        """True if variances are exact, which requires few training rows."""
        return len(self.weights) <= EXACT_ROWS

    def mean_and_variance(self, X: Rows) -> tuple[PerRow, PerRow]:
        """Return mean and variance for each row.

        With few training rows, the variance is the error variance of the predictor bᵀy with b = A⁻¹k(X, x).
        This variance includes the effects of rounding errors and jitter on b.
        """
        X = np.asarray(X)
        if not self.is_exact:
            return self.mean(X), self.variance_near(X)
        parts = [self._exact_variance(X[i : i + BLOCK]) for i in range(0, len(X), BLOCK)]
        return self.mean(X), np.concatenate([np.zeros(0), *parts])

    def _exact_variance(self, X: Float[np.ndarray, "B D"]) -> PerRow:
        prior, half = dense.diagonal(self.system.kernel, X), self.factor.half(self.across(X).T)
        explained = np.sum(np.square(half, dtype=np.float64), axis=0)
        weight, of_noise = self._squares(self.factor.rest(half))
        rest = prior - explained - of_noise - self.factor.jitter * weight
        rounding = rounding_error(prior, weight, self.factor.L.dtype)
        return np.minimum(of_noise + np.maximum(rest, rounding), prior)

    def covariance(self, X: Rows) -> Float[np.ndarray, "N N"]:
        X = np.asarray(X, np.float64)
        rest, half = dense.block(self.system.kernel, X, X), self.factor.half(self.across(X).T)
        prior, wide = rest.diagonal().copy(), half.astype(np.float64)
        rest -= wide.T @ wide
        B = self.factor.rest(half).astype(np.float64)
        rounding = rounding_error(prior, self._squares(B)[0], self.factor.L.dtype)
        rest -= self.factor.jitter * (B.T @ B)
        B *= np.sqrt(self.system.row_noise)[:, None]
        of_noise = B.T @ B
        rest -= of_noise
        return safe_covariance(of_noise, rest, rounding)

    def need_bytes(self, n_rows: int = 0, *, covariance: bool = False, n_samples: int = 0) -> int:
        N, itemsize, n = len(self.system.X), self.system.X.dtype.itemsize, n_rows
        need, uses_factor = self.shared_bytes(n, covariance, n_samples), n and (covariance or self.is_exact)
        if uses_factor and "factor" not in vars(self):
            need += itemsize * N**2
        if covariance:
            return need + covariance_bytes(N, n)
        return need + (64 * n + 8 * 6 * min(n, BLOCK) * N if n and self.is_exact else 0)

    def nlml(self) -> float:
        """Return the NLML per datum, (yᵀA⁻¹y + log|A| + N log 2π) / 2N.

        With frequency weights ρ, N is Σρ, and the formula has additional terms for repeated rows.
        """
        rho = self.system.weight
        n = float(rho.sum())
        with jax.enable_x64(True):
            s2 = noise_of_rows(self.noise, np.asarray(self.system.X, np.float64), np.ones_like(rho))
        total = self.explained + self.factor.log_determinant() + n * math.log(2 * math.pi)
        total += float(np.sum((rho - 1) * np.log(s2) + np.log(rho)))
        return total / (2 * n)

    def errors_of_left_out(
        self, rows: Int[np.ndarray, " P"], data: Data, noise: float
    ) -> Float[np.ndarray, " P"] | None:
        if not self.is_exact:
            return None
        e, V = self.left_out(rows)
        return e / np.sqrt(V)

    def left_out_variances(self, rows: Int[np.ndarray, " P"]) -> Float[np.ndarray, " P"]:
        return self.left_out_by_factor(rows) if self.is_exact else super().left_out_variances(rows)

    def _right_variances(self) -> tuple[Int[np.ndarray, " P"], Float[np.ndarray, " P"]]:
        rows = random_rows(len(self.weights), BY_FACTOR, 0)
        return rows, self.left_out_by_factor(rows) - self.system.row_noise[rows]

    def scaled(self, c: float) -> "ExactKernelPosterior":
        made = super().scaled(c)
        vars(made)["factor"] = self.factor.times(c)
        return made

    def left_out_by_factor(self, rows: Int[np.ndarray, " P"]) -> Float[np.ndarray, " P"]:
        """Return 1/(A⁻¹)_ii for these rows, in O(N²) time for each row."""
        parts = (self.columns(rows[i : i + COLUMNS]) for i in range(0, len(rows), COLUMNS))
        return 1 / np.concatenate([np.sum(np.square(L, dtype=np.float64), axis=0) for L in parts])

    def fold_out(
        self, data: Data, fold: Int[np.ndarray, " N"], noise: float
    ) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        """Return the mean and variance of f at each training row, given the rows of other folds."""
        alpha, mean = np.asarray(self.weights, np.float64)[:, 0], np.array(data.y, np.float64)
        variance = np.empty(len(mean))
        for k in range(int(fold.max()) + 1):
            some = np.flatnonzero(fold == k)
            half = self.columns(some).astype(np.float64)
            inverse = np.linalg.inv(half.T @ half)
            mean[some] -= inverse @ alpha[some]
            variance[some] = inverse.diagonal()
        return mean, np.maximum(variance - self.system.row_noise, 0.0)

    def columns(self, rows: Int[np.ndarray, " P"]) -> Float[np.ndarray, "N P"]:
        """Return the columns `rows` of L⁻¹."""
        units = np.zeros((len(self.system.X), len(rows)), self.factor.L.dtype, order="F")
        units[rows, np.arange(len(rows))] = 1
        return self.factor.half(units)

    def _squares(self, b: Float[np.ndarray, "N P"]) -> Float[np.ndarray, "2 P"]:
        """Return ‖b‖² and bᵀΣb for each column of b."""
        squares = np.square(b, dtype=np.float64)
        return np.stack([squares.sum(axis=0), self.system.row_noise @ squares])

    def across(self, X: Float[Array | np.ndarray, "B D"]) -> Float[np.ndarray, "B N"]:
        """Return k(X, training rows) in float64."""
        with jax.enable_x64(True):
            return dense.block(
                self.system.kernel, np.asarray(X, np.float64), np.asarray(self.system.X, np.float64)
            )

    def _solve(self, b: Any) -> Solution:
        return refined(self.factor, b, self.system.times, 0.0, self.dtype)


class SampledKernelPosterior(AbstractKernelPosterior):
    """The posterior of f given y = f(X) + ε with ε ~ N(0, Σ), using α ≈ (K + Σ)⁻¹y.

    Parameters
    ----------
    system, weights, explained
        `system` is the matrix A = K + Σ, `weights` is the column α, and `explained` is the number yᵀα.
    solver, tolerance
        The solver for drawn functions and covariances, and the solver's tolerance.
    y, left, information
        `y` contains the targets, `left` is y − Aα, and `information` is τ, which calibrates the variances.
    """

    system: KernelSystem
    weights: Float[Array, "N 1"]
    explained: float
    solver: AbstractSolver
    tolerance: float
    y: Float[np.ndarray, " N"]
    left: Float[np.ndarray, " N"]
    information: float = 1.0

    @property
    def residual(self) -> Float[np.ndarray, " N"]:
        return self.left

    def mean_and_variance(self, X: Rows) -> tuple[PerRow, PerRow]:
        X = np.asarray(X)
        return self.mean(X), self.variance_near(X)

    def covariance(self, X: Rows) -> Float[np.ndarray, "N N"]:
        """Return the error covariance of the linear predictor Cᵀy with C ≈ A⁻¹k(X, Z).

        The covariance is CᵀΣC + [k(Z, Z) − k(Z, X)C − Cᵀ(k(X, Z) − KC)]. Negative eigenvalues of the bracket
        are set to 0. The result is at least the exact covariance.
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


class MixturePosterior(AbstractPosterior):
    """A mixture of S posteriors p(f | y, θ_s) with weights w_s and hyperparameters θ_s.

    If m_s is the mean and C_s the covariance of posterior s, the mixture has

        mean(x) = Σ_s w_s m_s(x),   cov(x, z) = Σ_s w_s [C_s(x, z) + (m_s(x) − mean(x))(m_s(z) − mean(z))].

    Parameters
    ----------
    base : ExactKernelPosterior
        The posterior at the learned hyperparameters. Predictions do not use this posterior.
    parts : tuple of ExactKernelPosterior
        The posteriors p(f | y, θ_s).
    shares : array [S]
        The weights w_s of the posteriors. The sum of the weights is 1.
    """

    base: ExactKernelPosterior
    parts: tuple[ExactKernelPosterior, ...]
    shares: Float[np.ndarray, " S"]
    block_rows: ClassVar[int | None] = None

    @property
    def system(self) -> KernelSystem:
        """The system at the learned hyperparameters."""
        return self.base.system

    @property
    def noise(self) -> AbstractNoise:
        """The noise model, with the weighted mean of the noise levels."""
        levels = [float(part.noise.level) for part in self.parts]
        return with_level(self.base.noise, float(self.shares @ levels))

    @property
    def dtype(self) -> str:
        return self.base.dtype

    def at(self, base: ExactKernelPosterior) -> "MixturePosterior":
        """Return the mixture for the rows of `base`, with the same hyperparameters and weights."""
        thetas = ((part.system.kernel, float(part.noise.level)) for part in self.parts)
        return MixturePosterior(base, tuple(exact_at(base, *theta) for theta in thetas), self.shares)

    def mean(self, X: Rows) -> PerRow:
        total: Any = sum(share * part.mean(X) for share, part in zip(self.shares, self.parts, strict=True))
        return total

    def mean_and_variance(self, X: Rows) -> tuple[PerRow, PerRow]:
        moments = [part.mean_and_variance(X) for part in self.parts]
        return self._total(moments)

    def covariance(self, X: Rows) -> Float[np.ndarray, "N N"]:
        D = np.stack([np.asarray(part.mean(X), np.float64) for part in self.parts])
        D -= self.shares @ D
        total: Any = D.T @ (self.shares[:, None] * D)
        for share, part in zip(self.shares, self.parts, strict=True):
            total += share * part.covariance(X)
        return total

    def functions(self, n_samples: int, *, key: PRNGKeyArray) -> "FunctionsOfParts":
        """Return drawn functions, each from a part that is drawn with probability w_s."""
        drawn = np.random.default_rng(words_of(key)).choice(len(self.shares), n_samples, p=self.shares)
        keys = split_key(key, n_samples)
        functions = [self.parts[s].functions(1, key=own) for s, own in zip(drawn, keys, strict=True)]
        return FunctionsOfParts(jax.tree.map(_stacked, *functions), n_samples)

    def need_bytes(self, n_rows: int = 0, *, covariance: bool = False, n_samples: int = 0) -> int:
        missing = sum("factor" not in vars(part) for part in self.parts) if n_rows else 0
        need = self.base.need_bytes(n_rows, covariance=covariance, n_samples=n_samples)
        return need + missing * 8 * len(self.system.X) ** 2

    def errors_of_left_out(
        self, rows: Int[np.ndarray, " P"], data: Data, noise: float
    ) -> Float[np.ndarray, " P"]:
        found = [part.left_out(rows) for part in self.parts]
        e, V = self._total(found)
        return np.asarray(e / np.sqrt(V))

    def fold_out(self, data: Data, fold: Int[np.ndarray, " N"], noise: float) -> tuple[PerRow, PerRow]:
        """Return the mean and variance of f at each training row, given the rows of other folds."""
        return self._total([part.fold_out(data, fold, noise) for part in self.parts])

    def _total(self, moments: list[tuple[Any, Any]]) -> tuple[PerRow, PerRow]:
        """Return the mean and variance of the mixture, from the moments of its parts."""
        means, variances = (np.stack(values) for values in zip(*moments, strict=True))
        mean = self.shares @ means
        total: Any = self.shares @ (variances + np.square(means - mean))
        return mean, total


class FunctionsOfParts(AbstractFunctions):
    """S drawn functions, each with its own kernel. The first axis of every array has length S."""

    each: KernelFunctions
    count: int = eqx.field(static=True)

    @property
    def n_samples(self) -> int:
        return self.count

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N S"]:
        arrays, rest = eqx.partition(self.each, eqx.is_array)
        return jax.lax.map(lambda part: eqx.combine(part, rest)(X)[:, 0], arrays).T

    def on_host(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N S"]:
        each = on_host(self.each)
        one = lambda s: jax.tree.map(lambda leaf: leaf[s] if eqx.is_array(leaf) else leaf, each)
        return np.concatenate([one(s).on_host(X) for s in range(self.count)], axis=1)


def exact_at(base: ExactKernelPosterior, kernel: Any, level: float) -> ExactKernelPosterior:
    """Return the posterior for a new kernel and noise; raise ValueError if A has no factor."""
    noise = with_level(base.noise, float(level))
    made = dataclasses.replace(base, system=dataclasses.replace(base.system, kernel=kernel, noise=noise))
    weights = made.factor.solve(base.y[:, None]).astype(np.float64)
    solved = dataclasses.replace(made, weights=weights, explained=float(base.y @ weights[:, 0]))
    vars(solved)["factor"] = made.factor
    return solved


def _stacked(*leaves: Any) -> Any:
    return on_device(np.stack(leaves)) if eqx.is_array(leaves[0]) else leaves[0]
