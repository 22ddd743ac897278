"""Cholesky factors by blocks of columns: those of LAPACK, which factorises large matrices no more in one call."""

import numpy as np
import pytest

from stochgp.numerics import linalg
from stochgp.numerics.linalg import factorised

BLOCK = 7


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(linalg, "BLOCK", BLOCK)


def matrix(n, dtype=np.float64):
    """Filled on and right of its diagonal alone."""
    Z = np.random.default_rng(n).normal(size=(n, n + 3))
    A = Z @ Z.T
    A = A.astype(dtype)
    A[np.tri(n, k=-1, dtype=bool)] = np.nan
    if dtype == np.float32:  # a signalling NaN, as unused memory may contain
        A.view(np.uint32)[np.tri(n, k=-1, dtype=bool)] = 0x7FA00001
    return A


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, BLOCK, 4 * BLOCK, 4 * BLOCK + 1, 5 * BLOCK, 6 * BLOCK - 2])
def test_blocks_make_the_factor(n, dtype):
    A = matrix(n, dtype)
    whole = np.triu(A) + np.triu(A, 1).T
    found = factorised(lambda: A.copy())
    assert found.jitter == 0
    assert found.L.dtype == dtype
    np.testing.assert_allclose(
        np.tril(found.L),
        np.linalg.cholesky(whole),
        rtol=2e3 * np.finfo(dtype).eps,
        atol=2e3 * np.finfo(dtype).eps,
    )


def test_float32_factors_of_remote_rows_have_no_small_entries():
    """Products of such entries are subnormal, and slow. The exact factor has entries down to 1e-40."""
    x = np.random.default_rng(0).permutation(np.linspace(0, 60, 10 * BLOCK))[:, None]
    A = np.exp(-np.abs(x - x.T)) + 0.01 * np.eye(len(x))
    exact = np.linalg.cholesky(A)
    assert np.mean((exact != 0) & (np.abs(exact) < 1e-19)) > 0.01
    found = np.tril(factorised(lambda: A.astype(np.float32)).L)
    np.testing.assert_allclose(found, exact, rtol=0, atol=1e-6)
    assert not np.any((found != 0) & (np.abs(found) < 1e-19))


@pytest.mark.parametrize("row", [2, BLOCK + 2, 5 * BLOCK])
def test_what_has_no_factor_gets_a_jitter(row):
    """In the first block, in a later one, in the last row."""
    A = np.eye(5 * BLOCK + 1)
    A[row, row] = -1e-6
    assert factorised(lambda: A.copy()).jitter > 0
    A[row, row] = -1.0
    with pytest.raises(ValueError, match="cannot be factorised"):
        factorised(lambda: A.copy())


def test_a_matrix_that_is_singular_up_to_rounding_gets_a_jitter_of_rounding():
    """K of 300 near points has eigenvalues down to −1e-14 of the largest: 1e-6 of it would be far more than the noise of most targets."""
    x = np.linspace(0, 1, 300)[:, None]
    K = np.exp(-0.5 * (x - x.T) ** 2)
    assert 0 < factorised(lambda: K.copy()).jitter <= 1e-12
