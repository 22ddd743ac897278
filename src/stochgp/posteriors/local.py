"""The exact posterior given the training rows that are nearest to each point."""

import dataclasses
import functools
from typing import Any, ClassVar

import jax
import numpy as np
from jaxtyping import Float, Int, PRNGKeyArray

from stochgp.compiled import cores, in_threads
from stochgp.data.memory import CHUNK_ROWS
from stochgp.data.rows import Data
from stochgp.kernels import dense
from stochgp.likelihoods import AbstractNoise
from stochgp.likelihoods.noise import noise_of_rows, with_level
from stochgp.models import KernelGP
from stochgp.neighbours import NONE, SLACK, Neighbours, neighbours_bytes
from stochgp.numerics.arrays import on_host
from stochgp.numerics.clustered import scale_of
from stochgp.numerics.seeds import random_rows
from stochgp.objectives.conditionals import PAIRS, conditional_moments, is_small, parts_of
from stochgp.parameters import cast, value_of
from stochgp.posteriors.base import AbstractFunctions, AbstractPosterior

NEIGHBOURS, FEWEST = 256, 64
GAIN = 0.001  # nats per row: minimum gain of twice the number of neighbours
WIDE_BELOW, SOME = 1e-2, 100  # use float64 if some of 100 rows have a lower ratio of noise to k(x, x)
ARRAYS = 8  # number of float64 arrays of the size of a thread's matrices

Moments = tuple[Float[np.ndarray, " P"], Float[np.ndarray, " P"], Float[np.ndarray, " P"]]


