"""A network as a feature map."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stochgp.features.base import AbstractFeatureMap, check_rows
from stochgp.numerics.precision import full_precision
from stochgp.parameters import value_of


class Network(AbstractFeatureMap):
    """φ(x) = network(x), for any Equinox module or function of ONE row x [D] that returns z [M].

    The kernel is linear on the network's output. Raises ValueError if D is not known, or if the network does not map
    [D] to one axis [M].

    Parameters
    ----------
    network : callable
        An Equinox module or a function of one row; floating arrays in it train, and it may be `frozen`.
    n_inputs : int or None
        D; None if the network has an attribute `n_inputs`, `in_size` or `in_features`, as the networks of this package and
        of Equinox do.
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


def output_size(network: Callable[[Array], Array], n_inputs: int) -> int:
    """M of a network [n_inputs] ↦ [M], found without computing anything.

    Raises ValueError if the output is not one axis of numbers.
    """
    row = jax.ShapeDtypeStruct((n_inputs,), _weights_dtype(network))
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


def _find_n_inputs(network: Any) -> int:
    content = value_of(network)
    for name in ("n_inputs", "in_size", "in_features"):
        if isinstance(found := getattr(content, name, None), int):
            return found
    raise ValueError(f"{type(content).__name__} does not say how many inputs it takes: give n_inputs")


def _weights_dtype(network: Any) -> Any:
    floating = [leaf for leaf in jax.tree.leaves(network) if eqx.is_inexact_array(leaf)]
    return floating[0].dtype if floating else jnp.dtype(jnp.float32)
