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
        return jax.random.key(int(np.random.SeedSequence().generate_state(1)[0]))
    if isinstance(random_state, np.random.RandomState):
        return jax.random.key(int(random_state.randint(2**31)))
    if isinstance(random_state, np.random.Generator):
        return jax.random.key(int(random_state.integers(2**32)))
    if isinstance(random_state, jax.Array) and jnp.issubdtype(random_state.dtype, jax.dtypes.prng_key):
        return random_state
    whole = isinstance(random_state, int | np.integer) and not isinstance(random_state, bool)
    if whole and 0 <= random_state < 2**32:
        return jax.random.key(int(random_state))
    raise ValueError(
        f"random_state is {random_state!r}; it must be None, an integer from 0 to 2**32 - 1, a NumPy RandomState or Generator"
    )
