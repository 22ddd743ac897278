"""Kernels of fingerprints: which inputs they take, and how they take packed rows."""

from typing import Any

import jax
from jax.typing import DTypeLike

from stochgp.data.fingerprint_rows import Inputs
from stochgp.kernels import AbstractKernel, Constant, Product, Sum, Tanimoto
from stochgp.parameters import positive, value_of


def inputs_of(kernel: Any) -> Inputs:
    """By the name or the kernel: fingerprints where nothing but Tanimoto kernels of all columns look at the inputs."""
    if isinstance(kernel, str):
        return Inputs.FINGERPRINTS if kernel == "tanimoto" else Inputs.NUMBERS
    leaves = jax.tree.leaves(kernel, is_leaf=_is_tanimoto)
    if not any(map(_is_tanimoto, leaves)):
        return Inputs.NUMBERS
    return Inputs.FINGERPRINTS if _sees_sets_alone(kernel) else Inputs.AS_GIVEN


def inputs_with_smiles(kernel: Any, smiles: Any, missing: str) -> Inputs:
    """`inputs_of`. Raises ValueError for molecules without the Tanimoto kernel, and for `missing="skip"` without molecules."""
    found = inputs_of(kernel)
    if smiles is None:
        if missing == "skip":
            raise ValueError(
                'missing="skip" leaves molecules out that cannot be read: name their column by `smiles`'
            )
        return found
    if found is not Inputs.FINGERPRINTS:
        raise ValueError(
            f"smiles={smiles!r} makes fingerprints of molecules, which the Tanimoto kernel takes, and nothing else: "
            'kernel="tanimoto", or features="tanimoto" (--set kernel=tanimoto)'
        )
    return found


def with_level(kernel: AbstractKernel, variance: float, dtype: DTypeLike) -> AbstractKernel:
    """k + c, from c = `variance`. T is positive for almost all pairs, so that functions have a level that the average of their values is not."""
    return kernel + Constant(positive(variance, dtype=dtype))


def with_packing(kernel: AbstractKernel, packed: bool) -> AbstractKernel:
    """The kernel whose Tanimoto kernels take packed rows, or others."""

    def convert(node: Any) -> Any:
        return Tanimoto(node.variance, packed, node.active_dims) if _is_tanimoto(node) else node

    return jax.tree.map(convert, kernel, is_leaf=_is_tanimoto)


def _is_tanimoto(node: Any) -> bool:
    return isinstance(node, Tanimoto)


def _sees_sets_alone(kernel: Any) -> bool:
    kernel = value_of(kernel)
    if isinstance(kernel, Sum | Product):
        return _sees_sets_alone(kernel.left) and _sees_sets_alone(kernel.right)
    return isinstance(kernel, Constant) or (_is_tanimoto(kernel) and kernel.active_dims is None)
