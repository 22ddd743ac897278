"""What solvers state that they need and take, and what is planned by it, against numbers that are on record: a change of them is meant."""

import json
from math import inf
from pathlib import Path

import pytest

from stochgp.budget import Budget
from stochgp.planning.solver import choose
from stochgp.solvers import CG, SDD, SGD, AbstractIterativeSolver, Cholesky, Layout, SystemSize
from stochgp.solvers.sizes import Costs

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


def told(row):
    return SystemSize(*row["size"]), KINDS[row["solver"]](**row["settings"])


@pytest.mark.parametrize("row", FROZEN["solves"], ids=lambda row: f"{row['solver']}-{row['size'][0]}")
def test_bytes_and_seconds_are_the_recorded_ones(row):
    size, solver = told(row)
    layout, costs = Layout(*row["layout"]), Costs(*row["costs"][:6])
    wanted = (row["tolerance"], row["n_test"])
    assert solver.need_bytes(size, layout) == row["bytes"]
    assert solver.expected_seconds(size, layout, costs, *wanted) == pytest.approx(row["seconds"], rel=1e-12)
    itemsize = solver.itemsize_for(size)
    assert itemsize == row["planned_itemsize"]
    planned = layout._replace(factor_itemsize=itemsize)
    size = size._replace(n_samples=0) if solver.exact_variances else size
    assert solver.need_bytes(size, planned) == row["planned_bytes"]
    seconds = solver.expected_seconds(size, planned, costs, *wanted)
    assert seconds == pytest.approx(row["planned_seconds"], rel=1e-12)


@pytest.mark.parametrize("row", FROZEN["choices"], ids=lambda row: f"{row['solver']}-{row['size'][0]}")
def test_choices_are_the_recorded_ones(row, monkeypatch):
    monkeypatch.setattr(Budget, "free", lambda self: self.limit)
    size, budget = SystemSize(*row["size"]), Budget(row["limit"])
    wanted = {"solver": row["solver"], "tolerance": row["tolerance"]}
    frozen = dict(row["plan"])
    if "refused" in frozen:
        with pytest.raises(ValueError, match="on top of") as refusal:
            choose(size, budget, **wanted)
        assert str(refusal.value).startswith(frozen["refused"] + " on top of")
        return
    found = choose(size, budget, **wanted)
    assert found.solver == KINDS[frozen.pop("solver")](**frozen.pop("settings"))
    assert found.seconds == pytest.approx(frozen.pop("seconds"), rel=1e-12)
    seconds = {name: inf if value is None else value for name, value in frozen.pop("alternatives").items()}
    found_seconds = {name: inf if value is None else value for name, value in found.alternatives.items()}
    assert found_seconds == pytest.approx(seconds, rel=1e-12)
    frozen.pop("reason")
    assert {name: getattr(found, name) for name in frozen} == frozen


def test_a_solver_that_states_nothing_gets_cautious_figures():
    """More bytes than those of any other solver with its default settings, and all of its epochs."""
    for n_rows in (1_000, 50_000):
        size, layout = SystemSize(n_rows, 9, 64, 44), Layout(2048)
        assert all(
            Own().need_bytes(size, layout) > SDD(**few).need_bytes(size, layout)
            for few in ({"batch_size": 32}, {"step_size": 1.0})
        )
        assert Own().expected_epochs(n_rows, 0.01) == 40
        assert list(Own().variants(size)) == [Own()]
        assert Own().keeps_rows and not Own().exact_variances and Own().tolerance_share == 1
