"""Rows of highest correlation, against all correlations by brute force."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stochgp.kernels.nearest as nearest
from stochgp import kernels, networks
from stochgp.kernels.nearest import NONE, NearestRows, earlier_rows
from stochgp.parameters import cast, frozen

N, D, K = 300, 3, 7
L = [0.5, 1.0, 2.0]

STATIONARY = {
    "rbf": lambda: kernels.RBF(L, 1.7),
    "matern12": lambda: kernels.Matern12(L, 1.7),
    "matern32": lambda: kernels.Matern32(L, 1.7),
    "matern52": lambda: kernels.Matern52(L, 1.7),
    "rational quadratic": lambda: kernels.RationalQuadratic(L, 1.7, alpha=0.8),
    "frozen": lambda: frozen(kernels.RBF(L, 1.7)),
    "some inputs": lambda: kernels.Matern32([1.0, 2.0], active_dims=[2, 0]),
    "periodic": lambda: kernels.Periodic(L, 1.7, period=[1.0, 2.0, 3.0]),
    "linear": lambda: kernels.Linear(0.6),
    "warped": lambda: kernels.Warped(kernels.RBF(0.3), networks.mlp(D, (8,), key=jax.random.key(1))),
}
SEVERAL = {
    "sum": lambda: kernels.RBF(L) + kernels.Matern12([3.0, 0.2, 1.0], 0.5),
    "product": lambda: kernels.RBF(L) * kernels.Periodic(1.0, period=2.0),
    "sum with a product": lambda: (
        kernels.RBF(L) * kernels.Linear() + frozen(kernels.Matern32([1.0, 0.3, 1.0]))
    ),
}


def draw(n=N, seed=0):
    return np.random.default_rng(seed).normal(size=(n, D))


@functools.cache
def made(name):
    return (STATIONARY | SEVERAL)[name]()


def correlations(kernel, Z, X):
    """k(z, x)/√(k(z, z) k(x, x)), in float64."""
    with jax.enable_x64(True):
        kernel = cast(getattr(kernel, "value", kernel), jnp.float64)
        Z, X = jnp.asarray(Z), jnp.asarray(X)
        scale = np.sqrt(np.outer(kernel.diag(Z), kernel.diag(X)))
        return np.asarray(kernel.matrix(Z, X)) / scale


def at(values, found):
    return np.take_along_axis(values, found, axis=1)


def highest(values, k):
    return -np.sort(-values, axis=1)[:, :k]


@pytest.mark.parametrize("name", STATIONARY)
def test_one_set_of_places_finds_the_highest_correlations_in_order(name):
    X, Z = draw(), draw(40, seed=1)
    found, all_of_them = NearestRows(made(name), X).query(Z, K), correlations(made(name), Z, X)
    assert found.dtype == np.int32 and found.shape == (40, K)
    np.testing.assert_allclose(at(all_of_them, found), highest(all_of_them, K), atol=1e-9)


@pytest.mark.parametrize("name", SEVERAL)
def test_several_terms_find_the_best_of_the_candidates_of_each(name):
    """Each row once. With candidates enough to be all rows, the best of all."""
    X, Z = draw(), draw(40, seed=1)
    values, index = np.abs(correlations(made(name), Z, X)), NearestRows(made(name), X)
    assert len(index.searches) == len(made(name).places(jnp.asarray(X, jnp.float32))) > 1
    found, places = index.query(Z, K), index._places(Z)
    for i in range(len(Z)):
        near = [
            tree.query(points[i : i + 1], 4 * K) for tree, points in zip(index.searches, places, strict=True)
        ]
        candidates = np.unique(np.concatenate(near, axis=1))
        assert len(set(found[i].tolist())) == K and set(found[i]) <= set(candidates)
        np.testing.assert_allclose(values[i, found[i]], -np.sort(-values[i, candidates])[:K], atol=1e-12)
    everything = index.query(Z, -(-N // 4))
    np.testing.assert_allclose(at(values, everything), highest(values, -(-N // 4)), atol=1e-12)


def test_a_term_with_its_own_lengthscales_finds_rows_that_the_other_has_far_away():
    """Of a sum that varies along the second input only, where the first term knows the first input alone."""
    X, Z = draw(), draw(40, seed=1)
    broad = kernels.RBF(0.1, 1e-3, active_dims=[0])
    kernel = broad + kernels.RBF(1.0, active_dims=[1])
    values = correlations(kernel, Z, X)
    by_both, by_one = NearestRows(kernel, X).query(Z, K), NearestRows(broad, X).query(Z, K)
    assert at(values, by_both).mean() > 0.99 > at(values, by_one).mean() + 0.1
    np.testing.assert_allclose(
        at(values, by_both), highest(values, K), atol=2e-3
    )  # the other term's variance


def test_a_constant_goes_by_the_inputs():
    X = draw()
    found = NearestRows(kernels.Constant(), X).query(X[:5], 3)
    distances = ((X[:5, None] - X) ** 2).sum(axis=2)
    np.testing.assert_array_equal(found, np.argsort(distances, axis=1)[:, :3])


@pytest.mark.parametrize("name", ["matern32", "sum"])
def test_blocks_change_nothing(name, monkeypatch):
    X, Z = draw(), draw(40, seed=1)
    whole = NearestRows(made(name), X).query(Z, K)
    others = NearestRows(made(name), X).others(np.arange(N), K)
    monkeypatch.setattr(nearest, "PLACED_TOGETHER", 64)
    monkeypatch.setattr(nearest, "COMPARED_TOGETHER", 600)
    again = NearestRows(made(name), X)
    np.testing.assert_array_equal(again.query(Z, K), whole)
    np.testing.assert_array_equal(again.others(np.arange(N), K), others)


@pytest.mark.parametrize("name", ["matern32", "sum"])
def test_others_are_never_the_row_itself(name):
    """Also among equal rows, of which there are more than neighbours."""
    X = np.repeat(draw(20), 15, axis=0)
    rows = np.random.default_rng(2).permutation(N)[:50]
    found = NearestRows(made(name), X).others(rows, K)
    assert not (found == rows[:, None]).any() and found.min() >= 0
    assert all(len(set(row)) == K for row in found.tolist())
    assert (X[found] == X[rows][:, None]).all()


def test_others_are_all_rows_where_there_are_few():
    found = NearestRows(made("rbf"), draw(5)).others(np.arange(5), 7)
    for i in range(5):
        assert set(found[i, :4].tolist()) == set(range(5)) - {i}
        assert (found[i, 4:] == NONE).all()
    assert NearestRows(made("rbf"), draw(1)).others(np.arange(1), 2).tolist() == [[NONE, NONE]]


@pytest.mark.parametrize("widest", [8, 1024])
@pytest.mark.parametrize("name", ["matern32", "warped"])
def test_others_are_the_nearest_of_other_groups(name, widest, monkeypatch):
    """Groups of 2 to 150 rows that lie together: the search goes wider, or by the rows of all other groups."""
    monkeypatch.setattr(nearest, "WIDEST", widest)
    X = draw()
    order, group = np.argsort(X[:, 0]), np.empty(N, np.int64)
    group[order] = np.repeat([7, -3, 12, 5, 9], [2, 58, 150, 40, 50])
    found, values = NearestRows(made(name), X).others(np.arange(N), K, group), correlations(made(name), X, X)
    assert (group[found] != group[:, None]).all() and found.min() >= 0
    allowed = np.where(group[:, None] == group, -np.inf, values)
    np.testing.assert_allclose(at(values, found), highest(allowed, K), atol=1e-9)


@pytest.mark.parametrize("widest", [8, 1024])
def test_groups_with_too_few_others_have_none_in_their_place(widest, monkeypatch):
    monkeypatch.setattr(nearest, "WIDEST", widest)
    group = np.repeat([0, 1], [N - 3, 3])
    found = NearestRows(made("matern32"), draw()).others(np.arange(N), K, group)
    for i in (0, 100, N - 4):
        assert sorted(found[i].tolist()) == [NONE] * (K - 3) + [N - 3, N - 2, N - 1]
    assert (found[-3:] < N - 3).all() and found[-3:].min() >= 0
    alone = NearestRows(made("matern32"), draw()).others(np.arange(N), K, np.zeros(N, int))
    assert (alone == NONE).all()


def positions_in(order):
    where = np.empty(len(order), int)
    where[order] = np.arange(len(order))
    return where


def test_earlier_rows_are_earlier_and_at_first_all_of_them_are_looked_at():
    n = 900
    X, order = draw(n), np.random.default_rng(3).permutation(n).astype(np.int32)
    found = earlier_rows(made("matern32"), X, order, np.arange(n), K)
    values, where = correlations(made("matern32"), X, X), positions_in(order)
    for t in range(n):
        there = found[t][found[t] != NONE]
        assert len(there) == min(t, K) and (where[there] < t).all() and len(set(there.tolist())) == len(there)
        looked_at = order[:t] if t < 256 else order[: 1 << int(np.log2(t))]
        best = -np.sort(-values[order[t], looked_at])[:K]
        np.testing.assert_allclose(values[order[t], there], best, atol=1e-9)
        assert 2 * len(looked_at) > t - 1  # at worst half of those before are not


def test_all_earlier_rows_may_be_asked_for():
    n = 200
    order = np.random.default_rng(3).permutation(n).astype(np.int32)
    positions = np.array([199, 0, 1, 57])
    found = earlier_rows(made("sum"), draw(n), order, positions, n - 1)
    for t, row in zip(positions, found, strict=True):
        assert set(row[:t].tolist()) == set(order[:t].tolist()) and (row[t:] == NONE).all()


def test_an_earlier_row_does_not_depend_on_what_else_is_asked():
    n = 600
    X, order = draw(n), np.random.default_rng(3).permutation(n).astype(np.int32)
    together = earlier_rows(made("sum"), X, order, np.arange(n), K)
    for t in (3, 255, 256, 511, 512, 599):
        np.testing.assert_array_equal(earlier_rows(made("sum"), X, order, np.array([t]), K)[0], together[t])
