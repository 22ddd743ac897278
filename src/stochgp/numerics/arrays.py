"""Products of arrays at full precision, transfers, blocks of rows, and packed bits.

A word of 31 bits is stored as a float32: bit 30 is the sign, bits 23 to 29 are the exponent, and bits 0 to 22
the mantissa. Zero is 0.0. All words are normal, finite numbers, so that casts to float64 keep the bits.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Float32, Int32, PyTree, UInt32

T = TypeVar("T")
LONGEST_NAP, SHARE_OF_NAP = 0.02, 0.01  # pauses in seconds, and as a share of the waiting time
WORD = 31  # bits
_LOW, _EXPONENT = np.uint32(0x3FFFFFFF), np.uint32(64 << 23)
UNROLLED = 8  # words per step


def matmul(a: Array, b: Array) -> Array:
    """Return a @ b at full precision; the default of JAX on GPUs rounds float32."""
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def einsum(subscripts: str, *operands: Array) -> Array:
    """Return `jax.numpy.einsum` at full precision, like `matmul`."""
    return jnp.einsum(subscripts, *operands, precision=jax.lax.Precision.HIGHEST)


def full_precision() -> AbstractContextManager:
    """Return a context that traces products at full precision, unless they set a precision."""
    return jax.default_matmul_precision("highest")


def on_device(values: Any, dtype: DTypeLike | None = None) -> Array:
    """Copy a host array to the device without compiling a program."""
    if isinstance(values, jax.Array) and (dtype is None or values.dtype == dtype):
        return values
    return jax.device_put(np.asarray(values, dtype))


def on_host(tree: T) -> T:
    """Return the tree with NumPy arrays."""
    return jax.tree.map(lambda leaf: np.asarray(leaf) if eqx.is_array(leaf) else leaf, tree)


def when_ready(values: T) -> T:
    """Wait until the values are computed, and return them. Ctrl-C ends the wait at once."""
    begun = time.perf_counter()
    for leaf in jax.tree.leaves(values):
        while isinstance(leaf, jax.Array) and not leaf.is_ready():  # pyrefly: ignore[missing-attribute]
            time.sleep(min(LONGEST_NAP, SHARE_OF_NAP * (time.perf_counter() - begun)))
    return values


def filled_up(rows: np.ndarray, size: int, fill: float | None = None) -> np.ndarray:
    """Pad rows [n, …] to `size` rows, with copies of the last row or with `fill`."""
    missing = size - len(rows)
    if missing <= 0:
        return rows
    more = rows[-1:] if fill is None else np.asarray(fill, rows.dtype)
    return np.concatenate([rows, np.broadcast_to(more, (missing, *rows.shape[1:]))])


def extended(rows: PyTree, missing: int, mode: str = "edge") -> PyTree:
    """Append `missing` copies of the last row to each leaf, or zeros for mode "constant"."""
    pad: Any = jnp.pad
    return jax.tree.map(lambda leaf: pad(leaf, ((0, missing),) + ((0, 0),) * (leaf.ndim - 1), mode), rows)


def by_blocks(evaluate: Callable, size: int, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Evaluate blocks of `size` rows, and join the results. The last block is padded."""
    found = []
    for start in range(0, len(arrays[0]), size):
        parts = [array[start : start + size] for array in arrays]
        n = len(parts[0])
        full = min(size, 1 << (n - 1).bit_length())
        values = evaluate(*(filled_up(part, full) for part in parts))
        found.append([np.asarray(value, np.float64)[:n] for value in values])
    return tuple(np.concatenate(parts) for parts in zip(*found, strict=True))


def packed(tree: Any) -> Float[np.ndarray, " P"]:
    """Return all floating arrays of a tree as one float64 vector, on the host."""
    leaves = jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))
    return np.concatenate([np.zeros(0), *[np.ravel(np.asarray(leaf, np.float64)) for leaf in leaves]])


