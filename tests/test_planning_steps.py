"""How a run is cut: every promise of the plan, over sizes from one row to millions."""

import pytest

from stochgp.planning.steps import CHUNK_BYTES, LONGEST_CHUNK, default_epochs, plan_steps, trial_steps

PLANS = [
    (n, batch_size, epochs)
    for n in (1, 7, 150, 4_999, 300_000, 2_000_000)
    for batch_size in (None, 1, 32, 512, 10**9)
    for epochs in (None, 1, 40)
]


@pytest.mark.parametrize(("n", "batch_size", "epochs"), PLANS)
def test_plan(n, batch_size, epochs):
    bytes_per_row = 40
    plan = plan_steps(n, bytes_per_row, batch_size, epochs)
    assert 1 <= plan.batch_size <= n
    assert plan.steps_per_epoch == max(1, n // plan.batch_size)
    asked = plan.steps_per_epoch * (default_epochs(plan.steps_per_epoch) if epochs is None else epochs)
    visits = asked // plan.steps_per_visit
    assert asked - (visits + 1) * (plan.chunk_steps - 1) <= plan.total_steps <= asked
    assert plan.total_steps >= 1
    assert plan.steps_per_visit % plan.chunk_steps == 0
    assert plan.chunk_steps <= LONGEST_CHUNK
    assert plan.chunk_steps == 1 or plan.chunk_steps * plan.batch_size * bytes_per_row <= CHUNK_BYTES


@pytest.mark.parametrize(("n", "batch_size", "epochs"), PLANS)
def test_a_trial_is_part_of_the_run_in_whole_chunks(n, batch_size, epochs):
    plan = plan_steps(n, 40, batch_size, epochs)
    steps = trial_steps(plan)
    assert steps % plan.chunk_steps == 0
    assert 1 <= steps <= min(4_000, plan.total_steps)


def test_default_epochs():
    assert [default_epochs(k) for k in (1, 75, 1_000, 2_000, 4_000, 10**6)] == [3000, 40, 40, 40, 20, 5]
