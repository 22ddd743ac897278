"""The posterior of a kernel GP from solutions of systems with A = K + Σ, as far as any solver came."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from stochgp.kernels import dense
from stochgp.numerics.linalg import rounding_error, safe_covariance
from stochgp.posteriors.base import PerRow, Request, Rows
from stochgp.posteriors.kernel import (
    AbstractKernelPosterior,
    KernelFunctions,
    KernelSystem,
    NoiseDraws,
    whole_product,
)
from stochgp.priors import PriorFunctions
from stochgp.results import Solution
from stochgp.solvers import AbstractSolver, solve
from stochgp.solvers.base import covariance_bytes

SAMPLES = 64  # functions whose covariance stands for the posterior's, with a relative standard error of √(2/64) = 0.18


class SampledKernelPosterior(AbstractKernelPosterior):
    """f | y for y = f(X) + ε, ε ~ N(0, Σ), A = K + Σ, with mean(x) = k(x, X)α and f_s(x) − mean(x) = f₀ₛ(x) − k(x, X)u_s, as far as the solver came.

    Parameters
    ----------
    system, weights, explained, prior, sample_weights : KernelSystem, array [N, 1], float, PriorFunctions or None, array [N, S] or None
        A, α = A⁻¹y, yᵀA⁻¹y; f₀ₛ and u_s = A⁻¹(f₀ₛ(X) + ε_s) of functions that were solved for with the mean.
    solver, tolerance : AbstractSolver, float
        For the right-hand sides that come later, to this relative residual.
    y, draws, left : array [N] or None, NoiseDraws or None, array [N, 1 + S] or None
        For new rows (`posteriors.growing`): the targets, where ε_s come from, and the residuals of α and u_s where they are known.
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

    def need_bytes(self, request: Request) -> int:
        need, N = self.shared_bytes(request), len(self.system.X)
        if request.covariance:
            need += covariance_bytes(N, request.n_rows) + self.system.peak_bytes(self.solver, request.n_rows)
        return need

    def _solve(self, b: Any) -> Solution:
        return solve(self.system.operator, b, self.solver, key=jax.random.key(0), tolerance=self.tolerance)
