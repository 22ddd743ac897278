"""Sources of rows in memory, on the device or on the host, and mini-batches."""

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from stochgp.compiled import require_jax
from stochgp.numerics.arrays import filled_up, on_device
from stochgp.sharding import spread

from .rows import Data, Standardiser, first_not_finite

CHUNK_ROWS = 1 << 16
SMALLEST_STEPPED, LARGEST_PADDED = 1 << 10, 1 << 14
DRAWN_TOGETHER = 64  # number of successive steps whose independent batches use the same generator


class Source:
    """N rows that can be read repeatedly, in a fixed order."""

    size: int
    count: float  # sum of the frequency weights
    mesh: Mesh | None = None  # shares each pass over the rows

    def local_blocks(self, size: int) -> Iterator[Data]:
        """Yield all rows on the device in blocks of at most `size`, padded with rows of weight 0."""
        raise NotImplementedError

    def blocks(self, size: int) -> Iterator[Data]:
        """Yield the blocks of `local_blocks`, with up to `size` rows on each device of a mesh."""
        if self.mesh is None:
            yield from self.local_blocks(size)
            return
        for rows in self.local_blocks(size * self.mesh.size):
            yield spread(rows, self.mesh)


class MemorySource(Source):
    """A source of N rows in memory, on the device or on the host.

    Inputs X [N, D], targets y [N] and frequency weights [N] may be memory-mapped. y = None means no targets,
    and weight = None means weights of 1. `group` contains the group number of each row; None means that each
    row is a group. `inputs` and `targets` are standardisers; None means no change. The model receives rows in
    `dtype`. `mesh` shares the rows of each pass.
    """

    def __init__(
        self, X: Any, y: Any = None, weight: Any = None, *, group: Any = None, inputs: Standardiser | None = None,
        targets: Standardiser | None = None, dtype: Any = jnp.float32, on_device: bool = True, mesh: Mesh | None = None,
    ):  # fmt: skip
        y = np.zeros(len(X)) if y is None else y
        self.size, self.n_inputs = np.shape(X)
        self.dtype, self.on_device, self.mesh = dtype, on_device, mesh
        self._scales: tuple[Any, Any] = inputs, targets
        self.weight = None if weight is None else np.asarray(weight, np.float64)
        self.group = None if group is None else np.asarray(group)
        self.count = float(np.sum(self.weights()))
        self.indices: Any = None  # row numbers, if `some` has selected rows
        self._rows = Data(X, y, self.weights())
        if on_device:
            self._rows = padded(self.on_host(slice(None), dtype), padded_size(self.size), dtype)
            self._scales = None, None

    @property
    def X(self) -> Float[np.ndarray, "N D"]:
        """The original inputs on the host."""
        rows = np.asarray(self._rows.X)
        return rows[: self.size] if self.indices is None else rows[self.indices]

    def inputs(self, dtype: Any = None) -> Float[np.ndarray, "N D"]:
        """Return standardised inputs on the host; `dtype` None = dtype of the source."""
        dtype, scale = self.dtype if dtype is None else dtype, self._scales[0]
        return np.asarray(self.X, dtype) if scale is None else scale.transform(self.X, dtype)

    def evaluated(self, evaluate: Callable, n_block: int | None) -> tuple[np.ndarray, ...]:
        """Apply `evaluate` to blocks of `n_block` standardised rows; return float64 arrays [N, …].

        Blocks are padded, unless `n_block` is None. Raises ValueError for results that are not finite.
        """
        results, X = tuple[np.ndarray, ...](), self.X
        skipped = np.isnan(X[:, 0])
        skipped[skipped] = np.isnan(X[skipped]).all(axis=1)  # invalid molecules
        X = np.where(skipped[:, None], np.zeros((), X.dtype), X) if skipped.any() else X
        step = CHUNK_ROWS if n_block is None else n_block
        require_jax()
        with jax.enable_x64(True):
            for start in range(0, len(X), step):
                part = X[start : start + step]
                Z = filled_up(self._scales[0].transform(part, self.dtype, start), n_block or 0, 0.0)
                values = [np.asarray(value)[: len(part)] for value in evaluate(Z)]
                results = results or tuple(np.empty((len(X), *value.shape[1:])) for value in values)
                for result, value in zip(results, values, strict=True):
                    if (bad := first_not_finite(value)) is not None:
                        what = f"the prediction of row {start + bad[0] + 1} is not a finite number"
                        size = f"its largest absolute input is {np.abs(part[bad[0]]).max():g}"
                        raise ValueError(f"{what}: the row is too far from the training rows ({size})")
                    result[start : start + len(part)] = value
        for result in results:
            result[skipped] = np.nan
        return results

    @property
    def in_groups(self) -> bool:
        """True if a group has more than one row."""
        return self.group is not None and len(np.unique(self.group)) < self.size

    def some(self, indices: Int[np.ndarray, " n"]) -> "MemorySource":
        """Return a source of the rows at `indices`, without a copy of the rows."""
        found = copy.copy(self)
        numbers = indices if self.indices is None else self.indices[indices]
        weight, group = (None if part is None else part[indices] for part in (self.weight, self.group))
        count = float(np.sum(self.weights()[indices]))
        vars(found).update(indices=numbers, size=len(indices), count=count, weight=weight, group=group)
        return found

    def weights(self) -> Float[np.ndarray, " N"]:
        """Return the frequency weight of every row."""
        return np.ones(self.size) if self.weight is None else self.weight

    def on_host(self, indices: Any, dtype: Any = np.float64) -> Data:
        """Return the rows at `indices` on the host, rounded to the dtype of the source."""
        numbers = indices if self.indices is None else self.indices[indices]
        X, y, weight = (np.asarray(part)[numbers] for part in (self._rows.X, self._rows.y, self._rows.weight))
        inputs, targets = self._scales
        X = X if inputs is None else inputs.transform(X, self.dtype)
        y = y if targets is None else targets.transform(y, self.dtype)
        return Data(*[np.asarray(part, self.dtype).astype(dtype, copy=False) for part in (X, y, weight)])

    def take(self, indices: Int[np.ndarray, "..."]) -> Data:
        """Return the rows at `indices` (an array of any shape) on the device."""
        if self.on_device and jax.default_backend() != "cpu":
            numbers = indices if self.indices is None else self.indices[indices]
            return _gather(self._rows, np.asarray(numbers, np.int32))
        rows, shape = self.on_host(np.ravel(indices), self.dtype), np.shape(indices)
        return jax.tree.map(lambda part: on_device(part.reshape(*shape, *part.shape[1:])), rows)

    def local_blocks(self, size: int) -> Iterator[Data]:
        """Yield all rows in blocks of at most `size`, with equal numbers of rows per device."""
        n_devices = 1 if self.mesh is None else self.mesh.size
        return self.equal_blocks(min(size, -(-padded_size(self.size) // n_devices) * n_devices))

    def equal_blocks(self, size: int) -> Iterator[Data]:
        """Yield all rows in blocks of `size`; rows of weight 0 pad the last block."""
        for start in range(0, self.size, size):
            part = np.arange(start, min(start + size, self.size))
            weight = on_device(filled_up(self.weights()[part].astype(self.dtype), size, 0.0))
            yield dataclasses.replace(self.take(filled_up(part, size)), weight=weight)


def padded(rows: Data, size: int, dtype: Any) -> Data:
    """Copy rows without groups to the device, padded to `size` with rows of weight 0."""
    fill = lambda part: on_device(filled_up(np.asarray(part, dtype), size, 0.0))
    return Data(fill(rows.X), fill(rows.y), fill(rows.weights))


def padded_size(n: int) -> int:
    """Round n ≤ 16,384 up to one of a few sizes, so that JAX compiles few programs."""
    if n > LARGEST_PADDED:
        return n
    step = max(1, (1 << (n - 1).bit_length()) // 16) if n > SMALLEST_STEPPED else 1 << (n - 1).bit_length()
    return -(-n // step) * step


def shuffled_batches(
    indices: Int[np.ndarray, " n"], batch_size: int, start: int, n_steps: int, seed: tuple[int, ...]
) -> Int[np.ndarray, "K B"]:
    """Return the batches of `n_steps` steps; each epoch of ⌊n/B⌋ steps uses a new permutation."""
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
    """Draw the batches of `n_steps` steps uniformly; a batch depends only on seed and step."""
    first, last = start // DRAWN_TOGETHER, -(-(start + n_steps) // DRAWN_TOGETHER)
    seeds, shape = [(*seed, block) for block in range(first, last)], (DRAWN_TOGETHER, batch_size)
    drawn = np.concatenate([np.random.default_rng(seed).choice(indices, shape) for seed in seeds])
    return drawn[start - first * DRAWN_TOGETHER :][:n_steps]


@functools.lru_cache(maxsize=2)  # an epoch is read in parts; MINIMAX reads two orders alternately
def _shuffle(n: int, seed: tuple[int, ...]) -> Int[np.ndarray, " n"]:
    return np.random.default_rng(seed).permutation(np.arange(n, dtype=np.int32))


@jax.jit
def _gather(rows: Data, indices: Array) -> Data:
    return jax.tree.map(lambda values: values[indices], rows)
