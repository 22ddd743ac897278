"""The fields that kernels have in common: which columns a kernel sees, its amplitude, its lengths."""

from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from stochgp.parameters import AbstractParameter, as_positive

ActiveDims = tuple[int, ...] | None


def as_amplitude(variance: Any) -> AbstractParameter:
    """One positive number as a parameter. Raises ValueError for an array of them."""
    parameter = as_positive(variance)
    if parameter.shape != ():
        raise ValueError(f"a variance or an exponent is one number, but got shape {parameter.shape}")
    return parameter


def as_active_dims(dims: Iterable[int] | None) -> ActiveDims:
    """The columns that a kernel sees, as a tuple; None = all. Raises ValueError for negative, repeated or no columns."""
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


def check_lengths(name: str, parameter: Array, n_inputs: int) -> None:
    """Raises ValueError unless the parameter is one number or one number per input that the kernel sees."""
    if parameter.shape not in ((), (1,), (n_inputs,)):
        raise ValueError(
            f"the {name} has shape {parameter.shape}, but the kernel sees rows of {n_inputs} inputs"
        )
