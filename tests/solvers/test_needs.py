"""The bytes that solvers state, against recorded numbers."""

import json
from pathlib import Path

import pytest

from stochgp.solvers import CG, SDD, SGD, AbstractIterativeSolver, Cholesky, Layout, SystemSize

FROZEN = json.loads(
    (Path(__file__).parents[1] / "support" / "frozen_solves.json").read_text(encoding="utf-8")
)


def _nothing(self, *_):
    return None


class Own(AbstractIterativeSolver):
    """A user's own solver, that states nothing of what it needs."""

    epochs: int = 40
    check_every: int = 5
    arrange = init = steps_per_epoch = batches = step = regroup = value = at_epoch = after_check = _nothing
    steps_per_group = 1
    patience = None


KINDS = {kind.__name__: kind for kind in (CG, SDD, SGD, Cholesky, Own)}


@pytest.mark.parametrize("row", FROZEN, ids=lambda row: f"{row['solver']}-{row['size'][0]}")
def test_bytes_are_the_recorded_ones(row):
    size, solver = SystemSize(*row["size"]), KINDS[row["solver"]](**row["settings"])
    layout = Layout(*row["layout"])
    assert solver.need_bytes(size, layout) == row["bytes"]
    itemsize = solver.itemsize_for(size)
    assert itemsize == row["planned_itemsize"]
    planned = layout._replace(factor_itemsize=itemsize)
    size = size._replace(n_samples=0) if solver.exact_variances else size
    assert solver.need_bytes(size, planned) == row["planned_bytes"]


def test_a_solver_that_states_nothing_gets_cautious_figures():
    """It needs more bytes than any other solver with its default settings."""
    for n_rows in (1_000, 50_000):
        size, layout = SystemSize(n_rows, 9, 64, 44), Layout(2048)
        assert all(
            Own().need_bytes(size, layout) > SDD(**few).need_bytes(size, layout)
            for few in ({"batch_size": 32}, {"step_size": 1.0})
        )
        assert list(Own().variants(size)) == [Own()]
        assert Own().keeps_rows and not Own().exact_variances and Own().tolerance_share == 1
