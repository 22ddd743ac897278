"""The rows that local predictions look among: their places, and the nearest ones of a point."""

import contextvars
import functools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from stochgp.data.neighbours import Neighbours, search_bytes, slack_of
from stochgp.kernels import RBF, AbstractKernel, AbstractStationary, Warped
from stochgp.kernels.compared import ComparedRows, compared_bytes
from stochgp.kernels.nearest import NearestRows
from stochgp.likelihoods import AbstractNoise, ConstantNoise
from stochgp.likelihoods.noise import SMALLEST_COUNT, noise_of_rows, with_level
from stochgp.models import KernelGP
from stochgp.parameters import cast, value_of

WARP_ROWS = 1 << 15  # rows that a network takes at a time


def neighbours_bytes(kernel: Any, n_rows: int, n_inputs: int, n_points: int, k: int) -> int:
    """Memory of finding k neighbours for each of `n_points` at its peak, beside the rows."""
    need = search_bytes if value_of(kernel).has_places else compared_bytes
    return need(n_rows, n_inputs, n_points, k)


class LocalIndex:
    """The rows after the kernel's network, if it has one, and a tree of their places."""

    def __init__(self, gp: KernelGP, X: Float[np.ndarray, "N D"], weight: Float[np.ndarray, " N"]):
        self.noise = row_noise(gp.noise, float(gp.noise_variance), X, weight)
        kernel, self.networks = value_of(gp.kernel), []
        while isinstance(kernel, Warped):
            self.networks.append(kernel)
            kernel = value_of(kernel.kernel)
        self.kernel = kernel
        self.Z = self.warp(X)

    @functools.cached_property
    def tree(self) -> Neighbours | ComparedRows:
        """Made when it is first asked: rows of other groups have a search of their own."""
        with jax.enable_x64(True):
            places = self.place(self.Z)
        if self.kernel.has_places:
            return Neighbours(places, slack_of(len(places)))
        return ComparedRows(self.kernel, places)

    def others(
        self, rows: Int[np.ndarray, " P"], k: int, group: Int[np.ndarray, " N"]
    ) -> Int[np.ndarray, "P k"]:
        """The k rows of other groups nearest to each of these rows; −1 where there are too few."""
        kernel: Any = RBF(1.0) if self.kernel.has_places else self.kernel  # whose places are the inputs
        return NearestRows(kernel, self.place(self.Z)).others(rows, k, group)

    def warp(self, X: Float[np.ndarray, "P D"]) -> Float[np.ndarray, "P A"]:
        for warped in self.networks:
            parts = [_warp(warped, X[i : i + WARP_ROWS]) for i in range(0, len(X), WARP_ROWS)]
            X = np.concatenate(parts)
        return X

    def place(self, Z: Float[np.ndarray, "P A"]) -> Float[np.ndarray, "P Q"]:
        """Where rows are compared."""
        kernel: AbstractKernel = self.kernel
        if not isinstance(kernel, AbstractStationary):
            return np.ascontiguousarray(Z, np.float64)
        return np.asarray(_scaled(kernel, jnp.asarray(Z, jnp.float64)))


def row_noise(
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


def _warp(warped: Warped, X: np.ndarray) -> np.ndarray:
    return np.asarray(_network(warped, jnp.asarray(X)))


def searched_ahead(index: LocalIndex, chunks: list[np.ndarray], k: int) -> Iterator[Int[np.ndarray, "P k"]]:
    """The k nearest rows of each chunk; those of the next are searched while the caller works on one, where that takes no device."""
    if not isinstance(index.tree, Neighbours):
        yield from (index.tree.query(index.place(Z), k) for Z in chunks)
        return
    with ThreadPoolExecutor(1) as pool:

        def begin(Z: np.ndarray) -> Any:
            places = index.place(Z)  # by the device: not on another thread
            return pool.submit(contextvars.copy_context().run, index.tree.query, places, k)

        searched: Any = begin(chunks[0]) if chunks else None
        for after in [*chunks[1:], None]:
            if searched is None:
                return
            near = searched.result()
            searched = None if after is None else begin(after)
            yield near
