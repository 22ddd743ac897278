"""Kernels of `gpytorch.kernels` as ours, by their names and values: neither torch nor gpytorch is imported."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from stochgp.contrib.reading import MATERN, parameter, product, total, unit
from stochgp.kernels.base import AbstractKernel, ActiveDims
from stochgp.kernels.linear import Constant, Linear
from stochgp.kernels.periodic import Periodic
from stochgp.kernels.stationary import RBF, RationalQuadratic


def from_gpytorch(kernel: Any) -> AbstractKernel:
    """A kernel of GPyTorch as one of ours.

    ScaleKernel, RBFKernel, MaternKernel, RQKernel, PeriodicKernel, LinearKernel, ConstantKernel, AdditiveKernel and ProductKernel, with ARD and
    `active_dims`. PeriodicKernel has λ where ours has ℓ² (λ = ℓ²); LinearKernel with a variance for each input is a sum over inputs. A parameter
    with `requires_grad` False is frozen, and so is an amplitude of 1 that no ScaleKernel says; others train. Constraints and priors are not read.
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
    return _called(kernel, None)


def _called(kernel: Any, columns: ActiveDims) -> AbstractKernel:
    """Of rows with these columns of the table, of which the kernel selects its own."""
    own = getattr(kernel, "active_dims", None)
    if own is not None:
        own = tuple(int(dim) for dim in _numbers(own))
        columns = own if columns is None else tuple(columns[dim] for dim in own)
    return _one(kernel, columns)


def _one(kernel: Any, columns: ActiveDims) -> AbstractKernel:
    """Of exactly these columns; None = all."""
    name = type(kernel).__name__
    if name not in KNOWN:
        raise ValueError(f"{name} has no counterpart: known are {', '.join(KNOWN)}")
    if len(getattr(kernel, "batch_shape", ())) > 0:
        raise ValueError(
            f"{name} has batch_shape {tuple(kernel.batch_shape)}: only one kernel, without a batch, can be read"
        )
    return KNOWN[name](kernel, columns)


def _parameter(kernel: Any, field: str, power: float = 1.0) -> Any:
    """Its value to that power, frozen where it does not train; a number where there is one alone."""
    value = _numbers(getattr(kernel, field)).astype(np.float64).reshape(-1) ** power
    is_fixed = not getattr(kernel, f"raw_{field}").requires_grad
    return parameter(value[0] if value.size == 1 else value, is_fixed)


def _numbers(tensor: Any) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def _scaled(kernel: Any, columns: ActiveDims) -> AbstractKernel:
    """Columns are selected once, by the outer kernel, which has those of the inner one."""
    return product(Constant(_parameter(kernel, "outputscale")), _one(kernel.base_kernel, columns))


def _rbf(kernel: Any, columns: ActiveDims) -> AbstractKernel:
    return RBF(_parameter(kernel, "lengthscale"), unit(), columns)


def _matern(kernel: Any, columns: ActiveDims) -> AbstractKernel:
    return MATERN[kernel.nu](_parameter(kernel, "lengthscale"), unit(), columns)


def _rational_quadratic(kernel: Any, columns: ActiveDims) -> AbstractKernel:
    return RationalQuadratic(_parameter(kernel, "lengthscale"), unit(), columns, _parameter(kernel, "alpha"))


def _periodic(kernel: Any, columns: ActiveDims) -> AbstractKernel:
    """exp(−2 Σ_d sin²(π (x_d − z_d)/p_d) / λ_d): ℓ = √λ."""
    lengthscale = _parameter(kernel, "lengthscale", power=0.5)
    return Periodic(lengthscale, unit(), _parameter(kernel, "period_length"), columns)


def _linear(kernel: Any, columns: ActiveDims) -> AbstractKernel:
    """Σ_d v_d x_d z_d."""
    values, is_fixed = _numbers(kernel.variance).reshape(-1), not kernel.raw_variance.requires_grad
    if values.size == 1:
        return Linear(parameter(values[0], is_fixed), columns)
    dims = range(values.size) if columns is None else columns
    return total([Linear(parameter(v, is_fixed), (dim,)) for v, dim in zip(values, dims, strict=True)])


def _constant(kernel: Any, columns: ActiveDims) -> AbstractKernel:
    return Constant(_parameter(kernel, "constant"))


def _parts(kernel: Any, columns: ActiveDims) -> list[AbstractKernel]:
    found = [_called(part, columns) for part in kernel.kernels]
    if not found:
        raise ValueError(f"{type(kernel).__name__} has no kernels: at least one is wanted")
    return found


KNOWN: dict[str, Callable[[Any, ActiveDims], AbstractKernel]] = {
    "ScaleKernel": _scaled,
    "RBFKernel": _rbf,
    "MaternKernel": _matern,
    "RQKernel": _rational_quadratic,
    "PeriodicKernel": _periodic,
    "LinearKernel": _linear,
    "ConstantKernel": _constant,
    "AdditiveKernel": lambda kernel, columns: total(_parts(kernel, columns)),
    "ProductKernel": lambda kernel, columns: functools.reduce(product, _parts(kernel, columns)),
}
