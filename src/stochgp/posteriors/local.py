"""Local prediction: for every point the exact posterior given the rows nearest to it."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stochgp.compiled import in_threads
from stochgp.data.rows import Rows
from stochgp.data.standardise import MOST_ROWS
from stochgp.devices import ONE, Devices
from stochgp.kernels import AbstractStationary, Warped
from stochgp.likelihoods import AbstractNoise, ConstantNoise
from stochgp.likelihoods.noise import SMALLEST_COUNT, noise_of_rows, with_level
from stochgp.models import KernelGP
from stochgp.neighbours import Neighbours, neighbours_bytes
from stochgp.numerics.seeds import random_rows
from stochgp.parameters import cast, value_of
from stochgp.posteriors.base import AbstractFunctions, AbstractPosterior, Request, scale_of
from stochgp.posteriors.local_points import Points, at_points

NEIGHBOURS = 256
FEWER = (64, 128)  # that may be enough
LOST = 0.004  # nats per row: 0.01 cost 3 % of the RMSE on the flights
RECALL_ROWS = 100
LEFT_OUT_NUMBERS = 1 << 28  # 16,384 rows of 128 neighbours: 3 s on two cores
# Rows that choose the distribution of errors, and numbers that they may take: 256 neighbours, 6 s. From 4,096 rows 95 % intervals held 89 % on bike.
LEAST_LEFT_OUT, MOST_LEFT_OUT_NUMBERS = 8192, 1 << 29
QUERY_ROWS = 1 << 14  # points whose neighbours are held at a time
WARP_ROWS = 1 << 15  # rows that a network takes at a time
BLOCK_BYTES = 2_000_000  # of the neighbours' rows that one thread works on
SMALL_BLOCK = 16  # rows of the blocks that what is left over is padded to
COMPILER_BYTES = 100_000_000  # that a first prediction leaves behind
SAYS_NOTHING = 1e100  # noise variance of what stands for no neighbour


class LocalPrediction(NamedTuple):
    """Of f, without noise.

    Parameters
    ----------
    mean, variance, jitter : array [P], array [P], float
        Of f at each point; and the largest jitter that was added to the diagonal of a point's matrix to factorise it, 0 = none.
    """

    mean: Float[np.ndarray, " P"]
    variance: Float[np.ndarray, " P"]
    jitter: float


class LocalPosterior(AbstractPosterior):
    """f(x) given the n nearest of N training rows, S = S(x):

        mean(x) = k(x, X_S) A_S⁻¹ y_S,   var(x) = c [k(x, x) − k(x, X_S) A_S⁻¹ k(X_S, x)],   A_S = k(X_S, X_S) + σ² diag(s(X_S)/ρ_S).

    O(n³) per point, in float64; with n = N the exact posterior. Near is meant in Euclidean distance, after the kernel's network if it has one, of inputs
    divided by √lengthscale where the kernel is stationary: halfway between the inputs' own scales and the kernel's, of the three the one that was never
    far from the best on six data sets. Equal distances have a fixed order. Tanimoto, without places, finds the rows of highest correlation by comparing all.

    The variance is that of the predictor bᵀy_S, b as near to A_S⁻¹k(X_S, x) as rounding and a jitter allow: c [bᵀΣb + hᵀK⁺h], the second term at
    least its rounding error 4 eps k(x, x)(1 + ‖b‖²) in float64, and together at most the prior's (`numerics.linalg`). What is learned of one point
    says nothing of its covariance with another.

    Parameters
    ----------
    gp : KernelGP
        k, σ² and s.
    X, y, weight : array [N, D], [N] and [N]
        The training rows and their ρ. Raises ValueError for no rows and for other shapes.
    n_neighbours : int
        n, at least 1; more than N counts as N.
    scale : float
        c: the model with k and σ² multiplied by c has the same mean (see `calibrated`).
    """

    gp: KernelGP
    X: Float[np.ndarray, "N D"]
    y: Float[np.ndarray, " N"]
    weight: Float[np.ndarray, " N"]
    n_neighbours: int = NEIGHBOURS
    scale: float = 1.0
    block_rows: ClassVar[int | None] = None
    leaves_groups_out: ClassVar[bool] = True

    def __check_init__(self) -> None:
        if len(self.X) == 0 or len(self.y) != len(self.X) or len(self.weight) != len(self.X):
            raise ValueError(
                f"expected X [N, D], y [N] and weights [N] with N > 0, but got {self.X.shape}, {self.y.shape}, {self.weight.shape}"
            )
        if self.n_neighbours < 1:
            raise ValueError(f"n_neighbours is {self.n_neighbours}; it must be at least 1")

    @functools.cached_property
    def devices(self) -> Devices:
        """Over which points are spread; without a mesh it is one device, whose cores share them where it is a processor."""
        return ONE

    def spread_over(self, devices: Devices) -> "LocalPosterior":
        """The same with its points spread over these devices, of which a file keeps nothing.

        Raises ValueError unless there are 1, 2, 4, 8 or 16 of them: a block of points has no other equal parts.
        """
        if SMALL_BLOCK % devices.count:
            raise ValueError(f"points are spread over 1, 2, 4, 8 or 16 devices, not over {devices.count}")
        made = self.changed()
        vars(made)["devices"] = devices
        return made

    @property
    def noise_variance(self) -> float:
        """c σ²: what observations of weight 1 add to the variance."""
        return self.scale * float(self.gp.noise_variance)

    @property
    def noise(self) -> AbstractNoise:
        return with_level(self.gp.noise, self.noise_variance)

    def mean(self, X: Float[np.ndarray, "P D"]) -> Float[np.ndarray, " P"]:
        return self.predict(X).mean

    def mean_and_variance(
        self, X: Float[np.ndarray, "P D"]
    ) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, " P"]]:
        found = self.predict(X)
        return found.mean, found.variance

    def covariance(self, X: Float[np.ndarray, "P D"]) -> Float[np.ndarray, "P P"]:
        raise ValueError(
            "local predictions know no covariances between rows: fit with prediction='global' for return_cov"
        )

    def functions(self, n_samples: int, *, key: PRNGKeyArray) -> AbstractFunctions:
        raise ValueError(
            "local predictions are of single rows, not functions: fit with prediction='global' for samples"
        )

    def need_bytes(self, request: Request) -> int:
        """With the tree of the training rows, which is made at the first prediction, or when variances are calibrated."""
        if request.covariance or request.n_samples:
            return 0
        (N, D), kernel = self.X.shape, self.gp.kernel
        there = value_of(kernel).has_places and "_index" in vars(self) and "tree" in vars(self._index)
        points = min(request.n_rows, MOST_ROWS)
        search = local_search_bytes(kernel, 0 if there else N, D, points, self.n_neighbours)
        return 64 * request.n_rows + search + COMPILER_BYTES

    def predict(self, X: Float[np.ndarray, "P D"]) -> LocalPrediction:
        """Mean and variance for each row, in blocks: a row's numbers do not depend on the other rows."""
        index, k = self._index, min(self.n_neighbours, len(self.X))
        with jax.enable_x64(True):
            chunks = (index.warp(X[start : start + QUERY_ROWS]) for start in range(0, len(X), QUERY_ROWS))
            parts = [self._by_block(index.tree.query(index.place(Z), k), Z) for Z in chunks]
        return self._joined(parts)

    def calibrated(
        self, n_rows: int, seed: int | tuple[int, ...], group: Int[np.ndarray, " N"] | None = None
    ) -> "LocalPosterior":
        """The same with c = `scale_of` z² = (y_i − mean)²/(var + σ² s_i), of rows i predicted without themselves and their `group`.

        That is the c of the highest likelihood of these `n_rows` random training rows, or of all where there are fewer, each one observation that
        counts ρ_i times, with one more of z² = 1. Their nearest other rows predict them; rows equal to them may be among these.
        """
        return self.with_fewest(n_rows, seed, (), group=group)

    def with_fewest(
        self,
        n_rows: int,
        seed: int | tuple[int, ...],
        counts: tuple[int, ...] = FEWER,
        most_lost: float = LOST,
        group: Int[np.ndarray, " N"] | None = None,
        tell: Callable[[int, float], None] = lambda n, lost: None,
    ) -> "LocalPosterior":
        """`calibrated` with the first of these numbers of neighbours, or its own, that loses few nats; `tell` what each tried loses.

        The loss is the mean over the left-out rows of −log p(y_i), each number calibrated by itself, above that with `n_neighbours`. At most
        `most_lost` may be lost. One search serves all. Rows weigh ρ; those of one `group` are left out together.
        """
        if len(self.X) == 1 or n_rows == 0:
            return self
        rows = random_rows(len(self.X), n_rows, seed)
        near = self._others(rows, group)
        with jax.enable_x64(True):
            whole, least = self._calibrated_by(rows, near, group)
            for n in counts:
                if n >= near.shape[1]:
                    break
                fewer = self.changed(n_neighbours=n)
                fewer, loss = fewer._calibrated_by(rows, near[:, :n], group)  # noqa: SLF001  # of this class
                tell(n, loss - least)
                if loss - least <= most_lost:
                    return fewer
        return whole

    def changed(self, **fields: Any) -> "LocalPosterior":
        """The same but for these fields, n_neighbours or scale; index and devices are kept."""
        made = dataclasses.replace(self, **fields)
        vars(made).update({name: vars(self)[name] for name in ("_index", "devices") if name in vars(self)})
        return made

    def _calibrated_by(
        self, rows: Int[np.ndarray, " P"], near: Int[np.ndarray, "P k"], group: Int[np.ndarray, " N"] | None
    ) -> tuple["LocalPosterior", float]:
        """(The same with c by these rows, their mean −log p less ½ log 2π)."""
        found = self._joined([self._by_block(near, self._index.Z[rows])])
        V, weight = self._observed(rows, found), self.weight[rows].astype(np.float64)
        squares = (self.y[rows] - found.mean) ** 2 / V
        c = scale_of(squares, weight, None if group is None else group[rows])
        return self.changed(scale=c), float(np.average(np.log(c * V) + squares / c, weights=weight)) / 2

    def _observed(self, rows: Int[np.ndarray, " P"], found: LocalPrediction) -> Float[np.ndarray, " P"]:
        """Variances of one observation at each row, var f + σ² s, without c."""
        level = float(self.gp.noise_variance)
        noise = _row_noise(self.gp.noise, level, self.X[rows], np.ones(len(rows)))
        return found.variance / self.scale + noise

    @property
    def most_left_out(self) -> float:
        """Each takes n² numbers."""
        least = min(LEAST_LEFT_OUT, MOST_LEFT_OUT_NUMBERS // self.n_neighbours**2)
        return max(least, LEFT_OUT_NUMBERS // self.n_neighbours**2)

    def errors_of_left_out(
        self, rows: Int[np.ndarray, " P"], data: Rows, noise: float
    ) -> Float[np.ndarray, " P"]:
        """Each from its own n nearest rows of other groups, as new rows are; the noise is that of the posterior."""
        found = self.left_out(rows, data.group)
        return (self.y[rows] - found.mean) / np.sqrt(self.scale * self._observed(rows, found))

    def left_out(
        self, rows: Int[np.ndarray, " P"], group: Int[np.ndarray, " N"] | None = None
    ) -> LocalPrediction:
        """These training rows predicted without themselves and their `group`. There must be two rows at least, of two groups."""
        near = self._others(rows, group)
        with jax.enable_x64(True):
            return self._joined([self._by_block(near, self._index.Z[rows])])

    def _others(
        self, rows: Int[np.ndarray, " P"], group: Int[np.ndarray, " N"] | None
    ) -> Int[np.ndarray, "P k"]:
        """The nearest other rows of these training rows, of other groups; −1 where there are too few."""
        with jax.enable_x64(True):
            return self._index.tree.others(rows, min(self.n_neighbours, len(self.X) - 1), group)

    def recall(self, n_rows: int = RECALL_ROWS) -> float:
        """The share of the nearest rows that predictions find, of random training rows: below 1 only beyond 100,000 rows, see `slack_of`."""
        index, k = self._index, min(self.n_neighbours, len(self.X))
        rows = np.random.default_rng(1).permutation(len(self.X))[:n_rows]
        with jax.enable_x64(True):
            return index.tree.recall(index.place(index.Z[rows]), k)

    @functools.cached_property
    def _index(self) -> "_Index":
        with jax.enable_x64(True):
            return _Index(cast(self.gp, jnp.float64), self.X, self.weight)

    def _by_block(self, near: Int[np.ndarray, "P k"], Z: Float[np.ndarray, "P A"]) -> tuple:
        """(mean, variance / c, jitter) of rows Z with these neighbours; −1 is none."""
        index, n_points = self._index, len(Z)

        def evaluated(rows: Int[np.ndarray, " rows"]) -> list[np.ndarray]:
            S = near[rows]
            block = Points(index.Z[S], self.y[S], np.where(S < 0, SAYS_NOTHING, index.noise[S]), Z[rows])
            return [np.asarray(values) for values in at_points(index.kernel, block, self.devices)]

        large, small = _blocks(n_points, near.shape[1] * (Z.shape[1] + 2) * 8)
        each = in_threads if self.devices.mesh is None else lambda work, items: list(map(work, items))
        parts = each(evaluated, large) + each(evaluated, small)
        return tuple(np.concatenate(values)[:n_points] for values in zip(*parts, strict=True))

    def _joined(self, parts: list[tuple]) -> LocalPrediction:
        if not parts:
            return LocalPrediction(np.zeros(0), np.zeros(0), 0.0)
        mean, variance, jitter = (np.concatenate([part[i] for part in parts]) for i in range(3))
        return LocalPrediction(mean, self.scale * variance, float(jitter.max()))


class _Index:
    """The rows after the kernel's network, if it has one, and a search of their places."""

    def __init__(self, gp: KernelGP, X: Float[np.ndarray, "N D"], weight: Float[np.ndarray, " N"]):
        self.noise = _row_noise(gp.noise, float(gp.noise_variance), X, weight)
        kernel, self.networks = value_of(gp.kernel), []
        while isinstance(kernel, Warped):
            self.networks.append(kernel)
            kernel = value_of(kernel.kernel)
        self.kernel = kernel
        self.Z = self.warp(X)

    @functools.cached_property
    def tree(self) -> Neighbours:
        return Neighbours(self.place(self.Z), None if self.kernel.has_places else self.kernel)

    def warp(self, X: Float[np.ndarray, "P D"]) -> Float[np.ndarray, "P A"]:
        for warped in self.networks:
            parts = (jnp.asarray(X[i : i + WARP_ROWS]) for i in range(0, len(X), WARP_ROWS))
            X = np.concatenate([np.asarray(_network(warped, part)) for part in parts])
        return X

    def place(self, Z: Float[np.ndarray, "P A"]) -> Float[np.ndarray, "P Q"]:
        """Where rows are compared."""
        if not isinstance(self.kernel, AbstractStationary):
            return np.ascontiguousarray(Z, np.float64)
        return np.asarray(_scaled(self.kernel, jnp.asarray(Z, jnp.float64)))


def local_search_bytes(kernel: Any, n_rows: int, n_inputs: int, n_points: int, k: int) -> int:
    """Memory of finding k neighbours for each of `n_points` at its peak, beside the rows."""
    compared = None if value_of(kernel).has_places else kernel
    return neighbours_bytes(compared, n_rows, n_inputs, n_points, k)


def _row_noise(
    noise: AbstractNoise, level: float, X: Float[np.ndarray, "P D"], weight: Float[np.ndarray, " P"]
) -> Float[np.ndarray, " P"]:
    """σ² s_i/ρ_i of these rows, with σ² = level."""
    constant = level / np.maximum(weight.astype(np.float64), SMALLEST_COUNT)
    if isinstance(noise, ConstantNoise):
        return constant
    with jax.enable_x64(True):
        unit = cast(with_level(noise, 1.0), np.float64)
        return constant * noise_of_rows(unit, np.asarray(X, np.float64), np.ones(len(X)))


@eqx.filter_jit
def _scaled(kernel: AbstractStationary, Z: Array) -> Array:
    return kernel.scaled(Z) * jnp.sqrt(value_of(kernel.lengthscale, Z.dtype))


@eqx.filter_jit
def _network(warped: Warped, X: Array) -> Array:
    return warped.rows(X)


def _blocks(n_points: int, bytes_per_point: int) -> tuple[list[Int[np.ndarray, " rows"]], ...]:
    """(Row numbers of large blocks as long as there are enough rows, then of small ones, the last of which is filled up by the last row)."""
    size = max(BLOCK_BYTES // bytes_per_point // SMALL_BLOCK, 1) * SMALL_BLOCK
    covered = n_points // size * size
    large = [np.arange(start, start + size) for start in range(0, covered, size)]
    small = [np.arange(start, start + SMALL_BLOCK) for start in range(covered, n_points, SMALL_BLOCK)]
    return large, [np.minimum(rows, n_points - 1) for rows in small]
