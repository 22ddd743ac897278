"""Functions for products that fill an array block by block."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PyTree

BLOCK = 512  # rows of K at a time in products with A, and when kept rows are filled

Read = Callable[[PyTree], Float[Array, "T S"]]


def as_it_is(v: Any) -> Any:
    """Return v, for a product that reads its right-hand side unchanged."""
    return v


def wide(v: Float[Array, "T S"]) -> Float[Array, "T S"]:
    """Return v in float64 if x64 is enabled, to sum a float32 tile of K times v in float64.

    Predictive means are such sums. If rows repeat, Σᵢ|k(x, xᵢ)αᵢ| may be 10⁵ times as large as the mean, so that float32 keeps two digits.

    Parameters
    ----------
    v : array [T, S]
        The right-hand side of a product with a tile.
    """
    return v.astype(jax.dtypes.canonicalize_dtype(jnp.float64))


def filled(
    out: Float[Array, "P S"], size: int, n_rows: int, rows_from: Callable[[Array], Float[Array, "B S"]]
) -> Float[Array, "P S"]:
    """Return `out` with its first `size` rows from `rows_from(start)`, in overlapping blocks."""
    starts = jnp.minimum(jnp.arange(-(-size // n_rows)) * n_rows, size - n_rows)

    def fill(out: Array, start: Array) -> tuple[Array, None]:
        return jax.lax.dynamic_update_slice_in_dim(out, rows_from(start), start, 0), None

    return jax.lax.scan(fill, out, starts)[0]


def following(start: Int[Array, ""] | int, n_rows: int) -> Int[Array, " B"]:
    """Return start … start + n_rows − 1."""
    return jnp.asarray(start, jnp.int32) + jnp.arange(n_rows, dtype=jnp.int32)
