"""The system A = K + Σ of a kernel GP, and posteriors and functions from its solutions, as far as any solver came."""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
from jax.core import Tracer
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stochgp import deadline
from stochgp.compiled import quick_jit
from stochgp.data.rows import Data
from stochgp.deadline import TimeIsUpError
from stochgp.kernels import dense
from stochgp.likelihoods import AbstractNoise
from stochgp.likelihoods.noise import noise_of_rows, noise_variances, with_level
from stochgp.models import KernelGP
from stochgp.numerics.arrays import by_blocks, on_device
from stochgp.numerics.clustered import scale_of
from stochgp.numerics.seeds import normal, random_rows, split_key
from stochgp.operators import KernelOperator
from stochgp.posteriors.base import AbstractFunctions, AbstractPosterior, PerRow, Rows
from stochgp.posteriors.local import NEIGHBOURS, LocalPosterior, Moments
from stochgp.priors import PriorFunctions, prior_functions
from stochgp.results import Solution
from stochgp.solvers import AbstractSolver
from stochgp.solvers.cholesky import upper

BLOCK = 512  # rows of a compiled evaluation
EXACT_ROWS = 2000  # up to which variances come from a factor: two solves for each point
NEAR = 48  # rows of other variances. With 5,000 to 6,000 rows of five UCI sets the NLPD was within 0.003 of that of exact variances
ROWS = 2000  # left out for c: from 256 it was off by a fifth on pol, which cost 0.04 nats
BY_NEAR, MANY = 64, 512  # rows of τ without a factor, and the near rows of each
LEAST, MOST = -1.0, 20.0  # log τ
CALIBRATION_SECONDS = 2.5  # that left-out rows take, compilation included


class KernelSystem(eqx.Module):
    """The matrix A = K + Σ of training rows X with frequency weights ρ, Σ = diag(σ² s(x)/ρ)."""

    kernel: Any
    X: Float[Array, "N D"]
    weight: Float[np.ndarray, " N"]  # ρ
    noise: AbstractNoise  # σ² s(x)
    tile: int  # columns of K that products take at a time

    def upper(self) -> Float[np.ndarray, "N N"]:
        """Return the upper triangle of A, in the dtype of X."""
        with jax.enable_x64(True):
            return upper(self.kernel, np.asarray(self.X), self.row_noise)

    def times(self, x: Float[np.ndarray, "N C"]) -> Float[np.ndarray, "N C"]:
        """Return Ax, computed on the host with A and x in the dtype of X."""
        X = np.asarray(self.X)
        v, noise = (part.astype(X.dtype).astype(np.float64) for part in (x, self.row_noise[:, None]))
        return dense.times(self.kernel, X, X, v, X.dtype) + noise * v

    @functools.cached_property
    def row_noise(self) -> Float[np.ndarray, " N"]:
        """The diagonal of Σ, in float64 on the host."""
        with jax.enable_x64(True):
            return noise_of_rows(self.noise, np.asarray(self.X, np.float64), self.weight)

    @functools.cached_property
    def operator(self) -> KernelOperator:
        """The operator, computed at its first use, even while JAX traces a function."""
        return self.operator_on(None)

    def operator_on(self, mesh: Mesh | None) -> KernelOperator:
        """Return the operator with its rows distributed over a mesh; None = on one device."""
        with jax.enable_x64(True), jax.ensure_compile_time_eval():
            noise = noise_variances(self.noise, self.X, self.weight).astype(self.X.dtype)
            make = _operator if mesh is None else KernelOperator.of
            return make(self.kernel, self.X, noise, tile=self.tile, mesh=mesh)

    def joined(self, new: Data) -> "KernelSystem":
        """Return the system of the present rows followed by the new rows."""
        X = np.concatenate([np.asarray(self.X), np.asarray(new.X, self.X.dtype)])
        weight = np.concatenate([self.weight, new.weights])
        return KernelSystem(self.kernel, on_device(X), weight, self.noise, self.tile)

    def variance_of_one(
        self, rows: Int[np.ndarray, " P"], variance: Float[np.ndarray, " P"]
    ) -> Float[np.ndarray, " P"]:
        """Return the variance V_i of one observation at these rows.

        `variance` is that of the mean of ρ_i observations. The noise variance of that mean is `row_noise`, σ²s_i/ρ_i. V_i is at least σ²s_i; with ρ_i = 1 it is `variance`.
        """
        count, own = self.weight[rows], self.row_noise[rows]
        return np.where(count == 1, variance, np.maximum(variance - own, 0) + count * own)

    def draw(
        self, weights: Float[Array | np.ndarray, "N 1"], n_samples: int, solve: Callable, *, key: PRNGKeyArray
    ) -> "KernelFunctions":
        """Return draws from the posterior: `solve` gets the right-hand sides of prior draws, and `weights` give the mean."""
        prior_key, noise_key = split_key(key)
        prior = prior_functions(self.kernel, self.X.shape[1], n_samples, key=prior_key, dtype=self.X.dtype)
        b = sample_targets(self.operator, prior, self.X, key=noise_key)
        value = np.asarray(weights) - np.asarray(solve(b).value)
        value = on_device(np.pad(value, ((0, self.operator.padded - self.operator.size), (0, 0))))
        return KernelFunctions(self.operator, prior, value)

    def peak_bytes(self, solver: AbstractSolver, n_columns: int) -> int:
        """Return the peak bytes of a solve with `n_columns` right-hand sides."""
        N, D = self.X.shape
        return solver.peak_bytes(N, n_columns, D, self.X.dtype.itemsize)


