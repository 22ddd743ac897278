"""A solve that will not fit is refused before anything is learned."""

import numpy as np
import pytest

from stochgp import KernelGPRegressor
from stochgp.budget import Budget, MemoryLimitError, in_use, release

X = np.random.default_rng(0).normal(size=(3_500, 2))


def test_a_solve_that_will_not_fit_is_refused_before_the_first_step():
    """About 180 MB for the solve, and 150 MB that learning leaves in use, do not fit into 260 MB; either does."""
    entries = []
    release()  # what earlier tests have freed, which the refusal would find
    model = KernelGPRegressor("rbf", memory_limit=in_use() + 260e6, random_state=0)
    with pytest.raises(MemoryLimitError, match="solving for 3500 rows .* for compiled programs, together"):
        model.fit(X, X[:, 0], callback=entries.append)
    assert entries == []


def test_a_refusal_names_all_that_adds_up_to_more_than_the_limit(monkeypatch):
    monkeypatch.setattr("stochgp.budget.in_use", lambda: 400_000_000)
    budget = Budget(700_000_000).keeping(200_000_000)
    assert budget.free() == 100_000_000
    budget.require(100_000_000, "a test")
    with pytest.raises(
        MemoryLimitError,
        match=r"needs 150 MB .* 400 MB in use and 200 MB for compiled programs, together 750 MB",
    ):
        budget.require(150_000_000, "a test")
