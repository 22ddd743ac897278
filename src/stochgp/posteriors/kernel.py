"""The linear system A = K + Σ of a kernel GP, and the base class of its posteriors."""

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

BLOCK = 512  # number of rows in a compiled evaluation
EXACT_ROWS = 2000  # maximum number of training rows for exact variances
NEAR = 48  # number of nearest rows for approximate variances
ROWS = 2000  # number of left-out rows that calibrate the variances
BY_NEAR, MANY = 64, 512  # number of left-out rows that calibrate τ, and of their nearest rows
LEAST, MOST = -1.0, 20.0  # range of log τ
CALIBRATION_SECONDS = 2.5  # expected seconds of the calibration of τ, with compilation


class KernelSystem(eqx.Module):
    """The matrix A = K + Σ of training rows X, where K = k(X, X) and Σ = diag(σ² s(x)/ρ)."""

    kernel: Any
    X: Float[Array, "N D"]
    weight: Float[np.ndarray, " N"]  # the frequency weights ρ
    noise: AbstractNoise  # the noise variance σ² s(x) of one observation
    tile: int  # number of columns of K that a product computes at a time

    def upper(self) -> Float[np.ndarray, "N N"]:
        """Return the upper triangle of A, in the dtype of X."""
        with jax.enable_x64(True):
            return upper(self.kernel, np.asarray(self.X), self.row_noise)

    def times(self, x: Float[np.ndarray, "N C"]) -> Float[np.ndarray, "N C"]:
        """Return Ax, computed in host memory with A and x in the dtype of X."""
        X = np.asarray(self.X)
        v, noise = (part.astype(X.dtype).astype(np.float64) for part in (x, self.row_noise[:, None]))
        return dense.times(self.kernel, X, X, v, X.dtype) + noise * v

    @functools.cached_property
    def row_noise(self) -> Float[np.ndarray, " N"]:
        """The diagonal of Σ, in float64 in host memory."""
        with jax.enable_x64(True):
            return noise_of_rows(self.noise, np.asarray(self.X, np.float64), self.weight)

    @functools.cached_property
    def operator(self) -> KernelOperator:
        """The matrix A as an operator on one device."""
        return self.operator_on(None)

    def operator_on(self, mesh: Mesh | None) -> KernelOperator:
        """Return A as an operator with rows distributed over `mesh`; None means one device."""
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
        """Return the variance of one observation at these rows, at least the noise variance.

        `variance` is the variance of the mean of ρ observations, for a row of weight ρ.
        """
        count, own = self.weight[rows], self.row_noise[rows]
        return np.where(count == 1, variance, np.maximum(variance - own, 0) + count * own)

    def draw(
        self, weights: Float[Array | np.ndarray, "N 1"], n_samples: int, solve: Callable, *, key: PRNGKeyArray
    ) -> "KernelFunctions":
        """Return functions drawn from the posterior with the mean k(x, X) `weights`."""
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
    """The posterior of f for observations y = f(X) + ε with noise ε ~ N(0, Σ).

    With A = K + Σ, the mean of f(x) is k(x, X) A⁻¹y. The variance is approximate if the solver is iterative
    or X has more than 2,000 rows. Let W be the variance of f(x) given the 48 rows nearest to x. Then

        1/var(x) = 1/k(x, x) + τ (1/W − 1/k(x, x)).

    The number τ is fitted to more accurate variances of f at some left-out rows.

    Let Q = A⁻¹ and α = Qy. The prediction of row i from all other rows has the error α_i/Q_ii and the
    variance 1/Q_ii (Rasmussen and Williams 2006, equations 5.10 to 5.12). If α is an iterative solution, the
    residual (y − Aα)_i is added to the error.
    """

    system: eqx.AbstractVar[KernelSystem]
    weights: eqx.AbstractVar[Float[Array | np.ndarray, "N 1"]]
    explained: eqx.AbstractVar[float]
    solver: eqx.AbstractVar[Any]
    y: eqx.AbstractVar[Float[np.ndarray, " N"]]
    information: eqx.AbstractVar[float]
    block_rows: ClassVar[int | None] = None

    is_exact: ClassVar[bool] = False  # True if variances are exact

    @property
    def noise(self) -> AbstractNoise:
        return self.system.noise

    @property
    def dtype(self) -> str:
        return str(self.system.X.dtype)

    def changed(self, **fields: Any) -> Any:
        """Return the posterior with other values of `fields`, and the same factor and search."""
        made, kept = dataclasses.replace(self, **fields), ("factor", "near")
        vars(made).update({name: vars(self)[name] for name in kept if name in vars(self)})
        return made

    @functools.cached_property
    def near(self) -> LocalPosterior:
        """The posterior given the nearest rows only."""
        gp, X = KernelGP(self.system.kernel, self.system.noise), np.asarray(self.system.X)
        return LocalPosterior(gp, X, self.y, self.system.weight, NEAR, quick=True)

    def mean(self, X: Rows) -> PerRow:
        if isinstance(X, Tracer):
            return mean_of(self.system.operator, self.weights, X)
        if jax.default_backend() != "cpu":
            of = lambda rows: (mean_of(self.system.operator, self.weights, rows),)
            return by_blocks(of, BLOCK, np.asarray(X))[0]
        rows, weights = np.asarray(self.system.X), np.asarray(self.weights)[:, 0]
        return dense.times(self.system.kernel, np.asarray(X), rows, weights, np.float64)

    def variance_near(self, X: Float[np.ndarray, "P D"]) -> PerRow:
        """Return the approximate variance of f(x), from the nearest rows."""
        return with_information(self.near.moments(X, NEAR), self.information)

    def left_out(
        self, rows: Int[np.ndarray, " P"]
    ) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, " P"]]:
        """Return the leave-one-out error at each row and the variance of one observation there."""
        V = self.left_out_variances(rows)
        e = np.asarray(self.weights, np.float64)[rows, 0] * V + self.residual[rows]
        return e, self.system.variance_of_one(rows, V)

    @property
    def residual(self) -> Float[np.ndarray, " N"]:
        """The residual y − Aα of an iterative solution, or 0 for a Cholesky factor."""
        return np.zeros(len(self.weights))

    def left_out_variances(self, rows: Int[np.ndarray, " P"]) -> Float[np.ndarray, " P"]:
        """Return the variance of each target given all other rows, with noise: 1/(A⁻¹)_ii."""
        variance = with_information(self.near.left_out(rows, NEAR), self.information)
        return variance + self.system.row_noise[rows]

    def _right_variances(self) -> tuple[Int[np.ndarray, " P"], Float[np.ndarray, " P"]]:
        """Return some rows, and accurate variances of f there given all other rows."""
        rows = random_rows(len(self.weights), BY_NEAR, 0)
        return rows, self.near.left_out(rows, MANY)[1]

    def with_information(self) -> Any:
        """Return the posterior with calibrated τ; unchanged for exact variances or without time."""
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
        """Return the posterior with all variances multiplied by a factor c, and c.

        After the multiplication, the mean squared standardised error of left-out rows is about 1. If `group`
        is set, rows of the same group are left out together.
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
        """Return the posterior for the kernel c k and the noise c σ², which has the same mean."""
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
        """Return the solution A⁻¹b."""

    def shared_bytes(self, n_rows: int, covariance: bool, n_samples: int) -> int:
        """Return the peak bytes of drawn functions and of variances from the nearest rows."""
        need = self.system.peak_bytes(self.solver, n_samples) if n_samples else 0
        if n_rows and not covariance and not self.is_exact:
            need += self.near.need_bytes(n_rows)
        return need


def divided(values: Any, c: Any) -> Any:
    """Return values / c, with the dtype and the device of `values`."""
    found = np.asarray(values) / np.asarray(c, values.dtype)
    return found if isinstance(values, np.ndarray) else on_device(found, values.dtype)


def with_information(near: Moments, information: float) -> Float[np.ndarray, " P"]:
    """Return 1/(1/k + τ (1/W − 1/k)) with τ = `information`, from the moments given near rows."""
    _, W, prior = near
    return prior * W / np.maximum(W + information * (prior - W), np.finfo(np.float64).tiny)


class KernelFunctions(AbstractFunctions):
    """Functions f₀ₛ(x) + k(x, X) w_s, where f₀ₛ is drawn from the prior (Wilson et al. 2020)."""

    operator: KernelOperator
    prior: PriorFunctions
    weights: Float[Array, "P S"]  # w_s = A⁻¹(y − f₀ₛ(X) − ε_s) with ε_s ~ N(0, Σ), padded with zeros

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
        (S, R, _), V = Z.shape, self.weights
        n = max(1, min(S, BLOCK // R))
        starts = jnp.minimum(jnp.arange(-(-S // n)) * n, S - n)  # the last two blocks may overlap

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
    """Return f₀(X) + ε with ε ~ N(0, Σ), the right-hand sides for drawn functions."""
    normals = np.asarray(normal(key, (len(X), prior.n_samples), np.float32))
    root = np.sqrt(np.asarray(operator.noise)[: operator.size, None])
    on_host = jax.default_backend() == "cpu" and operator.mesh is None
    values = prior.on_host(np.asarray(X)) if on_host else np.asarray(prior(X))
    return on_device(values + root * normals, operator.dtype)


@eqx.filter_jit
def mean_of(operator: KernelOperator, weights: Float[Array | np.ndarray, "R 1"], Z: Rows) -> PerRow:
    """Return k(z, X) w for each row z."""
    return times(operator, Z, operator.pad(jnp.asarray(weights)))[:, 0]


def times(operator: KernelOperator, X: Rows, V: Array) -> Array:
    """Return k(X, training rows) V, summed in float64, in the dtype of V."""
    product = jax.checkpoint(lambda X, V: operator.times(operator.prepare(X), V, wide=True))
    return product(jnp.asarray(X), V).astype(V.dtype)


@quick_jit
def _operator(kernel: Any, X: Array, noise: Array, **layout: Any) -> KernelOperator:
    return KernelOperator.of(kernel, X, noise, **layout)


@eqx.filter_jit
def whole_product(operator: KernelOperator, V: Array) -> Array:
    """Return the product A V for V [N, S], summed in float64."""
    return operator.unpad(operator.matvec(operator.pad(V), wide=True))
