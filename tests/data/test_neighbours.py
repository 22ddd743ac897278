"""Nearest rows against all distances in plain NumPy."""

import numpy as np
import pytest

import stochgp.data.blocked as blocked
import stochgp.data.neighbours as neighbours
from stochgp.budget import resident
from stochgp.data import Neighbours
from stochgp.data.blocked import BlockedSearch, directions
from stochgp.data.neighbours import search_bytes, slack_of


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


# Blocks of distances


@pytest.mark.parametrize("k", [1, 40, 700, 3000])
@pytest.mark.parametrize("kind", ["many directions", "far from 0", "outliers", "equal rows", "one direction"])
def test_blocks_find_exactly_the_nearest_rows(kind, k):
    """Also where float32 cannot tell the distances: an offset of 1e6, values of 1e8 among those of size 1, rows given many times."""
    generator = np.random.default_rng(3)
    rows = generator.normal(size=(3000, 12))
    if kind == "far from 0":
        rows += 1e6
    elif kind == "outliers":
        rows[:5] *= 1e8
    elif kind == "equal rows":
        rows = np.round(rows[generator.integers(0, 20, 3000)], 1)
    elif kind == "one direction":
        rows = rows[:, :1]
    points = rows[generator.integers(0, 3000, 70)] + 0.01 * generator.normal(size=(70, rows.shape[1]))
    points[:10] = rows[:10]
    found = BlockedSearch(rows).query(points, k)
    exact = np.square(points[:, None] - rows).sum(axis=-1)
    numbers = np.broadcast_to(np.arange(3000), exact.shape)
    np.testing.assert_array_equal(found, np.lexsort((numbers, exact), axis=1)[:, :k])


def test_blocks_answer_the_same_whatever_else_is_asked_and_however_many_candidates_fit(monkeypatch):
    rows, points = draw(2000, 15), draw(100, 15, seed=1)
    search = BlockedSearch(rows)
    together = search.query(points, 30)
    for i in (0, 57, 99):
        np.testing.assert_array_equal(search.query(points[i : i + 1], 30)[0], together[i])
    monkeypatch.setattr(blocked, "_MOST_PAIRS", 500)  # points are ranked one by one
    np.testing.assert_array_equal(search.query(points, 30), together)
    monkeypatch.setattr(blocked.BlockedSearch, "_rank", lambda *_: 1)  # bounds below some of the nearest rows
    np.testing.assert_array_equal(search.query(points, 30), together)


def test_directions_are_counted_where_there_are_few_and_are_many_where_there_are_many():
    """Uniform on d directions of 20 inputs: within a fifth of d up to 6, and more for more."""
    found = []
    for d in (1, 2, 4, 6, 12, 20):
        basis = np.linalg.qr(draw(20, 20, seed=d))[0][:, :d]
        found.append(directions(np.random.default_rng(d).uniform(size=(4000, d)) @ basis.T))
    np.testing.assert_allclose(found[:4], [1, 2, 4, 6], rtol=0.2)
    assert 8 < found[4] < found[5]
    assert directions(np.zeros((100, 3))) == directions(draw(5, 3)) == 0


def test_rows_of_many_directions_are_searched_by_blocks_and_others_by_a_tree():
    many, few = Neighbours(draw(600, 20)), Neighbours(draw(600, 2))
    assert many._blocks is not None and few._tree is not None
    centres = np.array([5, 3, 5])
    rows = draw(600, 20)
    exact = np.argsort(distances(rows[centres], rows), axis=1)[:, :9]
    np.testing.assert_array_equal(many.around(centres, 9), exact)


def test_slack_bounds_the_distances_and_recall_is_the_share_found():
    rows, points, k = draw(5000, 6), draw(50, 6, seed=1), 20
    exact, loose = Neighbours(rows), Neighbours(rows, slack=0.5)
    near, found = exact.query(points, k), loose.query(points, k)
    all_of_them = distances(points, rows)
    best, taken = (np.sort(np.take_along_axis(all_of_them, rows_, axis=1)) for rows_ in (near, found))
    assert np.all(taken <= 1.5 * best * (1 + 1e-12)) and not np.array_equal(np.sort(near), np.sort(found))
    share = np.mean([len(set(a) & set(b)) / k for a, b in zip(near.tolist(), found.tolist(), strict=True)])
    assert loose.recall(points, k) == pytest.approx(share, abs=1e-12) and 0.9 < share < 1
    assert exact.recall(points, k) == 1.0
    np.testing.assert_array_equal(loose.around(np.arange(50), 3)[:, 0], np.arange(50))
    assert slack_of(100_000) == 0 and slack_of(100_001) > 0


def test_memory_of_blocks_stays_below_what_is_announced():
    rows = draw(100_000, 20, dtype="float32")
    before = resident()
    search = Neighbours(rows)
    search.around(np.arange(300), 50)
    assert search._blocks is not None
    assert resident() - before <= search_bytes(100_000, 20, 300, 50)
