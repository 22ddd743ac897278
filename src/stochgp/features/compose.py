"""Feature maps made of feature maps."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from stochgp.features.base import AbstractFeatureMap
from stochgp.features.network import Network
from stochgp.kernels.base import as_amplitude
from stochgp.parameters import AbstractParameter, value_of


def as_map(features: Any) -> AbstractFeatureMap:
    """A feature map as it is; a network that says its number of inputs as a map."""
    return features if isinstance(features, AbstractFeatureMap) else Network(features)


class Scaled(AbstractFeatureMap):
    """√variance · φ(x), so the kernel is multiplied by the trainable `variance`.

    Parameters
    ----------
    features : feature map
        φ; also a network that says its number of inputs (`Network`).
    variance : number or parameter
        The factor of the kernel, one positive number, squared units of f.
    """

    features: AbstractFeatureMap = eqx.field(converter=as_map)
    variance: AbstractParameter = eqx.field(converter=as_amplitude, default=1.0)

    @property
    def n_features(self) -> int:
        return self.features.n_features

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N M"]:
        return jnp.sqrt(value_of(self.variance, X.dtype)) * self.features(X)


class Composed(AbstractFeatureMap):
    """φ(g(x)): `features` of a network's output, such as Fourier features for a stationary deep kernel.

    Both train.

    Parameters
    ----------
    network : feature map
        g; also a network that says its number of inputs (`Network`).
    features : feature map
        φ, of as many inputs as g has outputs: ValueError for another number.
    """

    network: AbstractFeatureMap = eqx.field(converter=as_map)
    features: AbstractFeatureMap

    def __check_init__(self) -> None:
        wanted = getattr(self.features, "n_inputs", self.network.n_features)
        if wanted != self.network.n_features:
            raise ValueError(
                f"the network returns {self.network.n_features} values, but the features take {wanted}"
            )

    @property
    def n_features(self) -> int:
        return self.features.n_features

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N M"]:
        return self.features(self.network(X))


class Sum(AbstractFeatureMap):
    """[left(x), right(x)]: the features side by side, so the kernel is the sum of the two kernels.

    Parameters
    ----------
    left, right : feature map
        Of the same rows; also a network that says its number of inputs (`Network`).
    """

    left: AbstractFeatureMap = eqx.field(converter=as_map)
    right: AbstractFeatureMap = eqx.field(converter=as_map)

    @property
    def n_features(self) -> int:
        return self.left.n_features + self.right.n_features

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N M"]:
        return jnp.concatenate([self.left(X), self.right(X)], axis=1)
