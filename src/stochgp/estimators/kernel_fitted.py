"""What a fit of a kernel GP leaves behind, and predictions from it in the user's units."""

import functools
import math
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.data import Standardiser, TableEncoder
from stochgp.estimators.fitted import AbstractFitted, in_blocks
from stochgp.objectives.slq import Estimate, nlml_estimate
from stochgp.operators import KernelOperator
from stochgp.planning.prediction import chunk_bytes, covariance_bytes, result_bytes
from stochgp.posteriors import KernelFunctions, KernelPosterior, sample_targets
from stochgp.priors import PriorFunctions, prior_functions
from stochgp.solvers import (
    AbstractDirectSolver,
    AbstractSolver,
    Cholesky,
    Factor,
    Layout,
    SystemSize,
    solve,
)

ROWS = 512  # of every compiled evaluation, the last one padded


class Weights(eqx.Module):
    """Solutions of systems with A = K + Σ: A⁻¹y, and A⁻¹(f₀(X) + ε) of the samples f₀ of the prior, if any."""

    mean: Float[Array, "N 1"]
    prior: PriorFunctions | None
    samples: Float[Array, "N S"] | None


@dataclass(frozen=True, eq=False)
class KernelFitted(AbstractFitted):
    """The posterior of a kernel GP: its standardised rows X, the kernel, Σ and the weights.

    `exact` variances come from the Cholesky factor of A, which is computed when it is first wanted and is no part of a file; others
    from the samples. `solver` and `tolerance` serve the right-hand sides that come later: new samples, covariances.
    """

    encoder: TableEncoder | None
    inputs: Standardiser
    targets: Standardiser
    kernel: Any
    X: Float[Array, "N D"]
    row_noise: Float[Array, " N"]  # the diagonal of Σ
    weights: Weights
    solver: AbstractSolver
    tolerance: float
    exact: bool
    tile: int
    noise_variance: float
    explained: float  # yᵀα
    dtype: str

    @functools.cached_property
    def posterior(self) -> KernelPosterior:
        """What predictions are computed from."""
        with jax.enable_x64(True):
            operator = make_operator(self.kernel, self.X, self.row_noise, self.tile)
            w = self.weights
            samples = None if w.samples is None else operator.pad(w.samples)
            return KernelPosterior(operator, operator.pad(w.mean), w.prior, samples)

    @functools.cached_property
    def factor(self) -> Factor:
        """L of A = LLᵀ."""
        with jax.enable_x64(True):
            return self._direct.factorise(self.posterior.operator)

    def mean(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " N"]:
        (mean,) = self._by_block(lambda Z: (_mean(self.posterior, Z),), X)
        return self.targets.inverse(mean)

    def mean_and_std(
        self, X: Float[np.ndarray, "N D"], *, include_noise: bool
    ) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        evaluate = self._exactly if self.exact else lambda Z: _mean_and_variance(self.posterior, Z)
        mean, variance = self._by_block(evaluate, X)
        if include_noise:
            variance = variance + self.noise_variance
        return self.targets.inverse(mean), self.target_scale * np.sqrt(variance)

    def covariance(self, X: Float[np.ndarray, "N D"], *, include_noise: bool) -> Float[np.ndarray, "N N"]:
        """Exact with the Cholesky factor; otherwise from solutions C ≈ A⁻¹k(X, Z) as the covariance of the error of the linear

        predictor Cᵀy: never below the exact one, equal to it where C is exact.
        """
        with jax.enable_x64(True):
            Z = jnp.asarray(self.inputs.transform(X, self.dtype))
            operator = self.posterior.operator
            across, within = (np.asarray(part, np.float64) for part in _cross(operator, Z))
            if self.exact:
                half = self.factor.half(across).astype(np.float64)
                scaled = within - half.T @ half
            else:
                C = np.asarray(self._solve(across).value, np.float64)
                AC = np.asarray(_product(operator, jnp.asarray(C, operator.dtype)), np.float64)
                scaled = within - across.T @ C - C.T @ across + C.T @ AC
        scaled = (scaled + scaled.T) / 2
        scaled[np.diag_indices(len(X))] = np.clip(scaled.diagonal(), 0, None)
        if include_noise:
            scaled[np.diag_indices(len(X))] += self.noise_variance
        return scaled * self.target_scale**2

    def functions(self, n_samples: int, *, key: PRNGKeyArray) -> KernelFunctions:
        """New prior draws and their solutions."""
        prior_key, noise_key = jax.random.split(key)
        prior = prior_functions(
            self.kernel, self.X.shape[1], n_samples, key=prior_key, dtype=jnp.dtype(self.dtype)
        )
        operator = self.posterior.operator
        b = targets_of_samples(operator, prior, self.X, noise_key)
        weights = self.posterior.weights - operator.pad(jnp.asarray(self._solve(b).value))
        return KernelFunctions(operator, prior, weights)

    def nlml(self) -> float:
        """(yᵀA⁻¹y + log|A| + N log 2π) / 2N of the standardised targets, from the factor; a row of weight ρ counts as ρ rows, N = Σρ.

        ρ equal rows with noise σ² have the likelihood of one row with noise σ²/ρ, up to (ρ − 1)(log 2π + log σ²) + log ρ.
        """
        rho = self._row_weights
        n = float(rho.sum())
        total = self.explained + self.factor.log_determinant() + n * math.log(2 * math.pi)
        total += float(np.sum((rho - 1) * math.log(self.noise_variance) + np.log(rho)))
        return total / (2 * n)

    @functools.cached_property
    def nlml_estimate(self) -> Estimate:
        """The same with an estimated log-determinant, and its standard error; 0 where there is a factor."""
        if self.exact:
            return Estimate(self.nlml(), 0.0)
        operator, rho = self.posterior.operator, self._row_weights
        key = jax.random.key(0)
        return nlml_estimate(operator, self.explained, self.weights.mean, key=key, weight=rho)

    def predict_bytes(self, n_rows: int) -> int:
        """What `planning` counts, and the factor where it is to be computed first."""
        problem, layout = self._sizes
        factor = self.X.dtype.itemsize * problem.n_rows**2 if self.exact and "factor" not in vars(self) else 0
        variance = "exact" if self.exact else "samples" if problem.n_samples else "none"
        return result_bytes(n_rows, variance) + chunk_bytes(problem, ROWS, layout, variance) + factor

    def covariance_bytes(self, n_rows: int) -> int:
        problem, layout = self._sizes
        return covariance_bytes(problem, n_rows, layout, "exact" if self.exact else "samples")

    def functions_bytes(self, n_samples: int) -> int:
        problem, layout = self._sizes
        problem = problem._replace(n_samples=max(n_samples - 1, 0))
        return self.solver.need_bytes(problem, layout)

    @property
    def _direct(self) -> AbstractDirectSolver:
        """The solver, if it is direct, else Cholesky."""
        return self.solver if isinstance(self.solver, AbstractDirectSolver) else Cholesky()

    @property
    def _row_weights(self) -> Float[np.ndarray, " N"]:
        return self.noise_variance / np.asarray(self.row_noise, np.float64)

    @property
    def _sizes(self) -> tuple[SystemSize, Layout]:
        n_samples = 0 if self.weights.samples is None else self.weights.samples.shape[1]
        N, D = self.X.shape
        itemsize = self.X.dtype.itemsize
        return SystemSize(N, D, n_samples, itemsize * (D + 2), itemsize), Layout(self.tile)

    def _exactly(self, Z: Array) -> tuple[np.ndarray, np.ndarray]:
        """(mean, variance) with var f(x) = k(x, x) − ‖L⁻¹k(X, x)‖², within [0, k(x, x)]."""
        mean, across, within = (np.asarray(part) for part in _mean_and_cross(self.posterior, Z))
        explained = np.sum(np.square(self.factor.half(across.T), dtype=np.float64), axis=0)
        return mean, np.clip(within - explained, 0, None)

    def _solve(self, b: Any) -> Any:
        if self.exact:
            return self._direct.solve(self.posterior.operator, b, self.tolerance, self.factor)
        return solve(self.posterior.operator, b, self.solver, key=jax.random.key(0), tolerance=self.tolerance)

    def _by_block(self, evaluate: Any, X: np.ndarray) -> tuple[np.ndarray, ...]:
        return in_blocks(evaluate, self.inputs, X, self.dtype, ROWS)


