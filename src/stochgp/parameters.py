"""Parameters: small modules with a `value`, trainable or frozen.

Learners move the `raw` array of `Positive` and `Bounded`; `Frozen` does not train. All other floating arrays of a model train.

    trainable, rest = partition(model)
    gradient = jax.grad(lambda t: loss(eqx.combine(t, rest)))(trainable)
"""

import abc
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import wadler_lindig
from jax.core import Tracer
from jax.typing import ArrayLike, DTypeLike
from jaxtyping import Array, Float, PyTree

from stochgp.numerics.arrays import on_device

__all__ = ["AbstractParameter", "as_positive", "bounded", "frozen", "partition", "positive", "value_of"]

T = TypeVar("T")

SMALL = 1 << 16  # most numbers that are converted on the host


class AbstractParameter(eqx.Module):
    """A parameter with a constrained `value`, which converts to a NumPy array or a float."""

    @property
    @abc.abstractmethod
    def value(self) -> Any:
        """The constrained value."""

    @property
    def stored(self) -> Any:
        """The stored array, with the shape and dtype of the value."""
        return self.value

    @property
    def shape(self) -> tuple[int, ...]:
        return self.stored.shape

    @property
    def dtype(self) -> Any:
        return self.stored.dtype

    @property
    def known(self) -> np.ndarray:
        """The value on the host, for a parameter that is not traced."""
        with jax.enable_x64(True):  # float64 stays float64
            return np.asarray(self.value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.known, dtype=dtype)

    def __float__(self) -> float:
        return float(self.known)

    def __pdoc__(self, **kwargs: Any) -> wadler_lindig.AbstractDoc | None:
        """Return a short constrained value for Equinox's printer if known, else None (all fields)."""
        with jax.enable_x64(True):
            value = self.value if _is_known(self) else None
        if value is None or not eqx.is_array(value) or value.ndim > 1 or value.size > 32:
            return None
        text = np.array2string(np.asarray(value), max_line_width=10**6, separator=", ")
        return wadler_lindig.TextDoc(f"{type(self).__name__}({text})")


class Positive(AbstractParameter):
    """A parameter value = lower + exp(raw), above `lower`. `positive` makes it from its value."""

    raw: Float[Array, "..."]  # log(value − lower), of the shape and dtype of the value
    lower: float = eqx.field(static=True, default=0.0)

    @property
    def stored(self) -> Float[Array, "..."]:
        return self.raw

    @property
    def value(self) -> Float[Array, "..."]:
        return jnp.exp(self.raw) + self.lower

    @property
    def known(self) -> np.ndarray:
        return np.asarray(np.exp(np.asarray(self.raw, np.float64)) + self.lower, self.raw.dtype)


class Bounded(AbstractParameter):
    """A parameter value = lower + (upper − lower) / (1 + exp(−raw)), made by `bounded`."""

    raw: Float[Array, "..."]  # log((value − lower)/(upper − value)), of the shape and dtype of the value
    lower: float = eqx.field(static=True)
    upper: float = eqx.field(static=True)

    @property
    def stored(self) -> Float[Array, "..."]:
        return self.raw

    @property
    def value(self) -> Float[Array, "..."]:
        return self.lower + (self.upper - self.lower) * jax.nn.sigmoid(self.raw)


