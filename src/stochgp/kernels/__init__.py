"""Kernels: covariance functions k(x, z) of pairs of rows."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from jax.typing import DTypeLike

from stochgp.names import lookup
from stochgp.parameters import positive, value_of

from .base import AbstractKernel, Product, Sum
from .linear import Constant, Linear
from .periodic import Periodic
from .stationary import RBF, AbstractStationary, Matern12, Matern32, Matern52, RationalQuadratic
from .tanimoto import Tanimoto
from .warped import Warped

__all__ = [
    "RBF", "AbstractKernel", "AbstractStationary", "Constant", "Linear", "Matern12", "Matern32", "Matern52", "Periodic", "Product", "RationalQuadratic", "Sum",
    "Tanimoto", "Warped", "resolve",
]  # fmt: skip

NAMED: dict[str, Callable[..., AbstractKernel]] = {
    "rbf": RBF,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "rational-quadratic": RationalQuadratic,
    "periodic": Periodic,
    "linear": Linear,
    "tanimoto": Tanimoto,
}


def resolve(
    kernel: Any,
    n_inputs: int,
    *,
    ard: bool = True,
    variance: float = 1.0,
    dtype: DTypeLike = np.float32,
) -> Any:
    """Return the named kernel, with starting values for standardised rows, or a given kernel.

    Lengthscales start at √D. Raises ValueError for an unknown name, and TypeError for other objects.

    Parameters
    ----------
    kernel, n_inputs : str or kernel, int
        A kernel or a name, and the number D of inputs. Names are "rbf", "matern12", "matern32", "matern52",
        "rational-quadratic", "periodic", "linear", "tanimoto" and those added with `stochgp.register`.
    ard, variance, dtype : bool, float, dtype
        With `ard`, each input has a lengthscale. `variance` is a starting value. `dtype` is for parameters.
    """
    if isinstance(value_of(kernel), AbstractKernel):
        return kernel  # also if it is frozen
    if not isinstance(kernel, str):
        names = ", ".join(map(repr, NAMED))
        raise TypeError(f"kernel must be a kernel or one of the names {names}, but is {kernel!r}")
    kind = lookup(kernel, NAMED, "kernel")
    start = {"lengthscale": np.full((n_inputs,) if ard else (), n_inputs**0.5), "variance": variance}
    taken = inspect.signature(kind).parameters
    return kind(**{name: positive(value, dtype=dtype) for name, value in start.items() if name in taken})
