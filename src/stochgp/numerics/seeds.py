"""From scikit-learn's `random_state` to a JAX key, and to rows at random."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, PRNGKeyArray, UInt32

Words = tuple[int, int]  # of 32 bits

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def as_key(random_state: Any) -> PRNGKeyArray:
    """A key from None (fresh entropy), an integer from 0 to 2³² − 1, a NumPy RandomState or Generator (which moves on), or a key.

    Raises ValueError for anything else.
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
        f"random_state is {random_state!r}; it must be None, an integer from 0 to 2**32 - 1, a NumPy RandomState or Generator"
    )


def _key(seed: int) -> PRNGKeyArray:
    """`jax.random.key(seed)`, without a program where the generator is JAX's default."""
    if jax.config.jax_default_prng_impl != "threefry2x32":  # pyright: ignore[reportAttributeAccessIssue]
        return jax.random.key(seed)
    return key_of((0, seed))


def key_of(words: tuple[int, ...]) -> PRNGKeyArray:
    """The key of two words of 32 bits."""
    return jax.random.wrap_key_data(np.asarray(words, np.uint32), impl="threefry2x32")  # pyright: ignore[reportArgumentType]


def random_rows(n_rows: int, most: int, seed: int | tuple[int, ...] = 0) -> Int[np.ndarray, " n"]:
    """At most so many of the rows, at random, in their order."""
    return np.sort(np.random.default_rng(seed).permutation(n_rows)[:most])


def split(key: PRNGKeyArray, n: int) -> list[Words]:
    """The words of `jax.random.split(key, n)`, computed on the host: a program for it takes longer to compile than a small fit."""
    high, low = _threefry(_words(key), np.zeros(n, np.uint32), np.arange(n, dtype=np.uint32))
    return [(int(a), int(b)) for a, b in zip(high, low, strict=True)]


def seed_of(words: Words) -> Words:
    """`jax.random.bits(key_of(words), (2,), "uint32")`: a seed of NumPy's generators, apart from the key's own draws."""
    first, second = bits_of(words, 2)
    return int(first), int(second)


def bits_of(words: Words, n: int) -> UInt32[np.ndarray, " n"]:
    """`jax.random.bits(key_of(words), (n,), "uint32")`."""
    high, low = _threefry(words, np.zeros(n, np.uint32), np.arange(n, dtype=np.uint32))
    return high ^ low


def words_of(key: PRNGKeyArray) -> tuple[int, ...]:
    """All words of a key, as a seed of NumPy's generators."""
    return tuple(int(word) for word in np.ravel(np.asarray(jax.random.key_data(key))))


def _words(key: PRNGKeyArray) -> Words:
    first, last = words_of(key)[:2]
    return first, last


def _threefry(words: Words, x0: np.ndarray, x1: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Threefry-2x32 with 20 rounds (Salmon et al. 2011), the generator of JAX."""
    keys = np.array([*words, words[0] ^ words[1] ^ 0x1BD11BDA], np.uint32)
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for group in range(5):
        for bits in ROTATIONS[group % 2]:
            x0 = x0 + x1
            x1 = ((x1 << np.uint32(bits)) | (x1 >> np.uint32(32 - bits))) ^ x0
        x0 = x0 + keys[(group + 1) % 3]
        x1 = x1 + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x0, x1
