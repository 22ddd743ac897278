"""The posterior of a kernel GP from solutions of systems with A = K + Σ, as far as any solver came; and how it takes in new rows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from stochgp.data.rows import Data
from stochgp.kernels import dense
from stochgp.numerics.arrays import on_device
from stochgp.numerics.linalg import rounding_error, safe_covariance
from stochgp.posteriors.base import PerRow, Rows
from stochgp.posteriors.kernel import AbstractKernelPosterior, KernelSystem, whole_product
from stochgp.results import Solution
from stochgp.solvers import AbstractSolver, solve
from stochgp.solvers.base import covariance_bytes


class SampledKernelPosterior(AbstractKernelPosterior):
    """f | y for y = f(X) + ε, ε ~ N(0, Σ), A = K + Σ, with mean(x) = k(x, X)α as far as the solver came.

    Parameters
    ----------
    system, weights, explained : KernelSystem, array [N, 1], float
        A, α = A⁻¹y, yᵀA⁻¹y.
    solver, tolerance : AbstractSolver, float
        For the right-hand sides that come later, to this relative residual.
    y, left : array [N], array [N]
        The targets, and y − Aα, in float64 on the host.
    information : float
        τ of variances.
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
