"""K + Σ by tiles, with rows kept or not, against NumPy; the rows are padded in all but one case."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from systems import KERNEL, NOISE, A, K, N, X, cancelling, matern32, operator

from stochgp.operators import KernelOperator

V = np.random.default_rng(1).normal(size=(N, 3))
TILES = {"padded": 14, "even": 20, "one": 100}
KEPT = {"none": False, "all": True}


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module", params=TILES.values(), ids=TILES)
def tile(request):
    return request.param


@pytest.fixture(scope="module", params=KEPT.values(), ids=KEPT)
def op(request, tile):
    with jax.enable_x64(True):
        return operator(jnp.float64, tile=tile).keeping(request.param)


def test_rows_are_padded_to_whole_tiles(op, tile):
    assert op.size == N and op.padded % op.tile == 0 and op.tile <= tile
    assert 0 <= op.padded - N < op.padded // op.tile
    padded = op.pad(jnp.asarray(V))
    assert padded.shape == (op.padded, 3) and not np.any(padded[N:])
    assert np.array_equal(op.unpad(padded), V)


def test_products_with_all_rows(op):
    found = eqx.filter_jit(lambda op, V: op.matvec(V, n_rows=15))(op, op.pad(jnp.asarray(V)))
    np.testing.assert_allclose(op.unpad(found), A @ V, rtol=1e-10, atol=1e-10)
    assert not np.any(found[N:])


def test_products_with_some_rows(op):
    padded, rows = op.pad(jnp.asarray(V)), jnp.array([3, 39, 3, 0])
    both = lambda op, rows, V: (op.times(op.take(rows), V), op.rows_times(rows, V))
    for found in eqx.filter_jit(both)(op, rows, padded):
        np.testing.assert_allclose(found, K[rows] @ V, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
def test_wide_products_are_those_of_float32_entries_summed_in_float64(kept):
    """Where terms are a million times as large as their sum, and sums in float32 are not the sum at all."""
    rows, W = cancelling()
    op = operator(jnp.float32, rows=rows, noise=0.0).keeping(kept)
    product = eqx.filter_jit(lambda op, V, wide=False: op.unpad(op.matvec(op.pad(V), 15, wide=wide)))
    entries = np.asarray(product(op, jnp.eye(N, dtype=jnp.float32), True), np.float64)
    found, wanted = product(op, jnp.asarray(W), True), entries @ W.astype(np.float64)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6)
    assert np.abs(product(op, jnp.asarray(W)) - wanted).max() > 1e-3


def test_the_kept_matrix_is_that_of_the_matrix(op):
    if op.kept is not None:
        np.testing.assert_allclose(op.kept[:N, :N], K, rtol=1e-10, atol=1e-12)
    assert op.keeping(False).kept is None


def test_parts_of_the_matrix(op):
    of = eqx.filter_jit(lambda op, rows: (op.diagonal(), op.dense(), op.columns(rows)))
    diagonal, dense, columns = of(op, jnp.array([7, 0]))
    np.testing.assert_allclose(diagonal, A.diagonal(), rtol=1e-10)
    np.testing.assert_allclose(dense, A, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(columns, K[:, [7, 0]], rtol=1e-10, atol=1e-12)


def test_other_rows_against_these(op):
    Z = np.array([[0.5, 1.0], [3.0, 2.0]])
    of = eqx.filter_jit(lambda op, Z, V: op.times(op.prepare(Z), V))
    found = of(op, jnp.asarray(Z), op.pad(jnp.asarray(V)))
    np.testing.assert_allclose(found, matern32(Z, X) @ V, rtol=1e-10, atol=1e-10)


def test_the_matrix_is_kept_if_a_solver_may_keep_it():
    op = operator(jnp.float64, keep=True)
    assert op.kept is None and op.keeping().kept.shape == (op.padded, op.padded)


@pytest.mark.parametrize(
    ("rows", "noise"), [(X, NOISE[1:]), (X[:0], 0.1)], ids=["noise of another length", "no rows"]
)
def test_what_does_not_fit_is_refused(rows, noise):
    with pytest.raises(ValueError, match="X must have at least one row"):
        KernelOperator.of(KERNEL, jnp.asarray(rows), jnp.asarray(noise))
