"""Rows for a learner: from the device or from the host, through one interface."""

import abc
import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from stochgp.devices import spread
from stochgp.numerics.arrays import extended, filled_up, on_device

from .rows import Rows
from .standardise import Standardiser

SMALLEST_STEPPED, LARGEST_PADDED = 1 << 10, 1 << 14
DRAWN_TOGETHER = 64  # steps whose independent batches come from one generator


class Batch(NamedTuple):
    """Inputs, targets and weights of some rows. A row of weight ρ stands for ρ rows with the same target; weight 0 marks padding.

    Leading axes may be added: a stack of K batches is Batch([K, B, D], [K, B], [K, B]).
    """

    X: Float[Any, "... N D"]
    y: Float[Any, "... N"]
    weight: Float[Any, "... N"]


class AbstractPasses(abc.ABC):
    """N rows that are read from the first to the last, as often as wanted."""

    size: int
    count: float  # Σρ: how many rows they stand for
    mesh: Mesh | None = None  # shares passes over the rows

    @abc.abstractmethod
    def read(self, size: int) -> Iterator[Batch]:
        """All rows in order, in chunks of at most `size` rows on the device; rows of weight 0 fill chunks up."""

    def chunks(self, size: int) -> Iterator[Batch]:
        """As `read`; on a mesh each device has at most `size` rows of a chunk."""
        if self.mesh is None:
            return self.read(size)
        return (_on_mesh(rows, self.mesh) for rows in self.read(size * self.mesh.size))


class AbstractSource(AbstractPasses):
    """N rows that can be read in any order."""

    n_inputs: int
    weight: Float[np.ndarray, " N"] | None  # ρ of every row; None = 1
    group: Int[np.ndarray, " N"] | None  # of each row; None = every row is a group of its own

    @property
    def in_groups(self) -> bool:
        """Whether groups have several rows."""
        return self.group is not None and len(np.unique(self.group)) < self.size

    @abc.abstractmethod
    def on_host(self, indices: Int[np.ndarray, " n"], dtype: Any = np.float64) -> Batch:
        """The rows at `indices`, on the host."""

    def take(self, indices: Int[np.ndarray, "..."]) -> Batch:
        """The rows at `indices` (any shape), on the device."""
        return self._from_host(indices)

    def _from_host(self, indices: Int[np.ndarray, "..."]) -> Batch:
        X, y, weight = self.on_host(np.ravel(indices), None)
        shape = np.shape(indices)
        return Batch(*map(on_device, (X.reshape(*shape, -1), y.reshape(shape), weight.reshape(shape))))

    def weights(self) -> Float[np.ndarray, " N"]:
        """ρ of every row."""
        return np.ones(self.size) if self.weight is None else self.weight

    def weight_of(self, indices: Int[np.ndarray, " n"]) -> float:
        """Σρ of some of the rows."""
        return float(np.sum(self.weights()[indices], dtype=np.float64))

    def read(self, size: int) -> Iterator[Batch]:
        """All rows in order, in chunks of min(`size`, padded_size(N)) rows: the last one is padded by rows of weight 0."""
        return self.blocks(min(size, padded_size(self.size)))

    def blocks(self, size: int) -> Iterator[Batch]:
        """All rows in order, in blocks of `size` rows: the last one is filled up by rows of weight 0."""
        for start in range(0, self.size, size):
            part = np.arange(start, min(start + size, self.size))
            rows = self.take(filled_up(part, size))
            if len(part) < size:
                rows = rows._replace(weight=_first(rows.weight, len(part)))
            yield rows

    def _check(self, X: Any, y: Any, weight: Any, group: Any) -> None:
        """Set what all sources have. Raises ValueError for shapes that do not fit."""
        shapes = np.shape(X), np.shape(y), np.shape(y if weight is None else weight)
        if len(shapes[0]) != 2 or shapes[1] != shapes[0][:1] or shapes[2] != shapes[1] or len(y) == 0:
            raise ValueError(
                f"expected X [N, D], y [N] and weights [N] with N > 0, but got {shapes[0]}, {shapes[1]}, {shapes[2]}"
            )
        if group is not None and np.shape(group) != shapes[1]:
            raise ValueError(f"expected the group of each of {len(y)} rows, but got {np.shape(group)}")
        self.size, self.n_inputs = shapes[0]
        self.weight = None if weight is None else np.asarray(weight, np.float64)
        self.group = None if group is None else np.asarray(group)
        self.count = self.weight_of(np.arange(self.size))