def unpacked(vector: Float[np.ndarray, " P"], like: T) -> T:
    """Return the tree `like` with the numbers of `vector`, as float64 host arrays."""
    dynamic, static = eqx.partition(like, eqx.is_inexact_array)
    leaves, structure = jax.tree.flatten(dynamic)
    ends = np.cumsum([leaf.size for leaf in leaves])
    parts = np.split(vector, ends[:-1]) if leaves else []
    shaped = [part.reshape(leaf.shape).astype(np.float64) for part, leaf in zip(parts, leaves, strict=True)]
    return eqx.combine(jax.tree.unflatten(structure, shaped), static)


def unpacked_alike(vector: Float[np.ndarray, " P"], like: T) -> T:
    """Return the tree `like` with the numbers of `vector`, on the device, in its dtypes."""
    return jax.tree.map(lambda new, old: on_device(new, old.dtype), unpacked(vector, like), like)


def effective_number(weight: Float[np.ndarray, " N"]) -> float:
    """Return (Σ weight)² / Σ weight², the effective number of rows (Kish 1965)."""
    share = np.asarray(weight, np.float64) / np.max(weight)
    return float(np.sum(share) ** 2 / np.sum(share**2))


def shortest_solution(H: Float[np.ndarray, "P P"], g: Float[np.ndarray, " P"]) -> Float[np.ndarray, " P"]:
    """Return H⁻¹g, the shortest solution if H is singular; NaN if H is not finite."""
    if not np.isfinite(H).all():
        return np.full_like(g, np.nan)
    return np.linalg.lstsq(H, g, rcond=None)[0]


def n_words(n_bits: int) -> int:
    """Return the number of words for `n_bits` bits, at least one."""
    return max(1, -(-n_bits // WORD))


def packed_bits(bits: Bool[np.ndarray, "N b"]) -> Float32[np.ndarray, "N W"]:
    """Pack rows of bits into rows of numbers, 31 bits per number."""
    n, width = len(bits), n_words(bits.shape[1])
    flat = np.zeros((n, width * WORD), bool)
    flat[:, : bits.shape[1]] = bits
    padded = np.pad(flat.reshape(n, width, WORD), ((0, 0), (0, 0), (0, 1)))
    words = np.packbits(padded, axis=2, bitorder="little").view("<u4")[:, :, 0]
    return numbers_of(words.astype(np.uint32))


def numbers_of(words: UInt32[np.ndarray, "*shape"]) -> Float32[np.ndarray, "*shape"]:
    """Return words of 31 bits as float32 numbers."""
    coded = ((words >> 30) << 31) | ((words & _LOW) + _EXPONENT)
    return np.where(words == 0, np.uint32(0), coded).view(np.float32)


def words_of(numbers: Float[Array, "*shape"] | Float[np.ndarray, "*shape"]) -> UInt32[Array, "*shape"]:
    """Return the words of float32 or float64 numbers, the inverse of `numbers_of`."""
    coded = jax.lax.bitcast_convert_type(jnp.asarray(numbers).astype(jnp.float32), jnp.uint32)
    low = (coded & jnp.uint32(0x7FFFFFFF)) - _EXPONENT
    return jnp.where(coded == 0, jnp.uint32(0), ((coded >> 31) << 30) | low)


def n_bits_shared(x: UInt32[Array, "N W"], z: UInt32[Array, "P W"]) -> Int32[Array, "N P"]:
    """Return the number of common bits of each pair of rows."""
    missing = -x.shape[1] % UNROLLED
    left, right = (jnp.pad(rows, ((0, 0), (0, missing))).T for rows in (x, z))

    def add(step: Array, total: Array) -> Array:
        for k in range(UNROLLED):
            a, b = (
                jax.lax.dynamic_index_in_dim(words, step * UNROLLED + k, keepdims=False)
                for words in (left, right)
            )
            both = jax.lax.population_count(a[:, None] & b[None, :])
            total = total + both.astype(jnp.int32)
        return total

    start = jnp.zeros((x.shape[0], z.shape[0]), jnp.int32)
    return jax.lax.fori_loop(0, left.shape[0] // UNROLLED, add, start)
