"""Networks against plain NumPy, their starting values, their symmetries, and what they refuse."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import erf

from stochgp import networks
from stochgp.parameters import cast

KEY = jax.random.key(0)


@pytest.fixture(autouse=True)
def strict():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


def _wide(network):
    return cast(network, jnp.float64)


@eqx.filter_jit
def _run(network, x):
    return network(x)


@pytest.mark.parametrize("final_activation", [True, False])
def test_mlp_matches_numpy(final_activation):
    with jax.enable_x64(True):
        network = _wide(networks.mlp(3, (5, 4), key=KEY, final_activation=final_activation))
        x = np.random.default_rng(0).normal(size=3)
        hidden = np.maximum(network.layers[0].weight.T @ x + network.layers[0].bias, 0)
        z = network.layers[1].weight.T @ hidden + network.layers[1].bias
        expected = np.maximum(z, 0) if final_activation else z
        np.testing.assert_allclose(_run(network, jnp.asarray(x)), expected, rtol=1e-12)


def test_mlp_defaults_are_the_papers():
    network = networks.mlp(7, key=KEY)
    assert [layer.weight.shape for layer in network.layers] == [(7, 128), (128, 128)]
    assert (network.n_inputs, network.layers[-1].weight.shape[1]) == (7, 128)
    assert np.min(jax.vmap(network)(jax.random.normal(KEY, (20, 7), jnp.float32))) == 0  # ReLU ends it


def test_mlp_starts_with_he_weights_that_keep_the_mean_square():
    """E z_j² = 1 + E b² for standardised rows; averaged over independent networks, within five standard
    errors.
    """
    rows = jax.random.normal(jax.random.key(1), (32, 16), jnp.float32)
    rows = rows / jnp.sqrt(jnp.mean(jnp.square(rows)))

    def mean_square(key):
        return jnp.mean(jnp.square(jax.vmap(networks.mlp(16, (128,), key=key))(rows)))

    squares = np.asarray(jax.jit(jax.vmap(mean_square))(jax.random.split(KEY, 200)))
    expected = (2 + 1 / (3 * 16)) / 2  # ReLU halves the mean square of a symmetric variable
    assert abs(squares.mean() - expected) < 5 * squares.std(ddof=1) / np.sqrt(squares.size)


def _layer_norm(norm, x):
    x = np.asarray(x)
    return (x - x.mean()) / np.sqrt(x.var() + norm.eps) * np.asarray(norm.weight) + np.asarray(norm.bias)


def _encoder(layer, h):
    """The encoder layer, a token, a head and a pair of tokens at a time."""
    W, heads = h.shape[1], layer.n_heads
    size = W // heads
    normed = np.stack([_layer_norm(layer.attention_norm, token) for token in h])
    q, k, v = np.split(normed @ layer.projection.weight + layer.projection.bias, 3, axis=1)
    mixed = np.zeros_like(h)
    for head in range(heads):
        columns = slice(head * size, (head + 1) * size)
        for i in range(len(h)):
            scores = np.exp([q[i, columns] @ k[j, columns] / np.sqrt(size) for j in range(len(h))])
            mixed[i, columns] = scores / scores.sum() @ v[:, columns]
    h = h + mixed @ layer.mixing.weight + layer.mixing.bias
    normed = np.stack([_layer_norm(layer.feedforward_norm, token) for token in h])
    hidden = normed @ layer.expand.weight + layer.expand.bias
    return h + (hidden * (1 + erf(hidden / np.sqrt(2))) / 2) @ layer.contract.weight + layer.contract.bias


def _jiggle(network):
    """Replaces the zeros and ones among the starting values, so that every parameter counts."""
    leaves, structure = jax.tree.flatten(network)
    rng = np.random.default_rng(5)
    noise = [
        leaf + 0.3 * rng.normal(size=leaf.shape) if eqx.is_inexact_array(leaf) else leaf for leaf in leaves
    ]
    return jax.tree.unflatten(structure, noise)


def test_attention_matches_numpy_loops():
    with jax.enable_x64(True):
        network = _jiggle(
            _wide(networks.attention(5, width=8, n_heads=2, feedforward=6, n_layers=3, key=KEY))
        )
        x = np.random.default_rng(1).normal(size=5)
        normed = _layer_norm(network.input_norm, x)
        plain = jax.tree.map(np.asarray, network)
        tokens = [plain.token_weight[j] * normed[j] + plain.token_bias[j] for j in range(5)]
        h = np.stack([plain.summary, *tokens])
        for layer in plain.layers:
            h = _encoder(layer, h)
        expected = _layer_norm(plain.output_norm, h[0])
        np.testing.assert_allclose(_run(network, jnp.asarray(x)), expected, rtol=1e-10)


def test_attention_defaults_are_the_papers():
    network = networks.attention(6, key=KEY)
    assert (network.n_inputs, len(network.summary), len(network.layers)) == (6, 32, 2)
    assert (network.layers[0].n_heads, network.layers[0].expand.weight.shape) == (4, (32, 64))
    assert np.abs(network.token_weight).max() <= np.sqrt(6 / (6 + 32))
    assert not np.any(network.token_bias)
    assert np.abs(network.summary).max() < 0.02 * 5


def test_impossible_sizes_and_rows_are_refused():
    for widths in ((), (0,), (4, -1)):
        with pytest.raises(ValueError, match="widths"):
            networks.mlp(3, widths, key=KEY)
    with pytest.raises(ValueError, match="at least 2"):
        networks.attention(1, key=KEY)
    with pytest.raises(ValueError, match="multiple of n_heads"):
        networks.attention(3, width=30, key=KEY)
    for network in (networks.mlp(3, key=KEY), networks.attention(3, key=KEY)):
        with pytest.raises(ValueError, match=r"\[3\]"):
            network(jnp.ones(4, jnp.float32))
        with pytest.raises((ValueError, TypeError), match="int32|i32"):  # or the type checker, where it runs
            network(jnp.ones(3, jnp.int32))


def test_within_its_limits_a_row_is_itself_and_beyond_it_is_bounded_and_smooth():
    """Every bit inside; outside never more than a tenth of a standard deviation away, rising, with slope 1 at the edges. A constant stays what it is."""
    with jax.enable_x64(True):
        generator = np.random.default_rng(0)
        X = np.column_stack([generator.normal(size=200), generator.standard_cauchy(200), np.full(200, 2.5)])
        limits = np.stack([X.min(axis=0), X.max(axis=0)])
        bound = networks.within(lambda z: z, X, limits, dtype=jnp.float64)
        np.testing.assert_array_equal(np.asarray(jax.vmap(bound)(jnp.asarray(X))), X)
        width = 0.1 * X.std(axis=0)
        for edge, sign in ((limits[0], -1), (limits[1], 1)):
            out = edge + sign * np.geomspace(1e-9, 1e9, 50)[:, None]
            excess = sign * (np.asarray(jax.vmap(bound)(jnp.asarray(out))) - edge)
            np.testing.assert_allclose(
                excess, width * np.tanh(np.abs(out - edge) / np.where(width > 0, width, 1)), atol=1e-12
            )
            assert np.all(excess <= width + 1e-12) and np.all(np.diff(excess, axis=0) >= -1e-12)
        slopes = jax.vmap(jax.grad(lambda x, d: bound(x)[d]), (0, 0))(
            jnp.asarray(limits[[0, 1]]), jnp.arange(2)
        )
        np.testing.assert_allclose(np.asarray(slopes)[np.arange(2), np.arange(2)], 1)
