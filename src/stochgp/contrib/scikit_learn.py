"""Kernels of `sklearn.gaussian_process.kernels` as ours."""

import functools
from typing import Any

import equinox as eqx
import numpy as np

from stochgp.kernels.base import AbstractKernel, Product, Sum
from stochgp.kernels.linear import Constant, Linear
from stochgp.kernels.periodic import Periodic
from stochgp.kernels.stationary import RBF, Matern12, Matern32, Matern52, RationalQuadratic
from stochgp.parameters import Frozen, frozen, value_of

__all__ = ["from_sklearn"]
MATERN = {0.5: Matern12, 1.5: Matern32, 2.5: Matern52, np.inf: RBF}  # by ν


def from_sklearn(kernel: Any) -> tuple[AbstractKernel, float | None]:
    """Convert a kernel of scikit-learn to one of ours, and the variance of its noise.

    Sums and products, RBF, Matérn (ν = 1/2, 3/2, 5/2, ∞), RationalQuadratic, ExpSineSquared (of one input; of several ours is the product over
    inputs), DotProduct, σ₀² + x·z, and ConstantKernel. A hyperparameter whose bounds are "fixed" is frozen, and so is an amplitude of 1 without
    a constant; others train, without bounds. All are in the units of the data: the same model is an estimator with `standardize=False`.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel
        With its hyperparameters.

    Returns
    -------
    kernel : AbstractKernel
        Of the function, without noise.
    noise_variance : number or None
        The sum over `WhiteKernel` terms, None without any. An estimator with this `noise_variance` keeps it; without one it learns its own.

    Raises
    ------
    ValueError
        For other kernels and other ν, for white noise inside a product, and for noise alone.

    Examples
    --------
    >>> from sklearn.gaussian_process.kernels import RBF, WhiteKernel
    >>> from stochgp.contrib.scikit_learn import from_sklearn
    >>> kernel, noise = from_sklearn(2.0 * RBF(0.5) + WhiteKernel(0.1))
    >>> kernel, noise
    (RBF(lengthscale=Positive(0.5), variance=Positive(2.)), 0.1)
    """
    terms = _terms(kernel)
    found = [_of_sklearn(term) for term in terms if type(term).__name__ != "WhiteKernel"]
    noise = [term.noise_level for term in terms if type(term).__name__ == "WhiteKernel"]
    if not found:
        raise ValueError("the kernel is noise alone: there is no function to learn")
    return functools.reduce(Sum, found), float(sum(noise)) if noise else None


def _terms(kernel: Any) -> list[Any]:
    return [*_terms(kernel.k1), *_terms(kernel.k2)] if type(kernel).__name__ == "Sum" else [kernel]


def _of_sklearn(kernel: Any) -> AbstractKernel:
    name, one = type(kernel).__name__, frozen(1.0)
    part = lambda field: _parameter(getattr(kernel, field), getattr(kernel, f"hyperparameter_{field}").fixed)
    match name:
        case "Product":
            return _product(_of_sklearn(kernel.k1), _of_sklearn(kernel.k2))
        case "Sum":
            return Sum(_of_sklearn(kernel.k1), _of_sklearn(kernel.k2))
        case "RBF":
            return RBF(part("length_scale"), one)
        case "Matern":
            if kernel.nu not in MATERN:
                raise ValueError(
                    f"Matern with nu={kernel.nu:g}: only 0.5, 1.5, 2.5 and inf have a kernel here"
                )
            return MATERN[kernel.nu](part("length_scale"), one)
        case "RationalQuadratic":
            return RationalQuadratic(part("length_scale"), one, alpha=part("alpha"))
        case "ExpSineSquared":
            return Periodic(part("length_scale"), one, part("periodicity"))
        case "DotProduct":
            offset = _parameter(float(kernel.sigma_0) ** 2, kernel.hyperparameter_sigma_0.fixed)
            return Sum(Linear(one), Constant(offset))
        case "ConstantKernel":
            return Constant(part("constant_value"))
        case "WhiteKernel":
            raise ValueError(
                "white noise inside a product has no counterpart: noise is added to the function"
            )
    raise ValueError(
        f"{name} has no counterpart: known are sums and products of RBF, Matern, RationalQuadratic, ExpSineSquared, DotProduct, ConstantKernel and WhiteKernel"
    )


def _parameter(value: Any, is_fixed: bool) -> Any:
    """A field of a kernel from a number or an array: frozen, or the number itself, which trains."""
    value = np.asarray(value, np.float64)
    value = float(value) if value.ndim == 0 else value
    return frozen(value) if is_fixed else value


def _product(left: AbstractKernel, right: AbstractKernel) -> AbstractKernel:
    """The product; a constant replaces the frozen amplitude 1 of the other factor."""
    for constant, other in ((left, right), (right, left)):
        amplitude = getattr(other, "variance", None)
        if not isinstance(constant, Constant) or isinstance(other, Constant) or amplitude is None:
            continue
        if isinstance(amplitude, Frozen) and float(value_of(amplitude, np.float32)) == 1.0:
            return eqx.tree_at(lambda kernel: kernel.variance, other, constant.variance)
    return Product(left, right)
