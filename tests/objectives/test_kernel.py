"""The exact NLML of a kernel GP: dense formulas by loops, finite differences, repeated rows, the feature family, precision."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact import left_out, nlml
from grams import matrix

from stochgp import kernels, networks
from stochgp.data.rows import Data
from stochgp.kernels import dense
from stochgp.models import KernelGP
from stochgp.objectives.kernel import nlml_and_gradient
from stochgp.parameters import cast, frozen, partition, positive, value_of

N, D = 13, 3


pytestmark = pytest.mark.usefixtures("double")


def make_rows(n=N, seed=0, weight=None):
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(n, D))
    return Data(
        X, np.sin(2 * X[:, 0]) + 0.1 * generator.normal(size=n), np.ones(n) if weight is None else weight
    )


def matern():
    kernel = kernels.Matern32(positive([0.8, 1.3, 2.0], dtype=jnp.float64), positive(1.4, dtype=jnp.float64))
    return KernelGP(kernel, positive(0.2, lower=1e-6, dtype=jnp.float64))


def composed():
    """A sum of a kernel of two columns, one with a frozen part, and a deep one."""
    key = jax.random.key(1)
    network = networks.mlp(D, (4, 2), key=key, activation=jnp.tanh)
    deep = kernels.Warped(kernels.RBF(1.5, frozen(0.7)), network)
    first = kernels.Matern52([0.9, 1.1], 0.6, active_dims=(0, 2)) * kernels.Periodic(2.0, frozen(1.0), 3.0)
    return cast(KernelGP(first + deep + kernels.Linear(0.3), 0.15), jnp.float64)


def dense_nlml(X, y, weight, lengthscale, variance, s2):
    """n rows, row i standing weight_i times: by loops over pairs."""
    A = np.zeros((len(y), len(y)))
    for i in range(len(y)):
        for j in range(len(y)):
            a = np.sqrt(3 * np.sum(((X[i] - X[j]) / lengthscale) ** 2))
            A[i, j] = variance * (1 + a) * np.exp(-a) + (i == j) * s2
    total = y @ np.linalg.solve(A, y) + np.linalg.slogdet(A)[1] + len(y) * np.log(2 * np.pi)
    return total / (2 * len(y))


def assert_trees_close(found, wanted, rtol, atol=1e-12):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=atol)


def test_value_is_the_dense_formula():
    rows = make_rows()
    wanted = dense_nlml(rows.X, rows.y, rows.weight, np.array([0.8, 1.3, 2.0]), 1.4, 0.2)
    np.testing.assert_allclose(nlml(matern(), rows), wanted, rtol=1e-12)
    found = nlml_and_gradient(matern(), rows)
    np.testing.assert_allclose(found.nlml, wanted, rtol=1e-12)
    assert found.jitter == 0


@pytest.mark.parametrize("make", [matern, composed])
def test_gradient_is_the_finite_difference(make):
    gp, rows = make(), make_rows(weight=np.random.default_rng(2).uniform(0.3, 3.0, N))
    gradient = nlml_and_gradient(gp, rows).gradient
    theta, rest = partition(gp)
    assert jax.tree.structure(gradient) == jax.tree.structure(theta)
    leaves, structure = jax.tree.flatten(theta)
    generator, h = np.random.default_rng(3), 1e-5
    for _ in range(4):  # directions that mix all parameters
        direction = [generator.normal(size=leaf.shape) for leaf in leaves]
        ends = []
        for sign in (1, -1):
            moved = [leaf + sign * h * d for leaf, d in zip(leaves, direction, strict=True)]
            ends.append(nlml(eqx.combine(jax.tree.unflatten(structure, moved), rest), rows))
        along = sum(np.sum(g * d) for g, d in zip(jax.tree.leaves(gradient), direction, strict=True))
        np.testing.assert_allclose(along, (ends[0] - ends[1]) / (2 * h), rtol=1e-6, atol=1e-8)


def test_weights_stand_for_repeated_rows():
    weight = np.array([1, 3, 2, 1, 1, 4, 1, 1, 2, 1, 1, 1, 5.0])
    rows = make_rows(weight=weight)
    times = weight.astype(int)
    repeated = Data(np.repeat(rows.X, times, axis=0), np.repeat(rows.y, times), np.ones(times.sum()))
    found, wanted = nlml_and_gradient(composed(), rows), nlml_and_gradient(composed(), repeated)
    np.testing.assert_allclose(found.nlml, wanted.nlml, rtol=1e-10)
    assert_trees_close(found.gradient, wanted.gradient, rtol=1e-8, atol=1e-10)


def test_what_is_frozen_has_no_gradient():
    gp = KernelGP(frozen(kernels.RBF(1.0)), 0.2)
    gradient = nlml_and_gradient(gp, make_rows()).gradient
    assert len(jax.tree.leaves(gradient)) == 1
    gp = KernelGP(kernels.RBF(1.0), frozen(0.2))
    gradient = nlml_and_gradient(gp, make_rows()).gradient
    assert jax.tree.leaves(gradient.noise_variance) == []
    assert len(jax.tree.leaves(gradient.kernel)) == 2


def test_a_jitter_is_recorded():
    rows = make_rows(50)
    rows = Data(np.repeat(rows.X, 2, axis=0), np.repeat(rows.y, 2), np.ones(100))
    gp = KernelGP(kernels.RBF(3.0, 1e12), positive(1.1e-6, lower=1e-6))
    found = nlml_and_gradient(gp, rows)
    assert found.jitter > 0
    assert np.isfinite(found.nlml)


def test_what_is_not_finite_is_refused():
    rows = make_rows()
    rows.X[3, 1] = np.nan
    with pytest.raises(ValueError, match="cannot be factorised"):
        nlml(matern(), rows)


@pytest.mark.parametrize("tile", [5, 32])
def test_gradients_of_sums_over_pairs_are_those_of_the_whole_matrix(tile, monkeypatch):
    kernel, X = composed().kernel, make_rows().X
    generator = np.random.default_rng(5)
    theta, rest = partition(kernel)

    def wanted(G):
        rows = jnp.asarray(X)
        return jax.jit(jax.grad(lambda t: jnp.sum(G * eqx.combine(t, rest).matrix(rows, rows))))(theta)

    G = generator.normal(size=(N, N))
    upper = np.where(np.tri(N, k=-1, dtype=bool), np.nan, G + G.T)
    monkeypatch.setattr(dense, "TILE", tile)
    assert_trees_close(dense.gradient(kernel, X, upper), wanted(G + G.T), rtol=1e-9)


@pytest.mark.parametrize("tile", [5, 32])
def test_blocks_on_the_host_are_those_of_the_whole_matrix(tile, monkeypatch):
    monkeypatch.setattr(dense, "TILE", tile)
    kernel, X = composed().kernel, make_rows().X
    whole = np.asarray(matrix(value_of(kernel), jnp.asarray(X), jnp.asarray(X)))
    np.testing.assert_allclose(dense.block(kernel, X[:3], X), whole[:3], rtol=1e-12)
    right = np.triu(np.ones((N, N), bool))
    np.testing.assert_allclose(dense.upper(kernel, X, np.float64)[right], whole[right], rtol=1e-12)
    np.testing.assert_allclose(dense.upper(kernel, X, np.float32)[right], whole[right], rtol=1e-6)


@pytest.mark.parametrize(
    "weight", [np.ones(N), np.arange(1.0, N + 1), np.full(N, 0.5)], ids=["1", "counts", "less"]
)
def test_each_row_left_out_is_predicted_from_all_others(weight):
    """One observation, whose noise variance is at least σ²: by N solves without the row."""
    gp, rows = matern(), make_rows(weight=weight)
    K = np.asarray(matrix(gp.kernel, jnp.asarray(rows.X), jnp.asarray(rows.X)))
    A, s2 = K + np.diag(0.2 / weight), 0.2
    found = left_out(gp, rows)
    for i in range(N):
        S = np.delete(np.arange(N), i)
        b = np.linalg.solve(A[np.ix_(S, S)], A[S, i])
        V = max(K[i, i] - b @ A[S, i] + s2, s2)
        z = (rows.y[i] - b @ rows.y[S]) / np.sqrt(V)
        wanted = (0.5 * np.log(2 * np.pi * V) + 0.5 * z**2, z, V)
        np.testing.assert_allclose([part[i] for part in found[:3]], wanted, rtol=1e-9)
