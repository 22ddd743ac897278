"""Weights of pools have the highest score."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.optimize
from numpy.testing import assert_allclose
from scipy.special import logsumexp, softmax
from scipy.stats import norm

from stochgp import KernelGPRegressor
from stochgp.data import Standardiser
from stochgp.data.memory import MemorySource
from stochgp.data.rows import Data
from stochgp.distributions import Normal, Rounded, mixture
from stochgp.likelihoods import Gaussian, constant_noise
from stochgp.observations import Dispersion, Observation
from stochgp.pools import weights as weights_module
from stochgp.pools.weights import (
    HeldOutPredictions,
    PoolWeights,
    best_width,
    stack,
    stack_by_time,
    stacking_weights,
    widen_for_later_times,
)

R = 600
GENERATOR = np.random.default_rng(0)


def predicted(means, stds, y, X=None, names="abc"):
    n = len(y)
    mean = np.stack([np.broadcast_to(m, y.shape) for m in means], axis=1)
    parts: Any = [Normal(m, np.broadcast_to(s, n)) for m, s in zip(mean.T, stds, strict=True)]
    rows = Data(np.zeros((n, 1)) if X is None else X[:, None], y)
    density = np.stack([part.logpdf(y) for part in parts], axis=1)
    return HeldOutPredictions(list(names)[: len(means)], rows, parts, mean, density, np.ones(n))


def two_members(errors=(0.5, 0.6), n=R):
    """Their errors are independent: their mean is better than either."""
    f = GENERATOR.normal(size=n)
    members = [f + s * GENERATOR.normal(size=n) for s in errors]
    return predicted(members, [np.hypot(s, 0.1) for s in errors], f + 0.1 * GENERATOR.normal(size=n))


def weights_of(found, weight=None):
    return stacking_weights(
        found.log_density, found.mean, found.y, found.weight if weight is None else weight
    )


def score_of(found, w):
    """Return the mean of log p(y) + log N(y | m, S)."""
    log_density, squares = logsumexp(found.log_density + np.log(w), axis=1), (found.y - found.mean @ w) ** 2
    return float(np.mean(log_density + norm.logpdf(np.sqrt(squares), scale=np.sqrt(squares.mean()))))


def test_weights_are_the_optimum_of_densities_and_means():
    """Against a minimiser that uses no gradient."""
    found = two_members()
    best: Any = scipy.optimize.minimize_scalar(
        lambda a: -score_of(found, softmax([0.0, a])),
        bounds=(-5, 5),
        method="bounded",
        options={"xatol": 1e-9},
    )
    assert_allclose(weights_of(found), softmax([0.0, best.x]), atol=1e-4)
    assert weights_of(found.of(["a"])).tolist() == [1.0]


def test_gradients_are_differences(monkeypatch):
    f = GENERATOR.normal(size=R)
    found = predicted([f + s * GENERATOR.normal(size=R) for s in (0.5, 0.6, 0.7)], (0.5, 0.6, 0.7), f)
    losses: list[Any] = []
    monkeypatch.setattr(
        scipy.optimize, "minimize", lambda loss, x, **_: losses.append(loss) or SimpleNamespace(x=x)
    )
    weights_of(found, GENERATOR.uniform(0.5, 2, R))
    at = np.array([0.3, -0.7])
    differences = [(losses[0](at + h)[0] - losses[0](at - h)[0]) / 2e-6 for h in 1e-6 * np.eye(2)]
    assert_allclose(losses[0](at)[1], differences, rtol=1e-6)


def test_a_row_of_weight_2_counts_as_two():
    found, weight = two_members(), GENERATOR.integers(1, 3, R)
    twice = found.take(np.repeat(np.arange(R), weight))
    assert_allclose(weights_of(found, weight.astype(float)), weights_of(twice), atol=1e-5)


def test_a_pool_of_independent_members_is_taken_and_beats_both():
    weights = stack(two_members())
    assert weights.names == ["a", "b"]
    new = two_members(n=20_000)
    assert score_of(new, weights.values) > max(score_of(new, w) for w in np.eye(2) + 1e-300) + 0.02


def test_members_with_weights_below_a_tenth_are_dropped():
    """Member b has almost the errors of member a. The others keep the optimal weights of two members."""
    found = two_members()
    close = found.mean[:, 0] + 0.2 * GENERATOR.normal(size=R)
    found = predicted([found.mean[:, 0], close, found.mean[:, 1]], [0.51, 0.6, 0.61], found.y)
    assert 0 < weights_of(found)[1] < 0.1
    weights = stack(found)
    assert weights.names == ["a", "c"] and "600 held-out rows" in weights.why
    assert_allclose(weights.values, weights_of(found.of(["a", "c"])))


def test_a_member_without_information_is_left_out():
    """Its predictions are those of the other with noise."""
    y = GENERATOR.normal(size=R)
    good = y + 0.1 * GENERATOR.normal(size=R)
    weights = stack(predicted([good, good + GENERATOR.normal(size=R)], [0.1, 1.1], y))
    assert weights.names == ["a"] and weights.values.tolist() == [1.0]


def test_a_member_with_a_bad_mean_has_no_weight():
    """Its density is the highest, because only it has the scale of the error of each row."""
    s, f = np.exp(GENERATOR.normal(size=R)), GENERATOR.normal(size=R)
    y = f + s * GENERATOR.normal(size=R)
    found = predicted([f + np.where(np.arange(R) % 50 == 0, 6e3, 2.0), f], [s, np.full(R, 2.0)], y)
    found = replace(found, log_density=np.stack([Normal(f, s).logpdf(y), found.log_density[:, 1]], axis=1))
    assert found.best == "a" and stack(found).names == ["b"]


def test_with_few_rows_the_best_member_is_alone():
    y = GENERATOR.normal(size=60)
    weights = stack(predicted([y + 0.5, y + 0.1], [0.5, 0.1], y))
    assert weights.names == ["b"] and "too few" in weights.why


def test_a_member_with_a_density_of_zero_does_not_lose_the_pool():
    found = two_members()
    found.log_density[:5, 1] = -np.inf
    weights = stack(found)
    assert "a" in weights.names and np.isfinite(weights.values).all()


@pytest.mark.parametrize("factor", [0.3, 1.0, 4.0])
def test_a_width_has_the_highest_density_and_is_at_least_one(factor):
    """Errors have `factor` times the predicted variance in the rows that count; others are far off."""
    generator = np.random.default_rng(0)
    n, std = 4_000, 0.5
    rows, mean = np.arange(n) % 4 > 0, generator.normal(size=n)
    y = mean + std * np.sqrt(factor) * generator.normal(size=n) + 100 * ~rows
    narrow = Normal(mean, np.full(n, std))
    assert abs(best_width(narrow, y, rows, np.ones(n)) / max(factor, 1.0) - 1) < 0.1


def test_wider_held_out_distributions_are_those_of_the_wider_member(monkeypatch):
    monkeypatch.setattr(weights_module, "best_width", lambda *_: 2.25)
    X = GENERATOR.normal(size=(60, 2))
    settings = {"learner": None, "likelihood": Gaussian(constant_noise(0.1)), "random_state": 0}
    member = KernelGPRegressor(**settings).fit(X, 5 + np.sin(X[:, 0]))
    held = Data(X[:9] + 0.1, np.full(9, 5.0))
    before, far = member._fitted.distribution(held.X), np.arange(9) > 4
    density, name = before.logpdf(held.y)[:, None], "kernel_by_blocks"
    found = HeldOutPredictions([name], held, [before], before.mean[:, None], density, np.ones(9), far)
    wider = widen_for_later_times({name: member}, found, SimpleNamespace(report={}))
    after = member._fitted.distribution(held.X)
    assert_allclose(after.std, 1.5 * before.std, rtol=1e-9)
    assert_allclose(wider.distributions[0].std, after.std, rtol=1e-9)
    assert_allclose(wider.distributions[0].mean, after.mean, rtol=1e-9)
    assert_allclose(wider.log_density[~far, 0], after.logpdf(held.y)[~far], rtol=1e-9)


@pytest.mark.parametrize("inflation", [None, Dispersion(2.0, 5.0), Dispersion()])
def test_a_wider_observation_has_variances_times_the_factor(inflation):
    plain = Observation(Standardiser.identity(()), Gaussian(constant_noise(0.5)), inflation)
    X = MemorySource(np.zeros((3, 2)), inputs=Standardiser.identity((2,)), dtype="float64", on_device=False)
    mean, variance = np.zeros((3, 1)), np.array([[0.1], [1.0], [3.0]])
    std = [found.mean_and_std(mean, variance, X)[1] for found in (plain, plain.widened(4.0))]
    assert_allclose(std[1], 2 * std[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("X", "new"),
    [
        (np.arange(400)[:, None], [[-5], [399], [399.5]]),
        (
            np.stack([2020 + np.arange(400) // 12, np.arange(400) % 12, -np.arange(400)], 1),
            [[2000, 11, 0], [2053, 3, 0], [2053, 4, 0]],
        ),
    ],
    ids=["a time", "year and month"],
)
@pytest.mark.parametrize(
    "names", [["single", "late"], ["late_by_blocks", "late"], ["single", "late_by_blocks"]]
)
def test_rows_after_the_last_time_have_the_weights_of_held_out_blocks(X, new, names):
    """Member 0 predicts single rows, member 1 blocks of time: each has nearly all of its weight there.

    Only a member "by blocks" has a weight after the last time, if there is one.
    """
    n, far = 400, np.arange(400) >= 200
    y, group = GENERATOR.normal(size=n), (np.arange(n) // 40).astype(np.int32)
    mean = np.stack([np.where(far, 0.0, y), np.where(far, y, 0.0)], axis=1)
    density = norm.logpdf(y[:, None], mean, 0.5)
    held = Data(X.astype(float), y, np.ones(n), np.arange(n, dtype=np.int32))
    found = HeldOutPredictions(names, held, [], mean, density, np.ones(n), far)
    weights = stack_by_time(found, replace(held, group=group))
    w = np.zeros((3, 2))
    w[:, [names.index(name) for name in weights.names]] = weights.weights(np.array(new, float))
    before, after = [0.999, 0.001], [0.001, 0.999]
    if names[0].endswith("_by_blocks"):
        before = after = [1, 0]
    assert_allclose(w, [before, before, after], atol=2e-5)


@pytest.mark.parametrize("level", [0.5, 0.9])
@pytest.mark.parametrize(("rounds", "later"), [(False, False), (True, False), (False, True)])
def test_the_coverage_of_a_pool_is_the_share_of_targets_inside_its_intervals(rounds, later, level):
    n = 2_000  # with 200 rows, all may be inside
    found, far = two_members(n=n), np.arange(n) < 800
    if rounds:
        rows = replace(found.rows, y=np.round(found.y))
        found = replace(found, rows=rows, distributions=[Rounded(part) for part in found.distributions])
    found = replace(found, weight=GENERATOR.integers(1, 4, n).astype(float))
    weights = PoolWeights(["a", "b"], np.array([0.4, 0.6]))
    if later:  # these rows are in held-out blocks of time
        found, weights = replace(found, far=far), replace(weights, later=np.array([0.9, 0.1]))
    each = np.where(far[:, None] & later, [0.9, 0.1], [0.4, 0.6])
    low, high = mixture(tuple(found.distributions), each).interval(level).T
    inside = (found.y >= low) & (found.y <= high)
    assert 0.2 < inside.mean() < 1
    assert found.coverage(weights, level) == pytest.approx(
        np.average(inside, weights=found.weight), rel=1e-12
    )
