"""The rule that spreads mini-batches over devices."""

from types import SimpleNamespace

import pytest

from stochgp.learners import BSGD, SCGD
from stochgp.learners.base import MIN_SHARED_BATCH, spreads_batches


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
