"""Networks: Equinox modules that map one row x [D] to z [P], and bounds on their inputs.

Other Equinox modules and functions that map x to z work as well. Weights are cast to the dtype of the rows.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.numerics.arrays import einsum, matmul, on_device
from stochgp.numerics.seeds import normal, split_key, uniform
from stochgp.parameters import Frozen, frozen, value_of

__all__ = ["attention", "mlp", "relu"]

REACH = 0.1  # margin around the range of the rows, in standard deviations

Activation = Callable[[Array], Array]


def relu(x: Array) -> Array:
    """Return max(x, 0) with derivative 0 at 0, as a plain function that can be pickled.

    Parameters
    ----------
    x : array
        An array of any shape.
    """
    return jax.nn.relu(x)


class Dense(eqx.Module):
    """The layer z = Wᵀx + b."""

    weight: Float[Array, "D P"]  # W, one column for each output
    bias: Float[Array, " P"]

    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... P"]:
        z = matmul(x, self.weight.astype(x.dtype))
        return z + jnp.broadcast_to(self.bias.astype(x.dtype), z.shape)


class MLP(eqx.Module):
    """Fully connected layers. The last activation is optional (`final_activation`)."""

    layers: tuple[Dense, ...]
    activation: Activation = eqx.field(static=True)
    final_activation: bool = eqx.field(static=True)

    @property
    def n_inputs(self) -> int:
        return self.layers[0].weight.shape[0]

    def __call__(self, x: Float[Array, " D"]) -> Float[Array, " P"]:
        _check_row(x, self.n_inputs)
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        x = self.layers[-1](x)
        return self.activation(x) if self.final_activation else x


def mlp(
    n_inputs: int,
    widths: Sequence[int] = (128, 128),
    *,
    key: PRNGKeyArray,
    activation: Activation = relu,
    final_activation: bool = True,
    dtype: DTypeLike = jnp.float32,
) -> MLP:
    """Return a fully connected network x [n_inputs] ↦ z [widths[-1]].

    The default is the network of the SCGD paper: two layers of 128 units with ReLU. A layer with n inputs has
    initial weights ~ N(0, 2/n) (He et al. 2015) and biases ~ U(−1/√n, 1/√n). Sizes below 1 raise ValueError.

    Parameters
    ----------
    n_inputs, widths
        The number D of inputs, and the number of outputs of each layer.
    key, dtype : JAX key, dtype
        The key and the dtype of weights and biases.
    activation, final_activation
        `activation` keeps the shape of an array. `final_activation` applies it after the last layer too.
    """
    sizes = (n_inputs, *widths)
    if len(sizes) < 2 or min(sizes) < 1:
        got = f"n_inputs={n_inputs}, widths={widths}"
        raise ValueError(f"a network needs at least one layer, and sizes must be at least 1; got {got}")
    keys = split_key(key, len(sizes) - 1)
    layers = tuple(_he_layer(a, b, k, dtype) for a, b, k in zip(sizes[:-1], sizes[1:], keys, strict=True))
    return MLP(layers, activation, final_activation)


class EncoderLayer(eqx.Module):
    """A pre-LayerNorm encoder layer: h ← h + attention(norm h), then h ← h + MLP(norm h)."""

    attention_norm: eqx.nn.LayerNorm
    projection: Dense  # W → 3W: query, key and value, concatenated
    mixing: Dense  # W → W, for the concatenated outputs of the heads
    feedforward_norm: eqx.nn.LayerNorm
    expand: Dense  # the two layers of FF, with GELU between them
    contract: Dense
    n_heads: int = eqx.field(static=True)

    def __call__(self, tokens: Float[Array, "T W"], n_queries: int | None = None) -> Float[Array, "Q W"]:
        """Return the first `n_queries` tokens after the layer, or all tokens for None."""
        n_tokens, width = tokens.shape
        heads = self.projection(jax.vmap(self.attention_norm)(tokens)).reshape(n_tokens, 3 * self.n_heads, -1)
        query, key, value = jnp.split(heads, 3, axis=1)  # [T, heads, W/heads]
        scores = einsum("qhc,khc->hqk", query[:n_queries], key) * (width // self.n_heads) ** -0.5
        mixed = einsum("hqk,khc->qhc", jax.nn.softmax(scores, axis=-1), value)
        tokens = tokens[:n_queries] + self.mixing(mixed.reshape(-1, width))
        hidden = jax.nn.gelu(self.expand(jax.vmap(self.feedforward_norm)(tokens)), approximate=False)
        return tokens + self.contract(hidden)


class Attention(eqx.Module):
    """The network that `attention` returns. The last layer computes only the [CLS] token."""

    input_norm: eqx.nn.LayerNorm
    token_weight: Float[Array, "D W"]  # the token of input j is x_j w_j + b_j
    token_bias: Float[Array, "D W"]
    summary: Float[Array, " W"]  # the [CLS] token
    layers: tuple[EncoderLayer, ...]
    output_norm: eqx.nn.LayerNorm

    @property
    def n_inputs(self) -> int:
        return self.token_weight.shape[0]

    def __call__(self, x: Float[Array, " D"]) -> Float[Array, " W"]:
        _check_row(x, self.n_inputs)
        dtype = x.dtype
        tokens = self.input_norm(x)[:, None] * self.token_weight.astype(dtype) + self.token_bias.astype(dtype)
        tokens = jnp.concatenate([self.summary.astype(dtype)[None], tokens])  # [D + 1, W]
        for layer in self.layers[:-1]:
            tokens = layer(tokens)
        return self.output_norm(self.layers[-1](tokens, n_queries=1)[0])


def attention(
    n_inputs: int,
    *,
    width: int = 32,
    n_heads: int = 4,
    n_layers: int = 2,
    feedforward: int = 64,
    key: PRNGKeyArray,
    dtype: DTypeLike = jnp.float32,
) -> Attention:
    """Return a network with attention over the inputs of a row, x [D] ↦ z [width].

    Source: SCGD paper, v2, section 5.3. A LayerNorm normalises the D inputs. A linear map turns each input
    into a token, after a learned [CLS] token. Pre-LayerNorm Transformer encoder layers with GELU follow,
    without positional encoding, mask or dropout. z is the LayerNorm of the final [CLS] token. Initial weights
    are Xavier-uniform, and [CLS] ~ N(0, 0.02²). Raises ValueError for invalid sizes.

    Parameters
    ----------
    n_inputs, width : int
        `n_inputs` is D, at least 2. `width` is the length of tokens and of z, a multiple of `n_heads`.
    n_heads, n_layers, feedforward : int
        The numbers of heads per layer, of encoder layers, and of hidden units per feed-forward network.
    key, dtype : JAX key, dtype
        The key and the dtype of all weights.
    """
    if n_inputs < 2:
        why = "attention needs at least 2, because it removes the mean of each row"
        raise ValueError(f"n_inputs is {n_inputs}; {why}")
    if min(width, n_heads, n_layers, feedforward) < 1 or width % n_heads:
        sizes = f"width={width}, n_heads={n_heads}, n_layers={n_layers}, feedforward={feedforward}"
        raise ValueError(f"sizes must be at least 1, and width must be a multiple of n_heads; got {sizes}")
    token_key, summary_key, *layer_keys = split_key(key, 2 + n_layers)
    tokens = _xavier((n_inputs, width), token_key, dtype), jnp.zeros((n_inputs, width), dtype)
    summary = on_device(normal(summary_key, (width,), dtype) * 0.02)
    layers = tuple(_encoder_layer(width, n_heads, feedforward, k, dtype) for k in layer_keys)
    first, last = (eqx.nn.LayerNorm(size, dtype=dtype) for size in (n_inputs, width))
    return Attention(first, *tokens, summary, layers, last)


class Within(eqx.Module):
    """A network whose inputs are bounded, so that it does not extrapolate linearly.

    Input x_d becomes c_d + w_d tanh((x_d − c_d)/w_d), where c_d = min(max(x_d, low_d), high_d). Values from
    low to high do not change. Any other value is moved to at most w_d (`width`) away from this range.
    """

    network: Any
    low: Frozen
    high: Frozen
    width: Frozen

    @property
    def n_inputs(self) -> int:
        return self.low.content.shape[0]

    def __call__(self, x: Float[Array, " D"]) -> Float[Array, " P"]:
        low, high, width = (value_of(part, x.dtype) for part in (self.low, self.high, self.width))
        nearest = jnp.minimum(jnp.maximum(x, low), high)
        return self.network(nearest + width * jnp.tanh((x - nearest) / jnp.where(width > 0, width, 1)))


def within(
    network: Any, X: Float[Any, "N D"], limits: Float[Any, "2 D"], *, dtype: DTypeLike = jnp.float32
) -> Within:
    """Return the network with inputs bounded to `limits` and a small margin."""
    parts = *np.asarray(limits, np.float64), REACH * np.asarray(X, np.float64).std(axis=0)
    return Within(network, *(frozen(on_device(part, dtype)) for part in parts))


def _encoder_layer(W: int, n_heads: int, hidden: int, key: PRNGKeyArray, dtype: DTypeLike) -> EncoderLayer:
    dense = lambda n, p, key: Dense(_xavier((n, p), key, dtype), jnp.zeros(p, dtype))
    norm = eqx.nn.LayerNorm(W, dtype=dtype)
    projection_key, mixing_key, *keys = split_key(key, 4)
    query_key_value = [_xavier((W, W), k, dtype) for k in split_key(projection_key, 3)]
    projection = Dense(jnp.concatenate(query_key_value, axis=1), jnp.zeros(3 * W, dtype))
    expand, contract = dense(W, hidden, keys[0]), dense(hidden, W, keys[1])
    return EncoderLayer(norm, projection, dense(W, W, mixing_key), norm, expand, contract, n_heads)


def _he_layer(n_inputs: int, n_outputs: int, key: PRNGKeyArray, dtype: DTypeLike) -> Dense:
    weight_key, bias_key = split_key(key)
    weight = normal(weight_key, (n_inputs, n_outputs), dtype) * (2 / n_inputs) ** 0.5
    reach = n_inputs**-0.5
    return Dense(on_device(weight), on_device(uniform(bias_key, (n_outputs,), dtype, -reach, reach)))


def _xavier(shape: tuple[int, int], key: PRNGKeyArray, dtype: DTypeLike) -> Array:
    reach = (6 / sum(shape)) ** 0.5
    return on_device(uniform(key, shape, dtype, -reach, reach))


def _check_row(x: Array, n_inputs: int) -> None:
    if x.shape != (n_inputs,) or not jnp.issubdtype(x.dtype, jnp.floating):
        got = f"{x.dtype} of shape {x.shape}"
        raise ValueError(f"the network needs one floating-point row of shape [{n_inputs}], but got {got}")
