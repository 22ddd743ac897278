"""Which learner a name and a number of rows stand for."""

from stochgp.families.default_learners import (
    FULL_BATCH,
    FULL_BATCH_ROWS,
    ROW_BY_ROW,
    SPREAD,
    SUBSET_ROWS,
    kernel_learner,
)
from stochgp.learners import FullBatch, LeaveOneOut


def test_the_automatic_learner_goes_with_the_rows():
    small, why = kernel_learner("auto", FULL_BATCH_ROWS)
    assert small == FULL_BATCH and str(FULL_BATCH_ROWS) in why
    for n_rows, loo in (
        (FULL_BATCH_ROWS + 1, ROW_BY_ROW),
        (16_385, LeaveOneOut()),
        (10_000_000, LeaveOneOut()),
    ):
        large, why = kernel_learner("auto", n_rows)
        assert large == loo
        assert f"given {large.n_neighbours + large.n_scored - 1} nearby rows" in why
    hurried, why = kernel_learner("auto", FULL_BATCH_ROWS + 1, hurried=True)
    assert hurried == FullBatch(subset_rows=SUBSET_ROWS, spread=SPREAD)
    assert "time limit" in why


def test_rows_in_groups_are_learned_from_by_leave_one_out_at_any_size():
    """Unless there is no time to search neighbours."""
    for n_rows in (50, FULL_BATCH_ROWS, 10_000_000):
        found, why = kernel_learner("auto", n_rows, grouped=True)
        assert found == ROW_BY_ROW and "groups" in why
        hurried = kernel_learner("auto", n_rows, grouped=True, hurried=True)
        assert hurried == kernel_learner("auto", n_rows, hurried=True)
