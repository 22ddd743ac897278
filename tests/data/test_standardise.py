"""Standardising: its statistics, its exact inverse, weights as repetitions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stochgp.data import Standardiser

ROWS = np.random.default_rng(1).normal(size=(300, 4)) * [1.0, 1e-3, 1e6, 50.0] + [0.0, 5.0, -1e7, 1e3]
MATRICES = hnp.arrays(
    np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=8), elements=st.floats(-1e140, 1e140)
)


def test_statistics_are_the_mean_and_the_population_deviation():
    found = Standardiser.fit(ROWS)
    np.testing.assert_allclose(found.mean, ROWS.mean(axis=0), rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(found.scale, ROWS.std(axis=0), rtol=1e-12)
    Z = found.transform(ROWS)
    np.testing.assert_allclose(Z.mean(axis=0), 0.0, atol=1e-9)
    np.testing.assert_allclose(Z.std(axis=0), 1.0, rtol=1e-9)


@settings(max_examples=100, deadline=None)
@given(MATRICES)
def test_inverse_returns_to_within_rounding_and_constant_columns_exactly(X):
    found = Standardiser.fit(X)
    Z = found.transform(X)
    back = found.inverse(Z)
    largest = np.abs(X).max(axis=0)
    assert np.isfinite(Z).all() and (found.scale > 0).all()
    # Two roundings each way, relative to the largest term, and one smallest number for underflow.
    bound = 4 * np.finfo(np.float64).eps * (largest + np.abs(found.mean)) + np.finfo(np.float64).tiny
    assert (np.abs(back - X) <= bound).all()
    constant = X.max(axis=0) == X.min(axis=0)
    assert (Z[:, constant] == 0).all()
    np.testing.assert_array_equal(back[:, constant], X[:, constant])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=6, max_size=6).filter(any))
def test_weights_are_repetitions(counts):
    X = ROWS[:6]
    weighted = Standardiser.fit(X, np.array(counts, np.float64))
    repeated = Standardiser.fit(np.repeat(X, counts, axis=0))
    np.testing.assert_allclose(weighted.mean, repeated.mean, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(weighted.scale, repeated.scale, rtol=1e-10)
    once = Standardiser.fit(X, 1e-3 * np.array(counts))
    np.testing.assert_allclose(once.scale, weighted.scale, rtol=1e-10)


def test_a_row_of_weight_zero_is_absent_whatever_it_holds():
    X = np.vstack([[[np.nan, np.inf]], np.ones((3, 2))])
    found = Standardiser.fit(X, np.array([0.0, 1.0, 1.0, 2.0]))
    np.testing.assert_array_equal(found.mean, 1.0)
    np.testing.assert_array_equal(found.scale, 1.0)


def test_rounding_noise_is_constant_and_real_variation_is_not():
    noise = 1e9 + np.array([0.0, 1.2e-7, 0.0, 0.0])
    small = 1e9 + np.array([0.0, 1e-3, 2e-3, 3e-3])
    found = Standardiser.fit(np.column_stack([noise, small]))
    assert found.scale[0] == 1.0
    np.testing.assert_allclose(found.scale[1], np.std([0, 1e-3, 2e-3, 3e-3]), rtol=1e-3)
    assert Standardiser.fit(np.float32(1e9) + np.array([0, 64], np.float32)).scale == 1.0
    assert Standardiser.fit(np.array([98, 100, 102], np.float16)).scale != 1.0


def test_large_mean_keeps_its_digits():
    values = np.random.default_rng(2).integers(0, 1000, 10_000).astype(np.float64)
    found = Standardiser.fit(1e12 + values)
    np.testing.assert_allclose(
        found.mean - 1e12, values.mean(), atol=2e-4
    )  # one unit in the last place of 1e12
    np.testing.assert_allclose(found.scale, values.std(), rtol=1e-12)


def test_targets_and_samples_of_targets():
    y = ROWS[:, 2]
    found = Standardiser.fit(y)
    assert found.mean.shape == found.scale.shape == ()
    samples = np.random.default_rng(3).normal(size=(5, 7))
    np.testing.assert_allclose(found.inverse(samples), samples * y.std() + y.mean(), rtol=1e-12)
    equal = Standardiser.fit(np.full(4, 0.1))
    np.testing.assert_array_equal(equal.transform(np.full(4, 0.1)), 0.0)
    assert float(equal.scale) == 1.0 and (equal.inverse(np.zeros(4)) == 0.1).all()


def test_values_that_overflow_name_their_row_and_column():
    found = Standardiser.fit(ROWS)
    X = ROWS.copy()
    X[7, 1] = 1e37
    with pytest.raises(ValueError, match="1e\\+37 at row 8, column 2, x1 is too large for float32"):
        found.transform(X, np.float32)
    X[3, 2] = np.nan
    with pytest.raises(ValueError, match="Input X contains NaN at row 4, column 3, x2"):
        found.transform(X, np.float32)


@pytest.mark.parametrize(
    ("X", "weight", "words"),
    [
        (np.ones((0, 2)), None, "N > 0"),
        (np.ones((2, 2, 2)), None, "shape"),
        (np.array([[1.0, np.nan]]), None, "column 2"),
        (np.array([[1e200, 1.0]]), None, "column 1"),
        (np.ones((2, 1)), np.array([1.0, -1.0]), "is negative"),
        (np.ones((2, 1)), np.zeros(2), "is zero"),
    ],
)
def test_refusals(X, weight, words):
    with pytest.raises(ValueError, match=words):
        Standardiser.fit(X, weight)
