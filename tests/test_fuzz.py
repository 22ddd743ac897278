"""Malformed and extreme inputs to fit and predict: a one-line error, or finite answers with a variance of at least 0.

At least half of the inputs must reach `predict`: a `fit` that always raises would pass otherwise. STOCHGP_FUZZ=500 tries that many
instead of 50; `pytest -s` shows the shares.
"""

import collections
import datetime
import os
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stochgp import FeatureGPRegressor, KernelGPRegressor

EXAMPLES = int(os.environ.get("STOCHGP_FUZZ", "50"))
ROWS = (1, 2, 3, 12, 40)  # few shapes, as each is compiled once

ordinary = st.floats(-10, 10, width=32)
extreme = st.sampled_from(
    [0.0, -0.0, 1e-300, -1e-30, 5e-324, 1e30, -1e100, 1e300, 1e-12, 1.0, 1 + 1e-15, 3.4e38, 1.8e308]
)
mild = st.sampled_from([0.0, -0.0, 1e-300, -1e-30, 5e-324, 1e30, -1e12, 1e-12, 1.0, 1 + 1e-15])
broken = st.sampled_from([np.nan, np.inf, -np.inf])
cell = st.one_of(ordinary, ordinary, extreme)
within = st.one_of(ordinary, ordinary, mild)  # the range of float32


@st.composite
def columns(draw, n, kinds="nnnnnccdbtxoz"):
    """One column of n values, seldom of a kind that numbers are not."""
    kind = draw(st.sampled_from(kinds))
    if kind == "n":
        return np.array(draw(st.lists(cell, min_size=n, max_size=n)))
    if kind == "m":
        return np.array(draw(st.lists(within, min_size=n, max_size=n)))
    if kind == "c":
        return np.full(n, draw(within))
    if kind == "d":
        return np.repeat(draw(ordinary), n) + 1e-9 * np.arange(n)
    if kind == "b":
        return np.arange(n) % 2 == 0
    if kind == "t":
        return np.array([["red", "green", "blue"][i % 3] for i in range(n)], dtype=object)
    if kind == "x":
        values = np.array(draw(st.lists(ordinary, min_size=n, max_size=n)))
        values[draw(st.integers(0, n - 1))] = draw(broken)
        return values
    if kind == "o":
        return np.array([None, "a", 1.5, 2] * n, dtype=object)[:n]
    return np.array([datetime.datetime(2020, 1, 1) + datetime.timedelta(days=i) for i in range(n)])


@st.composite
def problems(draw):
    """A frame or an array, targets and weights; in three of four the columns and the weights are of kinds that can be learned from."""
    n = draw(st.sampled_from(ROWS))
    width = draw(st.sampled_from((1, 3)))
    sound = draw(st.integers(0, 3)) > 0
    kinds = "mmmmmmccddb" if sound else "nnnnnccdbtxoz"
    frame = pd.DataFrame({f"column {i}": draw(columns(n, kinds)) for i in range(width)})
    X = frame if draw(st.booleans()) else frame.to_numpy()
    if draw(st.integers(0, 3)) == 0:
        X = X.iloc[[0] * n] if isinstance(X, pd.DataFrame) else X[[0] * n]  # all rows alike
    y = draw(columns(n, kinds))
    weights = [None, None, None, np.ones(n), np.arange(n) + 0.5]
    weights += [] if sound else [np.zeros(n), np.arange(n) * 1.0, -np.ones(n)]
    weight = draw(st.sampled_from(weights))
    return X, y, weight


@st.composite
def feature_models(draw):
    """A feature GP with settings of which some are impossible."""
    options = {
        "learner": draw(st.sampled_from(["scgd", "scgd", "bsgd", "minimax"])),
        "standardize": draw(st.sampled_from([True, True, True, False])),
        "batch_size": draw(st.sampled_from([8, 8, 10**6] * 5 + [0])),
        "dtype": draw(st.sampled_from(["float32", "float32", "float64"] * 5 + ["float16"])),
    }
    return FeatureGPRegressor(
        features="rff", n_features=8, epochs=3, learning_rate=0.01, random_state=0, **options
    )


@st.composite
def kernel_models(draw):
    """A kernel GP with settings of which some are impossible."""
    learner = draw(st.sampled_from([None, None, "bsgd", "full-batch"]))
    options = {
        "kernel": draw(st.sampled_from(["rbf", "rbf", "matern32", "linear"])),
        "solver": draw(st.sampled_from(["auto", "auto", "auto", "sdd"])),
        "prediction": draw(st.sampled_from(["auto", "auto", "local"])),
        "noise_variance": draw(st.sampled_from([None, None, 1.0, 1e-3, 1e-6] * 3 + [0.0])),
        "standardize": draw(st.sampled_from([True, True, True, False])),
        "dtype": draw(st.sampled_from(["float32", "float32", "float64"] * 5 + ["float16"])),
    }
    epochs = None if learner is None else 2
    return KernelGPRegressor(learner=learner, epochs=epochs, n_samples=4, random_state=0, **options)


@pytest.mark.timeout(6 * EXAMPLES)
@pytest.mark.parametrize("models", [feature_models(), kernel_models()], ids=["feature", "kernel"])
def test_a_clear_error_or_finite_answers(models):
    ended = collections.Counter()

    @settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(problems(), models, st.data())
    def tried(problem, model, data):
        X, y, weight = problem
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # convergence is not the matter here
            try:
                model.fit(X, y, weight)
            except (ValueError, TypeError) as error:
                assert_one_clear_line(error)
                ended["refused by fit"] += 1
                return
            ended["predicted" if assert_answers(model, X) else "refused by predict"] += 1
            assert_answers(model, data.draw(st.sampled_from([X, X[:1], X[::-1]])))

    tried()
    sys.stdout.write(f"{dict(ended)}\n")
    assert ended["predicted"] >= 0.5 * ended.total()


def assert_answers(model, X):
    """Whether there were answers: True, or False where a clear error came."""
    try:
        mean, std = model.predict(X, return_std=True)
    except (ValueError, TypeError) as error:
        assert_one_clear_line(error)
        return False
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert (std >= 0).all()
    assert np.isfinite(getattr(model, "nlml_", 0.0))  # kernel GPs know it where the solver is direct
    return True


def assert_one_clear_line(error):
    text = str(error).strip()
    assert text
    assert len(text.splitlines()) == 1, text
