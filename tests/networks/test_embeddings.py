"""Embeddings of numeric inputs against plain NumPy, and what they do to jumps, tails and constant columns."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from stochgp import features, networks
from stochgp.parameters import cast, partition

KEY = jax.random.key(0)


@pytest.fixture(autouse=True)
def strict():
    with jax.enable_x64(True), jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


def rows(n=200):
    """A Gaussian input, one with heavy tails, one that is mostly 0, and a constant."""
    generator = np.random.default_rng(0)
    rare = (generator.uniform(size=n) < 0.1).astype(float)
    return np.column_stack([generator.normal(size=n), generator.standard_cauchy(n), rare, np.full(n, 2.5)])


def applied(embedding, X):
    return np.asarray(jax.vmap(cast(embedding, jnp.float64))(jnp.asarray(X)))


def clipped(X, sample):
    low, center, high = np.quantile(sample, [0.25, 0.5, 0.75], axis=0)
    out = np.zeros_like(X)
    for d in range(X.shape[1]):
        width = (high[d] - low[d]) / 1.349 if high[d] > low[d] else np.ptp(sample[:, d]) / 2
        c = lambda x, d=d, width=width: (
            (x - center[d]) / width / np.sqrt(1 + ((x - center[d]) / width / 3) ** 2)
        )
        if width > 0:
            out[:, d] = (c(X[:, d]) - c(sample[:, d]).mean()) / c(sample[:, d]).std()
    return out


def test_smooth_clip_matches_numpy():
    X = rows()
    found = applied(networks.smooth_clip(X, dtype=jnp.float64), X)
    assert_allclose(found, clipped(X, X), rtol=1e-10, atol=1e-12)
    assert_allclose(found[:, :3].std(axis=0), 1, rtol=1e-10)
    assert_allclose(found[:, 3], 0, atol=1e-12)


def test_smooth_clip_is_bounded_and_rises():
    X = rows()
    line = np.repeat(np.linspace(-1e6, 1e6, 401)[:, None], 4, axis=1)
    found = applied(networks.smooth_clip(X, dtype=jnp.float64), line)
    assert np.all(np.diff(found[:, :3], axis=0) > 0)
    assert np.ptp(found[:, 1]) < 6 / 0.5  # from −3 to 3, over a standard deviation that is not small


def test_within_its_limits_a_row_is_itself_and_beyond_it_is_bounded_and_smooth():
    """Every bit inside; outside never more than a tenth of a standard deviation away, rising, with slope 1 at the edges. A constant stays what it is."""
    X = rows()
    limits = np.stack([X.min(axis=0), X.max(axis=0)])
    bound = networks.within(X, limits, dtype=jnp.float64)
    assert_array_equal(applied(bound, X), X)
    width = 0.1 * X.std(axis=0)
    for edge, sign in ((limits[0], -1), (limits[1], 1)):
        out = edge + sign * np.geomspace(1e-9, 1e9, 50)[:, None]
        excess = sign * (applied(bound, out) - edge)
        assert_allclose(
            excess, width * np.tanh(np.abs(out - edge) / np.where(width > 0, width, 1)), atol=1e-12
        )
        assert np.all(excess <= width + 1e-12) and np.all(np.diff(excess, axis=0) >= -1e-12)
    slopes = jax.vmap(jax.grad(lambda x, d: bound(x)[d]), (0, 0))(
        jnp.asarray(limits[[0, 1, 1]]), jnp.arange(3)
    )
    assert_allclose(np.asarray(slopes)[np.arange(3), np.arange(3)], 1)


def test_piecewise_linear_matches_numpy():
    X, T = rows(), 4
    found = applied(networks.piecewise_linear(X, T, dtype=jnp.float64), X)
    assert found.shape == (200, 4 * (T + 1))
    assert_allclose(found[:, :4], clipped(X, X), rtol=1e-10, atol=1e-12)
    edges = np.quantile(X[:, 0], np.linspace(0, 1, T + 1))
    wanted = [np.clip((X[:, 0] - a) / (b - a), 0, 1) - 0.5 for a, b in itertools.pairwise(edges)]
    assert_allclose(found[:, 4 : 4 + T], np.column_stack(wanted), rtol=1e-9, atol=1e-12)
    assert np.all(np.isfinite(found))


def test_a_linear_function_of_bins_is_any_piecewise_linear_function():
    """At the edges, where the encoding is a staircase, targets are fitted exactly."""
    X, T = rows()[:, :1], 6
    edges = np.quantile(X[:, 0], np.linspace(0, 1, T + 1))[:, None]
    Z = applied(networks.piecewise_linear(X, T, dtype=jnp.float64), edges)[:, 1:]
    design = np.column_stack([Z, np.ones(T + 1)])
    y = np.random.default_rng(1).normal(size=T + 1)
    assert_allclose(design @ np.linalg.lstsq(design, y, rcond=None)[0], y, atol=1e-9)


def test_periodic_matches_numpy():
    X = rows()
    embedding = networks.periodic(X, 5, 2, key=KEY, dtype=jnp.float64)
    found, u = applied(embedding, X), clipped(X, X)
    turns = u[:, :, None] * np.asarray(embedding.frequencies) + np.asarray(embedding.phases)
    v = np.einsum("ndh,dhk->ndk", np.cos(2 * np.pi * turns), np.asarray(embedding.weight))
    assert_allclose(found, np.column_stack([u, v.reshape(200, -1)]), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("name", "trained"), [("robust-mlp", 4), ("piecewise-mlp", 4), ("periodic-mlp", 8)])
def test_by_name(name, trained):
    """Two layers of weights and biases train; of the embeddings only the periodic one, in four arrays."""
    X = jnp.asarray(rows(), jnp.float32)
    phi = features.resolve(name, n_inputs=4, key=KEY, X_sample=X)
    assert phi(X).shape == (200, 128)
    assert phi(X).dtype == jnp.float32
    assert len(jax.tree.leaves(partition(phi)[0])) == trained
    with pytest.raises(ValueError, match="give X_sample"):
        features.resolve(name, n_inputs=4, key=KEY)


def test_no_bins_are_refused():
    with pytest.raises(ValueError, match="n_bins is 0"):
        networks.piecewise_linear(rows(), 0)


def test_a_category_of_one_row_is_at_most_eight_scales_away():
    X = np.column_stack([np.arange(5_000) == 7, np.random.default_rng(0).normal(size=5_000)]).astype(float)
    found = applied(networks.smooth_clip(X, dtype=jnp.float64), X)
    assert_allclose(found[7, 0], 8.0)
    assert_allclose(found[:, 1], clipped(X, X)[:, 1], rtol=1e-10)
