"""Construction of kernels from their names."""

import inspect

import numpy as np
from jax.typing import DTypeLike

from stochgp.kernels.base import AbstractKernel
from stochgp.kernels.linear import Linear
from stochgp.kernels.periodic import Periodic
from stochgp.kernels.stationary import (
    RBF,
    Matern12,
    Matern32,
    Matern52,
    RationalQuadratic,
)
from stochgp.kernels.tanimoto import Tanimoto
from stochgp.names import lookup
from stochgp.parameters import positive

NAMED = {
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
    kernel: str | AbstractKernel,
    n_inputs: int,
    *,
    ard: bool = True,
    variance: float = 1.0,
    dtype: DTypeLike = np.float32,
) -> AbstractKernel:
    """Return the named kernel with starting values for standardised inputs, or a given kernel.

    Starting values are `variance` and lengthscale √D, the typical distance between two rows divided by √2.
    Raises ValueError for an unknown name and TypeError for another type.

    Parameters
    ----------
    kernel : str or kernel
        "rbf", "matern12", "matern32", "matern52", "rational-quadratic", "periodic", "linear", "tanimoto", or a name of `stochgp.register`.
    n_inputs : int
        D, the number of inputs.
    ard : bool
        True: one lengthscale for each input; False: one for all.
    variance : float
        The starting value of the kernel's variance.
    dtype : dtype
        Dtype of the starting values.
    """
    if isinstance(kernel, AbstractKernel):
        return kernel
    if not isinstance(kernel, str):
        raise TypeError(
            f"a kernel is wanted, or one of the names {', '.join(map(repr, NAMED))}, but got {kernel!r}"
        )
    kind = lookup(kernel, NAMED, "kernel")
    start = {
        "lengthscale": lambda: np.full((n_inputs,) if ard else (), n_inputs**0.5),
        "variance": lambda: variance,
    }
    taken = inspect.signature(kind).parameters
    return kind(**{name: positive(made(), dtype=dtype) for name, made in start.items() if name in taken})
