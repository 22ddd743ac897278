"""The posterior of a kernel GP from solutions of systems with A = K + Σ, as far as any solver came."""

import dataclasses
import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.devices import Devices
from stochgp.kernels import dense
from stochgp.likelihoods import AbstractNoise
from stochgp.likelihoods.noise import noise_of_rows, noise_variances
from stochgp.numerics.dense_factor import rounding_error, safe_covariance
from stochgp.objectives.slq import Estimate, estimate_bytes, nlml_estimate
from stochgp.operators import AbstractOperator, AbstractProduct, KernelOperator, ShardedOperator
from stochgp.planning.memory import (
    COMPILER_BYTES,
    chunk_bytes,
    covariance_bytes,
    most_columns,
    result_bytes,
    sliced_covariance_bytes,
)
from stochgp.posteriors.base import (
    AbstractFunctions,
    AbstractPosterior,
    PerRow,
    Request,
    Rows,
    variance_of_samples,
)
from stochgp.priors import PriorFunctions, prior_functions
from stochgp.results import Solution
from stochgp.solvers import AbstractSolver, Layout, SystemSize, solve
from stochgp.solvers.sizes import SMALL

BLOCK = 512  # rows of a compiled evaluation


class KernelSystem(eqx.Module):
    """A = K + Σ of training rows X, Σ = diag(σ² s(x)/ρ) for rows that count as ρ rows.

    Parameters
    ----------
    kernel, X, weight, noise, tile : AbstractKernel, array [N, D], array [N], AbstractNoise, int
        k, the rows, ρ, the noise variances σ² s(x), and the columns of a tile in which products take K.
    """

    kernel: Any
    X: Float[Array, "N D"]
    weight: Float[np.ndarray, " N"]
    noise: AbstractNoise
    tile: int

    def fits_host(self, solver: AbstractSolver) -> bool:
        """Whether A is filled on the host, tile by tile, so that nothing is compiled for its size: few rows in float64."""
        return solver.takes_filled and len(self.X) <= SMALL and self.X.dtype == np.float64

    def upper(self) -> Float[np.ndarray, "N N"]:
        """A on and right of its diagonal, in float64."""
        X = np.asarray(self.X, np.float64)
        with jax.enable_x64(True):
            A = dense.upper(self.kernel, X, np.float64)
            A[np.diag_indices(len(X))] += self.row_noise
        return A

    @functools.cached_property
    def row_noise(self) -> Float[np.ndarray, " N"]:
        """diag(Σ), in float64 on the host."""
        with jax.enable_x64(True):
            return noise_of_rows(self.noise, np.asarray(self.X, np.float64), self.weight)

    @functools.cached_property
    def operator(self) -> AbstractOperator:
        """Computed when it is first wanted, at once also where a function that uses it is being traced."""
        with jax.enable_x64(True), jax.ensure_compile_time_eval():
            spread = noise_variances(self.noise, self.X, self.weight).astype(self.X.dtype)
            return _operator(self.kernel, self.X, spread, self.tile)

    def spread_over(self, devices: Devices, product: AbstractProduct | None = None) -> "KernelSystem":
        """The same with its operator's rows spread over these devices, products as `ShardedOperator.of`. A file holds the system without them."""
        if devices.mesh is None:
            return self
        made = dataclasses.replace(self)
        with jax.enable_x64(True):
            spread = noise_variances(self.noise, self.X, self.weight).astype(self.X.dtype)
            many = ShardedOperator.of(self.kernel, self.X, spread, devices, tile=self.tile, product=product)
        vars(made)["operator"] = many  # what its property would make on one device
        return made

    def draw(
        self, weights: Float[Array, "N 1"], n_samples: int, solve: Callable, *, key: PRNGKeyArray
    ) -> "KernelFunctions":
        """New prior draws, conditioned by `solve` for their own right-hand sides; `weights` are those of the mean."""
        prior_key, noise_key = jax.random.split(key)
        prior = prior_functions(self.kernel, self.X.shape[1], n_samples, key=prior_key, dtype=self.X.dtype)
        b = sample_targets(self.operator, prior, self.X, key=noise_key)
        pad = self.operator.pad
        return KernelFunctions(self.operator, prior, pad(weights) - pad(jnp.asarray(solve(b).value)))

    def sizes(self, n_held: int) -> tuple[SystemSize, Layout]:
        """Of the system with `n_held` samples, for the planner's counts."""
        (N, D), itemsize = self.X.shape, self.X.dtype.itemsize
        return SystemSize(N, D, n_held, itemsize * (D + 2), itemsize), Layout(self.tile)

    def need_bytes(self, request: Request, n_held: int, variance: str, solver: AbstractSolver) -> int:
        """By the planner's counts, with `n_held` samples; `variance` is "exact", "samples" or "none"."""
        (problem, layout), need = self.sizes(n_held), 0
        if request.covariance:
            how = "exact" if variance == "exact" else "samples"
            need += covariance_bytes(problem, request.n_rows, layout, how)
        elif request.n_rows:
            need += result_bytes(request.n_rows, variance) + COMPILER_BYTES
            need += chunk_bytes(problem, BLOCK, layout, variance)
        if request.n_samples:
            drawn = problem._replace(n_samples=request.n_samples - 1)
            need += solver.need_bytes(drawn, layout)
        return need


