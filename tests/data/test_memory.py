"""Sources give the same rows from the host and from the device; batches come in epochs without replacement, however they are cut."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stochgp.data.memory import MemorySource, independent_batches, padded_size, shuffled_batches
from stochgp.data.rows import Standardiser

host_rows = functools.partial(MemorySource, on_device=False)


def _arrays(n=23, d=3, seed=0):
    generator = np.random.default_rng(seed)
    return (
        5 + 3 * generator.normal(size=(n, d)),
        generator.normal(size=n).astype(np.float32),
        generator.uniform(0.5, 2, n),
    )


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)])
def test_host_and_device_give_the_same_bits(shape, weighted):
    X, y, weight = _arrays()
    inputs, targets = Standardiser.fit(X), Standardiser.fit(y)
    weight = weight if weighted else None
    device = MemorySource(inputs.transform(X, np.float32), targets.transform(y, np.float32), weight)
    host = host_rows(X, y, weight, inputs=inputs, targets=targets)
    indices = np.random.default_rng(1).integers(0, len(y), shape)
    for a, b in zip(*map(jax.tree.leaves, (device.take(indices), host.take(indices))), strict=True):
        assert isinstance(b, jax.Array)
        assert a.dtype == b.dtype == jnp.float32
        np.testing.assert_array_equal(a, b)
    assert host.take(indices).X.shape == (*shape, 3)
    assert (host.size, host.n_inputs) == (device.size, device.n_inputs) == (23, 3)


@pytest.mark.parametrize("source", [MemorySource, host_rows])
@pytest.mark.parametrize("size", [1, 5, 7, 21, 100])
def test_chunks_have_one_shape_and_every_row_once(source, size):
    X, y, weight = _arrays()
    rows = source(X, y, weight).some(np.arange(1, 22))
    chunks = list(rows.blocks(size))
    assert {chunk.X.shape for chunk in chunks} == {(min(size, 32), 3)}
    np.testing.assert_allclose(rows.count, weight[1:22].sum(), rtol=1e-6)
    parts = zip(*map(jax.tree.leaves, chunks), strict=True)
    together = [np.concatenate([np.asarray(part) for part in part_of]) for part_of in parts]
    there = together[2] > 0
    assert there.sum() == 21
    for found, wanted in zip(together, (X, y, weight), strict=True):
        np.testing.assert_array_equal(found[there], wanted[1:22].astype(np.float32))


@pytest.mark.parametrize("source", [MemorySource, host_rows])
def test_groups_are_those_of_the_rows_also_of_some(source):
    X, y, _ = _arrays()
    group, some = np.arange(23) // 4, np.array([7, 3, 22, 3])
    rows = source(X, y, group=group)
    np.testing.assert_array_equal(rows.group, group)
    np.testing.assert_array_equal(rows.some(some).group, group[some])
    np.testing.assert_array_equal(rows.some(some).some(np.array([2, 0])).group, group[[22, 7]])
    assert source(X, y).group is None and source(X, y).some(some).group is None


def test_padded_sizes_are_few_and_near():
    sizes = [padded_size(n) for n in range(1, 40_000)]
    assert all(n <= size < max(2 * n, 2) for n, size in enumerate(sizes, start=1))
    assert all(size <= 1.125 * n + 1 for n, size in enumerate(sizes, start=1) if n > 1024)
    assert len(set(sizes[:16_384])) == 11 + 4 * 8
    assert sizes[16_384:] == list(range(16_385, 40_000))


# Batches


@pytest.mark.parametrize(("n", "size"), [(12, 4), (13, 4), (5, 5), (7, 1)])
def test_an_epoch_has_every_row_at_most_once(n, size):
    indices, per_epoch = 100 + np.arange(n), n // size
    batches = shuffled_batches(indices, size, 0, 3 * per_epoch, (1, 2))
    epochs = batches.reshape(3, -1)
    for epoch in epochs:
        assert len(np.unique(epoch)) == per_epoch * size
        assert set(epoch) <= set(indices)
    if n > 5:
        assert not np.array_equal(epochs[0], epochs[1])


@pytest.mark.parametrize("draw", [shuffled_batches, independent_batches])
@pytest.mark.parametrize("cuts", [[1] * 150, [70, 3, 77], [63, 1, 86], [150]])
def test_a_run_cut_into_stretches_has_the_same_batches(cuts, draw):
    indices = np.arange(13)
    whole = draw(indices, 4, 0, 150, (1, 2))
    starts = np.cumsum([0, *cuts[:-1]])
    pieces = [draw(indices, 4, int(s), k, (1, 2)) for s, k in zip(starts, cuts, strict=True)]
    np.testing.assert_array_equal(np.concatenate(pieces), whole)


def test_every_row_comes_equally_often():
    """Over 3,000 epochs of 6 of 7 rows a row is left out 3,000/7 times, within 4 standard errors."""
    batches = shuffled_batches(np.arange(7), 2, 0, 9000, (5,))
    left_out = 3000 - np.bincount(batches.ravel(), minlength=7)
    error = np.sqrt(3000 * (1 / 7) * (6 / 7))
    assert np.all(np.abs(left_out - 3000 / 7) < 4 * error)
