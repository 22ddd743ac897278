"""A kernel from its name."""

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

_WITH_LENGTHSCALE = {
    "rbf": RBF,
    "matern12": Matern12,
    "matern32": Matern32,
    "matern52": Matern52,
    "rational-quadratic": RationalQuadratic,
    "periodic": Periodic,
}
_WITHOUT = {"linear": Linear, "tanimoto": Tanimoto}
NAMES = (*_WITH_LENGTHSCALE, *_WITHOUT)


def resolve(
    kernel: str | AbstractKernel,
    n_inputs: int,
    *,
    ard: bool = True,
    variance: float = 1.0,
    dtype: DTypeLike = np.float32,
) -> AbstractKernel:
    """The kernel of that name with starting values for standardised inputs; a kernel as it is.

    The variance given and lengthscale √D, the typical distance between two rows divided by √2; one per input if
    `ard`. Raises ValueError for an unknown name and TypeError for something else.
    """
    if isinstance(kernel, AbstractKernel):
        return kernel
    if not isinstance(kernel, str):
        raise TypeError(
            f"a kernel is wanted, or one of the names {', '.join(map(repr, NAMES))}, but got {kernel!r}"
        )
    kind = lookup(kernel, _WITH_LENGTHSCALE | _WITHOUT, "kernel")
    amplitude = positive(variance, dtype=dtype)
    if kind in _WITHOUT.values():
        return kind(variance=amplitude)
    lengthscale = positive(np.full((n_inputs,) if ard else (), n_inputs**0.5), dtype=dtype)
    return kind(lengthscale, amplitude)
