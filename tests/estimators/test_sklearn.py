"""Inside scikit-learn: searches, pipelines, named outputs, several fits at once."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from stochgp import KernelGPRegressor, learners

MODEL = KernelGPRegressor(learner=learners.FullBatch(epochs=5, spread=1.0), random_state=0)


def _data(n=60):
    generator = np.random.default_rng(0)
    X = generator.normal(size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + 0.1 * generator.normal(size=n)


def test_a_search_finds_the_kernel_that_scores_best():
    X, y = _data()
    search = GridSearchCV(MODEL, {"kernel": ["linear", "rbf"]}, cv=2).fit(X, y)
    scores = [
        cross_val_score(MODEL.set_params(kernel=kernel), X, y, cv=2).mean() for kernel in ("linear", "rbf")
    ]
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], scores)
    assert search.best_params_ == {"kernel": ("linear", "rbf")[int(np.argmax(scores))]}


def test_a_pipeline_passes_frames_on():
    X, y = _data()
    frame = pd.DataFrame(X, columns=["a", "b"])
    pipeline = make_pipeline(StandardScaler().set_output(transform="pandas"), clone(MODEL)).fit(frame, y)
    assert list(pipeline[-1].feature_names_in_) == ["a", "b"]
    plain = make_pipeline(StandardScaler(), clone(MODEL)).fit(X, y)
    np.testing.assert_allclose(pipeline.predict(frame), plain.predict(X), rtol=1e-6, atol=1e-6)


def test_targets_may_be_transformed():
    X, y = _data()
    model = TransformedTargetRegressor(MODEL, func=np.log, inverse_func=np.exp).fit(X, np.exp(y))
    np.testing.assert_allclose(model.predict(X), np.exp(model.regressor_.predict(X)))


@pytest.mark.parametrize("n_jobs", [2])
@pytest.mark.long
def test_parallel_searches_are_the_serial_ones(n_jobs):
    X, y = _data()
    serial, parallel = (cross_val_score(MODEL, X, y, cv=2, n_jobs=n) for n in (1, n_jobs))
    np.testing.assert_allclose(serial, parallel, rtol=1e-3)  # workers compile with other options