class AbstractKernelPosterior(AbstractPosterior):
    """The posterior of f for y = f(X) + ε, ε ~ N(0, Σ), A = K + Σ: mean(x) = k(x, X) A⁻¹y.

    With more than EXACT_ROWS rows, the variance uses W, the variance of f(x) given the 48 nearest rows:

        1/var(x) = 1/k(x, x) + τ (1/W − 1/k(x, x)).

    It is at most W for τ ≥ 1, and the prior variance far from all rows. τ matches the mean log variance of f at left-out rows.

    The prediction of row i from all others has the error e_i = α_i/Q_ii and the variance 1/Q_ii, Q = A⁻¹, α = Qy (Rasmussen and Williams 2006, 5.10 to 5.12).
    If a solver leaves the residual r = y − Aα, the error is α_i/Q_ii + r_i + (1/Q_ii − σ_i²)(Qr)_i, σ_i² = σ²s_i/ρ_i. The last term is omitted: it is small
    if most of 1/Q_ii is noise.
    """

    system: eqx.AbstractVar[KernelSystem]
    weights: eqx.AbstractVar[Float[Array | np.ndarray, "N 1"]]
    explained: eqx.AbstractVar[float]
    solver: eqx.AbstractVar[Any]
    y: eqx.AbstractVar[Float[np.ndarray, " N"]]
    information: eqx.AbstractVar[float]
    block_rows: ClassVar[int | None] = None

    is_exact: ClassVar[bool] = False  # True if variances come from a factor

    @property
    def noise(self) -> AbstractNoise:
        return self.system.noise

    @property
    def dtype(self) -> str:
        return str(self.system.X.dtype)

    def changed(self, **fields: Any) -> Any:
        """Return the posterior with other values of these fields, and the same factor and search."""
        made, kept = dataclasses.replace(self, **fields), ("factor", "near")
        vars(made).update({name: vars(self)[name] for name in kept if name in vars(self)})
        return made

    @functools.cached_property
    def near(self) -> LocalPosterior:
        """The posterior given near rows."""
        gp, X = KernelGP(self.system.kernel, self.system.noise), np.asarray(self.system.X)
        return LocalPosterior(gp, X, self.y, self.system.weight, NEAR, quick=True)

    def mean(self, X: Rows) -> PerRow:
        """Return the mean, in float64 on the host unless there is an accelerator or JAX traces X."""
        if isinstance(X, Tracer):
            return mean_of(self.system.operator, self.weights, X)
        if jax.default_backend() != "cpu":
            of = lambda rows: (mean_of(self.system.operator, self.weights, rows),)
            return by_blocks(of, BLOCK, np.asarray(X))[0]
        rows, weights = np.asarray(self.system.X), np.asarray(self.weights)[:, 0]
        return dense.times(self.system.kernel, np.asarray(X), rows, weights, np.float64)

    def variance_near(self, X: Float[np.ndarray, "P D"]) -> PerRow:
        """Return the variance from the nearest rows."""
        return with_information(self.near.moments(X, NEAR), self.information)

    def left_out(
        self, rows: Int[np.ndarray, " P"]
    ) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, " P"]]:
        """Return the error α_i/Q_ii + r_i of each row given all others, and the variance V_i of one observation there."""
        V = self.left_out_variances(rows)
        e = np.asarray(self.weights, np.float64)[rows, 0] * V + self.residual[rows]
        return e, self.system.variance_of_one(rows, V)

    @property
    def residual(self) -> Float[np.ndarray, " N"]:
        """The residual y − Aα, or 0 for solutions by a factor."""
        return np.zeros(len(self.weights))

    def left_out_variances(self, rows: Int[np.ndarray, " P"]) -> Float[np.ndarray, " P"]:
        """Return 1/Q_ii, Q = A⁻¹: the variance of row i given all others, including the noise σ²s/ρ."""
        variance = with_information(self.near.left_out(rows, NEAR), self.information)
        return variance + self.system.row_noise[rows]

    def _right_variances(self) -> tuple[Int[np.ndarray, " P"], Float[np.ndarray, " P"]]:
        """Return some rows, and the variances of f there given their 512 nearest other rows."""
        rows = random_rows(len(self.weights), BY_NEAR, 0)
        return rows, self.near.left_out(rows, MANY)[1]

    def with_information(self) -> Any:
        """Return the posterior with τ; unchanged if its variances are exact, for one row, or without time."""
        if self.is_exact or len(self.weights) == 1:
            return self
        try:
            with deadline.granted(CALIBRATION_SECONDS):
                rows, right = self._right_variances()
                _, W, prior = self.near.left_out(rows, NEAR)
                known = (right > 0) & (right < W)
                near: Any = right[known], W[known], prior[known]
        except TimeIsUpError:
            return self
        off = lambda log_tau: float(np.mean(np.log(with_information(near, math.exp(log_tau)) / near[0])))
        if not known.any() or off(MOST) >= 0:
            return self.changed(information=1.0)
        found: Any = scipy.optimize.brentq(off, LEAST, MOST)
        return self.changed(information=math.exp(found))

    def calibrated(self, group: Any = None) -> tuple[Any, float]:
        """Return the posterior with all variances multiplied by c, and c; c = 1 with one row.

        c = Σ ρ_i e_i²/V_i / Σ ρ_i makes the mean squared standardised error of left-out rows 1. A new row is one observation, so
        V_i = 1/Q_ii − σ_i² + σ²s_i. With groups, the nearest rows of other groups predict each row.
        """
        N = len(self.weights)
        if N == 1:
            return self, 1.0
        rows = random_rows(N, ROWS, 0)
        if group is None:
            e, V = self.left_out(rows)
            c = scale_of(np.square(e) / V, self.system.weight[rows])
        else:
            c, _ = self.near.scale_of(rows, self.near.others(rows, NEIGHBOURS, group), group)
        return self.scaled(c), c

    def scaled(self, c: float) -> Any:
        """Return the posterior for c k and c σ²: it has the same mean, α/c, and c times every variance."""
        old = self.system
        noise = with_level(old.noise, c * float(old.noise.level))
        system = KernelSystem(old.kernel.times(c), old.X, old.weight, noise, old.tile)
        weights = divided(self.weights, c)
        made = dataclasses.replace(self, system=system, weights=weights, explained=self.explained / c)
        if "tree" in vars(self.near):
            vars(made.near)["tree"] = self.near.tree
        return made

    def functions(self, n_samples: int, *, key: PRNGKeyArray) -> "KernelFunctions":
        return self.system.draw(self.weights, n_samples, self._solve, key=key)

    @abc.abstractmethod
    def _solve(self, b: Any) -> Solution:
        """A⁻¹b."""

    def shared_bytes(self, n_rows: int, covariance: bool, n_samples: int) -> int:
        """Return the bytes of drawn functions and of variances from the nearest rows."""
        need = self.system.peak_bytes(self.solver, n_samples) if n_samples else 0
        if n_rows and not covariance and not self.is_exact:
            need += self.near.need_bytes(n_rows)
        return need


