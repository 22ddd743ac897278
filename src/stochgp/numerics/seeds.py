"""From scikit-learn's `random_state` to a JAX key."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray


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


def spawned(key: PRNGKeyArray, n: int) -> list[tuple[int, int]]:
    """n independent pairs of words made of a key, on the host: seeds of NumPy's generators, or of `key_of`."""
    words = np.random.SeedSequence(np.ravel(np.asarray(jax.random.key_data(key))).tolist()).generate_state(
        2 * n
    )
    return [(int(words[2 * i]), int(words[2 * i + 1])) for i in range(n)]
