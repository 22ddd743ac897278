"""The posterior of a kernel GP by a Cholesky factor: exact up to rounding."""

import functools
import math
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stochgp.data.rows import Rows as TrainingRows
from stochgp.kernels import dense
from stochgp.likelihoods import AbstractNoise
from stochgp.likelihoods.noise import noise_of_rows
from stochgp.numerics.linalg import factorised, rounding_error, safe_covariance, safe_variance
from stochgp.operators import AbstractOperator
from stochgp.posteriors.base import AbstractPosterior, PerRow, Request, Rows
from stochgp.posteriors.kernel import BLOCK, KernelFunctions, KernelSystem, cross, diagonal, mean_of
from stochgp.results import Estimate, Solution
from stochgp.solvers import AbstractDirectSolver, Factor
from stochgp.solvers.sizes import SMALL

COLUMNS = 500  # of L⁻¹ at a time


class ExactKernelPosterior(AbstractPosterior):
    """f | y for y = f(X) + ε, ε ~ N(0, Σ), A = K + Σ = LLᵀ:

        mean(x) = k(x, X) A⁻¹y,    cov(x, z) = k(x, z) − (L⁻¹k(X, x))·(L⁻¹k(X, z)).

    L is computed when it is first wanted, and is no part of a file.

    Parameters
    ----------
    system : KernelSystem
        A, with the training rows and the kernel.
    weights : array [N, 1]
        A⁻¹y.
    explained : float
        yᵀA⁻¹y.
    solver : AbstractDirectSolver
        Which factorises A.
    y : array [N], optional
        The targets, for new rows (`posteriors.growing`); None = it takes none in.
    """

    system: KernelSystem
    weights: Float[Array, "N 1"]
    explained: float
    solver: AbstractDirectSolver
    y: Float[np.ndarray, " N"] | None = None
    block_rows: ClassVar[int | None] = BLOCK

    @functools.cached_property
    def factor(self) -> Factor:
        """L, in the memory of the host."""
        if self.system.fits_host(self.solver):
            return factorised(self.system.upper)
        with jax.enable_x64(True):
            return self.solver.factorise(self.system.operator)

    @property
    def noise(self) -> AbstractNoise:
        return self.system.noise

    @property
    def dtype(self) -> str:
        return str(self.system.X.dtype)

    def mean(self, X: Rows) -> PerRow:
        """At known rows of a small system on the host; else in one program."""
        if self.system.fits_host(self.solver) and not isinstance(X, Tracer):
            return self.across(X) @ np.asarray(self.weights, np.float64)[:, 0]
        return mean_of(self.system.operator, self.weights, X)

    def mean_and_variance(self, X: Rows) -> tuple[PerRow, PerRow]:
        """The variance of the predictor bᵀy, b = A⁻¹k(X, x) with the factor's rounding and jitter, at most k(x, x).

        bᵀΣb + max(k(x, x) − ‖L⁻¹k(X, x)‖² − bᵀ(Σ + jitter)b, 4 eps k(x, x)(1 + ‖b‖²)): the second is hᵀK⁺h of `numerics.linalg`,
        or its rounding error, in the precision of the factor.
        """
        if self.system.fits_host(self.solver):
            across, within = self.across(X), np.asarray(diagonal(self.system.kernel, np.asarray(X)))
            mean = across @ np.asarray(self.weights, np.float64)[:, 0]
        else:
            found = _mean_and_cross(self.system.operator, self.weights, X)
            mean, across, within = (np.asarray(part) for part in found)
        half = self.factor.half(across.T)
        explained = np.sum(np.square(half, dtype=np.float64), axis=0)
        weight, of_noise = self._squares(self.factor.rest(half))
        rest = within - explained - of_noise - self.factor.jitter * weight
        rounding = rounding_error(within, weight, self.factor.L.dtype)
        return mean, safe_variance(of_noise, rest, within, rounding)

    def covariance(self, X: Rows) -> Float[np.ndarray, "N N"]:
        """As the variances: BᵀΣB + [k(Z, Z) − (L⁻¹k)ᵀ(L⁻¹k) − Bᵀ(Σ + jitter)B], the bracket without eigenvalues below its rounding error."""
        across, rest = (np.array(part, np.float64) for part in cross(self.system.operator, X))
        prior, half = rest.diagonal().copy(), self.factor.half(across)
        wide = half.astype(np.float64)
        rest -= wide.T @ wide
        B = self.factor.rest(half).astype(np.float64)
        rounding = rounding_error(prior, self._squares(B)[0], self.factor.L.dtype)
        rest -= self.factor.jitter * (B.T @ B)
        B *= np.sqrt(self.system.row_noise)[:, None]
        of_noise = B.T @ B
        rest -= of_noise
        return safe_covariance(of_noise, rest, rounding)

    def functions(self, n_samples: int, *, key: PRNGKeyArray) -> KernelFunctions:
        return self.system.draw(self.weights, n_samples, self._solve, key=key)

    def need_bytes(self, request: Request) -> int:
        """With the factor, where predictions must compute it first."""
        N, itemsize = len(self.system.X), self.system.X.dtype.itemsize
        factor = itemsize * N**2 if request.n_rows and "factor" not in vars(self) else 0
        return factor + self.system.need_bytes(request, 0, "exact", self.solver)

    def nlml(self) -> float:
        """(yᵀA⁻¹y + log|A| + N log 2π) / 2N; a row that counts as ρ counts as ρ rows, N = Σρ.

        ρ equal rows with noise σ² have the likelihood of one row with noise σ²/ρ, up to (ρ − 1)(log 2π + log σ²) + log ρ.
        """
        rho = self.system.weight
        n = float(rho.sum())
        with jax.enable_x64(True):
            s2 = noise_of_rows(self.noise, np.asarray(self.system.X, np.float64), np.ones_like(rho))
        total = self.explained + self.factor.log_determinant() + n * math.log(2 * math.pi)
        total += float(np.sum((rho - 1) * np.log(s2) + np.log(rho)))
        return total / (2 * n)

    @functools.cached_property
    def nlml_estimate(self) -> Estimate:
        """`nlml`, whose standard error is 0."""
        return Estimate(self.nlml())

    def errors_of_left_out(
        self, rows: Int[np.ndarray, " P"], data: TrainingRows, noise: float
    ) -> Float[np.ndarray, " P"] | None:
        """By `errors_without`, of few rows: each takes N² operations."""
        return self.errors_without(rows) if len(self.weights) <= SMALL else None

    def errors_without(self, rows: Int[np.ndarray, " P"]) -> Float[np.ndarray, " P"]:
        """z = e_i/√V_i of `left_out`."""
        e, V = self.left_out(rows)
        return e / np.sqrt(V)

    def left_out(
        self, rows: Int[np.ndarray, " P"]
    ) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, " P"]]:
        """(e_i, V_i): the error α_i/Q_ii of the variance 1/Q_ii, Q = A⁻¹, of each row given all others, and the variance of one observation there."""
        Q = np.empty(len(rows))
        for start in range(0, len(rows), COLUMNS):
            half = self.columns(rows[start : start + COLUMNS])
            Q[start : start + COLUMNS] = np.sum(np.square(half, dtype=np.float64), axis=0)
        alpha = np.asarray(self.weights, np.float64)[rows, 0]
        return alpha / Q, self.system.variance_of_one(rows, 1 / Q)

    def fold_out(
        self, data: TrainingRows, fold: Int[np.ndarray, " N"], noise: float
    ) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        """(Means, variances) of f at the rows of the fit, each fold F given the others at these hyperparameters: y_F − (Q_FF)⁻¹α_F and the diagonal of (Q_FF)⁻¹, less the noise."""
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
        """These columns of L⁻¹."""
        units = np.zeros((len(self.system.X), len(rows)), self.factor.L.dtype, order="F")
        units[rows, np.arange(len(rows))] = 1
        return self.factor.half(units)

    def _squares(self, b: Float[np.ndarray, "N P"]) -> Float[np.ndarray, "2 P"]:
        """(‖b‖², bᵀΣb) of each column."""
        squares = np.square(b, dtype=np.float64)
        return np.stack([squares.sum(axis=0), self.system.row_noise @ squares])

    def across(self, X: Float[Array | np.ndarray, "B D"]) -> Float[np.ndarray, "B N"]:
        """k(X, rows of the system), in float64."""
        with jax.enable_x64(True):
            return dense.block(
                self.system.kernel, np.asarray(X, np.float64), np.asarray(self.system.X, np.float64)
            )

    def _solve(self, b: Any) -> Solution:
        return self.solver.solve(self.system.operator, b, 0.0, self.factor)


@eqx.filter_jit
def _mean_and_cross(operator: AbstractOperator, weights: Array, Z: Rows) -> tuple[PerRow, Array, Array]:
    Z = jnp.asarray(Z)
    across = operator.kernel.between(operator.prepare(Z), operator.block(0, operator.size))
    return mean_of(operator, weights, Z), across, operator.kernel.diag(Z)
