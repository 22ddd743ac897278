"""The rule that spreads mini-batches over devices."""

from types import SimpleNamespace

import pytest

from stochgp import KernelGPRegressor
from stochgp.context import FitContext
from stochgp.estimators.report import record_mesh
from stochgp.learners import BSGD, SCGD
from stochgp.learners.base import MIN_SHARED_BATCH, spreads_batches
from stochgp.sharding import mesh_of


@pytest.mark.parametrize(
    ("count", "learner", "batch_size", "is_spread"),
    [
        (4, SCGD, MIN_SHARED_BATCH, True),
        (3, SCGD, MIN_SHARED_BATCH + 2, True),
        (4, SCGD, MIN_SHARED_BATCH - 4, False),  # too few rows
        (4, SCGD, MIN_SHARED_BATCH + 2, False),  # no equal parts
        (4, BSGD, MIN_SHARED_BATCH, False),  # whose steps are taken whole
        (1, SCGD, MIN_SHARED_BATCH, False),
    ],
)
def test_large_batches_are_spread(count, learner, batch_size, is_spread):
    assert (
        spreads_batches(learner(batch_size=batch_size), batch_size, SimpleNamespace(size=count)) == is_spread
    )


def test_what_a_mesh_shares_is_recorded():
    context = FitContext(KernelGPRegressor(random_state=0))
    record_mesh(SCGD(), 100, context)
    assert not context.plan_
    context.mesh = mesh_of(1)
    record_mesh(SCGD(), 100, context)
    entry = {"count": 1, "processes": 1, "batches": "whole"}
    assert context.plan_["devices"] == {"choice": entry, "why": "one device"}
