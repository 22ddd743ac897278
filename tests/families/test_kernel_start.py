"""Where the learning of a kernel GP starts."""

import numpy as np
import pandas as pd
import pytest
from exact import nlml

from stochgp import KernelGPRegressor, kernels
from stochgp.data.memory import MemorySource
from stochgp.families import kernel as family
from stochgp.families import starts
from stochgp.families.kernel import optimum_of_few
from stochgp.models import KernelGP
from stochgp.parameters import positive, value_of


class Context:
    """The part of a `FitContext` that the start uses."""

    def seed(self, name):
        return 0


def test_learning_starts_at_the_optimum_of_few_rows(monkeypatch):
    """Of a quarter of the rows; with fewer rows than that takes, at the parameters given."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(400, 1))
    y = np.sin(3 * X[:, 0]) + 0.1 * generator.normal(size=400)
    source, gp = MemorySource(X, y), KernelGP(kernels.Matern32(1.0), 0.5)
    assert optimum_of_few(gp, source, Context()) is gp
    monkeypatch.setattr(family, "MIN_START_ROWS", 100)
    start = optimum_of_few(gp, source, Context())
    subset = source.some(np.sort(np.random.default_rng(0).permutation(400)[:100]))
    best, few = family.START.optimum(start, gp, subset), subset.on_host(np.arange(100))
    assert nlml(start, few) < nlml(gp, few) - 0.1
    np.testing.assert_allclose(nlml(best, few), nlml(start, few), atol=2e-2)


@pytest.mark.usefixtures("double")
def test_lengthscales_of_dates_start_short_where_rows_are_judged_one_by_one(monkeypatch):
    """Of kernels by name, in the column of days; not by groups, and not of a kernel of one's own."""
    lengthscales = lambda model: np.asarray(value_of(model.kernel_.lengthscale, np.float64))
    n = 600
    monkeypatch.setattr(starts, "FULL_BATCH_ROWS", n - 1)
    table = pd.DataFrame(
        {
            "z": np.random.default_rng(0).normal(size=n),
            "when": pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(n), "h"),
        }
    )
    y = np.random.default_rng(1).normal(size=n)
    given = {"learner": None, "likelihood": "gaussian", "random_state": 0, "time_order": "interpolate"}
    found = KernelGPRegressor(**given).fit(table, y)
    names = list(found._fitted.encoder.output_names)
    days, usual = names.index("when.days"), np.float32(len(names) ** 0.5)
    wanted = np.full(len(names), usual)
    wanted[days] = starts.NEAR_IN_TIME
    np.testing.assert_allclose(lengthscales(found), wanted, rtol=1e-6)
    own = kernels.Matern32(positive(np.full(len(names), 2.0, np.float32)), positive(np.float32(1)))
    for estimator, groups in (
        (KernelGPRegressor(**given), np.arange(n) // 60),
        (KernelGPRegressor(own, **given), None),
    ):
        same = lengthscales(estimator.fit(table, y, groups=groups))
        np.testing.assert_allclose(same, same[0])
    monkeypatch.setattr(starts, "FULL_BATCH_ROWS", n)
    same = lengthscales(KernelGPRegressor(**given).fit(table, y))
    np.testing.assert_allclose(same, usual)
    part = kernels.Matern32(own.lengthscale, own.variance, active_dims=tuple(range(len(names))))
    for kernel in (part, own + own, kernels.Matern32(2.0)):
        assert starts.near_in_time(kernel, found._fitted.encoder, 2 * n, None) is kernel
