"""Rows for a learner: from the device or from the host, through one interface."""

import abc
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .standardise import Standardiser


class Rows(NamedTuple):
    """Inputs, targets and weights of some rows. A row of weight ρ counts as ρ rows; weight 0 marks padding.

    Leading axes may be added: a stack of K batches is Rows([K, B, D], [K, B], [K, B]).
    """

    X: Float[Array, "... N D"]
    y: Float[Array, "... N"]
    weight: Float[Array, "... N"]


class AbstractSource(abc.ABC):
    """N rows that can be read in any order."""

    size: int
    n_inputs: int

    @abc.abstractmethod
    def take(self, indices: Int[np.ndarray, "..."]) -> Rows:
        """The rows at `indices` (any shape), on the device."""

    def chunks(self, indices: Int[np.ndarray, " n"], size: int) -> Iterator[Rows]:
        """The rows at `indices` in chunks of exactly min(size, n): the last one is padded by rows of weight 0."""
        size = min(size, len(indices))
        for start in range(0, len(indices), size):
            part = indices[start : start + size]
            rows = self.take(np.concatenate([part, np.full(size - len(part), indices[0])]))
            if len(part) < size:
                rows = rows._replace(weight=rows.weight.at[len(part) :].set(0))
            yield rows


class DeviceRows(AbstractSource):
    """Rows that lie on the device."""

    def __init__(self, X: Any, y: Any, weight: Any = None, *, dtype: Any = jnp.float32):
        """X [N, D], y [N] and weights [N] (None = 1) are used as they are. Raises ValueError for shapes that do not fit."""
        self.rows = Rows(
            jnp.asarray(X, dtype),
            jnp.asarray(y, dtype),
            jnp.ones(len(y), dtype) if weight is None else jnp.asarray(weight, dtype),
        )
        self.size, self.n_inputs = _checked_shape(*self.rows)

    def take(self, indices: Int[np.ndarray, "..."]) -> Rows:
        return _gather(self.rows, jnp.asarray(indices, jnp.int32))


class HostRows(AbstractSource):
    """Rows that stay on the host (arrays or memory-mapped files) and are standardised as they are taken.

    What is on the device at any time is one stack of batches, or one chunk.
    """

    def __init__(
        self,
        X: np.ndarray,
        y: np.ndarray,
        weight: np.ndarray | None = None,
        *,
        inputs: Standardiser | None = None,
        targets: Standardiser | None = None,
        dtype: Any = np.float32,
    ):
        """`inputs` and `targets` standardise; None takes the values as they are. Raises ValueError for shapes that do not fit."""
        self.size, self.n_inputs = _checked_shape(X, y, y if weight is None else weight)
        self.X, self.y, self.weight, self.dtype = X, y, weight, dtype
        self.inputs = Standardiser.identity((self.n_inputs,)) if inputs is None else inputs
        self.targets = Standardiser.identity(()) if targets is None else targets

    def take(self, indices: Int[np.ndarray, "..."]) -> Rows:
        shape, flat = np.shape(indices), np.ravel(indices)
        X = self.inputs.transform(self.X[flat], self.dtype).reshape(*shape, self.n_inputs)
        y = self.targets.transform(self.y[flat], self.dtype).reshape(shape)
        weight = (
            np.ones(shape, self.dtype) if self.weight is None else self.weight[indices].astype(self.dtype)
        )
        return Rows(jnp.asarray(X), jnp.asarray(y), jnp.asarray(weight))


def shuffled_batches(
    indices: Int[np.ndarray, " n"], batch_size: int, start: int, n_steps: int, seed: tuple[int, ...]
) -> Int[np.ndarray, "K B"]:
    """The batches of steps start … start + K − 1: without replacement within an epoch of ⌊n/B⌋ steps, a new shuffle for every epoch.

    The seed alone says which batch a step has, however a run is cut into stretches. Rows left over at the end of an epoch wait for the
    next.
    """
    n, per_epoch = len(indices), len(indices) // batch_size
    steps = np.arange(start, start + n_steps)
    batches = np.empty((n_steps, batch_size), np.int64)
    for epoch in np.unique(steps // per_epoch):
        order = _shuffle(n, (*seed, int(epoch)))[: per_epoch * batch_size].reshape(per_epoch, batch_size)
        here = steps // per_epoch == epoch
        batches[here] = order[steps[here] % per_epoch]
    return indices[batches]


def independent_batches(
    indices: Int[np.ndarray, " n"], batch_size: int, start: int, n_steps: int, seed: tuple[int, ...]
) -> Int[np.ndarray, "K B"]:
    """K batches of independent uniform draws, with replacement; another `start` gives others."""
    return np.random.default_rng((*seed, start)).choice(indices, (n_steps, batch_size))


@functools.lru_cache(maxsize=2)  # one epoch is read in many stretches; MINIMAX reads two orders at once
def _shuffle(n: int, seed: tuple[int, ...]) -> Int[np.ndarray, " n"]:
    return np.random.default_rng(seed).permutation(np.arange(n, dtype=np.int32))


@jax.jit
def _gather(rows: Rows, indices: Array) -> Rows:
    return jax.tree.map(lambda values: values[indices], rows)


def _checked_shape(X: Any, y: Any, weight: Any) -> tuple[int, int]:
    if np.ndim(X) != 2 or np.shape(y) != np.shape(X)[:1] or np.shape(weight) != np.shape(y) or len(y) == 0:
        raise ValueError(
            f"expected X [N, D], y [N] and weights [N] with N > 0, but got {np.shape(X)}, {np.shape(y)}, {np.shape(weight)}"
        )
    return np.shape(X)
