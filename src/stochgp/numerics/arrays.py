"""Arrays between host and device, without programs of one operation, which cost more to compile than a small fit."""

import time
from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PyTree

T = TypeVar("T")
LONGEST_NAP, SHARE_OF_NAP = 0.02, 0.01  # seconds, and of what was waited so far


def on_device(values: Any, dtype: DTypeLike | None = None) -> Array:
    """`jnp.asarray` of what lies on the host, as a plain transfer."""
    if isinstance(values, jax.Array) and (dtype is None or values.dtype == dtype):
        return values
    return jax.device_put(np.asarray(values, dtype))


def on_host(tree: T) -> T:
    """The tree with every array as one of NumPy."""
    return jax.tree.map(lambda leaf: np.asarray(leaf) if eqx.is_array(leaf) else leaf, tree)


def when_ready(values: T) -> T:
    """The same values, once they are computed; Ctrl-C ends the wait at once, and not only then."""
    begun = time.perf_counter()
    for leaf in jax.tree.leaves(values):
        while isinstance(leaf, jax.Array) and not leaf.is_ready():  # pyright: ignore[reportAttributeAccessIssue]
            time.sleep(min(LONGEST_NAP, SHARE_OF_NAP * (time.perf_counter() - begun)))
    return values


def filled_up(rows: np.ndarray, size: int, fill: float | None = None) -> np.ndarray:
    """The rows [n, …] and after them the last one again, or `fill`, up to `size` rows: so that a last block shares the program of the others."""
    missing = size - len(rows)
    if missing <= 0:
        return rows
    more = rows[-1:] if fill is None else np.asarray(fill, rows.dtype)
    return np.concatenate([rows, np.broadcast_to(more, (missing, *rows.shape[1:]))])


def extended(rows: PyTree, missing: int, mode: str = "edge") -> PyTree:
    """Each leaf of a traced tree with its last row repeated `missing` times more; with the mode "constant" with so many rows of 0."""
    pad: Any = jnp.pad
    return jax.tree.map(lambda leaf: pad(leaf, ((0, missing),) + ((0, 0),) * (leaf.ndim - 1), mode), rows)


def by_blocks(evaluate: Callable, size: int, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """The arrays that `evaluate` returns for blocks of `size` rows of these arrays, joined; the last is filled up to a power of two of rows."""
    found = []
    for start in range(0, len(arrays[0]), size):
        parts = [array[start : start + size] for array in arrays]
        n = len(parts[0])
        full = min(size, 1 << (n - 1).bit_length())
        values = evaluate(*(filled_up(part, full) for part in parts))
        found.append([np.asarray(value, np.float64)[:n] for value in values])
    return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))


def packed(tree: Any) -> Float[np.ndarray, " P"]:
    """All floating arrays of a tree as one float64 vector, on the host."""
    leaves = [np.ravel(np.asarray(leaf, np.float64)) for leaf in _leaves(tree)]
    return np.concatenate(leaves) if leaves else np.zeros(0)


def unpacked(vector: Float[np.ndarray, " P"], like: T) -> T:
    """The tree `like` with the numbers of `packed`, as arrays of the host in float64."""
    dynamic, static = eqx.partition(like, eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(dynamic)
    ends = np.cumsum([leaf.size for leaf in leaves])
    parts = np.split(vector, ends[:-1]) if leaves else []
    shaped = [part.reshape(leaf.shape).astype(np.float64) for part, leaf in zip(parts, leaves, strict=True)]
    return eqx.combine(jax.tree.unflatten(structure, shaped), static)


def unpacked_alike(vector: Float[np.ndarray, " P"], like: T) -> T:
    """The tree `like` with the numbers of `packed`, on the device and each in the dtype that it has there."""
    return jax.tree.map(lambda new, old: on_device(new, old.dtype), unpacked(vector, like), like)


def effective_number(weight: Float[np.ndarray, " N"]) -> float:
    """(Σρ)²/Σρ²: of how many equally weighted numbers a weighted mean has the variance (Kish 1965)."""
    share = np.asarray(weight, np.float64) / np.max(weight)
    return float(np.sum(share) ** 2 / np.sum(share**2))


def _leaves(tree: Any) -> list[Any]:
    return jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))


def shortest_solution(H: Float[np.ndarray, "P P"], g: Float[np.ndarray, " P"]) -> Float[np.ndarray, " P"]:
    """H⁻¹g, the shortest solution where H is singular; NaN where H is not finite."""
    if not np.isfinite(H).all():
        return np.full_like(g, np.nan)
    return np.linalg.lstsq(H, g, rcond=None)[0]