class DeviceRows(AbstractSource):
    """Rows that lie on the device."""

    def __init__(self, X: Any, y: Any, weight: Any = None, *, group: Any = None, dtype: Any = jnp.float32):
        """X [N, D], y [N] and weights [N] (None = 1) are used as they are; `group` [N] numbers the rows' groups.

        Raises ValueError for shapes that do not fit.
        """
        self._check(X, y, weight, group)
        self._rows = Batch(*(_padded(part, dtype, padded_size(self.size)) for part in (X, y, self.weights())))

    def take(self, indices: Int[np.ndarray, "..."]) -> Batch:
        """On the host of a CPU: a program would have to be compiled for each shape."""
        if jax.default_backend() != "cpu":
            return _gather(self._rows, np.asarray(indices, np.int32))
        return self._from_host(indices)

    def on_host(self, indices: Int[np.ndarray, " n"], dtype: Any = np.float64) -> Batch:
        parts: Any = (np.asarray(part)[indices] for part in self._rows)
        return Batch(*(part if dtype is None else part.astype(dtype) for part in parts))


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
        group: Int[np.ndarray, " N"] | None = None,
        inputs: Standardiser | None = None,
        targets: Standardiser | None = None,
        dtype: Any = np.float32,
    ):
        """`inputs` and `targets` standardise; None takes the values as they are. Raises ValueError for shapes that do not fit."""
        self._check(X, y, weight, group)
        self.X, self.y, self.dtype = X, y, dtype
        self.inputs = Standardiser.identity((self.n_inputs,)) if inputs is None else inputs
        self.targets = Standardiser.identity(()) if targets is None else targets

    def on_host(self, indices: Int[np.ndarray, " n"], dtype: Any = np.float64) -> Batch:
        X = self.inputs.transform(self.X[indices], self.dtype)
        y = self.targets.transform(self.y[indices], self.dtype)
        count = np.ones(len(indices)) if self.weight is None else self.weight[indices]
        parts: Any = (X, y, count.astype(self.dtype))
        return Batch(*(part if dtype is None else part.astype(dtype) for part in parts))


class SomeRows(AbstractSource):
    """Some rows of another source, in the order of `indices`."""

    def __init__(self, source: AbstractSource, indices: Int[np.ndarray, " n"]):
        self.source, self.indices = source, indices
        self.size, self.n_inputs, self.mesh = len(indices), source.n_inputs, source.mesh
        self.weight = None if source.weight is None else source.weight[indices]
        self.group = None if source.group is None else source.group[indices]
        self.count = self.weight_of(np.arange(self.size))

    def take(self, indices: Int[np.ndarray, "..."]) -> Batch:
        return self.source.take(self.indices[indices])

    def on_host(self, indices: Int[np.ndarray, " n"], dtype: Any = np.float64) -> Batch:
        return self.source.on_host(self.indices[indices], dtype)


def on_device_padded(rows: Rows, size: int, dtype: Any) -> Batch:
    """Rows on the device, filled up to `size` by rows of weight 0."""
    return Batch(*(_padded(part, dtype, size) for part in (rows.X, rows.y, rows.weights)))


def padded_size(n: int) -> int:
    """A size of at least n of which there are few, so that sets of nearby sizes share compiled code.

    Powers of two up to 1,024, then eight sizes between a power of two and the next; beyond 16,384 n itself.
    """
    if n > LARGEST_PADDED:
        return n
    step = max(1, (1 << (n - 1).bit_length()) // 16) if n > SMALLEST_STEPPED else 1 << (n - 1).bit_length()
    return -(-n // step) * step


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
    """The batches of steps start … start + K − 1: independent uniform draws, with replacement.

    The seed alone says which batch a step has, however a run is cut into stretches.
    """
    blocks = range(start // DRAWN_TOGETHER, -(-(start + n_steps) // DRAWN_TOGETHER))
    drawn = [
        np.random.default_rng((*seed, block)).choice(indices, (DRAWN_TOGETHER, batch_size))
        for block in blocks
    ]
    first = start % DRAWN_TOGETHER
    return np.concatenate(drawn)[first : first + n_steps]


@functools.lru_cache(maxsize=2)  # one epoch is read in many stretches; MINIMAX reads two orders at once
def _shuffle(n: int, seed: tuple[int, ...]) -> Int[np.ndarray, " n"]:
    return np.random.default_rng(seed).permutation(np.arange(n, dtype=np.int32))


def _padded(part: Any, dtype: Any, size: int) -> Array:
    """On the device, with zeros up to `size` rows."""
    return on_device(filled_up(np.asarray(part, dtype), size, 0.0))


def _on_mesh(rows: Batch, mesh: Mesh) -> Batch:
    """In equal parts over a mesh, filled up by rows of weight 0."""
    missing = -len(rows.y) % mesh.size
    return spread(_extended(rows, missing) if missing else rows, mesh)


@functools.partial(jax.jit, static_argnums=1)
def _extended(rows: Batch, missing: int) -> Batch:
    return extended(rows, missing, "constant")


@jax.jit
def _first(weight: Float[Array, " B"], n: Any) -> Float[Array, " B"]:
    """The first n of them, and 0 for the others."""
    return jnp.where(jnp.arange(weight.shape[0]) < n, weight, 0)


@jax.jit
def _gather(rows: Batch, indices: Array) -> Batch:
    return jax.tree.map(lambda values: values[indices], rows)
