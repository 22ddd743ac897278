"""Networks: plain Equinox modules that map ONE row x [D] to z [P]. Any other Equinox module or callable of that kind serves as well.

Rows keep their dtype: float32 weights see float64 rows as float64. Weights are drawn for standardised inputs.
"""

from collections.abc import Callable, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.precision import matmul

Activation = Callable[[Array], Array]


class Dense(eqx.Module):
    """z = Wᵀx + b.  W [D, P] ~ N(0, 2/D) (He et al. 2015), b ~ U(−1/√D, 1/√D).

    The biases are not zero: with zero biases a ReLU network is homogeneous, φ(cx) = cφ(x), and useless on a single input.
    """

    weight: Float[Array, "D P"]
    bias: Float[Array, " P"]

    @classmethod
    def init(
        cls, n_inputs: int, n_outputs: int, *, key: PRNGKeyArray, dtype: DTypeLike = jnp.float32
    ) -> "Dense":
        weight_key, bias_key = jax.random.split(key)
        weight = jax.random.normal(weight_key, (n_inputs, n_outputs), dtype) * (2 / n_inputs) ** 0.5
        reach = n_inputs**-0.5
        return cls(weight, jax.random.uniform(bias_key, (n_outputs,), dtype, minval=-reach, maxval=reach))

    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... P"]:
        return matmul(x, self.weight.astype(x.dtype)) + self.bias.astype(x.dtype)


class MLP(eqx.Module):
    """Fully connected layers, an activation after each; `final_activation` says whether after the last one too."""

    layers: tuple[Dense, ...]
    activation: Activation = eqx.field(static=True)
    final_activation: bool = eqx.field(static=True)

    @property
    def n_inputs(self) -> int:
        return self.layers[0].weight.shape[0]

    @property
    def n_outputs(self) -> int:
        return self.layers[-1].weight.shape[1]

    def __call__(self, x: Float[Array, " D"]) -> Float[Array, " P"]:
        if x.shape != (self.n_inputs,):
            raise ValueError(f"the network takes one row of {self.n_inputs} inputs, but got shape {x.shape}")
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        x = self.layers[-1](x)
        return self.activation(x) if self.final_activation else x


def mlp(
    n_inputs: int,
    widths: Sequence[int] = (128, 128),
    *,
    key: PRNGKeyArray,
    activation: Activation = jax.nn.relu,
    final_activation: bool = True,
    dtype: DTypeLike = jnp.float32,
) -> MLP:
    """Fully connected network x [n_inputs] ↦ z [widths[-1]]. The default is the papers' g_w: two layers of 128, ReLU after both.

    Raises ValueError when there is no layer or a size is below 1.
    """
    sizes = (n_inputs, *widths)
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(
            f"a network needs at least one layer and sizes of at least 1, but got n_inputs={n_inputs}, widths={widths}"
        )
    keys = jax.random.split(key, len(sizes) - 1)
    layers = tuple(
        Dense.init(a, b, key=k, dtype=dtype) for a, b, k in zip(sizes[:-1], sizes[1:], keys, strict=True)
    )
    return MLP(layers, activation, final_activation)
