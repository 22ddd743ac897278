"""Matrix products in the full precision of their inputs.

On GPUs and TPUs JAX's default product rounds float32 to TensorFloat-32 or bfloat16 (relative error 1e-3 and
worse), which is enough to lose positive definiteness. Products that matter go through this file.
"""

from contextlib import AbstractContextManager

import jax
import jax.numpy as jnp
from jaxtyping import Array


def matmul(a: Array, b: Array) -> Array:
    """Return a @ b at the highest precision of the inputs' dtype."""
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def einsum(subscripts: str, *operands: Array) -> Array:
    """Return `jax.numpy.einsum` at the highest precision of the inputs' dtype."""
    return jnp.einsum(subscripts, *operands, precision=jax.lax.Precision.HIGHEST)


def full_precision() -> AbstractContextManager:
    """Return a context in which traced products run at full precision unless they set another."""
    return jax.default_matmul_precision("highest")
