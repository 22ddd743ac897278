"""Keys and draws of `jax.random`, computed on the host to save compiling."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike
from jaxtyping import Float32, Int, PRNGKeyArray, UInt32
from scipy.special import erfinv

Words = tuple[int, int]  # two words of 32 bits

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
LARGEST = 1 << 18  # maximum number of values drawn on the host


def as_key(random_state: Any) -> PRNGKeyArray:
    """Return a key from None (fresh entropy), an integer, a NumPy generator or a key.

    An integer must be between 0 and 2³² − 1. Raises ValueError for other values.
    """
    if random_state is None:
        return _key(int(np.random.SeedSequence().generate_state(1)[0]))
    if isinstance(random_state, np.random.RandomState):
        return _key(int(random_state.randint(2**31)))
    if isinstance(random_state, np.random.Generator):
        return _key(int(random_state.integers(2**32)))
    if isinstance(random_state, jax.Array) and jnp.issubdtype(random_state.dtype, jax.dtypes.prng_key):
        return random_state
    whole = isinstance(random_state, int | np.integer) and not isinstance(random_state, bool)
    if whole and 0 <= random_state < 2**32:
        return _key(int(random_state))
    raise ValueError(
        f"random_state must be None, an integer from 0 to 2**32 - 1, or a NumPy RandomState or Generator, but is {random_state!r}"
    )


def _key(seed: int) -> PRNGKeyArray:
    """Return `jax.random.key(seed)`, without compiling for the default generator."""
    if jax.config.jax_default_prng_impl != "threefry2x32":  # pyrefly: ignore[missing-attribute]
        return jax.random.key(seed)
    return key_of((0, seed))


def key_of(words: tuple[int, ...]) -> PRNGKeyArray:
    """Return the key of two words of 32 bits."""
    return jax.random.wrap_key_data(np.asarray(words, np.uint32), impl="threefry2x32")  # pyrefly: ignore[bad-argument-type]


def words_of(key: PRNGKeyArray) -> tuple[int, ...]:
    """Return all words of a key, which can seed generators of NumPy."""
    return tuple(int(word) for word in np.ravel(np.asarray(jax.random.key_data(key))))


def random_rows(n_rows: int, most: int, seed: int | tuple[int, ...] = 0) -> Int[np.ndarray, " n"]:
    """Return at most `most` random row numbers, in ascending order."""
    return np.sort(np.random.default_rng(seed).permutation(n_rows)[:most])


def split(key: PRNGKeyArray, n: int) -> list[Words]:
    """Return the words of `jax.random.split(key, n)`."""
    high, low = _threefry(words_of(key)[:2], np.arange(n, dtype=np.uint32))
    return [(int(a), int(b)) for a, b in zip(high, low, strict=True)]


def seed_of(words: Words) -> Words:
    """Return `jax.random.bits(key_of(words), (2,), "uint32")`, a seed of NumPy's generators."""
    first, second = _bits(words, 2)
    return int(first), int(second)


def split_key(key: PRNGKeyArray, n: int = 2) -> list[PRNGKeyArray]:
    """Return `jax.random.split(key, n)`."""
    return [key_of(words) for words in split(key, n)] if _is_plain(key) else list(jax.random.split(key, n))


def fold_in(key: PRNGKeyArray, number: int) -> PRNGKeyArray:
    """Return `jax.random.fold_in(key, number)`."""
    if not _is_plain(key):
        return jax.random.fold_in(key, number)
    high, low = _threefry(words_of(key), np.array([number], np.uint32))
    return key_of((int(high[0]), int(low[0])))


def normal(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike) -> Any:
    """Return `jax.random.normal(key, shape, dtype)`, up to rounding errors."""
    if not _fits_host(key, shape, dtype):
        return jax.random.normal(key, shape, dtype)
    low, one = np.nextafter(np.float32(-1), np.float32(0)), np.float32(1)
    u = np.maximum(low, _fractions(key, math.prod(shape)) * (one - low) + low)  # uniform on (−1, 1)
    return (math.sqrt(2) * erfinv(u.astype(np.float64))).astype(np.float32).reshape(shape)


def uniform(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike, minval: float, maxval: float) -> Any:
    """Return `jax.random.uniform(key, shape, dtype, minval, maxval)`, like `normal`."""
    if not _fits_host(key, shape, dtype):
        return jax.random.uniform(key, shape, dtype, minval, maxval)
    low, high = np.float32(minval), np.float32(maxval)
    fraction = _fractions(key, math.prod(shape)).astype(np.float64)
    scaled = fraction * np.float64(high - low) + low  # rounded once, as XLA does
    return np.maximum(low, scaled.astype(np.float32)).reshape(shape)


def _is_plain(key: PRNGKeyArray) -> bool:
    """Return True for a single untraced key of JAX's default generator."""
    if isinstance(key, Tracer) or not getattr(jax.config, "jax_threefry_partitionable", True):
        return False
    return key.shape == () and str(jax.random.key_impl(key)) == "threefry2x32"


def _fits_host(key: PRNGKeyArray, shape: tuple[int, ...], dtype: DTypeLike) -> bool:
    return np.dtype(dtype) == np.float32 and 0 < math.prod(shape) <= LARGEST and _is_plain(key)


def _fractions(key: PRNGKeyArray, n: int) -> Float32[np.ndarray, " n"]:
    """Draw uniform numbers on [0, 1), from 23 random bits each."""
    one = np.float32(1)
    return ((_bits(words_of(key), n) >> np.uint32(9)) | one.view(np.uint32)).view(np.float32) - one


def _bits(words: tuple[int, ...], n: int) -> UInt32[np.ndarray, " n"]:
    """Return `jax.random.bits(key_of(words), (n,), "uint32")`."""
    high, low = _threefry(words, np.arange(n, dtype=np.uint32))
    return high ^ low


def _threefry(words: tuple[int, ...], counters: UInt32[np.ndarray, " n"]) -> tuple[np.ndarray, np.ndarray]:
    """Return words of Threefry-2x32 with 20 rounds (Salmon et al. 2011), as in JAX."""
    keys = np.array([*words, words[0] ^ words[1] ^ 0x1BD11BDA], np.uint32)
    x0, x1 = np.full(len(counters), keys[0]), counters + keys[1]
    for group in range(5):
        for bits in ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = ((x1 << np.uint32(bits)) | (x1 >> np.uint32(32 - bits))) ^ x0
        x0 = x0 + keys[(group + 1) % 3]
        x1 = x1 + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x0, x1
