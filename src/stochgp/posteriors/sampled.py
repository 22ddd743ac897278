"""The posterior of a kernel GP from solutions of systems with A = K + Σ, as far as any solver came."""

import functools
import tempfile
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stochgp.data.rows import Rows as TrainingRows
from stochgp.likelihoods import AbstractNoise
from stochgp.neighbours import Neighbours, neighbours_bytes
from stochgp.numerics.arrays import by_blocks
from stochgp.numerics.linalg import rounding_error, safe_covariance
from stochgp.numerics.precision import matmul
from stochgp.objectives.slq import estimate_bytes, nlml_estimate
from stochgp.operators import AbstractOperator
from stochgp.parameters import cast
from stochgp.posteriors.base import AbstractPosterior, PerRow, Request, Rows, variance_of_samples
from stochgp.posteriors.kernel import (
    BLOCK,
    KernelFunctions,
    KernelSystem,
    NoiseDraws,
    between,
    cross,
    diagonal,
    drawn_targets,
    mean_of,
    times,
    whole_product,
)
from stochgp.posteriors.local_points import predictor
from stochgp.priors import BLOCK as PRIOR_BLOCK
from stochgp.priors import PriorFunctions
from stochgp.results import Estimate, Solution
from stochgp.solvers import AbstractSolver, SystemSize, solve
from stochgp.solvers.memory import most_columns, sliced_covariance_bytes

FEWEST_SAMPLES = 8  # that say how large a left-out variance is
NEAREST = 48  # rows that variances begin with. Of 10,000 rows 32 have 1.2 to 1.5 times the error and 0.85 of the seconds of predictions, 64 have 0.8 and 1.15


class SampleRows(NamedTuple):
    """What the samples are conditioned on, for variances that begin with the rows nearest to a point.

    Parameters
    ----------
    X, noise, targets : array [N, D], array [N], array [N, S]
        The training rows, diag(Σ) in float64, and A u_s: f₀ₛ(X) + ε_s as far as the solver came.
    """

    X: Float[Array, "N D"]
    noise: Float[Array, " N"]
    targets: Float[Array, "N S"]


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
    n_neighbours : int
        How many nearest rows variances begin with (M of `variance_of_samples`), which takes the draws; 0 = variances are from the samples alone.
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
    n_neighbours: int = 0
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
        """The variance is that of `moments`: estimated, at most the prior's. Raises ValueError without samples."""
        if self.prior is None or self.sample_weights is None:
            raise ValueError("the posterior has no samples to estimate variances from")
        parts = (self.system.operator, self.weights, self.prior, self.sample_weights)
        return moments(*parts, self.sample_rows, X, self.nearest(X))

    def nearest(self, X: Rows) -> Int[np.ndarray, "P m"]:
        """Numbers of the training rows that the variance of each of these points, not traced ones, begins with; none where it is from samples alone."""
        m = min(self.n_neighbours, len(self.system.X))
        if m == 0:
            return np.zeros((len(X), 0), np.int32)
        points = np.asarray(X, np.float64)
        # A point that is not finite has a mean that is not, which the caller refuses.
        return self._search.query(np.nan_to_num(points, posinf=0.0, neginf=0.0), m)

    @functools.cached_property
    def _search(self) -> Neighbours:
        return Neighbours(np.asarray(self.system.X), self.system.kernel)

    @functools.cached_property
    def sample_rows(self) -> SampleRows | None:
        """With A u_s in place of the right-hand sides: u_s solves for these exactly, so that the solver's error is no part of what all rows say and few do not."""
        draws, prior = self.draws, self.prior
        if self.n_neighbours == 0 or draws is None or prior is None:
            return None
        with jax.enable_x64(True):
            targets = drawn_targets(self.system.operator, prior, self.system.X, draws)
            targets = targets if self.left is None else targets - jnp.asarray(self.left)[:, 1:]
            return SampleRows(self.system.X, jnp.asarray(self.system.row_noise), targets)

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
                    within = np.asarray(between(self.system.operator, X[rows], X[columns]), np.float64)
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
        KC = np.asarray(whole_product(operator, jnp.asarray(C, operator.dtype)))
        return across, C, across - KC + self.system.row_noise[:, None].astype(C.dtype) * C

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
        if request.n_rows and self.n_neighbours and "sample_rows" not in vars(self):
            size, m = self.system.sizes(self.n_samples)[0], self.n_neighbours
            need += nearest_rows_bytes(self.system.kernel, size, m)
        return need + self.system.need_bytes(request, self.n_samples, variance, self.solver)

    @functools.cached_property
    def nlml_estimate(self) -> Estimate:
        """The NLML per datum with an estimated log-determinant, and its standard error."""
        system, key = self.system, jax.random.key(0)
        return nlml_estimate(system.operator, self.explained, self.weights, key=key, weight=system.weight)

    def errors_of_left_out(
        self, rows: Int[np.ndarray, " P"], data: TrainingRows, noise: float
    ) -> Float[np.ndarray, " P"] | None:
        return self.errors_without(rows) if len(self.weights) == len(data) else None

    def errors_without(self, rows: Int[np.ndarray, " P"]) -> Float[np.ndarray, " P"] | None:
        """z = e_i/√V_i, e_i = α_i/Q_ii + r_i, each from all other rows (`posteriors.calibration`); None where too few samples say how large V_i is."""
        variance = self.left_out_variances
        if variance is None:
            return None
        alpha, variance = np.asarray(self.weights, np.float64)[rows, 0], variance[rows]
        left = np.zeros(len(rows)) if self.residual is None else self.residual[rows]
        return (alpha * variance + left) / np.sqrt(self.system.variance_of_one(rows, variance))

    @property
    def left_out_variances(self) -> Float[np.ndarray, " N"] | None:
        """1/Q_ii of every row, predicted from all others, noise σ²s/ρ included; None from fewer than 8 samples, or of weighted rows without their draws of ε."""
        S = self.n_samples
        if S < FEWEST_SAMPLES:
            return None
        u = np.asarray(self.sample_weights, np.float64)
        inverse, one = (S - 2) / np.sum(u**2, axis=1), self.system.weight == 1
        if one.all():
            return inverse
        squares, own = self.squared_deviations, self.system.row_noise
        return None if squares is None else np.where(one, inverse, inverse * squares / own + own)

    def left_out_variances_near(self, rows: Int[np.ndarray, " P"]) -> Float[np.ndarray, " P"]:
        """1/Q_ii of these rows by the estimator that new rows have their variances from. Raises ValueError where these do not begin with near rows.

        Row i's A u_s is predicted from its near rows with the errors l_s, from all others with u_s/Q_ii, for any u_s. So l regressed on u gives 1/Q_ii, and with
        it d and g of `variance_of_samples` as if row i were new.
        """
        held, prior = self.sample_rows, self.prior
        if held is None or prior is None or len(self.system.X) == 1:
            raise ValueError("variances do not begin with near rows")
        near = self._search.others(rows, min(self.n_neighbours, len(self.system.X) - 1))
        with jax.enable_x64(True):
            X = np.asarray(self.system.X)[rows]
            at = lambda *points: _as_new(prior, self.system.kernel, held, *points)
            f, known, variance = by_blocks(at, BLOCK, X, near)
            u, noise = np.asarray(self.sample_weights, np.float64)[rows], self.system.row_noise[rows]
            errors = np.asarray(held.targets, np.float64)[rows] - known
            inverse = np.sum(errors * u, axis=1) / np.sum(u**2, axis=1)
            g = errors - np.clip(inverse, noise, variance + noise)[:, None] * u
            parts = (f[:, : self.n_samples] - known - g, g, variance)
            found = variance_of_samples(*(jnp.asarray(part) for part in parts))
        return np.asarray(found) + noise

    def _solve(self, b: Any) -> Solution:
        return solve(self.system.operator, b, self.solver, key=jax.random.key(0), tolerance=self.tolerance)