class LocalPosterior(AbstractPosterior):
    """The posterior of f(x) given S, the n training rows that are nearest to x.

        mean(x) = k(x, X_S) A_S⁻¹ y_S,   var(x) = c [k(x, x) − k(x, X_S) A_S⁻¹ k(X_S, x)]

    Here A_S is k(X_S, X_S) + σ² diag(s(X_S)/ρ_S). If n is the number of all training rows, the posterior is
    exact. A prediction takes O(n³) time. Covariances between predictions are not available. If the kernel is
    a single RBF or Matérn term, the search divides each input by √lengthscale. With any other kernel k, the
    search finds the rows z with the highest correlation |k(x, z)|/√(k(x, x) k(z, z)).

    Parameters
    ----------
    gp : KernelGP
        The model, with kernel k and noise variance σ² s(x).
    X, y, weight
        The training inputs, the targets, and the frequency weights ρ of the rows.
    n_neighbours : int
        The number n of neighbours.
    scale : float
        The factor c of the variances (see `calibrated`).
    quick : bool
        True if the search may miss some of the nearest rows.
    """

    gp: KernelGP
    X: Float[np.ndarray, "N D"]
    y: Float[np.ndarray, " N"]
    weight: Float[np.ndarray, " N"]
    n_neighbours: int = NEIGHBOURS
    scale: float = 1.0
    quick: bool = False
    block_rows: ClassVar[int | None] = None

    @functools.cached_property
    def _model(self) -> KernelGP:
        """The model in float64, in host memory."""
        with jax.enable_x64(True):
            return on_host(cast(self.gp, np.float64))

    @functools.cached_property
    def _term(self) -> Any:
        """The kernel as one RBF or Matérn term, or None."""
        terms = dense.terms_of(self._model.kernel)
        return terms[0] if terms is not None and len(terms) == 1 else None

    @functools.cached_property
    def _is_wide(self) -> bool:
        """True if conditional densities need float64."""
        with jax.enable_x64(True):
            some = random_rows(len(self.X), SOME)
            return is_small(self.gp, Data(self.X[some], self.y[some], self.weight[some]), WIDE_BELOW)

    @functools.cached_property
    def tree(self) -> Neighbours:
        """The search for the nearest training rows."""
        with jax.enable_x64(True):
            kernel = self._model.kernel if self._term is None else None
            return Neighbours(self._places(self.X), kernel, SLACK if self.quick else None)

    @property
    def noise(self) -> AbstractNoise:
        return with_level(self.gp.noise, self.scale * float(self.gp.noise_variance))

    def mean(self, X: Float[np.ndarray, "P D"]) -> Float[np.ndarray, " P"]:
        return self.moments(X, self.n_neighbours)[0]

    def mean_and_variance(
        self, X: Float[np.ndarray, "P D"]
    ) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, " P"]]:
        mean, variance, _ = self.moments(X, self.n_neighbours)
        return mean, self.scale * variance

    def covariance(self, X: Float[np.ndarray, "P D"]) -> Float[np.ndarray, "P P"]:
        raise ValueError(
            "local predictions have no covariances between rows; for return_cov=True, fit with solver='cholesky' or 'cg'"
        )

    def functions(self, n_samples: int, *, key: PRNGKeyArray) -> AbstractFunctions:
        raise ValueError(
            "this model predicts each row from the nearest training rows and cannot draw functions; for samples, fit with solver='cholesky' or 'cg'"
        )

    def need_bytes(self, n_rows: int = 0, *, covariance: bool = False, n_samples: int = 0) -> int:
        if covariance or n_samples or not n_rows:
            return 0
        (N, D), kernel, n = self.X.shape, self.gp.kernel, self.n_neighbours
        there = value_of(kernel).has_places and "tree" in vars(self)
        search = local_search_bytes(kernel, 0 if there else N, D, min(n_rows, CHUNK_ROWS), n)
        each = (n + 1) ** 2
        return 64 * n_rows + search + 8 * ARRAYS * min(n_rows * each, cores() * max(PAIRS, each))

    def moments(self, X: Float[np.ndarray, "P D"], n: int) -> Moments:
        """Return mean, variance and prior variance of f at each row given its n nearest rows."""
        with jax.enable_x64(True):
            return self.given(self.tree.query(self._places(X), min(n, len(self.X))), X)

    def others(
        self, rows: Int[np.ndarray, " P"], n: int, group: Int[np.ndarray, " N"] | None = None
    ) -> Int[np.ndarray, "P k"]:
        """Return the n nearest rows in other groups for each training row; −1 for a missing row."""
        with jax.enable_x64(True):
            return self.tree.others(rows, min(n, len(self.X) - 1), group)

    def left_out(
        self, rows: Int[np.ndarray, " P"], n: int, group: Int[np.ndarray, " N"] | None = None
    ) -> Moments:
        """Return `moments` at these training rows, given the nearest rows in other groups."""
        return self.given(self.others(rows, n, group), self.X[rows])

    def given(self, near: Int[np.ndarray, "P k"], Z: Float[np.ndarray, "P D"]) -> Moments:
        """Return `moments` at the rows Z given the training rows `near`; −1 is a missing row."""
        parts = parts_of(near)
        starts = np.cumsum([0, *map(len, parts)])

        def one(number: int) -> Moments:
            S = parts[number]
            X, y = (part[S].astype(np.float64) for part in (self.X, self.y))
            count = np.where(S == NONE, 0.0, self.weight[S])
            x = Z[starts[number] : starts[number + 1]]
            return conditional_moments(self._model, Data(X, y, count), x, self._is_wide)

        with jax.enable_x64(True):
            found = in_threads(one, range(len(parts))) or [(np.zeros(0),) * 3]
        mean, variance, prior = (np.concatenate(part) for part in zip(*found, strict=True))
        return mean, variance, prior

    def noise_of_one(self, rows: Int[np.ndarray, " P"]) -> Float[np.ndarray, " P"]:
        """Return the noise variance σ²s of one observation at each of these training rows."""
        with jax.enable_x64(True):
            return noise_of_rows(self._model.noise, np.asarray(self.X[rows], np.float64), np.ones(len(rows)))

    def _places(self, X: Float[np.ndarray, "P D"]) -> Float[np.ndarray, "P A"]:
        """Return the inputs between which the search computes distances."""
        X, term = np.ascontiguousarray(X, np.float64), self._term
        return X if term is None else term.scaled(X) * np.sqrt(term.lengthscale)

    def calibrated(
        self, n_rows: int, seed: int | tuple[int, ...], group: Int[np.ndarray, " N"] | None = None,
        fewest: int | None = None,
    ) -> tuple["LocalPosterior", dict[int, float]]:  # fmt: skip
        """Calibrate variances and number of neighbours; return the posterior and the gains.

        The factor c of the variances maximises the leave-one-out density of `n_rows` random training rows and
        of one more row with a standardised error of 1. The number of neighbours starts at `fewest`, and is
        doubled while this increases the density by at least 0.001 nats per row, up to `n_neighbours`.
        """
        gains: dict[int, float] = {}
        if len(self.X) == 1 or n_rows == 0:
            return self, gains
        rows = random_rows(len(self.X), n_rows, seed)
        near = self.others(rows, self.n_neighbours, group)
        n = min(fewest or self.n_neighbours, near.shape[1])
        c, loss = self.scale_of(rows, near[:, :n], group)
        while n < near.shape[1]:
            more = min(2 * n, near.shape[1])
            other, new = self.scale_of(rows, near[:, :more], group)
            gains[more] = loss - new
            if gains[more] < GAIN:
                break
            c, loss, n = other, new, more
        made = dataclasses.replace(self, scale=c, n_neighbours=n if gains else self.n_neighbours)
        vars(made)["tree"] = self.tree
        return made, gains

    def scale_of(
        self, rows: Int[np.ndarray, " P"], near: Int[np.ndarray, "P k"], group: Int[np.ndarray, " N"] | None
    ) -> tuple[float, float]:
        """Return c for these rows given the rows `near`, and their NLPD minus ½ log 2π."""
        mean, variance, _ = self.given(near, self.X[rows])
        V, weight = variance + self.noise_of_one(rows), self.weight[rows].astype(np.float64)
        squares = (self.y[rows] - mean) ** 2 / V
        c = scale_of(squares, weight, None if group is None else group[rows])
        return c, float(np.average(np.log(c * V) + squares / c, weights=weight)) / 2


def local_search_bytes(kernel: Any, n_rows: int, n_inputs: int, n_points: int, k: int) -> int:
    """Return the peak bytes of a search for the k neighbours of `n_points` points."""
    compared = None if value_of(kernel).has_places else kernel
    return neighbours_bytes(compared, n_rows, n_inputs, n_points, k)