class KernelFunctions(AbstractFunctions):
    """f_s(x) = f₀ₛ(x) + k(x, X) w_s: pathwise conditioning (Wilson et al. 2020).

    Parameters
    ----------
    operator, prior, weights : AbstractOperator, PriorFunctions, array [P, S]
        A, the prior draws f₀ₛ, and w_s = A⁻¹(y − f₀ₛ(X) − ε_s), ε_s ~ N(0, Σ), with rows of zeros beyond N.
    """

    operator: AbstractOperator
    prior: PriorFunctions
    weights: Float[Array, "P S"]

    @property
    def n_samples(self) -> int:
        return self.weights.shape[1]

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N S"]:
        return self.prior(X)[:, : self.n_samples] + times(self.operator, X, self.weights)

    def at_own(self, Z: Float[Array, "S R D"]) -> Float[Array, "S R"]:
        """By so many functions at a time that about `BLOCK` rows of K exist."""
        (S, R, _), V = Z.shape, self.weights
        n = max(1, min(S, BLOCK // R))
        starts = jnp.minimum(jnp.arange(-(-S // n)) * n, S - n)  # the last ones overlap

        def part(start: Array) -> Array:
            own, weights = (jax.lax.dynamic_slice_in_dim(of, start, n, axis) for of, axis in ((Z, 0), (V, 1)))
            return times_own(self.operator, own, weights)

        found = jax.lax.map(part, starts)  # [parts, n, R]
        place = (starts[:, None] + jnp.arange(n)).ravel()
        data = jnp.zeros((S, R), V.dtype).at[place].set(found.reshape(-1, R))
        return self.prior.at_own(Z)[: self.n_samples] + data


class NoiseDraws(NamedTuple):
    """Where ε of the samples comes from: standard normal draws of `keys[i]`, [n_rows[i], S], one part of the rows after the other."""

    n_rows: tuple[int, ...]
    keys: tuple[PRNGKeyArray, ...]


class SampledKernelPosterior(AbstractPosterior):
    """f | y for y = f(X) + ε, ε ~ N(0, Σ), A = K + Σ, with mean(x) = k(x, X)α and f_s(x) − mean(x) = f₀ₛ(x) − k(x, X)u_s, as far as the solver came.

    Parameters
    ----------
    system, weights, explained, prior, sample_weights : KernelSystem, array [N, 1], float, PriorFunctions or None, array [N, S] or None
        A, α = A⁻¹y, yᵀA⁻¹y, f₀ₛ, and u_s = A⁻¹(f₀ₛ(X) + ε_s); variances from S samples have a relative standard error of at most √(2/S).
    solver, tolerance : AbstractSolver, float
        For the right-hand sides that come later, to this relative residual.
    y, draws, left : array [N] or None, NoiseDraws or None, array [N, 1 + S] or None
        For new rows (`posteriors.growing`): the targets, where ε_s come from, and the residuals of α and u_s where they are known.
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
    block_rows: ClassVar[int | None] = BLOCK

    @property
    def noise(self) -> AbstractNoise:
        return self.system.noise

    @property
    def dtype(self) -> str:
        return str(self.system.X.dtype)

    @property
    def n_samples(self) -> int:
        return 0 if self.sample_weights is None else self.sample_weights.shape[1]

    @functools.cached_property
    def residual(self) -> Float[np.ndarray, " N"] | None:
        """y − A α, by one product with K where it is not held; None without the targets."""
        if self.left is not None:
            return np.asarray(self.left, np.float64)[:, 0]
        if self.y is None:
            return None
        return self.y - np.asarray(whole_product(self.system.operator, self.weights), np.float64)[:, 0]

    @property
    def squared_deviations(self) -> Float[np.ndarray, " N"] | None:
        """mean_s d_s², d_s = f_s − mean = Σu_s − ε_s + r_s at the training rows, r_s the residual where it is held; None without the draws of ε."""
        if self.draws is None or self.sample_weights is None:
            return None
        noise, S, dtype = self.system.row_noise, self.n_samples, self.system.X.dtype
        parts = zip(self.draws.keys, self.draws.n_rows, strict=True)
        drawn = np.concatenate([np.asarray(jax.random.normal(key, (n, S), dtype)) for key, n in parts])
        u, total = np.asarray(self.sample_weights), np.zeros(len(noise))
        left = None if self.left is None else np.asarray(self.left)[:, 1:]
        for s in range(S):
            d = noise * u[:, s] - np.sqrt(noise) * drawn[:, s]
            total += np.square(d if left is None else d + left[:, s]) / S
        return total

    def mean(self, X: Rows) -> PerRow:
        return mean_of(self.system.operator, self.weights, X)

    @property
    def has_variance(self) -> bool:
        return self.n_samples > 0

    def mean_and_variance(self, X: Rows) -> tuple[PerRow, PerRow]:
        """The variance is that of `moments`: the samples' estimate, at most the prior's. Raises ValueError without samples."""
        if self.prior is None or self.sample_weights is None:
            raise ValueError("the posterior has no samples to estimate variances from")
        return moments(self.system.operator, self.weights, self.prior, self.sample_weights, X)

    def covariance(self, X: Rows) -> Float[np.ndarray, "N N"]:
        """From solutions C ≈ A⁻¹k(X, Z), the covariance of the error of the linear predictor Cᵀy:

        CᵀΣC + [k(Z, Z) − k(Z, X)C − Cᵀk(X, Z) + CᵀKC], never below the exact one, and equal to it where C is exact. Where rounding makes
        the bracket indefinite, its nearest semi-definite matrix stands for it (`numerics.dense_factor`).
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
                    within = np.asarray(_between(self.system.operator, X[rows], X[columns]), np.float64)
                    block = within - before.T @ C - earlier.T @ R
                    rest[rows, columns] = block
                    sure[rows, columns] = earlier.T @ (noise * C)
                    rest[columns, rows], sure[columns, rows] = rest[rows, columns].T, sure[rows, columns].T
        prior = np.asarray(diagonal(self.system.kernel, X), np.float64)
        sure += sure.T.copy()
        sure *= 0.5
        return safe_covariance(sure, rest, rounding_error(prior, squares, self.system.operator.dtype))

    def _solved_columns(self, Z: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(k(X, Z), C, R), in the operator's dtype."""
        operator = self.system.operator
        across = np.asarray(cross(operator, Z)[0])
        C = np.asarray(self._solve(across).value)
        noise = self.system.row_noise[:, None].astype(C.dtype)
        return (
            across,
            C,
            across - np.asarray(whole_product(operator, jnp.asarray(C, operator.dtype))) + noise * C,
        )

    def _covariance_bytes(self, n_test: int, n_columns: int) -> int:
        size, layout = self.system.sizes(0)
        return sliced_covariance_bytes(size, n_test, layout, self.solver, n_columns)

    def functions(self, n_samples: int, *, key: PRNGKeyArray) -> KernelFunctions:
        return self.system.draw(self.weights, n_samples, self._solve, key=key)

    def need_bytes(self, request: Request) -> int:
        """Of covariances with one column at a time, of functions drawn one by one."""
        variance, need = "samples" if self.n_samples else "none", 0
        if request.covariance:
            need += self._covariance_bytes(request.n_rows, 1)
            request = request._replace(n_rows=0, covariance=False)
        if request.likelihood:
            size, layout = self.system.sizes(self.n_samples)
            need += estimate_bytes(size, layout)
        return need + self.system.need_bytes(request, self.n_samples, variance, self.solver)

    @functools.cached_property
    def nlml_estimate(self) -> Estimate:
        """The NLML per datum with an estimated log-determinant, and its standard error."""
        system, key = self.system, jax.random.key(0)
        return nlml_estimate(system.operator, self.explained, self.weights, key=key, weight=system.weight)

    def _solve(self, b: Any) -> Solution:
        return solve(self.system.operator, b, self.solver, key=jax.random.key(0), tolerance=self.tolerance)


@eqx.filter_jit
def sample_targets(
    operator: AbstractOperator, prior: PriorFunctions, X: Float[Array, "N D"], *, key: PRNGKeyArray
) -> Float[Array, "N S"]:
    """f₀(X) + ε, ε ~ N(0, Σ): the right-hand sides of pathwise samples.

    Parameters
    ----------
    operator, prior, X, key : AbstractOperator, PriorFunctions, array [N, D], PRNG key
        A = K + Σ, f₀, the rows of A in its order, and where ε comes from.
    """
    noise = jnp.sqrt(operator.noise[: operator.size])[:, None]
    draws = jax.random.normal(key, (operator.size, prior.n_samples), operator.dtype)
    return prior(X) + noise * draws


@eqx.filter_jit
def mean_of(operator: AbstractOperator, weights: Float[Array, "R 1"], Z: Rows) -> PerRow:
    """k(z, X) w for each row."""
    return times(operator, Z, operator.pad(weights))[:, 0]


@eqx.filter_jit
def moments(
    operator: AbstractOperator,
    weights: Float[Array, "R 1"],
    prior: PriorFunctions,
    sample_weights: Float[Array, "R S"],
    Z: Rows,
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """(E f(z), `variance_of_samples` for var f(z)), at least one deviation's squared rounding error eps² k(z, z)[1 + k(z, z) mean ‖w‖²], from one k(z, X)."""
    Z = jnp.asarray(Z)
    both = times(operator, Z, operator.pad(jnp.concatenate([weights, sample_weights], axis=1)))
    g, largest = both[:, 1:], operator.kernel.diag(Z)
    variance = variance_of_samples(prior(Z)[:, : sample_weights.shape[1]] - g, g, largest)
    eps, size = float(jnp.finfo(both.dtype).eps), jnp.mean(jnp.sum(jnp.square(sample_weights), axis=0))
    rounding = eps**2 * largest * (1 + largest * size)
    return both[:, 0], jnp.minimum(jnp.maximum(variance, rounding), largest)


@eqx.filter_jit
def cross(operator: AbstractOperator, Z: Rows) -> tuple[Float[Array, "T N"], Float[Array, "N N"]]:
    """(k(X, Z), k(Z, Z))."""
    rows = operator.prepare(jnp.asarray(Z))
    between = operator.kernel.between
    return between(operator.block(0, operator.size), rows), between(rows, rows)


def times(operator: AbstractOperator, X: Rows, V: Array) -> Array:
    """k(X, ·) V, whose derivative in X evaluates the kernel again instead of keeping it."""
    product = jax.checkpoint(lambda X, V: operator.times(operator.prepare(X), V))  # pyright: ignore[reportPrivateImportUsage]
    return product(jnp.asarray(X), V)


def times_own(
    operator: AbstractOperator, Z: Float[Array, "S R D"], V: Float[Array, "P S"]
) -> Float[Array, "S R"]:
    """k(Z_s, ·) V_s for each s, tile by tile; derivatives evaluate a tile again instead of keeping it."""
    S, R, D = Z.shape
    return operator.own_times(operator.prepare(Z.reshape(S * R, D)), V)


@eqx.filter_jit
def _operator(kernel: Any, X: Array, noise: Array, tile: int) -> KernelOperator:
    return KernelOperator.of(kernel, X, noise, tile=tile)


@eqx.filter_jit
def _between(operator: AbstractOperator, X: Rows, Z: Float[Array | np.ndarray, "M D"]) -> Float[Array, "N M"]:
    return operator.kernel.between(operator.prepare(jnp.asarray(X)), operator.prepare(jnp.asarray(Z)))


@eqx.filter_jit
def whole_product(operator: AbstractOperator, V: Array) -> Array:
    """A V for V [N, S]."""
    return operator.unpad(operator.matvec(operator.pad(V)))


@eqx.filter_jit
def diagonal(kernel: Any, Z: Any) -> Array:
    """k(z, z) of each row."""
    return kernel.diag(Z)
