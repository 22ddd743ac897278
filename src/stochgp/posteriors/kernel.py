"""The posterior of a kernel GP, from solutions of systems with A = K + Σ."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.operators import KernelOperator
from stochgp.priors import PriorFunctions


class KernelFunctions(eqx.Module):
    """S functions f_s(x) = f₀ₛ(x) + k(x, X) w_s drawn from a posterior: X [N, D] ↦ [N, S], anywhere, differentiable.

    Pathwise conditioning (Wilson et al. 2020): f₀ₛ is a prior draw, w_s = A⁻¹(y − f₀ₛ(X) − ε_s) with ε_s ~ N(0, Σ).
    """

    operator: KernelOperator
    prior: PriorFunctions
    weights: Float[Array, "P S"]

    @property
    def n_samples(self) -> int:
        return self.weights.shape[1]

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N S"]:
        return self.prior(X)[:, : self.n_samples] + _times(self.operator, X, self.weights)


class KernelPosterior(eqx.Module):
    """f | y for y = f(X) + ε, ε ~ N(0, Σ), A = K + Σ:

        mean(x) = k(x, X) A⁻¹y,    f_s(x) − mean(x) = f₀ₛ(x) − k(x, X) A⁻¹(f₀ₛ(X) + ε_s),

    of which the second has mean 0 and the posterior's covariance. `weights` is A⁻¹y; `sample_weights` are A⁻¹(f₀ₛ(X) + ε_s), as far as
    the solver came. Variances from S samples have a relative standard error of √(2/S). All are of f: observations add Σ.
    """

    operator: KernelOperator
    weights: Float[Array, "P 1"]
    prior: PriorFunctions | None
    sample_weights: Float[Array, "P S"] | None

    @property
    def n_samples(self) -> int:
        return 0 if self.sample_weights is None else self.sample_weights.shape[1]

    def mean(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """E f(x) for each row."""
        return _times(self.operator, X, self.weights)[:, 0]

    def prior_variance(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        """k(x, x) for each row."""
        return self.operator.kernel.diag(X)

    def mean_and_variance(self, X: Float[Array, "N D"]) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        """(E f(x), the samples' estimate of var f(x), at most the prior's) for each row, from one evaluation of k(x, X)."""
        if self.prior is None or self.sample_weights is None:
            raise ValueError("the posterior has no samples to estimate variances from")
        both = _times(self.operator, X, jnp.concatenate([self.weights, self.sample_weights], axis=1))
        deviations = self.prior(X)[:, : self.n_samples] - both[:, 1:]
        variance = jnp.minimum(jnp.mean(jnp.square(deviations), axis=1), self.prior_variance(X))
        return both[:, 0], variance

    def functions(self, n_samples: int) -> KernelFunctions:
        """The first `n_samples` of the samples that it holds, as functions."""
        if self.prior is None or self.sample_weights is None or n_samples > self.n_samples:
            raise ValueError(f"the posterior holds {self.n_samples} samples, not {n_samples}")
        weights = self.weights - self.sample_weights[:, :n_samples]
        return KernelFunctions(self.operator, self.prior, weights)


def sample_targets(
    operator: KernelOperator, prior: PriorFunctions, X: Float[Array, "N D"], *, key: PRNGKeyArray
) -> Float[Array, "N S"]:
    """f₀(X) + ε, ε ~ N(0, Σ): the right-hand sides of pathwise samples. X are the operator's rows, in its order."""
    noise = jnp.sqrt(operator.noise[: operator.size])[:, None]
    draws = jax.random.normal(key, (operator.size, prior.n_samples), operator.dtype)
    return prior(X) + noise * draws


def _times(operator: KernelOperator, X: Array, V: Any) -> Array:
    """k(X, ·) V, whose derivative in X evaluates the kernel again instead of keeping it."""
    return jax.checkpoint(lambda X, V: operator.times(operator.prepare(X), V))(X, V)  # pyright: ignore[reportPrivateImportUsage]
