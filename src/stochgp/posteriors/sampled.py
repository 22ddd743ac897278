"""The posterior of a kernel GP from solutions of systems with A = K + Σ, as far as any solver came."""

import functools
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from stochgp.kernels import dense
from stochgp.numerics.linalg import rounding_error, safe_covariance
from stochgp.objectives.slq import estimate_bytes, nlml_estimate
from stochgp.posteriors.base import PerRow, Request, Rows
from stochgp.posteriors.kernel import (
    AbstractKernelPosterior,
    KernelFunctions,
    KernelSystem,
    NoiseDraws,
    whole_product,
)
from stochgp.priors import PriorFunctions
from stochgp.results import Estimate, Solution
from stochgp.solvers import AbstractSolver, solve
from stochgp.solvers.sizes import most_columns, sliced_covariance_bytes

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

    def left_out_variances(self, rows: Int[np.ndarray, " P"]) -> Float[np.ndarray, " P"]:
        return self.left_out_near(rows)

    def covariance(self, X: Rows) -> Float[np.ndarray, "N N"]:
        """From solutions C ≈ A⁻¹k(X, Z), the covariance of the error of the linear predictor Cᵀy:

        CᵀΣC + [k(Z, Z) − k(Z, X)C − Cᵀk(X, Z) + CᵀKC], never below the exact one, and equal to it where C is exact. Where rounding makes
        the bracket indefinite, its nearest semi-definite matrix stands for it (`numerics.linalg`).
        """
        return self._covariance(np.asarray(X), len(X))

    def covariance_within(self, X: Rows, free: int) -> Float[np.ndarray, "N N"]:
        """The same from as many columns of C at a time as there is memory for; the others wait in files of the system's temporary folder."""
        need = lambda n: self._covariance_bytes(len(X), n)
        return self._covariance(np.asarray(X), most_columns(need, len(X), free))

    def _covariance(self, X: Float[np.ndarray, "N D"], n_columns: int) -> Float[np.ndarray, "N N"]:
        """By blocks of columns: CᵢᵀΣCⱼ, and k(Zᵢ, Zⱼ) − k(Zᵢ, X)Cⱼ − CᵢᵀRⱼ, Rⱼ = k(X, Zⱼ) − KCⱼ, the latter without eigenvalues below its rounding error."""
        parts = [slice(i, min(i + n_columns, len(X))) for i in range(0, len(X), n_columns)]
        noise, squares = self.system.row_noise[:, None], np.empty(len(X))
        sure, rest = np.empty((2, len(X), len(X)))
        with tempfile.TemporaryDirectory(prefix="stochgp-") as folder:
            for j, columns in enumerate(parts):
                across, C, R = self._solved_columns(X[columns])
                np.save(Path(folder) / f"{j}.npy", np.stack([across, C]))
                C, R = C.astype(np.float64), R.astype(np.float64)
                squares[columns] = np.sum(C**2, axis=0)
                for i, rows in enumerate(parts[: j + 1]):
                    before, earlier = np.load(Path(folder) / f"{i}.npy").astype(np.float64)
                    within = dense.block(self.system.kernel, X[rows], X[columns]).astype(np.float64)
                    block = within - before.T @ C - earlier.T @ R
                    rest[rows, columns] = block
                    sure[rows, columns] = earlier.T @ (noise * C)
                    rest[columns, rows], sure[columns, rows] = rest[rows, columns].T, sure[rows, columns].T
        prior = dense.diagonal(self.system.kernel, X)
        sure += sure.T.copy()
        sure *= 0.5
        return safe_covariance(sure, rest, rounding_error(prior, squares, self.system.operator.dtype))

    def _solved_columns(self, Z: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(k(X, Z), C, R), in the operator's dtype."""
        operator = self.system.operator
        across = dense.block(self.system.kernel, np.asarray(self.system.X), np.asarray(Z))
        C = np.asarray(self._solve(across).value)
        KC = np.asarray(whole_product(operator, jnp.asarray(C, operator.dtype)))
        return across, C, across - KC + self.system.row_noise[:, None].astype(C.dtype) * C

    def _covariance_bytes(self, n_test: int, n_columns: int) -> int:
        size, layout = self.system.sizes(0)
        return sliced_covariance_bytes(size, n_test, layout, self.solver, n_columns)

    def need_bytes(self, request: Request) -> int:
        """Of covariances with one column at a time, of functions drawn one by one."""
        need = self.drawing_bytes(request)
        if request.likelihood:
            need += estimate_bytes(*self.system.sizes(self.n_samples))
        if request.covariance:
            return need + self._covariance_bytes(request.n_rows, 1)
        return need + self.near_bytes(request)

    @functools.cached_property
    def nlml_estimate(self) -> Estimate:
        """The NLML per datum with an estimated log-determinant, and its standard error."""
        system, key = self.system, jax.random.key(0)
        return nlml_estimate(system.operator, self.explained, self.weights, key=key, weight=system.weight)

    def _solve(self, b: Any) -> Solution:
        return solve(self.system.operator, b, self.solver, key=jax.random.key(0), tolerance=self.tolerance)
