"""Kernels of `sklearn.gaussian_process.kernels` as ours."""

from typing import Any

import numpy as np

from stochgp.contrib.reading import MATERN, parameter, product, total, unit
from stochgp.kernels.base import AbstractKernel, Sum
from stochgp.kernels.linear import Constant, Linear
from stochgp.kernels.periodic import Periodic
from stochgp.kernels.stationary import RBF, RationalQuadratic

KINDS = MATERN | {np.inf: RBF}  # of Matern by its ν


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
    >>> from stochgp.contrib.scikit_learn import from_sklearn
    >>> kernel, noise = from_sklearn(2.0 * RBF(0.5) + WhiteKernel(0.1))
    >>> kernel, noise
    (RBF(lengthscale=Positive(0.5), variance=Positive(2.)), 0.1)
    """
    terms = _terms(kernel)
    found = [_one(term) for term in terms if type(term).__name__ != "WhiteKernel"]
    noise = [term for term in terms if type(term).__name__ == "WhiteKernel"]
    if not found:
        raise ValueError("the kernel is noise alone: there is no function to learn")
    return total(found), float(sum(term.noise_level for term in noise)) if noise else None


def _terms(kernel: Any) -> list[Any]:
    """Of a sum."""
    return [*_terms(kernel.k1), *_terms(kernel.k2)] if type(kernel).__name__ == "Sum" else [kernel]


def _one(kernel: Any) -> AbstractKernel:
    name = type(kernel).__name__
    part, amplitude = lambda field: _parameter(kernel, field), unit()
    if name == "Product":
        return product(_one(kernel.k1), _one(kernel.k2))
    if name == "Sum":
        return Sum(_one(kernel.k1), _one(kernel.k2))
    if name == "RBF":
        return RBF(part("length_scale"), amplitude)
    if name == "Matern":
        if kernel.nu not in KINDS:
            raise ValueError(f"Matern with nu={kernel.nu:g}: only 0.5, 1.5, 2.5 and inf have a kernel here")
        return KINDS[kernel.nu](part("length_scale"), amplitude)
    if name == "RationalQuadratic":
        return RationalQuadratic(part("length_scale"), amplitude, alpha=part("alpha"))
    if name == "ExpSineSquared":
        return Periodic(part("length_scale"), amplitude, part("periodicity"))
    if name == "DotProduct":
        offset = parameter(float(kernel.sigma_0) ** 2, kernel.hyperparameter_sigma_0.fixed)
        return Sum(Linear(amplitude), Constant(offset))
    if name == "ConstantKernel":
        return Constant(part("constant_value"))
    if name == "WhiteKernel":
        raise ValueError("white noise inside a product has no counterpart: noise is added to the function")
    raise ValueError(
        f"{name} has no counterpart: known are sums and products of RBF, Matern, RationalQuadratic, ExpSineSquared, DotProduct, ConstantKernel and WhiteKernel"
    )


def _parameter(kernel: Any, field: str) -> Any:
    return parameter(getattr(kernel, field), getattr(kernel, f"hyperparameter_{field}").fixed)
