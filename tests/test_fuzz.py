"""Malformed and extreme inputs to fit and predict: a one-line error, or finite answers with a variance of at least 0.

STOCHGP_FUZZ=500 tries that many instead of 50.
"""

import datetime
import os
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
broken = st.sampled_from([np.nan, np.inf, -np.inf])
cell = st.one_of(ordinary, ordinary, extreme)


@st.composite
def columns(draw, n):
    """One column of n values, seldom of a kind that numbers are not."""
    kind = draw(st.sampled_from("nnnnnccdbtxoz"))
    if kind == "n":
        return np.array(draw(st.lists(cell, min_size=n, max_size=n)))
    if kind == "c":
        return np.full(n, draw(cell))
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
    """A frame or an array, targets and weights."""
    n = draw(st.sampled_from(ROWS))
    width = draw(st.sampled_from((1, 3)))
    frame = pd.DataFrame({f"column {i}": draw(columns(n)) for i in range(width)})
    X = frame if draw(st.booleans()) else frame.to_numpy()
    if draw(st.integers(0, 3)) == 0:
        X = X.iloc[[0] * n] if isinstance(X, pd.DataFrame) else X[[0] * n]  # all rows alike
    y = draw(columns(n))
    weight = draw(
        st.sampled_from([None, None, None, np.ones(n), np.zeros(n), np.arange(n) * 1.0, -np.ones(n)])
    )
    return X, y, weight


@st.composite
def feature_models(draw):
    """A feature GP with settings of which some are impossible."""
    options = {
        "learner": draw(st.sampled_from(["scgd", "scgd", "bsgd", "minimax"])),
        "standardize": draw(st.booleans()),
        "batch_size": draw(st.sampled_from([8, 8, 8, 10**6, 0])),
        "dtype": draw(st.sampled_from(["float32", "float32", "float64", "float16"])),
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
        "noise_variance": draw(st.sampled_from([None, 1e-6, 1.0, 0.0])),
        "standardize": draw(st.booleans()),
        "dtype": draw(st.sampled_from(["float32", "float32", "float64", "float16"])),
    }
    epochs = None if learner is None else 2
    return KernelGPRegressor(learner=learner, epochs=epochs, n_samples=4, random_state=0, **options)


@pytest.mark.timeout(6 * EXAMPLES)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
@given(problems(), st.data())
@pytest.mark.parametrize("models", [feature_models(), kernel_models()], ids=["feature", "kernel"])
def test_a_clear_error_or_finite_answers(models, problem, data):
    X, y, weight = problem
    model = data.draw(models)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # convergence is not the matter here
        try:
            model.fit(X, y, weight)
        except (ValueError, TypeError) as error:
            assert_one_clear_line(error)
            return
        assert_answers(model, X)
        other = data.draw(st.sampled_from([X, X[:1], X[::-1]]))
        assert_answers(model, other)


def assert_answers(model, X):
    try:
        mean, std = model.predict(X, return_std=True)
    except (ValueError, TypeError) as error:
        assert_one_clear_line(error)
        return
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert (std >= 0).all()
    assert np.isfinite(getattr(model, "nlml_", 0.0))  # kernel GPs know it where the solver is direct


def assert_one_clear_line(error):
    text = str(error).strip()
    assert text
    assert len(text.splitlines()) == 1, text
