"""Weights of the rows of a source."""

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from stochgp.data.memory import MemorySource

pytestmark = pytest.mark.usefixtures("double")

N = 13
_generator = np.random.default_rng(0)
X, y = _generator.normal(size=(N, 2)), _generator.normal(size=N)
WEIGHT = np.where(np.arange(N) == 4, 1e4, _generator.uniform(0.5, 2, N))


def test_every_source_says_its_weights():
    some = np.array([4, 1])
    for source in (
        MemorySource(X, y, WEIGHT, dtype=jnp.float64),
        MemorySource(X, y, WEIGHT, on_device=False),
    ):
        assert_allclose(source.weights(), WEIGHT, rtol=1e-12)
        assert_allclose(source.some(some).weights(), WEIGHT[some], rtol=1e-12)
    assert_array_equal(MemorySource(X, y, on_device=False).weights(), np.ones(N))