class Frozen(AbstractParameter):
    """An array or a module that does not train: gradients stop here.

    `partition` leaves it in the rest. A frozen callable is called as before: `frozen(network)(x)`.
    """

    content: Any

    @property
    def stored(self) -> Any:
        return self.content

    @property
    def value(self) -> Any:
        return jax.tree.map(
            lambda leaf: jax.lax.stop_gradient(leaf) if eqx.is_inexact_array(leaf) else leaf, self.content
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.value(*args, **kwargs)


def positive(
    value: ArrayLike | Sequence[float], lower: float = 0.0, dtype: DTypeLike | None = None
) -> Positive:
    """Return a `Positive` parameter. Raises ValueError unless value > lower ≥ 0, all finite.

    Parameters
    ----------
    value, lower, dtype : number, list or array; float; dtype or None
        The value, of any shape, its lower bound, and its dtype. None keeps the dtype of a floating array; other values become float32.
    """
    if not (math.isfinite(lower) and lower >= 0):
        raise ValueError(
            f"the lower bound of a positive parameter is {lower}; it must be finite and at least 0"
        )
    value = _as_array(value, dtype)
    _check_inside(value, lower, math.inf)
    if isinstance(value, Tracer):
        return Positive(jnp.log(value - lower), float(lower))
    return Positive(on_device(np.log(np.asarray(value, np.float64) - lower), value.dtype), float(lower))


def bounded(
    value: ArrayLike | Sequence[float], lower: float, upper: float, dtype: DTypeLike | None = None
) -> Bounded:
    """Return the `Bounded` parameter. Raises ValueError unless lower < value < upper, finite.

    Parameters
    ----------
    value, lower, upper, dtype : number, list or array; float; float; dtype or None
        As in `positive`.
    """
    if not (math.isfinite(lower) and math.isfinite(upper) and lower < upper):
        raise ValueError(
            f"the bounds are ({lower}, {upper}); they must be finite, the first below the second"
        )
    value = _as_array(value, dtype)
    _check_inside(value, lower, upper)
    fraction = (value - lower) / (upper - lower)
    return Bounded(jnp.log(fraction) - jnp.log1p(-fraction), float(lower), float(upper))


def frozen(value: Any) -> Frozen:
    """Return the value without training: a number, an array, a parameter or any module.

    Parameters
    ----------
    value : Any
        Numbers and lists become float32 arrays; a floating array keeps its dtype. A parameter is replaced by its value.
    """
    if isinstance(value, Frozen):
        return value
    if isinstance(value, AbstractParameter):
        return Frozen(value.value)
    return Frozen(_as_array(value, None) if _is_array_like(value) else value)


def as_positive(value: Any, dtype: DTypeLike | None = None) -> AbstractParameter:
    """Return a parameter, or a number or array as a `Positive` one. ValueError if it is ≤ 0.

    Parameters
    ----------
    value, dtype : number, array or parameter; dtype or None
        The value or the parameter; the dtype of a new parameter, as in `positive`.
    """
    return value if isinstance(value, AbstractParameter) else positive(value, dtype=dtype)


def times(parameter: AbstractParameter, factor: float) -> AbstractParameter:
    """Return a parameter `factor` > 0 times as large, like its lower bound; never `Bounded`."""
    value = np.asarray(parameter, np.float64) * factor
    if isinstance(parameter, Frozen):
        return Frozen(on_device(value, parameter.dtype))
    lower = factor * getattr(parameter, "lower", 0.0)
    return positive(on_device(value, parameter.dtype), lower=lower)


def value_of(value: Any, dtype: DTypeLike | None = None) -> Any:
    """Return the value of a parameter, or another object unchanged, as `dtype` if given.

    Parameters
    ----------
    value, dtype : Any; dtype or None
        A parameter, a number, an array, a module. Without a dtype nothing is converted.
    """
    value = value.value if isinstance(value, AbstractParameter) else value
    return value if dtype is None else jnp.asarray(value, dtype=dtype)


def slope_of(parameter: AbstractParameter) -> np.ndarray | None:
    """Return ∂value/∂raw in float64, with at least one axis; None if it does not train."""
    if isinstance(parameter, Frozen):
        return None
    value = np.atleast_1d(np.asarray(parameter, np.float64))
    if isinstance(parameter, Bounded):
        return (value - parameter.lower) * (parameter.upper - value) / (parameter.upper - parameter.lower)
    return value - parameter.lower if isinstance(parameter, Positive) else None


def trainable_mask(tree: PyTree) -> PyTree:
    """Return the tree with True for every leaf that trains, and False for the others."""

    def mark(node: Any) -> Any:
        return jax.tree.map(lambda _: False, node) if isinstance(node, Frozen) else eqx.is_inexact_array(node)

    return jax.tree.map(mark, tree, is_leaf=lambda node: isinstance(node, Frozen))


def partition(tree: T) -> tuple[T, T]:
    """Return trainable and rest, trees with None for the leaves of the other one.

    Parameters
    ----------
    tree : pytree
        A model, or a part of one.
    """
    return eqx.partition(tree, trainable_mask(tree))


def in_parameters(tree: PyTree) -> PyTree:
    """Return the tree with True for trainable leaves in parameters, else False."""

    def mark(node: Any) -> Any:
        return trainable_mask(node) if isinstance(node, AbstractParameter) else False

    return jax.tree.map(mark, tree, is_leaf=lambda node: isinstance(node, AbstractParameter))


def cast(tree: T, dtype: DTypeLike) -> T:
    """Return the tree with every floating array, including frozen ones, in `dtype`."""

    def convert(leaf: Any) -> Any:
        if not eqx.is_inexact_array(leaf) or leaf.dtype == dtype:
            return leaf
        small = not isinstance(leaf, Tracer) and leaf.size <= SMALL
        return on_device(np.asarray(leaf), dtype) if small else leaf.astype(dtype)

    return jax.tree.map(convert, tree)


def _is_known(parameter: AbstractParameter) -> bool:
    """Return False under a transformation, and in masks and partitions without arrays."""
    leaves = jax.tree.leaves(parameter)
    return len(leaves) > 0 and all(eqx.is_array(leaf) and not isinstance(leaf, Tracer) for leaf in leaves)


def _is_array_like(value: Any) -> bool:
    return isinstance(value, bool | int | float | list | tuple | np.generic | np.ndarray | jax.Array)


def _as_array(value: Any, dtype: DTypeLike | None) -> Array:
    """Return an array that is not weakly typed."""
    if dtype is None:
        given = getattr(value, "dtype", None)
        dtype = given if given is not None and jnp.issubdtype(given, jnp.floating) else jnp.float32
    dtype = jax.dtypes.canonicalize_dtype(dtype)
    return jnp.asarray(value, dtype=dtype) if isinstance(value, Tracer) else on_device(value, dtype)


def _check_inside(value: Array, lower: float, upper: float) -> None:
    """Raise ValueError unless lower < value < upper; traced values are unknown and pass."""
    if isinstance(value, Tracer):
        return
    known = np.asarray(value)
    if not np.all((known > lower) & (known < upper)):
        raise ValueError(
            f"a parameter between {lower} and {upper}, both excluded, was given the value {known}"
        )