def nearest_rows_bytes(kernel: Any, size: SystemSize, n_neighbours: int) -> int:
    """What `n_neighbours` of a block of points take: the search among the rows, and the samples' targets at all of them."""
    targets = size.itemsize * size.n_samples * (size.n_rows + PRIOR_BLOCK)
    with jax.enable_x64(True):
        return targets + neighbours_bytes(kernel, size.n_rows, size.n_inputs, BLOCK, n_neighbours)


@eqx.filter_jit
def moments(
    operator: AbstractOperator,
    weights: Float[Array, "R 1"],
    prior: PriorFunctions,
    sample_weights: Float[Array, "R S"],
    rows: SampleRows | None,
    Z: Rows,
    near: Int[Array | np.ndarray, "P m"],
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """(E f(z), `sampled_variance` of f(z)), at least one deviation's squared rounding error eps² k(z, z)[1 + k(z, z) mean ‖w‖²], from one k(z, X)."""
    Z = jnp.asarray(Z)
    both = times(operator, Z, operator.pad(jnp.concatenate([weights, sample_weights], axis=1)))
    g, largest = both[:, 1:], operator.kernel.diag(Z)
    d = prior(Z)[:, : sample_weights.shape[1]] - g
    variance = sampled_variance(operator.kernel, d, g, rows, Z, near)
    eps, size = float(jnp.finfo(both.dtype).eps), jnp.mean(jnp.sum(jnp.square(sample_weights), axis=0))
    rounding = eps**2 * largest * (1 + largest * size)
    return both[:, 0], jnp.minimum(jnp.maximum(variance, rounding), largest)


@eqx.filter_jit
def _as_new(
    prior: PriorFunctions, kernel: Any, rows: SampleRows, Z: Float[Array, "P D"], near: Int[Array, "P m"]
) -> tuple[Array, Array, Array]:
    """(f₀, what the near rows predict of each target, the variance of f given these)."""
    Z = jnp.asarray(Z)
    return prior(Z), *_from_nearest(kernel, rows, Z, near)


def sampled_variance(
    kernel: Any,
    d: Float[Array, "P S"],
    g: Float[Array, "P S"],
    rows: SampleRows | None,
    Z: Float[Array, "P D"],
    near: Int[Array | np.ndarray, "P m"],
) -> Float[Array, " P"]:
    """`variance_of_samples` at points Z, given the `near` rows of each, where there are any."""
    if rows is None:
        return variance_of_samples(d, g, kernel.diag(Z))
    known, variance = _from_nearest(kernel, rows, Z, near)
    return variance_of_samples(d, g - known.astype(g.dtype), variance.astype(g.dtype))


def _from_nearest(
    kernel: Any, rows: SampleRows, Z: Float[Array, "P D"], near: Int[Array | np.ndarray, "P m"]
) -> tuple[Float[Array, "P S"], Float[Array, " P"]]:
    """(What the near rows predict of each target, the variance of f given these rows alone), in float64."""
    kernel = cast(kernel, jnp.float64)
    X, noise, targets = (jnp.asarray(part) for part in rows)

    def one(point: tuple[Array, Array]) -> tuple[Array, Array]:
        z, own = point
        found = predictor(kernel, X[own], noise[own], z)
        return matmul(found.weights, targets[own].astype(jnp.float64)), found.variance

    every = functools.partial(jax.lax.map, one) if jax.default_backend() == "cpu" else jax.vmap(one)
    return every((Z, jnp.asarray(near)))  # on a processor one by one: see `linalg.one_by_one`
