"""What the posteriors of a kernel GP share: the system A = K + Σ, solutions of it as weights of rows, and functions drawn from them."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.likelihoods import AbstractNoise
from stochgp.operators import KernelOperator
from stochgp.planning.memory import Layout, Problem, solve_bytes
from stochgp.planning.prediction import chunk_bytes, covariance_bytes, result_bytes
from stochgp.posteriors.base import AbstractFunctions, PerRow, Request, Rows, noise_variances
from stochgp.priors import PriorFunctions, prior_functions
from stochgp.results import Solution
from stochgp.solvers import AbstractSolver

BLOCK = 512  # rows of a compiled evaluation


class KernelSystem(eqx.Module):
    """A = K + Σ of training rows X, Σ = diag(σ² s(x)/ρ) for rows that count as ρ rows. Products take K in tiles of `tile` columns."""

    kernel: Any
    X: Float[Array, "N D"]
    count: Float[np.ndarray, " N"]  # ρ
    noise: AbstractNoise
    tile: int

    @functools.cached_property
    def operator(self) -> KernelOperator:
        with jax.enable_x64(True):
            spread = noise_variances(self.noise, self.X, self.count).astype(self.X.dtype)
            return _operator(self.kernel, self.X, spread, self.tile)

    def draw(
        self,
        weights: Float[Array, "N 1"],
        n_samples: int,
        solve: Callable[[Array], Solution],
        *,
        key: PRNGKeyArray,
    ) -> "KernelFunctions":
        """New prior draws, conditioned by solutions for their own right-hand sides."""
        prior_key, noise_key = jax.random.split(key)
        prior = prior_functions(
            self.kernel, self.X.shape[1], n_samples, key=prior_key, dtype=jnp.dtype(self.X.dtype)
        )
        b = sample_targets(self.operator, prior, self.X, key=noise_key)
        pad = self.operator.pad
        return KernelFunctions(self.operator, prior, pad(weights) - pad(jnp.asarray(solve(b).value)))

    def need_bytes(self, request: Request, n_held: int, variance: str, solver: AbstractSolver) -> int:
        """By the planner's counts, with `n_held` samples; `variance` is "exact", "samples" or "none"."""
        (N, D), itemsize, need = self.X.shape, self.X.dtype.itemsize, 0
        problem, layout = Problem(N, D, n_held, itemsize * (D + 2), itemsize), Layout(self.tile)
        if request.covariance:
            how = "exact" if variance == "exact" else "samples"
            need += covariance_bytes(problem, request.n_rows, layout, how)
        elif request.n_rows:
            need += result_bytes(request.n_rows, variance) + chunk_bytes(problem, BLOCK, layout, variance)
        if request.n_samples:
            drawn = problem._replace(n_samples=request.n_samples - 1)
            need += solve_bytes(drawn, solver, layout, itemsize)
        return need


class KernelFunctions(AbstractFunctions):
    """f_s(x) = f₀ₛ(x) + k(x, X) w_s.

    Pathwise conditioning (Wilson et al. 2020): f₀ₛ is a prior draw, w_s = A⁻¹(y − f₀ₛ(X) − ε_s) with ε_s ~ N(0, Σ).
    """

    operator: KernelOperator
    prior: PriorFunctions
    weights: Float[Array, "P S"]

    @property
    def n_samples(self) -> int:
        return self.weights.shape[1]

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N S"]:
        return self.prior(X)[:, : self.n_samples] + times(self.operator, X, self.weights)


@eqx.filter_jit
def sample_targets(
    operator: KernelOperator, prior: PriorFunctions, X: Float[Array, "N D"], *, key: PRNGKeyArray
) -> Float[Array, "N S"]:
    """f₀(X) + ε, ε ~ N(0, Σ): the right-hand sides of pathwise samples. X are the operator's rows, in its order."""
    noise = jnp.sqrt(operator.noise[: operator.size])[:, None]
    draws = jax.random.normal(key, (operator.size, prior.n_samples), operator.dtype)
    return prior(X) + noise * draws


@eqx.filter_jit
def mean_of(operator: KernelOperator, weights: Float[Array, "N 1"], Z: Rows) -> PerRow:
    """k(z, X) w for each row."""
    return times(operator, Z, operator.pad(weights))[:, 0]


@eqx.filter_jit
def cross(operator: KernelOperator, Z: Rows) -> tuple[Float[Array, "T N"], Float[Array, "N N"]]:
    """(k(X, Z), k(Z, Z))."""
    rows = operator.prepare(jnp.asarray(Z))
    between = operator.kernel.between
    return between(operator.block(0, operator.size), rows), between(rows, rows)


def times(operator: KernelOperator, X: Rows, V: Array) -> Array:
    """k(X, ·) V, whose derivative in X evaluates the kernel again instead of keeping it."""
    product = jax.checkpoint(lambda X, V: operator.times(operator.prepare(X), V))  # pyright: ignore[reportPrivateImportUsage]
    return product(jnp.asarray(X), V)


def symmetric(C: Float[np.ndarray, "N N"]) -> Float[np.ndarray, "N N"]:
    """(C + Cᵀ)/2 with its diagonal at least 0: what rounding took from a covariance."""
    C = (C + C.T) / 2
    C[np.diag_indices(len(C))] = np.clip(C.diagonal(), 0, None)
    return C


@eqx.filter_jit
def _operator(kernel: Any, X: Array, noise: Array, tile: int) -> KernelOperator:
    return KernelOperator.of(kernel, X, noise, tile=tile)
