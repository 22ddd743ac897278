"""What readers of other packages' kernels have in common: values as parameters, sums, products, amplitudes that are not said."""

import functools
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import numpy as np

from stochgp.kernels.base import AbstractKernel, Product, Sum
from stochgp.kernels.linear import Constant
from stochgp.kernels.stationary import Matern12, Matern32, Matern52
from stochgp.parameters import Frozen, frozen, value_of

MATERN = {0.5: Matern12, 1.5: Matern32, 2.5: Matern52}


def unit() -> Frozen:
    """The amplitude of a kernel that has none: `product` may replace it."""
    return frozen(1.0)


def parameter(value: Any, is_fixed: bool) -> Any:
    """A number or an array as what a kernel's field takes: frozen, or the number itself, which trains."""
    value = np.asarray(value, np.float64)
    value = float(value) if value.ndim == 0 else value
    return frozen(value) if is_fixed else value


def total(terms: Sequence[AbstractKernel]) -> AbstractKernel:
    """Of one term or more."""
    return functools.reduce(Sum, terms)


def product(left: AbstractKernel, right: AbstractKernel) -> AbstractKernel:
    """A constant becomes the amplitude of what it multiplies, where that is the frozen 1."""
    for constant, other in ((left, right), (right, left)):
        amplitude = getattr(other, "variance", None)
        if not isinstance(constant, Constant) or isinstance(other, Constant) or amplitude is None:
            continue
        if isinstance(amplitude, Frozen) and float(value_of(amplitude, np.float32)) == 1.0:
            return eqx.tree_at(lambda kernel: kernel.variance, other, constant.variance)
    return Product(left, right)
