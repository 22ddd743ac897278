"""The one gate between a default and its rivals, and the ledger of decisions."""

import copy
import json
import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

import stochgp
from stochgp import KernelGPRegressor
from stochgp.choosing import FEWEST_GROUPS, FEWEST_ROWS, LEAST_GAIN, Decisions, choice, prefer

R = 600
CELL = np.arange(R) // 10


def scores(seed, mean=0.0):
    return mean + np.random.default_rng(seed).normal(size=R)


def test_a_gain_and_its_error_are_those_of_sums_over_cells_by_hand():
    base, rival = scores(0), scores(1, 0.2)
    weight = np.random.default_rng(2).integers(1, 5, R).astype(float)
    gain = prefer(base, {"rival": rival}, CELL, weight).gains["rival"]
    mean = sum(w * (b - a) for w, a, b in zip(weight, base, rival, strict=True)) / sum(weight)
    squares = 0.0
    for g in range(60):
        rows = range(10 * g, 10 * g + 10)
        squares += (sum(weight[i] * (rival[i] - base[i] - mean) for i in rows) / sum(weight)) ** 2
    assert_allclose((gain.mean, gain.error), (mean, np.sqrt(60 / 59 * squares)), rtol=1e-12)
    assert gain.n_rows == R
    assert str(gain) == f"gains {mean:.4f} ± {gain.error:.4f} nats per row on 600 rows"


def test_rows_that_count_are_equal_rows_and_multiples_of_weights_change_nothing():
    base, rivals = scores(0), {"a": scores(1, 0.2), "b": scores(2, 0.3)}
    count = np.random.default_rng(3).integers(1, 5, R)
    many = {name: np.repeat(rival, count) for name, rival in rivals.items()}
    wanted = prefer(np.repeat(base, count), many, np.repeat(CELL, count))
    for weight in (count.astype(float), 0.1 * count):
        found = prefer(base, rivals, CELL, weight)
        assert found.name == wanted.name == "b"
        for name in rivals:
            assert_allclose(found.gains[name][:2], wanted.gains[name][:2], rtol=1e-12)


@pytest.mark.parametrize("shift", [0.0, 1e-15, 0.9 * LEAST_GAIN])
def test_a_rival_that_is_equal_or_gains_next_to_nothing_is_not_preferred(shift):
    base = scores(0)
    assert prefer(base, {"rival": base + shift}, CELL).name is None


def test_a_default_that_fails_at_one_row_does_not_hide_what_the_others_say():
    """Its error is then as large as the gain. The mean of min(d, 5) is a lower bound of the gain, and is well known; what a rival loses counts in full."""
    base, rival = scores(0), scores(0, 0.2) + 0.1 * scores(1)
    base[7] -= 1e5
    found = prefer(base, {"rival": rival}, CELL)
    gain = found.gains["rival"]
    assert gain.mean < 2 * gain.error and found.name == "rival"
    assert prefer(rival, {"rival": base}, CELL).name is None
    rival[8] -= 1e3
    assert prefer(base, {"rival": rival}, CELL).name is None


def test_of_clear_rivals_the_one_that_gains_most_is_preferred():
    base, alike = scores(0), np.repeat(np.random.default_rng(4).normal(0.5, 3.0, 60), 10)
    rivals = {"less": base + 0.1, "more": base + 0.2, "not clear": base + alike}
    found = prefer(base, rivals, CELL)
    gain = found.gains["not clear"]
    assert 0.2 < gain.mean < 2 * gain.error
    assert found.name == "more"


@pytest.mark.parametrize("n", [1, 2, FEWEST_GROUPS - 1, FEWEST_GROUPS])
def test_few_cells_prefer_nothing(n):
    base = scores(0)
    found = prefer(base, {"rival": base + 5 + scores(1)}, np.arange(R) % n)
    assert (found.name is None) == (n < FEWEST_GROUPS) == ("groups are too few" in found.why)


@pytest.mark.parametrize("n", [FEWEST_ROWS - 1, FEWEST_ROWS])
def test_few_rows_prefer_nothing(n):
    base = scores(0)[:n]
    found = prefer(base, {"rival": base + 5}, np.arange(n))
    assert (found.name is None) == (n < FEWEST_ROWS) == ("rows are too few" in found.why)
    assert prefer(base, {"rival": base + 5}, np.arange(n), fewest=n + 1).name is None


def test_the_fewest_groups_mislead_in_less_than_4_of_100_draws():
    """G sums of equal models: the gain exceeds 2 errors as Student's t of G − 1 degrees of freedom exceeds 2."""
    wanted, n = stats.t(FEWEST_GROUPS - 1).sf(2), 4000
    assert wanted < 0.04
    sums = np.random.default_rng(5).normal(size=(n, FEWEST_GROUPS))
    cell = np.repeat(np.arange(FEWEST_GROUPS), 10)
    draws = [prefer(np.zeros(len(cell)), {"rival": np.repeat(gains, 10)}, cell).name for gains in sums]
    assert abs(np.mean([name is not None for name in draws]) - wanted) < 4 * np.sqrt(wanted / n)


def test_a_lost_rival_is_not_preferred_and_of_a_lost_default_the_best_that_finished_takes_the_place():
    base, lost = scores(0), np.where(np.arange(R) == 7, np.nan, scores(1, 9.0))
    found = prefer(base, {"lost": lost, "more": base + 0.1}, CELL)
    assert found.name == "more" and "'lost' has no finite scores" in found.why
    rivals = {"worse": base - 1, "best": base - 0.5, "lost": lost}
    for value in (np.nan, -np.inf):
        none = np.where(np.arange(R) == 3, value, base)
        assert prefer(none, rivals, CELL).name == "best"
        assert prefer(none, {"lost": lost}, CELL).name is None


PLAN = Decisions({"solver": choice("CG", "the fastest"), "seconds": choice({"cg": 1 / 3}, "measured")})


def test_decisions_are_a_dict_and_a_table():
    assert PLAN["solver"]["choice"] == "CG"
    assert str(PLAN).splitlines() == ["  solver = CG: the fastest", "  seconds = {cg: 0.3333}: measured"]
    assert json.loads(json.dumps(PLAN)) == PLAN == dict(PLAN)
    more = PLAN | {"kernel": choice("rbf", "as asked")}
    assert more["kernel"]["choice"] == "rbf" and "kernel" not in PLAN
    for again in (copy.copy(PLAN), copy.deepcopy(PLAN), pickle.loads(pickle.dumps(PLAN))):
        assert type(again) is Decisions and again == PLAN


def test_decisions_of_a_fit_come_back_from_files(tmp_path):
    X = np.random.default_rng(0).normal(size=(60, 2))
    settings = {"learner": None, "random_state": 0, "likelihood": "gaussian"}
    model = KernelGPRegressor("rbf", **settings).fit(X, np.sin(X[:, 0]))
    assert len(model.summary().splitlines()) <= 20
    model.save(tmp_path / "model")
    found = stochgp.load(tmp_path / "model")
    assert found.plan_ == model.plan_
    np.testing.assert_array_equal(found.predict(X), model.predict(X))
