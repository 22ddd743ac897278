"""What a feature map is."""

import abc

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float


class AbstractFeatureMap(eqx.Module):
    """φ: rows X [N, D] ↦ Φ [N, M], the whole scale included: φ(x)·φ(z) ≈ k(x, z).

    Rows are mapped independently of one another, in their own dtype. A map is not a kernel.
    """

    @property
    @abc.abstractmethod
    def n_features(self) -> int:
        """M."""

    @abc.abstractmethod
    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N M"]:
        """The features of each row."""


def check_rows(X: Array, n_inputs: int) -> None:
    """Raises ValueError unless X is floating and [N, n_inputs]."""
    if X.ndim != 2 or X.shape[1] != n_inputs or not jnp.issubdtype(X.dtype, jnp.floating):
        raise ValueError(
            f"the feature map takes floating rows [N, {n_inputs}], but got {X.dtype} of shape {X.shape}"
        )
