"""Mini-batches of rows whose weights differ by orders of magnitude: unbiased, with the heavy rows in every batch."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from stochgp.data.streams import DeviceRows, HostRows, SomeRows
from stochgp.learners import SVGP, HeavyInAll, Problem, Uniform
from stochgp.learners.sampling import heavy_rows
from stochgp.learners.step_plan import StepPlan

pytestmark = pytest.mark.usefixtures("double")

N, B = 13, 5
_generator = np.random.default_rng(0)
X, y = _generator.normal(size=(N, 2)), _generator.normal(size=N)
WEIGHT = np.where(np.arange(N) == 4, 1e4, _generator.uniform(0.5, 2, N))


class State(eqx.Module):
    gp: jnp.ndarray


class Total(SVGP):
    """A learner whose loss is Σ count · y of a batch."""

    def step(self, state, batch, *, key):
        return state, {"loss": jnp.sum(batch.weight * batch.y)}


def test_rows_are_heavy_that_a_batch_in_proportion_would_have_more_than_twice():
    weights = np.ones(1000)
    assert len(heavy_rows(weights, 256)) == len(heavy_rows(0.1 * weights, 999)) == 0
    weights[[7, 3]] = 1e6, 1e3
    assert_array_equal(heavy_rows(weights, 256), [7, 3])  # the second among the rest
    weights[3] = 2 * (998 + 1) / 253  # twice in 255 draws, itself among the rest
    assert_array_equal(heavy_rows(weights, 255), [7])
    weights[3] *= 1.01
    assert_array_equal(heavy_rows(weights, 255), [7, 3])
    assert len(heavy_rows(np.geomspace(1, 1e300, 1000), 256)) == 128


@pytest.mark.parametrize("rows", [DeviceRows, HostRows])
def test_an_epoch_of_batches_adds_up_to_all_rows(rows):
    """12 others in 3 batches of 4: N/B times the mean of the batches' sums is the sum over all rows."""
    source = rows(X, y, WEIGHT, dtype=jnp.float64)
    sampling = HeavyInAll()
    prepared = sampling.prepare(source, B, 3, (0,))
    assert_array_equal(prepared[0], [4])
    batches = sampling.batches(prepared, 0, 3, B, (0,))
    assert np.all(np.sum(batches == 4, axis=1) == 1) and len(np.unique(batches)) == N
    problem = Problem(source, StepPlan(B, 3, 3, 3), (prepared, Total().compiled()))
    _, found = Total().advance(State(jnp.zeros(())), problem, 0, 3, (0, 1))
    assert_allclose(N / B * found["loss"], np.sum(WEIGHT * y), rtol=1e-12)


def test_without_heavy_rows_it_is_uniform():
    for weight in (None, np.full(N, 3.0), _generator.uniform(0.5, 1.5, N)):
        source = DeviceRows(X, y, weight)
        prepared = HeavyInAll().prepare(source, B, 9, (0,))
        assert HeavyInAll().factors(prepared, B) is None
        mine = HeavyInAll().batches(prepared, 2, 5, B, (0, 3))
        assert_array_equal(mine, Uniform().batches(Uniform().prepare(source, B, 9, (0,)), 2, 5, B, (0, 3)))
    assert (
        len(HeavyInAll().prepare(DeviceRows(X, y, WEIGHT), N, 9, (0,))[0]) == 0
    )  # all rows are in every batch


def test_every_source_says_its_weights():
    some = np.array([4, 1])
    for source in (DeviceRows(X, y, WEIGHT, dtype=jnp.float64), HostRows(X, y, WEIGHT)):
        assert_allclose(source.weights(), WEIGHT, rtol=1e-12)
        assert_allclose(SomeRows(source, some).weights(), WEIGHT[some], rtol=1e-12)
    assert_array_equal(HostRows(X, y).weights(), np.ones(N))