def divided(values: Any, c: Any) -> Any:
    """Return values / c, in their dtype and on their device."""
    found = np.asarray(values) / np.asarray(c, values.dtype)
    return found if isinstance(values, np.ndarray) else on_device(found, values.dtype)


def with_information(near: Moments, information: float) -> Float[np.ndarray, " P"]:
    """Return 1/(1/k + τ (1/W − 1/k)) with k and W from the moments `near`, and τ = `information`."""
    _, W, prior = near
    return prior * W / np.maximum(W + information * (prior - W), np.finfo(np.float64).tiny)


class KernelFunctions(AbstractFunctions):
    """f_s(x) = f₀ₛ(x) + k(x, X) w_s: pathwise conditioning (Wilson et al. 2020)."""

    operator: KernelOperator
    prior: PriorFunctions
    weights: Float[Array, "P S"]  # w_s = A⁻¹(y − f₀ₛ(X) − ε_s), ε_s ~ N(0, Σ), with rows of zeros beyond N

    @property
    def n_samples(self) -> int:
        return self.weights.shape[1]

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N S"]:
        return self.prior(X)[:, : self.n_samples] + times(self.operator, X, self.weights)

    def on_host(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N S"]:
        if jax.default_backend() != "cpu":
            return super().on_host(X)
        operator, N = self.operator, self.operator.size
        near = dense.times(
            operator.kernel, X, np.asarray(operator.inputs)[:N], np.asarray(self.weights)[:N], X.dtype
        )
        return self.prior.on_host(X)[:, : self.n_samples] + near

    def at_own(self, Z: Float[Array, "S R D"]) -> Float[Array, "S R"]:
        """Return f_s at own rows, with about `BLOCK` rows of K in memory at a time."""
        (S, R, _), V = Z.shape, self.weights
        n = max(1, min(S, BLOCK // R))
        starts = jnp.minimum(jnp.arange(-(-S // n)) * n, S - n)  # the last ones overlap

        def part(start: Array) -> Array:
            own, weights = (jax.lax.dynamic_slice_in_dim(of, start, n, axis) for of, axis in ((Z, 0), (V, 1)))
            prepared = self.operator.prepare(own.reshape(n * R, -1))
            return self.operator.own_times(prepared, weights)

        found = jax.lax.map(part, starts)  # [parts, n, R]
        place = (starts[:, None] + jnp.arange(n)).ravel()
        data = jnp.zeros((S, R), V.dtype).at[place].set(found.reshape(-1, R))
        return self.prior.at_own(Z)[: self.n_samples] + data


def sample_targets(
    operator: KernelOperator, prior: PriorFunctions, X: Float[Array, "N D"], *, key: PRNGKeyArray
) -> Float[Array, "N S"]:
    """Return f₀(X) + ε, ε ~ N(0, Σ): the right-hand sides of pathwise samples."""
    normals = np.asarray(normal(key, (len(X), prior.n_samples), np.float32))
    root = np.sqrt(np.asarray(operator.noise)[: operator.size, None])
    on_host = jax.default_backend() == "cpu" and operator.mesh is None
    values = prior.on_host(np.asarray(X)) if on_host else np.asarray(prior(X))
    return on_device(values + root * normals, operator.dtype)


@eqx.filter_jit
def mean_of(operator: KernelOperator, weights: Float[Array | np.ndarray, "R 1"], Z: Rows) -> PerRow:
    """Return k(z, X)w of each row."""
    return times(operator, Z, operator.pad(jnp.asarray(weights)))[:, 0]


def times(operator: KernelOperator, X: Rows, V: Array) -> Array:
    """Return k(X, ·) V in V's dtype, summed in float64 (`operators.kernel.in_float64`). Its derivative in X evaluates the kernel again."""
    product = jax.checkpoint(lambda X, V: operator.times(operator.prepare(X), V, wide=True))  # pyright: ignore[reportPrivateImportUsage]
    return product(jnp.asarray(X), V).astype(V.dtype)


@quick_jit
def _operator(kernel: Any, X: Array, noise: Array, **layout: Any) -> KernelOperator:
    return KernelOperator.of(kernel, X, noise, **layout)


@eqx.filter_jit
def whole_product(operator: KernelOperator, V: Array) -> Array:
    """Return A V for V [N, S], summed in float64."""
    return operator.unpad(operator.matvec(operator.pad(V), wide=True))
