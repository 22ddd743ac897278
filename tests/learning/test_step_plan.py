"""How a run is cut: every promise of the plan, over sizes from one row to millions."""

import pytest

from stochgp.learners.evaluators import (
    CHUNK_BYTES,
    CYCLES,
    FEW_ROWS,
    LONGER,
    LONGEST_CHUNK,
    ByLoss,
    default_epochs,
    few_epochs,
    held_out_rows,
    in_cycles,
    steps_by_epochs,
    trial_steps,
)

PLANS = [
    (n, batch_size, epochs)
    for n in (1, 7, 150, 4_999, 300_000, 2_000_000)
    for batch_size in (1, 32, 512, 10**9)
    for epochs in (None, 1, 40)
]
BYTES = 40  # of a row
sweep = pytest.mark.parametrize(("n", "batch_size", "epochs"), PLANS)


def _asked(plan, epochs):
    return plan.steps_per_epoch * (default_epochs(plan.steps_per_epoch) if epochs is None else epochs)


def _check_chunks(plan, n):
    assert 1 <= plan.batch_size <= n
    assert plan.steps_per_epoch == max(1, n // plan.batch_size)
    assert plan.total_steps >= 1
    assert plan.steps_per_evaluation % plan.chunk_steps == 0
    assert plan.chunk_steps == 1 or plan.chunk_steps * plan.batch_size * BYTES <= CHUNK_BYTES


@sweep
def test_evaluations_that_pass_over_all_rows(n, batch_size, epochs):
    plan = steps_by_epochs(n, BYTES, batch_size, epochs)
    _check_chunks(plan, n)
    assert abs(plan.total_steps - _asked(plan, epochs)) <= _asked(plan, epochs) / 32
    assert plan.total_steps % plan.chunk_steps == 0
    assert plan.chunk_steps <= LONGEST_CHUNK
    assert plan.chunk_steps.bit_count() == 1
    if plan.total_steps > 200:
        assert plan.steps_per_evaluation >= 0.75 * min(100, plan.total_steps)


@sweep
def test_evaluations_that_cost_nothing(n, batch_size, epochs):
    plan = ByLoss().plan_steps(n, BYTES, batch_size, epochs, 4096)
    _check_chunks(plan, n) if plan.total_steps >= 64 else None
    asked = 4096 if epochs is None else epochs * plan.steps_per_epoch
    assert abs(plan.total_steps - asked) <= plan.steps_per_evaluation / 2
    assert plan.steps_per_evaluation <= 4096


@sweep
def test_trials_are_short_parts_of_the_run_in_whole_chunks(n, batch_size, epochs):
    plan = steps_by_epochs(n, BYTES, batch_size, epochs)
    steps = trial_steps(plan)
    assert steps % plan.chunk_steps == 0
    assert 1 <= steps <= min(1_024, plan.total_steps)
    assert steps <= max(plan.total_steps / 16, 100) + plan.chunk_steps


@sweep
def test_cycles_are_whole_chunks_and_fill_the_plan(n, batch_size, epochs):
    plan = steps_by_epochs(n, BYTES, batch_size, epochs)
    cycles = in_cycles(plan)
    first = cycles.first_cycle
    assert first % plan.chunk_steps == 0
    assert first + LONGER * first + LONGER**2 * first == cycles.total_steps
    rounding = CYCLES * plan.chunk_steps
    assert cycles.total_steps <= max(plan.total_steps, min(2.5 * plan.total_steps, 20_000, n)) + rounding
    assert cycles.total_steps >= plan.total_steps - rounding
    assert cycles._replace(total_steps=plan.total_steps, first_cycle=0) == plan


def test_few_sizes_of_scans_serve_many_sizes_of_data():
    """A compiled scan has the length of a chunk: neighbouring numbers of rows share it."""
    chunks = {steps_by_epochs(n, BYTES, 256, None).chunk_steps for n in range(300, 30_000, 17)}
    assert len(chunks) <= 4


def test_default_epochs():
    assert [default_epochs(k) for k in (1, 75, 1_000, 2_000, 4_000, 10**6)] == [1500, 40, 40, 40, 20, 5]
    assert [k * default_epochs(k) for k in (7, 20, 30, 50)] == [1505, 2000, 3000, 3000]


@pytest.mark.parametrize("batch_size", [16, 256])
@pytest.mark.parametrize("n", [20, 80, FEW_ROWS - 1])
def test_few_rows_get_about_three_steps_each(n, batch_size):
    plan = steps_by_epochs(n, BYTES, batch_size, few_epochs(n, batch_size))
    assert abs(plan.total_steps - 3 * n) <= plan.steps_per_epoch + plan.chunk_steps
    assert few_epochs(FEW_ROWS, batch_size) is None
    assert few_epochs(19, batch_size) == 1


def test_more_of_few_rows_are_held_out():
    assert [held_out_rows(n, 0.1) for n in (14, 15, 60, 120, 299, 300, 500, 2_000)] == [
        0, 5, 20, 40, 99, 100, 100, 200
    ]  # fmt: skip
    assert held_out_rows(120, 0.0) == 0
