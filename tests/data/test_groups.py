"""Groups given to `fit`: what they may be, that they keep company with their rows, what they change, and what is refused."""

import jax
import numpy as np
import pandas as pd
import pytest

from stochgp import FeatureGPRegressor, KernelGPRegressor, kernels, learners
from stochgp.context import FitContext
from stochgp.data.reading import read_training_rows
from stochgp.learners import FullBatch, LeaveOneOut
from stochgp.likelihoods import Gaussian
from stochgp.likelihoods.noise import known_noise
from stochgp.posteriors import LocalPosterior

N = 60


def make_data(seed=0):
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(N, 2))
    return X, np.sin(2 * X[:, 0]) + 0.1 * generator.normal(size=N), generator.integers(0, 12, N)


def read(X, y, groups, weight=None):
    context = FitContext(model := KernelGPRegressor())
    return read_training_rows(model, X, y, weight, groups, context)[0]


def kernel_gp():
    learner = LeaveOneOut(epochs=4, n_neighbours=5)
    return KernelGPRegressor(learner=learner, random_state=0)


def partition_of(labels):
    """Which rows are together, whatever they are called."""
    return np.asarray(labels)[:, None] == np.asarray(labels)


KINDS = {
    "numbers": lambda g: g,
    "a list": lambda g: g.tolist(),
    "text": lambda g: np.array([f"patient {i}" for i in g]),
    "objects": lambda g: np.array([f"patient {i}" for i in g], object),
    "categories": lambda g: pd.Series([f"day {i}" for i in g], dtype="category"),
    "dates": lambda g: pd.Timestamp("2020-01-01") + pd.to_timedelta(g, unit="D"),
    "floats": lambda g: g / 3,
    "booleans": lambda g: g > 5,
}


@pytest.mark.parametrize("kind", KINDS)
def test_groups_may_be_anything_that_can_be_sorted(kind):
    X, y, group = make_data()
    given = KINDS[kind](group)
    rows = read(X, y, given)
    order = np.lexsort((y, X[:, 1], X[:, 0]))
    np.testing.assert_array_equal(rows.X, X[order])
    np.testing.assert_array_equal(partition_of(rows.group), partition_of(np.asarray(given)[order]))


def test_equal_rows_are_merged_within_their_group_only():
    X, y, group = make_data()
    rows = read(np.tile(X, (3, 1)), np.tile(y, 3), np.concatenate([group, group, group + 100]))
    assert len(rows.y) == 2 * N
    np.testing.assert_array_equal(rows.weight, np.tile([2.0, 1.0], N))
    np.testing.assert_array_equal(rows.group[1::2], rows.group[::2] + len(np.unique(group)))
    assert read(X, y, None).group is None


def test_rows_of_weight_zero_leave_with_their_group():
    X, y, group = make_data()
    rows = read(X, y, group, np.where(group == 3, 0.0, 1.0))
    assert len(rows.y) == (group != 3).sum()
    assert len(np.unique(rows.group)) == len(np.unique(group)) - 1


def test_many_rows_stay_in_their_order():
    X = np.random.default_rng(0).normal(size=(10_001, 1))
    group = np.arange(10_001) // 7
    np.testing.assert_array_equal(read(X, X[:, 0], group).group, group)


REFUSED = {
    "too few": (lambda g: g[:-1], r"one entry for each of 60 rows, but has the shape \(59,\)"),
    "a table": (
        lambda g: np.stack([g, g], axis=1),
        r"one entry for each of 60 rows, but has the shape \(60, 2\)",
    ),
    "a number": (lambda g: 3, r"one entry for each of 60 rows, but has the shape \(\)"),
    "one group": (lambda g: 0 * g, "at least two groups"),
    "missing number": (lambda g: np.where(g == 2, np.nan, g), "the group of row"),
    "missing text": (lambda g: np.array([None, *"a" * 59], object), "the group of row 1 is missing"),
    "missing text in a list": (lambda g: ["a", float("nan"), *"a" * 58], "the group of row 2 is missing"),
    "two kinds": (lambda g: np.array([1, *"a" * 59], object), "all be numbers, or must all be text"),
}


