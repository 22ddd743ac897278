"""The fields that kernels have in common: which columns a kernel sees, its amplitude, its lengths."""

from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from stochgp.parameters import AbstractParameter, as_positive, value_of

ActiveDims = tuple[int, ...] | None


def as_amplitude(variance: Any) -> AbstractParameter:
    """One positive number as a parameter. Raises ValueError for an array of them."""
    parameter = as_positive(variance)
    if parameter.shape != ():
        raise ValueError(f"a variance or an exponent is one number, but got shape {parameter.shape}")
    return parameter


def as_active_dims(dims: Iterable[int] | None) -> ActiveDims:
    """The columns that a kernel sees, as a tuple; None = all.

    Raises ValueError for negative, repeated or no columns.
    """
    if dims is None:
        return None
    columns = tuple(int(dim) for dim in dims)
    if len(columns) == 0 or min(columns) < 0 or len(set(columns)) < len(columns):
        raise ValueError(
            f"active_dims must be different column numbers from 0 up, at least one, but got {columns}"
        )
    return columns


def select(x: Float[Array, "... D"], dims: ActiveDims) -> Float[Array, "... A"]:
    """The active columns. Raises ValueError when the rows are not floating or lack one of the columns."""
    if not jnp.issubdtype(x.dtype, jnp.floating):
        raise ValueError(f"a kernel takes rows of floating numbers, but got dtype {x.dtype}")
    if dims is None:
        return x
    if max(dims) >= x.shape[-1]:
        raise ValueError(
            f"active_dims {dims} need at least {max(dims) + 1} inputs, but the rows have {x.shape[-1]}"
        )
    return x[..., jnp.asarray(dims, dtype=jnp.int32)]


def per_input(name: str, parameter: Any, x: Float[Array, "... A"]) -> Float[Array, "... A"]:
    """The value of a parameter that is one number or one per active input, spread over x.

    Raises ValueError for other shapes.
    """
    value = value_of(parameter, x.dtype)
    if value.shape not in ((), (1,), x.shape[-1:]):
        raise ValueError(
            f"the {name} has shape {value.shape}, but the kernel sees rows of {x.shape[-1]} inputs"
        )
    return jnp.broadcast_to(value, x.shape)
