"""Importance of inputs."""

from types import SimpleNamespace

import numpy as np
import pandas as pd

from stochgp import inspection


def test_importance_is_the_change_of_means_by_permuting_an_input():
    X = np.random.default_rng(0).normal(size=(200, 3))
    model = SimpleNamespace(
        predict_distribution=lambda X: SimpleNamespace(mean=3 * np.asarray(X)[:, 0] - np.asarray(X)[:, 2])
    )
    order = np.random.default_rng(0).permutation(200)
    expected = [
        3 * np.sqrt(np.mean((X[order, 0] - X[:, 0]) ** 2)),
        0,
        np.sqrt(np.mean((X[order, 2] - X[:, 2]) ** 2)),
    ]
    np.testing.assert_allclose(inspection.importance(model, X), expected, atol=1e-12)
    np.testing.assert_allclose(inspection.importance(model, pd.DataFrame(X)), expected, atol=1e-12)
