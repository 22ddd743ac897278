"""A batch that is filled up by rows of weight 0 makes the step of the batch itself."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from toy import assert_close, begin, make_gp, make_toy, rows_of, stepper

from stochgp.data.rows import Data
from stochgp.learners import SCGD, ByEvidence, Minimax
from stochgp.learners.base import filled_batches
from stochgp.learners.evaluators import size_of_few

pytestmark = pytest.mark.usefixtures("strict_double")


def test_sizes_are_few_and_hold_what_they_are_for():
    sizes = [size_of_few(n) for n in range(1, 1025)]
    assert all(n <= size <= max(8, 2 * n if n <= 256 else 5 * n / 4) for n, size in enumerate(sizes, 1))
    assert len(set(sizes)) == 14 and {2**k for k in range(3, 11)} <= set(sizes)


@pytest.mark.parametrize(
    "learner",
    [
        SCGD(anchored=False, tracking=0.5, evaluator=ByEvidence(refit=False), optimizer=optax.sgd),
        Minimax(penalty=3.0, optimizer=optax.sgd),
    ],
)
def test_a_step_is_that_of_the_batch(learner):
    toy, gp = make_toy(n=11), make_gp()
    weight = np.linspace(0.5, 2.0, 11)
    S = np.array([[3, 1, 7, 9, 10], [0, 2, 4, 5, 6]])
    S = S[0] if isinstance(learner, SCGD) else S
    filled, factors = filled_batches(S)
    assert filled.shape[-1] == 8 and factors.tolist() == [1.6] * 5 + [0] * 3
    wider = rows_of(toy, filled, weight)
    wider = Data(wider.X, wider.y, jnp.asarray(np.asarray(wider.weight) * factors))
    state, step = begin(learner, gp, toy, anchor=isinstance(learner, SCGD)), stepper(learner)
    assert_close(step(state, wider), step(state, rows_of(toy, S, weight)), rtol=1e-9, atol=1e-9)