@eqx.filter_jit
def make_operator(kernel: Any, X: Array, noise: Array, tile: int, keep_rows: int = 0) -> KernelOperator:
    """K + Σ."""
    return KernelOperator.of(kernel, X, noise, tile=tile, keep_rows=keep_rows)


@eqx.filter_jit
def _mean(posterior: KernelPosterior, Z: Array) -> Array:
    return posterior.mean(Z)


@eqx.filter_jit
def _mean_and_variance(posterior: KernelPosterior, Z: Array) -> tuple[Array, Array]:
    return posterior.mean_and_variance(Z)


@eqx.filter_jit
def _mean_and_cross(posterior: KernelPosterior, Z: Array) -> tuple[Array, Array, Array]:
    operator = posterior.operator
    across = operator.kernel.between(operator.prepare(Z), operator.block(0, operator.size))
    return posterior.mean(Z), across, posterior.prior_variance(Z)


@eqx.filter_jit
def _cross(operator: KernelOperator, Z: Array) -> tuple[Array, Array]:
    rows = operator.prepare(Z)
    return operator.kernel.between(operator.block(0, operator.size), rows), operator.kernel.between(
        rows, rows
    )


@eqx.filter_jit
def _product(operator: KernelOperator, V: Array) -> Array:
    return operator.unpad(operator.matvec(operator.pad(V)))


@eqx.filter_jit
def targets_of_samples(operator: KernelOperator, prior: PriorFunctions, X: Array, key: PRNGKeyArray) -> Array:
    """f₀(X) + ε: the right-hand sides of pathwise samples."""
    return sample_targets(operator, prior, X, key=key)
