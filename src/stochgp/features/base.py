"""Feature maps: what they are, the linear one, networks, and sums and compositions of maps."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stochgp.kernels.base import as_amplitude
from stochgp.numerics.precision import full_precision
from stochgp.parameters import AbstractParameter, value_of


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
    """Raise ValueError unless X is floating and [N, n_inputs]."""
    if X.ndim != 2 or X.shape[1] != n_inputs or not jnp.issubdtype(X.dtype, jnp.floating):
        raise ValueError(
            f"the feature map takes floating rows [N, {n_inputs}], but got {X.dtype} of shape {X.shape}"
        )


class Linear(AbstractFeatureMap):
    """φ(x) = (1, x₁, …, x_D)/√(D + 1), the features of Bayesian linear regression. Nothing in it trains.

    Parameters
    ----------
    n_inputs : int
        D, the number of inputs.
    """

    n_inputs: int

    @property
    def n_features(self) -> int:
        return self.n_inputs + 1

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N M"]:
        check_rows(X, self.n_inputs)
        return jnp.concatenate([jnp.ones_like(X[:, :1]), X], axis=1) / self.n_features**0.5


class Network(AbstractFeatureMap):
    """φ(x) = network(x), for any Equinox module or function of one row x [D] that returns z [M].

    The kernel is linear in the network's output. Raises ValueError if D is not known, or if the network does not map [D] to one axis [M].

    Parameters
    ----------
    network : callable
        An Equinox module or a function of one row. Floating arrays in it train, unless it is `frozen`.
    n_inputs : int or None
        D. None: the network's attribute `n_inputs`, `in_size` or `in_features`, as in this package and in Equinox.
    """

    network: Callable[[Array], Array]
    n_inputs: int = eqx.field(static=True)
    n_outputs: int = eqx.field(static=True)

    def __init__(self, network: Callable[[Array], Array], n_inputs: int | None = None):
        self.network = network
        self.n_inputs = _find_n_inputs(network) if n_inputs is None else n_inputs
        self.n_outputs = output_size(network, self.n_inputs)

    @property
    def n_features(self) -> int:
        return self.n_outputs

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N M"]:
        check_rows(X, self.n_inputs)
        with full_precision():
            return jax.vmap(self.network)(X)


def _find_n_inputs(network: Any) -> int:
    content = value_of(network)
    for name in ("n_inputs", "in_size", "in_features"):
        if isinstance(size := getattr(content, name, None), int):
            return size
    raise ValueError(f"{type(content).__name__} does not say how many inputs it takes: give n_inputs")


def output_size(network: Callable[[Array], Array], n_inputs: int) -> int:
    """M of a network [n_inputs] ↦ [M], without computing anything. Raise ValueError unless the output is one axis of numbers."""
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(network) if eqx.is_inexact_array(leaf)]
    row = jax.ShapeDtypeStruct((n_inputs,), dtypes[0] if dtypes else jnp.float32)
    try:
        output = eqx.filter_eval_shape(network, row)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the network cannot map one row of shape ({n_inputs},): {error}") from error
    shape = getattr(output, "shape", None)
    if shape is None or len(shape) != 1 or not jnp.issubdtype(output.dtype, jnp.floating):
        raise ValueError(
            f"the network must map one row [{n_inputs}] to one floating axis [M], but returns {output}"
        )
    return shape[0]


def _as_map(features: Any) -> AbstractFeatureMap:
    """A feature map as it is; a network with a known number of inputs as a map."""
    return features if isinstance(features, AbstractFeatureMap) else Network(features)


class Scaled(AbstractFeatureMap):
    """√variance · φ(x): the kernel is multiplied by the trainable `variance`.

    Parameters
    ----------
    features : feature map
        φ, or a network with a known number of inputs (`Network`).
    variance : number or parameter
        The factor of the kernel, one positive number, squared units of f.
    """

    features: AbstractFeatureMap = eqx.field(converter=_as_map)
    variance: AbstractParameter = eqx.field(converter=as_amplitude, default=1.0)

    @property
    def n_features(self) -> int:
        return self.features.n_features

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N M"]:
        return jnp.sqrt(value_of(self.variance, X.dtype)) * self.features(X)


class Composed(AbstractFeatureMap):
    """φ(g(x)): features of a network's output, such as Fourier features for a stationary deep kernel. Both train.

    Parameters
    ----------
    network : feature map
        g, or a network with a known number of inputs (`Network`).
    features : feature map
        φ, of as many inputs as g has outputs: ValueError for another number.
    """

    network: AbstractFeatureMap = eqx.field(converter=_as_map)
    features: AbstractFeatureMap

    def __check_init__(self) -> None:
        n_inputs = getattr(self.features, "n_inputs", self.network.n_features)
        if n_inputs != self.network.n_features:
            raise ValueError(
                f"the network returns {self.network.n_features} values, but the features take {n_inputs}"
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
        Of the same rows, or networks with a known number of inputs (`Network`).
    """

    left: AbstractFeatureMap = eqx.field(converter=_as_map)
    right: AbstractFeatureMap = eqx.field(converter=_as_map)

    @property
    def n_features(self) -> int:
        return self.left.n_features + self.right.n_features

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N M"]:
        return jnp.concatenate([self.left(X), self.right(X)], axis=1)
