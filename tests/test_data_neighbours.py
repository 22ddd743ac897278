"""Nearest rows against all distances in plain NumPy."""

import numpy as np
import pytest

import stochgp.data.neighbours as neighbours
from stochgp.budget import resident
from stochgp.data import Neighbours
from stochgp.data.neighbours import search_bytes


def draw(n, d, seed=0, dtype="float64"):
    return np.random.default_rng(seed).normal(size=(n, d)).astype(dtype)


def distances(points, rows):
    difference = points.astype(np.float64)[:, None] - rows.astype(np.float64)
    return np.sqrt((difference**2).sum(axis=-1))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("d", "k"), [(1, 1), (3, 7), (25, 300)])
def test_query_finds_the_nearest_in_order(d, k, dtype):
    rows, points = draw(300, d, dtype=dtype), draw(40, d, seed=1, dtype=dtype)
    found = Neighbours(rows).query(points, k)
    assert found.dtype == np.int32 and found.shape == (40, k)
    exact = distances(points, rows)
    np.testing.assert_array_equal(found, np.argsort(exact, axis=1)[:, :k])


def test_around_is_the_centre_and_its_nearest_others():
    rows = draw(200, 2)
    centres = np.array([5, 199, 0, 5])
    found = Neighbours(rows).around(centres, 9)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found[:, 0], centres)
    np.testing.assert_array_equal(found, np.argsort(distances(rows[centres], rows), axis=1)[:, :9])


@pytest.mark.parametrize("k", [1, 3, 60])
def test_the_centre_is_first_among_equal_rows(k):
    rows = np.repeat(draw(4, 3), [20, 1, 30, 9], axis=0)  # more equal rows than neighbours
    centres = np.random.default_rng(2).permutation(60)
    found = Neighbours(rows).around(centres, k)
    np.testing.assert_array_equal(found[:, 0], centres)
    assert all(len(set(row)) == k for row in found.tolist())
    there = np.take_along_axis(distances(rows[centres], rows), found, axis=1)
    np.testing.assert_array_equal(there, np.sort(distances(rows[centres], rows), axis=1)[:, :k])


def test_an_answer_does_not_depend_on_what_else_is_asked(monkeypatch):
    rows = np.repeat(np.round(draw(100, 2), 1), 3, axis=0)  # many ties
    search, points = Neighbours(rows), np.round(draw(50, 2, seed=1), 1)
    together, around = search.query(points, 4), search.around(np.arange(300), 4)
    monkeypatch.setattr(neighbours, "_BLOCK_ROWS", 16)
    monkeypatch.setattr(neighbours, "_CHUNK_BYTES", 5 * 4 * 16)
    again = Neighbours(rows.copy())
    np.testing.assert_array_equal(again.query(points, 4), together)
    np.testing.assert_array_equal(again.around(np.arange(300), 4), around)
    for i in (0, 49):
        np.testing.assert_array_equal(search.query(points[i : i + 1], 4)[0], together[i])
    np.testing.assert_array_equal(search.around(np.array([299, 7]), 4), around[[299, 7]])


def test_nothing_asked_is_nothing_found():
    search = Neighbours(draw(5, 2))
    assert search.query(np.empty((0, 2)), 3).shape == (0, 3)
    assert search.around(np.empty(0, np.int64), 3).shape == (0, 3)


def test_memory_stays_below_what_is_announced():
    rows, centres = draw(200_000, 4, dtype="float32"), np.arange(1000)
    before = resident()
    search = Neighbours(rows)
    search.around(centres, 8)
    assert resident() - before <= search_bytes(200_000, 4, 1000, 8)


def test_refusals():
    search = Neighbours(draw(20, 2))
    for k in (0, 21):
        with pytest.raises(ValueError, match=f"must be 1 to 20, the number of rows, but is {k}"):
            search.query(draw(3, 2), k)
        with pytest.raises(ValueError, match="must be 1 to 20"):
            search.around(np.arange(3), k)
    with pytest.raises(ValueError, match=r"shape \[P, 2\], but got \(3, 5\)"):
        search.query(draw(3, 5), 2)
    for wrong in (-1, 20):
        with pytest.raises(ValueError, match=f"rows 0 to 19, but got {min(wrong, 0)} to {max(wrong, 0)}"):
            search.around(np.array([0, wrong]), 2)
    with pytest.raises(ValueError, match="from 1 to"):
        Neighbours(np.empty((0, 2)))
    broken = draw(5, 2)
    broken[3, 1] = np.nan
    for attempt in (lambda: Neighbours(broken), lambda: search.query(broken, 2)):
        with pytest.raises(ValueError, match="finite"):
            attempt()