@pytest.mark.parametrize("model", [kernel_gp, FeatureGPRegressor])
@pytest.mark.parametrize("case", REFUSED)
def test_other_groups_are_refused_in_one_line(case, model):
    X, y, group = make_data()
    wrong, message = REFUSED[case]
    with pytest.raises(ValueError, match=message) as caught:
        model().fit(X, y, groups=wrong(group))
    assert "\n" not in str(caught.value)


def test_one_group_beside_rows_of_weight_zero_is_refused():
    X, y, group = make_data()
    with pytest.raises(ValueError, match="at least two groups"):
        kernel_gp().fit(X, y, (group == 3).astype(float), groups=group)


def bits(model):
    return [entry["loss"] for entry in model.history_ if "loss" in entry]


def test_leave_one_out_learns_with_them_whatever_their_names_and_the_order_of_rows():
    X, y, group = make_data()
    plain, grouped = kernel_gp().fit(X, y), kernel_gp().fit(X, y, groups=group)
    assert bits(plain) != bits(grouped)
    order = np.random.default_rng(1).permutation(N)
    names = np.array([f"{i:02d}" for i in group])
    again = kernel_gp().fit(X[order], y[order], groups=names[order])
    assert bits(again) == bits(grouped)
    alone = kernel_gp().fit(X, y, groups=np.arange(N))
    assert bits(alone) == bits(plain)


@pytest.mark.parametrize("settings", [{}, {"solver": "cg"}, {"solver": "local"}], ids=str)
def test_intervals_of_new_groups_hold_their_rows(settings, monkeypatch):
    """Rows of a group are near each other and share an offset, three quarters of the variance around f, which the kernel given takes for noise.

    Of 100 groups, 95 % intervals hold 89 to 99 % of the rows of new ones: their share has the standard error √(.05 · .95/400) of as many groups, and that of c,
    √(2/100)/2 of the reach of an interval. c = (1 + nz̄²)/(1 + n) is that of n = 100 groups: of the posterior that has it z̄² is z̄²/c, so that another
    would be 1 + (1 − 1/c)/(1 + n); a local posterior finds its own again.
    """
    monkeypatch.setattr("stochgp.posteriors.kernel.NEIGHBOURS", 64)
    generator = np.random.default_rng(0)
    group = np.arange(500).repeat(5)
    X = generator.uniform(-2, 2, (500, 2))[group] + 0.05 * generator.normal(size=(2500, 2))
    y = X[:, 0] + 0.4 * generator.normal(size=500)[group] + 0.23 * generator.normal(size=2500)
    given = {
        "kernel": kernels.RBF([1.0, 1.0]),
        "learner": FullBatch(epochs=1),
        "likelihood": Gaussian(known_noise(0.1)),
    }
    model = KernelGPRegressor(**given, **settings, random_state=0, dtype="float64")
    model.fit(X[:500], y[:500], groups=group[:500])
    low, high = model.predict_interval(X[500:]).T
    held = np.mean((low < y[500:]) & (y[500:] < high))
    assert 0.89 < held < 0.99
    posterior, own = model._fitted.posterior, group[:500][np.lexsort((y[:500], X[:500, 1], X[:500, 0]))]
    with jax.enable_x64(True):
        if isinstance(posterior, LocalPosterior):
            np.testing.assert_allclose(posterior.calibrated(500, 0, own)[0].scale, posterior.scale, rtol=1e-6)
            return
        c, again = model.fit_report_["variance_scale"], posterior.calibrated(own)[1]
    np.testing.assert_allclose(again, 1 + (1 - 1 / c) / 101, rtol=1e-5)


def test_feature_gps_hold_out_whole_groups():
    """Of two groups the smaller one, whichever rows it has."""
    X, y, _ = make_data()
    group = np.arange(N) < 7
    model = FeatureGPRegressor(
        "rff", n_features=8, learner=learners.SCGD(epochs=2, learning_rate=0.01), random_state=0
    )
    found = model.fit(X, y, groups=group)
    assert found.fit_report_["held_out_rows"] == 7
