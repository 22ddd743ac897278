"""kernel="auto"."""

import dataclasses
from types import SimpleNamespace

import jax
import numpy as np
import pandas as pd
import pytest

from stochgp import KernelGPRegressor, kernels
from stochgp.choosing import FEWEST_ROWS
from stochgp.data.memory import MemorySource
from stochgp.families import kernel_choice
from stochgp.numerics.clustered import paired
from stochgp.parameters import positive, value_of
from stochgp.results import RESULTS


def walk(n):
    """Brownian motion, which is Matérn 1/2 between its rows."""
    generator = np.random.default_rng(0)
    x = np.sort(generator.uniform(-2, 2, n))
    return x[:, None], np.cumsum(np.sqrt(np.diff(x, prepend=-2)) * generator.normal(size=n))


@pytest.fixture
def quick(monkeypatch):
    trial = dataclasses.replace(kernel_choice.TRIAL, epochs=16, n_neighbours=16, n_centres=256)
    monkeypatch.setattr(kernel_choice, "TRIAL", trial)
    monkeypatch.setattr(kernel_choice, "CANDIDATES", ("matern32", "matern12", "rbf"))


def test_a_random_walk_asks_for_a_rough_kernel(quick):
    X, y = walk(400)
    model = KernelGPRegressor("auto", epochs=5, random_state=0).fit(X, y)
    told = model.plan_["kernel"]
    assert told["choice"] == "matern12" and "matern32" in told["why"] and "±" in told["why"]
    assert type(model.kernel_).__name__ == "Matern12"


@pytest.mark.usefixtures("double")
def test_lengthscales_of_dates_start_short_where_rows_are_judged_one_by_one(monkeypatch):
    """Of kernels by name, in the column of days; not by groups, and not of a kernel of one's own."""
    lengthscales = lambda model: np.asarray(value_of(model.kernel_.lengthscale, np.float64))
    n = 600
    monkeypatch.setattr(kernel_choice, "FULL_BATCH_ROWS", n - 1)
    table = pd.DataFrame(
        {
            "z": np.random.default_rng(0).normal(size=n),
            "when": pd.Timestamp("2020-01-01") + pd.to_timedelta(np.arange(n), "h"),
        }
    )
    y = np.random.default_rng(1).normal(size=n)
    given = {"learner": None, "likelihood": "gaussian", "random_state": 0, "new_rows": "between"}
    found = KernelGPRegressor(**given).fit(table, y)
    names = list(found._fitted.encoder.output_names)
    days, usual = names.index("when.days"), np.float32(len(names) ** 0.5)
    wanted = np.full(len(names), usual)
    wanted[days] = kernel_choice.NEAR_IN_TIME
    np.testing.assert_allclose(lengthscales(found), wanted, rtol=1e-6)
    own = kernels.Matern32(positive(np.full(len(names), 2.0, np.float32)), positive(np.float32(1)))
    for estimator, groups in (
        (KernelGPRegressor(**given), np.arange(n) // 60),
        (KernelGPRegressor(own, **given), None),
    ):
        same = lengthscales(estimator.fit(table, y, groups=groups))
        np.testing.assert_allclose(same, same[0])
    monkeypatch.setattr(kernel_choice, "FULL_BATCH_ROWS", n)
    same = lengthscales(KernelGPRegressor(**given).fit(table, y))
    np.testing.assert_allclose(same, usual)
    part = kernels.Matern32(own.lengthscale, own.variance, active_dims=tuple(range(len(names))))
    for kernel in (part, own + own, kernels.Matern32(2.0)):
        assert kernel_choice.near_in_time(kernel, [0]) is kernel


def test_few_rows_have_the_usual_kernel():
    X, y = walk(FEWEST_ROWS - 1)
    model = KernelGPRegressor("auto", epochs=2, random_state=0).fit(X, y)
    assert model.plan_["kernel"]["choice"] == kernel_choice.USUAL
    X, y = walk(400)
    model = KernelGPRegressor("auto", epochs=2, random_state=0).fit(X, y, groups=np.arange(400) % 9)
    assert model.plan_["kernel"]["choice"] == kernel_choice.USUAL
    assert "groups are too few" in model.plan_["kernel"]["why"]


def compared(monkeypatch, gains, group=None, weight=None, usual=0.0):
    """The kernel chosen where Matérn 1/2 gains so much over the usual one at each row, which has its number as input."""
    source = MemorySource(np.arange(len(gains), dtype=float)[:, None], 0 * gains, weight, group=group)
    scores = {kernel_choice.USUAL: lambda rows: usual - gains[rows], "matern12": lambda rows: 0 * gains[rows]}
    monkeypatch.setattr(kernel_choice, "CANDIDATES", tuple(scores))
    trial = lambda learner, gp, source, key: SimpleNamespace(gp=gp, result=RESULTS.successful)
    monkeypatch.setattr(kernel_choice, "fit", trial)
    monkeypatch.setattr(kernel_choice, "left_out_scores", lambda name, source, X, rows: scores[name](rows))
    return kernel_choice.best_kernel(lambda name: name, source, key=jax.random.key(0))


def test_rows_that_gain_together_are_no_independent_evidence(monkeypatch):
    """Groups, or near rows, that all gain alike: 3 standard errors by rows, less than 1 by their sums."""
    gains = np.repeat(np.random.default_rng(2).normal(0.1, 0.8, size=40), 25)
    assert np.mean(gains) > 3 * np.std(gains) / 1000**0.5
    shuffled = np.random.default_rng(0).permutation(1000)
    name, why = compared(monkeypatch, gains[shuffled], (shuffled // 25).astype(np.int32))
    _, error = paired(gains, np.arange(1000) // 25)
    assert name == kernel_choice.USUAL and f"± {error:.4f}" in why
    assert compared(monkeypatch, gains[shuffled])[0] == "matern12"  # neighbours have nothing in common
    assert compared(monkeypatch, gains)[0] == kernel_choice.USUAL


def test_rows_that_count_decide_as_repeated_rows_do(monkeypatch):
    generator = np.random.default_rng(3)
    gains, count = generator.normal(0.1, 1.0, size=300), generator.integers(1, 5, 300)
    many = np.repeat(np.arange(300), count).astype(np.int32)
    found = compared(monkeypatch, gains, np.arange(300, dtype=np.int32), count.astype(float))
    wanted = compared(monkeypatch, gains[many], many)
    assert found[0] == wanted[0]
    without = lambda why: why.partition(" by 300 rows")[0]
    assert without(found[1]) == wanted[1].partition(f" by {len(many)} rows")[0] and "±" in without(found[1])


def test_where_the_usual_kernel_is_lost_the_best_that_finished_is_taken(monkeypatch):
    gains = np.random.default_rng(4).normal(size=200)
    assert compared(monkeypatch, gains, usual=np.nan)[0] == "matern12"


def test_a_sum_has_a_broad_and_a_short_term():
    kernel = kernel_choice.kernel_called("matern32 + matern12", 4, variance=2.0, dtype="float32")
    assert float(kernel.left.variance) == float(kernel.right.variance) == 1.0
    np.testing.assert_allclose(np.asarray(kernel.left.lengthscale), 4.0)
    np.testing.assert_allclose(np.asarray(kernel.right.lengthscale), 1.0)
