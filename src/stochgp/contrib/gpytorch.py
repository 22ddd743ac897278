"""Kernels of `gpytorch.kernels` as ours, by their names and values: neither torch nor gpytorch is imported."""

import functools
from typing import Any

import numpy as np

from stochgp.contrib.scikit_learn import MATERN, parameter, product, total, unit
from stochgp.kernels.base import AbstractKernel, ActiveDims
from stochgp.kernels.linear import Constant, Linear
from stochgp.kernels.periodic import Periodic
from stochgp.kernels.stationary import RBF, RationalQuadratic

KNOWN = (
    "ScaleKernel", "RBFKernel", "MaternKernel", "RQKernel", "PeriodicKernel", "LinearKernel", "ConstantKernel", "AdditiveKernel", "ProductKernel",
)  # fmt: skip


def from_gpytorch(kernel: Any) -> AbstractKernel:
    """A kernel of GPyTorch as one of ours.

    ScaleKernel, RBFKernel, MaternKernel, RQKernel, PeriodicKernel, LinearKernel, ConstantKernel, AdditiveKernel and ProductKernel, with ARD and
    `active_dims`. PeriodicKernel has λ where ours has ℓ² (λ = ℓ²); LinearKernel with a variance for each input is a sum over inputs. A parameter
    with `requires_grad` False is frozen, and so is an amplitude of 1 without a ScaleKernel; others train. Constraints and priors are not read.
    All is in the units of the data: the same model is an estimator with `standardize=False`.

    Parameters
    ----------
    kernel : gpytorch.kernels.Kernel
        With its parameters, of one kernel: no batch of them.

    Returns
    -------
    kernel : AbstractKernel
        Of the function, without noise, which is in GPyTorch's likelihood.

    Raises
    ------
    ValueError
        For other kernels, batches of kernels, and sums and products of none.

    Examples
    --------
    >>> import gpytorch
    >>> from stochgp.contrib.gpytorch import from_gpytorch
    >>> theirs = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
    >>> theirs.outputscale, theirs.base_kernel.lengthscale = 2.0, 0.5
    >>> from_gpytorch(theirs)
    RBF(lengthscale=Positive(0.5), variance=Positive(2.))
    """
    return _converted(kernel, None)


def _converted(kernel: Any, columns: ActiveDims, selects: bool = True) -> AbstractKernel:
    """A kernel of rows with these columns of the table, None = all, of which it `selects` its own.

    Columns are selected once: a ScaleKernel has those of its inner kernel.
    """
    name, own = type(kernel).__name__, getattr(kernel, "active_dims", None)
    if selects and own is not None:
        own = tuple(int(dim) for dim in _numbers(own))
        columns = own if columns is None else tuple(columns[dim] for dim in own)
    if name not in KNOWN:
        raise ValueError(f"{name} has no counterpart: known are {', '.join(KNOWN)}")
    if len(getattr(kernel, "batch_shape", ())) > 0:
        raise ValueError(
            f"{name} has batch_shape {tuple(kernel.batch_shape)}: only one kernel, without a batch, can be read"
        )
    if name == "ScaleKernel":
        scale = Constant(_parameter(kernel, "outputscale"))
        return product(scale, _converted(kernel.base_kernel, columns, selects=False))
    if name == "ConstantKernel":
        return Constant(_parameter(kernel, "constant"))
    if name == "LinearKernel":
        return _linear(kernel, columns)
    if name in ("AdditiveKernel", "ProductKernel"):
        parts = [_converted(part, columns) for part in kernel.kernels]
        if not parts:
            raise ValueError(f"{name} has no kernels: at least one is wanted")
        return total(parts) if name == "AdditiveKernel" else functools.reduce(product, parts)
    return _stationary(name, kernel, columns)


def _stationary(name: str, kernel: Any, columns: ActiveDims) -> AbstractKernel:
    if name == "PeriodicKernel":  # exp(−2 Σ_d sin²(π (x_d − z_d)/p_d) / λ_d): ℓ = √λ
        lengthscale = _parameter(kernel, "lengthscale", power=0.5)
        return Periodic(lengthscale, unit(), _parameter(kernel, "period_length"), columns)
    lengthscale = _parameter(kernel, "lengthscale")
    if name == "RQKernel":
        return RationalQuadratic(lengthscale, unit(), columns, _parameter(kernel, "alpha"))
    return (RBF if name == "RBFKernel" else MATERN[kernel.nu])(lengthscale, unit(), columns)


def _linear(kernel: Any, columns: ActiveDims) -> AbstractKernel:
    values, is_fixed = _numbers(kernel.variance).reshape(-1), not kernel.raw_variance.requires_grad
    if values.size == 1:
        return Linear(parameter(values[0], is_fixed), columns)
    dims = range(values.size) if columns is None else columns
    return total([Linear(parameter(v, is_fixed), (dim,)) for v, dim in zip(values, dims, strict=True)])


def _parameter(kernel: Any, field: str, power: float = 1.0) -> Any:
    """Its value to that power, frozen unless it trains; a single value as a number."""
    value = _numbers(getattr(kernel, field)).astype(np.float64).reshape(-1) ** power
    is_fixed = not getattr(kernel, f"raw_{field}").requires_grad
    return parameter(value[0] if value.size == 1 else value, is_fixed)


def _numbers(tensor: Any) -> np.ndarray:
    return tensor.detach().cpu().numpy()
