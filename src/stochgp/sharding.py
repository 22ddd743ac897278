"""Placement of arrays: rows are divided among devices; each device has the other arrays.

All processes call the same functions in the same order. Inside `together`, all use values of process 0.
"""

import contextlib
import pickle
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from stochgp import deadline
from stochgp.numerics.arrays import on_device

AXIS = "rows"
TILE = 2048  # maximum columns of a tile on a CPU
GPU_TILE = 131_072  # maximum columns of a tile on a GPU
SPREAD, WHOLE = PartitionSpec(AXIS), PartitionSpec()
_TOGETHER: ContextVar[bool] = ContextVar("together", default=False)
T = TypeVar("T")


def mesh_of(setting: Any) -> Mesh | None:
    """Return a mesh of the first `setting` devices, of all devices for "all", or None.

    Processes have equally many devices. Raises ValueError for an invalid number, TypeError for other types.
    """
    if setting is None:
        return None
    n_processes, chosen = jax.process_count(), jax.devices()
    if setting != "all":
        if isinstance(setting, bool) or not isinstance(setting, int | np.integer):
            raise TypeError(f'devices must be None, "all" or a number, not {setting!r}')
        own = [[one for one in chosen if one.process_index == process] for process in range(n_processes)]
        if setting < 1 or setting % n_processes or setting // n_processes > min(map(len, own)):
            raise ValueError(
                f"devices is {setting}; it must be a positive multiple of the number of processes ({n_processes}), and at most {len(chosen)}"
            )
        chosen = [device for each in own for device in each[: setting // n_processes]]
    return jax.make_mesh((len(chosen),), (AXIS,), axis_types=(AxisType.Auto,), devices=chosen)


def default_tile() -> int:
    """Return the maximum columns of a tile of a kernel matrix on JAX's default device."""
    return TILE if jax.default_backend() == "cpu" else GPU_TILE


def n_processes(mesh: Mesh | None) -> int:
    """Return the number of processes of a mesh."""
    return 1 if mesh is None else len({device.process_index for device in mesh.devices.flat})


def mesh_around(array: Any) -> Mesh | None:
    """Return the mesh of a distributed array, or None."""
    sharding = getattr(array, "sharding", None)
    return sharding.mesh if isinstance(sharding, NamedSharding) else None  # pyrefly: ignore[bad-return]


def spread(rows: T, mesh: Mesh, axis: int = 0) -> T:
    """Divide the arrays of a tree along `axis` into equal parts on the devices of the mesh.

    Every process passes the same arrays. Raises ValueError if a length cannot be divided equally.
    """
    spec = lambda leaf: PartitionSpec(*[None] * (axis % np.ndim(leaf)), AXIS)
    return jax.tree.map(lambda leaf: _put(leaf, NamedSharding(mesh, spec(leaf))), rows)


def on_all(tree: T, mesh: Mesh) -> T:
    """Copy the arrays of a tree to every device of the mesh."""
    sharding = NamedSharding(mesh, WHOLE)
    return jax.tree.map(lambda leaf: _put(leaf, sharding) if eqx.is_array(leaf) else leaf, tree)


def on_one(tree: T) -> T:
    """Copy the arrays of a tree to the first device of this process."""
    return jax.tree.map(lambda leaf: on_device(_on_host(leaf)) if isinstance(leaf, jax.Array) else leaf, tree)


@contextlib.contextmanager
def together(mesh: Mesh | None) -> Iterator[None]:
    """Return a context in which all processes use the times and numbers of process 0."""
    if n_processes(mesh) == 1 or _TOGETHER.get():
        yield
        return
    token = _TOGETHER.set(True)
    try:
        with deadline.agreeing(from_first):
            yield
    finally:
        _TOGETHER.reset(token)


def is_writer() -> bool:
    """Return True if this process writes files and messages (process 0 inside `together`)."""
    return not _TOGETHER.get() or jax.process_index() == 0


def from_first(value: T) -> T:
    """Return the value of process 0 inside `together`, else the value itself."""
    if not _TOGETHER.get():
        return value
    content = np.frombuffer(pickle.dumps(value) if is_writer() else b"", np.uint8)
    length = int(multihost_utils.broadcast_one_to_all(np.int32(len(content))))
    content = np.resize(content, length) if len(content) else np.zeros(length, np.uint8)
    return pickle.loads(np.asarray(multihost_utils.broadcast_one_to_all(content), np.uint8).tobytes())


def agreed(tree: T) -> T:
    """Return the tree with the arrays and numbers of process 0 inside `together`."""
    if not _TOGETHER.get():
        return tree
    numbers, rest = eqx.partition(tree, eqx.is_array_like)
    leaves, structure = jax.tree.flatten(numbers)
    found = map(_alike, from_first([np.asarray(leaf) for leaf in leaves]), leaves)
    return eqx.combine(jax.tree.unflatten(structure, found), rest)


def _put(leaf: Any, sharding: NamedSharding) -> jax.Array:
    mesh: Any = sharding.mesh
    spec = sharding.spec
    length = np.shape(leaf)[len(spec) - 1] if spec else 0
    if length % mesh.size:
        raise ValueError(f"{length} rows cannot be divided equally among {mesh.size} devices")
    if n_processes(mesh) == 1:
        return jax.device_put(leaf, sharding)
    if isinstance(leaf, jax.Array) and leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
        return leaf
    host = _on_host(leaf)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def _on_host(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
        return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))
    return np.asarray(leaf)


def _alike(new: np.ndarray, old: Any) -> Any:
    if isinstance(old, jax.Array):
        return on_device(new, old.dtype)
    return new if isinstance(old, np.ndarray) else type(old)(new)
