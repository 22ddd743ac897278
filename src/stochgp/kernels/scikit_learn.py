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

MATERN = {0.5: Matern12, 1.5: Matern32, 2.5: Matern52, np.inf: RBF}


def from_sklearn(kernel: Any) -> tuple[AbstractKernel, float | None]:
    """A kernel of scikit-learn as one of ours, and the variance of its noise.

    Sums and products, RBF, Matérn (ν = 1/2, 3/2, 5/2, ∞), RationalQuadratic, ExpSineSquared (of one input; of several ours is the product over
    inputs), DotProduct, σ₀² + x·z, and ConstantKernel. A hyperparameter whose bounds are "fixed" is frozen, and so is an amplitude of 1 that
    no constant says; others train, without bounds. All are in the units of the data: the same model is an estimator with `standardize=False`.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel
        With its hyperparameters.

    Returns
    -------
    kernel : AbstractKernel
        Of the function, without noise.
    noise_variance : number or None
        The sum of what stands in `WhiteKernel` terms, None without any. An estimator that is given it as `noise_variance` keeps it; one that is not
        learns its own.

    Raises
    ------
    ValueError
        For other kernels and other ν, for white noise inside a product, and where nothing but noise is there.

    Examples
    --------
    >>> from sklearn.gaussian_process.kernels import RBF, WhiteKernel
    >>> from stochgp.kernels import from_sklearn
    >>> kernel, noise = from_sklearn(2.0 * RBF(0.5) + WhiteKernel(0.1))
    >>> kernel, noise
    (RBF(lengthscale=0.5, variance=2.0), 0.1)
    """
    terms = _terms(kernel)
    found = [_one(term) for term in terms if type(term).__name__ != "WhiteKernel"]
    noise = [term for term in terms if type(term).__name__ == "WhiteKernel"]
    if not found:
        raise ValueError("the kernel is noise alone: there is no function to learn")
    return functools.reduce(Sum, found), float(sum(term.noise_level for term in noise)) if noise else None


def _terms(kernel: Any) -> list[Any]:
    """Of a sum."""
    return [*_terms(kernel.k1), *_terms(kernel.k2)] if type(kernel).__name__ == "Sum" else [kernel]


def _one(kernel: Any) -> AbstractKernel:
    name = type(kernel).__name__
    part, unit = lambda field: _parameter(kernel, field), frozen(1.0)  # an amplitude that none there has
    if name == "Product":
        return _product(_one(kernel.k1), _one(kernel.k2))
    if name == "Sum":
        return Sum(_one(kernel.k1), _one(kernel.k2))
    if name == "RBF":
        return RBF(part("length_scale"), unit)
    if name == "Matern":
        if kernel.nu not in MATERN:
            raise ValueError(f"Matern with nu={kernel.nu:g}: only 0.5, 1.5, 2.5 and inf have a kernel here")
        return MATERN[kernel.nu](part("length_scale"), unit)
    if name == "RationalQuadratic":
        return RationalQuadratic(part("length_scale"), unit, part("alpha"))
    if name == "ExpSineSquared":
        return Periodic(part("length_scale"), unit, part("periodicity"))
    if name == "DotProduct":
        offset = float(kernel.sigma_0) ** 2
        is_fixed = kernel.hyperparameter_sigma_0.fixed
        return Sum(Linear(unit), Constant(frozen(offset) if is_fixed else offset))
    if name == "ConstantKernel":
        return Constant(part("constant_value"))
    if name == "WhiteKernel":
        raise ValueError("white noise inside a product has no counterpart: noise is added to the function")
    raise ValueError(
        f"{name} has no counterpart: known are sums and products of RBF, Matern, RationalQuadratic, ExpSineSquared, DotProduct, ConstantKernel and WhiteKernel"
    )


def _parameter(kernel: Any, field: str) -> Any:
    value = np.asarray(getattr(kernel, field), np.float64)
    value = float(value) if value.ndim == 0 else value
    return frozen(value) if getattr(kernel, f"hyperparameter_{field}").fixed else value


def _product(left: AbstractKernel, right: AbstractKernel) -> AbstractKernel:
    """A constant becomes the amplitude of what it multiplies, where that is the frozen 1."""
    for constant, other in ((left, right), (right, left)):
        amplitude = getattr(other, "variance", None)
        if not isinstance(constant, Constant) or isinstance(other, Constant) or amplitude is None:
            continue
        if isinstance(amplitude, Frozen) and float(value_of(amplitude, np.float32)) == 1.0:
            return eqx.tree_at(lambda kernel: kernel.variance, other, constant.variance)
    return Product(left, right)
