"""Trainable and frozen parameters of models.

Learners change the array `raw` of `Positive` and `Bounded`, and floating arrays that are not parameters.

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

SMALL = 1 << 16  # maximum size of arrays converted on the host


class AbstractParameter(eqx.Module):
    """A parameter with a constrained `value`, which `float` and `np.asarray` return."""

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
        """The value as a NumPy array; not available for traced parameters."""
        with jax.enable_x64(True):  # keeps float64
            return np.asarray(self.value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.known, dtype=dtype)

    def __float__(self) -> float:
        return float(self.known)

    def __pdoc__(self, **kwargs: Any) -> wadler_lindig.AbstractDoc | None:
        """Return a short value for Equinox's printer, or None to print all fields."""
        with jax.enable_x64(True):
            value = self.value if _is_known(self) else None
        if value is None or not eqx.is_array(value) or value.ndim > 1 or value.size > 32:
            return None
        text = np.array2string(np.asarray(value), max_line_width=10**6, separator=", ")
        return wadler_lindig.TextDoc(f"{type(self).__name__}({text})")


class Positive(AbstractParameter):
    """A parameter with the value lower + exp(raw). Create it with `positive`."""

    raw: Float[Array, "..."]  # log(value − lower)
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
    """A parameter with the value lower + (upper − lower) / (1 + exp(−raw)). See `bounded`."""

    raw: Float[Array, "..."]  # log((value − lower)/(upper − value))
    lower: float = eqx.field(static=True)
    upper: float = eqx.field(static=True)

    @property
    def stored(self) -> Float[Array, "..."]:
        return self.raw

    @property
    def value(self) -> Float[Array, "..."]:
        return self.lower + (self.upper - self.lower) * jax.nn.sigmoid(self.raw)


class Frozen(AbstractParameter):
    """An array or a module that is not trained: gradients are 0.

    A frozen callable can still be called: `frozen(network)(x)`.
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
    value, lower, dtype
        The value, its lower bound and its dtype. None means the dtype of a floating array, else float32.
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
    """Return a `Bounded` parameter. Raises ValueError unless lower < value < upper (finite).

    Parameters
    ----------
    value, lower, upper, dtype
        The value, its bounds and its dtype, as in `positive`.
    """
    if not (math.isfinite(lower) and math.isfinite(upper) and lower < upper):
        raise ValueError(
            f"the bounds are ({lower}, {upper}); the bounds must be finite, and the first must be below the second"
        )
    value = _as_array(value, dtype)
    _check_inside(value, lower, upper)
    fraction = (value - lower) / (upper - lower)
    return Bounded(jnp.log(fraction) - jnp.log1p(-fraction), float(lower), float(upper))


def frozen(value: Any) -> Frozen:
    """Freeze a number, an array, a parameter or any module: learning does not change it.

    Parameters
    ----------
    value : Any
        Numbers and lists become float32 arrays. Floating arrays keep their dtype. Parameters become values.
    """
    if isinstance(value, Frozen):
        return value
    if isinstance(value, AbstractParameter):
        return Frozen(value.value)
    return Frozen(_as_array(value, None) if _is_array_like(value) else value)


def as_positive(value: Any, dtype: DTypeLike | None = None) -> AbstractParameter:
    """Convert a positive number or array to a `Positive` parameter. Others raise ValueError.

    Parameters
    ----------
    value, dtype
        The value, and the dtype of the new parameter. A parameter as `value` is returned unchanged.
    """
    return value if isinstance(value, AbstractParameter) else positive(value, dtype=dtype)


def times(parameter: AbstractParameter, factor: float) -> AbstractParameter:
    """Multiply a parameter and its lower bound by `factor` > 0. Upper bounds are dropped."""
    value = np.asarray(parameter, np.float64) * factor
    if isinstance(parameter, Frozen):
        return Frozen(on_device(value, parameter.dtype))
    lower = factor * getattr(parameter, "lower", 0.0)
    return positive(on_device(value, parameter.dtype), lower=lower)


def value_of(value: Any, dtype: DTypeLike | None = None) -> Any:
    """Return the value of a parameter. Other objects are returned unchanged.

    Parameters
    ----------
    value, dtype
        Any object, and the dtype of the result. None means no conversion.
    """
    value = value.value if isinstance(value, AbstractParameter) else value
    return value if dtype is None else jnp.asarray(value, dtype=dtype)


def slope_of(parameter: AbstractParameter) -> np.ndarray | None:
    """Return d value / d `raw` in float64 with at least one dimension; None if frozen."""
    if isinstance(parameter, Frozen):
        return None
    value = np.atleast_1d(np.asarray(parameter, np.float64))
    if isinstance(parameter, Bounded):
        return (value - parameter.lower) * (parameter.upper - value) / (parameter.upper - parameter.lower)
    return value - parameter.lower if isinstance(parameter, Positive) else None


def trainable_mask(tree: PyTree) -> PyTree:
    """Return the tree with True for trainable leaves and False for other leaves."""

    def mark(node: Any) -> Any:
        return jax.tree.map(lambda _: False, node) if isinstance(node, Frozen) else eqx.is_inexact_array(node)

    return jax.tree.map(mark, tree, is_leaf=lambda node: isinstance(node, Frozen))


def partition(tree: T) -> tuple[T, T]:
    """Split a tree into trainable and other leaves, with None at the missing leaves.

    Parameters
    ----------
    tree : pytree
        A model, or a part of one.
    """
    return eqx.partition(tree, trainable_mask(tree))


def in_parameters(tree: PyTree) -> PyTree:
    """Return the tree with True for trainable leaves inside parameters, else False."""

    def mark(node: Any) -> Any:
        return trainable_mask(node) if isinstance(node, AbstractParameter) else False

    return jax.tree.map(mark, tree, is_leaf=lambda node: isinstance(node, AbstractParameter))


def cast(tree: T, dtype: DTypeLike) -> T:
    """Convert all floating arrays of a tree, including frozen arrays, to `dtype`."""

    def convert(leaf: Any) -> Any:
        if not eqx.is_inexact_array(leaf) or leaf.dtype == dtype:
            return leaf
        small = not isinstance(leaf, Tracer) and leaf.size <= SMALL
        return on_device(np.asarray(leaf), dtype) if small else leaf.astype(dtype)

    return jax.tree.map(convert, tree)


def _is_known(parameter: AbstractParameter) -> bool:
    """Return True if all leaves are arrays with known values."""
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
    """Raise ValueError unless lower < value < upper. Traced values are not checked."""
    if isinstance(value, Tracer):
        return
    known = np.asarray(value)
    if not np.all((known > lower) & (known < upper)):
        raise ValueError(f"the value {known} of a parameter must be above {lower} and below {upper}")
