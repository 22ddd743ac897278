"""Keys and draws of `jax.random`, bit for bit, without the programs that it compiles for each shape: they take longer than a small fit."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike
from jaxtyping import Array, Float32, PRNGKeyArray

from stochgp.numerics.seeds import bits_of, key_of, words_of
from stochgp.numerics.seeds import split as words_of_split

BLOCK = 1 << 14  # numbers that one program makes of bits, whatever the shape
LARGEST = 1 << 18  # numbers for which the bits are made on the host


def split(key: PRNGKeyArray, n: int = 2) -> list[PRNGKeyArray]:
    """`jax.random.split(key, n)`."""
    return (
        [key_of(words) for words in words_of_split(key, n)]
        if _is_plain(key)
        else list(jax.random.split(key, n))
    )


def fold_in(key: PRNGKeyArray, number: int) -> PRNGKeyArray:
    """`jax.random.fold_in(key, number)`: key `number` of any longer split."""
    return split(key, number + 1)[number] if _is_plain(key) else jax.random.fold_in(key, number)


def normal(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
    """`jax.random.normal(key, shape, dtype)`; an array of the host where it can be made there."""
    if not _is_made_of_bits(key, shape, dtype):
        return jax.random.normal(key, shape, dtype)
    n = math.prod(shape)
    fraction = np.zeros(-(-n // BLOCK) * BLOCK, np.float32)
    fraction[:n] = _fractions(key, n)
    found = [np.asarray(_normal(block)) for block in fraction.reshape(-1, BLOCK)]
    return np.concatenate(found)[:n].reshape(shape)


def uniform(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike, minval: float, maxval: float) -> Any:
    """`jax.random.uniform(key, shape, dtype, minval, maxval)`; as `normal`."""
    if not _is_made_of_bits(key, shape, dtype):
        return jax.random.uniform(key, shape, dtype, minval, maxval)
    low, high = np.float32(minval), np.float32(maxval)
    fraction = _fractions(key, math.prod(shape)).astype(np.float64)
    scaled = (fraction * np.float64(high - low) + low).astype(
        np.float32
    )  # rounded once, as by XLA with all optimisations
    return np.maximum(low, scaled).reshape(shape)


def integer(key: PRNGKeyArray, most: int) -> int:
    """`jax.random.randint(key, (), 0, most, "int32")`."""
    if not _is_plain(key):
        return int(jax.random.randint(key, (), 0, most, jnp.int32))
    high, low = (int(bits_of(words, 1)[0]) for words in words_of_split(key, 2))
    factor = (2**16 % most) ** 2 % 2**32 % most
    return ((high % most) * factor % 2**32 + low % most) % 2**32 % most


def _is_plain(key: PRNGKeyArray) -> bool:
    """Whether it is a single key of JAX's default generator that is not being traced."""
    if isinstance(key, Tracer) or not getattr(jax.config, "jax_threefry_partitionable", True):
        return False
    return key.shape == () and str(jax.random.key_impl(key)) == "threefry2x32"


def _is_made_of_bits(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike) -> bool:
    return np.dtype(dtype) == np.float32 and 0 < math.prod(shape) <= LARGEST and _is_plain(key)


def _fractions(key: PRNGKeyArray, n: int) -> Float32[np.ndarray, " n"]:
    """Uniform on [0, 1), of 23 random bits each."""
    first, second = words_of(key)
    bits = bits_of((first, second), n)
    one = np.float32(1)
    return ((bits >> np.uint32(9)) | one.view(np.uint32)).view(np.float32) - one


@jax.jit
def _normal(fraction: Any) -> Array:
    """√2 erf⁻¹(u), u uniform on (−1, 1)."""
    low = np.nextafter(np.float32(-1), np.float32(0))
    u = jnp.maximum(low, fraction * (np.float32(1) - low) + low)
    return np.sqrt(np.float32(2)) * jax.lax.erf_inv(u)
