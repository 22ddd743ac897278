"""The posterior of a kernel GP from solutions of A = K + Σ, as far as any solver came: variances from samples."""

import functools
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.kernels import AbstractKernel
from stochgp.likelihoods import AbstractNoise
from stochgp.objectives.slq import Estimate, nlml_estimate
from stochgp.operators import KernelOperator
from stochgp.posteriors.base import AbstractPosterior, PerRow, Request, Rows
from stochgp.posteriors.kernel import BLOCK, KernelFunctions, KernelSystem, cross, mean_of, symmetric, times
from stochgp.priors import PriorFunctions
from stochgp.results import Solution
from stochgp.solvers import AbstractSolver, solve


class SampledKernelPosterior(AbstractPosterior):
    """f | y for y = f(X) + ε, ε ~ N(0, Σ), A = K + Σ:

        mean(x) = k(x, X) A⁻¹y,    f_s(x) − mean(x) = f₀ₛ(x) − k(x, X) A⁻¹(f₀ₛ(X) + ε_s),

    of which the second has mean 0 and the posterior's covariance. `weights` is A⁻¹y; `sample_weights` are A⁻¹(f₀ₛ(X) + ε_s), as far as
    the solver came. Variances from S samples have a relative standard error of √(2/S). `solver` and `tolerance` serve the right-hand
    sides that come later: new samples, covariances.
    """

    system: KernelSystem
    weights: Float[Array, "N 1"]
    explained: float  # yᵀ A⁻¹y
    prior: PriorFunctions | None
    sample_weights: Float[Array, "N S"] | None
    solver: AbstractSolver
    tolerance: float
    block_rows: ClassVar[int | None] = BLOCK

    @property
    def kernel(self) -> AbstractKernel:
        return self.system.kernel

    @property
    def noise(self) -> AbstractNoise:
        return self.system.noise

    @property
    def n_samples(self) -> int:
        return 0 if self.sample_weights is None else self.sample_weights.shape[1]

    def mean(self, X: Rows) -> PerRow:
        return mean_of(self.system.operator, self.weights, X)

    def mean_and_variance(self, X: Rows) -> tuple[PerRow, PerRow]:
        """The variance is the samples' estimate, at most the prior's. ValueError without samples."""
        if self.prior is None or self.sample_weights is None:
            raise ValueError("the posterior has no samples to estimate variances from")
        return moments(self.system.operator, self.weights, self.prior, self.sample_weights, X)

    def covariance(self, X: Rows) -> Float[np.ndarray, "N N"]:
        """From solutions C ≈ A⁻¹k(X, Z), the covariance of the error of the linear predictor Cᵀy:

        k(Z, Z) − k(Z, X)C − Cᵀk(X, Z) + CᵀAC, never below the exact one, and equal to it where C is exact.
        """
        operator = self.system.operator
        across, within = (np.asarray(part, np.float64) for part in cross(operator, X))
        C = np.asarray(self._solve(across).value, np.float64)
        AC = np.asarray(_product(operator, jnp.asarray(C, operator.dtype)), np.float64)
        return symmetric(within - across.T @ C - C.T @ across + C.T @ AC)

    def functions(self, n_samples: int, *, key: PRNGKeyArray) -> KernelFunctions:
        return self.system.draw(self.weights, n_samples, self._solve, key=key)

    def need_bytes(self, request: Request) -> int:
        variance = "samples" if self.n_samples else "none"
        return self.system.need_bytes(request, self.n_samples, variance, self.solver)

    @functools.cached_property
    def nlml_estimate(self) -> Estimate:
        """The NLML per datum with an estimated log-determinant, and its standard error."""
        system, key = self.system, jax.random.key(0)
        return nlml_estimate(system.operator, self.explained, self.weights, key=key, weight=system.count)

    def _solve(self, b: Any) -> Solution:
        return solve(self.system.operator, b, self.solver, key=jax.random.key(0), tolerance=self.tolerance)


@eqx.filter_jit
def moments(
    operator: KernelOperator,
    weights: Float[Array, "N 1"],
    prior: PriorFunctions,
    sample_weights: Float[Array, "N S"],
    Z: Rows,
) -> tuple[Float[Array, " P"], Float[Array, " P"]]:
    """(E f(z), the samples' estimate of var f(z)) for each row, from one evaluation of k(z, X)."""
    Z = jnp.asarray(Z)
    both = times(operator, Z, operator.pad(jnp.concatenate([weights, sample_weights], axis=1)))
    deviations = prior(Z)[:, : sample_weights.shape[1]] - both[:, 1:]
    return both[:, 0], jnp.minimum(jnp.mean(jnp.square(deviations), axis=1), operator.kernel.diag(Z))


@eqx.filter_jit
def _product(operator: KernelOperator, V: Array) -> Array:
    return operator.unpad(operator.matvec(operator.pad(V)))
