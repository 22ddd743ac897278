"""What a feature map is."""

import abc

import equinox as eqx
from jaxtyping import Array, Float


class AbstractFeatureMap(eqx.Module):
    """φ: rows X [N, D] ↦ Φ [N, M], the whole scale included: φ(x)·φ(z) ≈ k(x, z).

    Rows are mapped independently of one another, in their own dtype. `n_features` is M. A map is not a kernel.
    """

    n_features: eqx.AbstractVar[int]

    @abc.abstractmethod
    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N M"]:
        """The features of each row."""


def check_rows(X: Array, n_inputs: int) -> None:
    """Raises ValueError unless X is [N, n_inputs]."""
    if X.ndim != 2 or X.shape[1] != n_inputs:
        raise ValueError(
            f"the feature map takes rows of {n_inputs} inputs, [N, {n_inputs}], but got shape {X.shape}"
        )
