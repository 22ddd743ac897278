"""A program is compiled once: fits with other epochs, rates, judges and numbers of rows find those of the first."""

import numpy as np
import pytest
from programs import compiled, counts

from stochgp import FeatureGPRegressor, KernelGPRegressor, SparseGPRegressor, kernels, learners
from stochgp.learners import SCGD, SVGP, ByEvidence, LeaveOneOut

ROWS, OTHER = 130, 133


def rows(n, seed):
    X = np.random.default_rng(seed).normal(size=(n, 3))
    return X, np.sin(X[:, 0]) + 0.1 * X[:, 1]


def programs(model, n, seed):
    """The names of what a fit and a prediction compile."""
    X, y = rows(n, seed)
    with compiled() as found:
        model.fit(X, y).predict(X[:50], return_std=True)
    return counts(found)


# (a first model; others, of other rows)
FAMILIES = {
    "kernel": (lambda: KernelGPRegressor(random_state=0), lambda: KernelGPRegressor(random_state=1)),
    "loo": (
        lambda: KernelGPRegressor(learner=LeaveOneOut(epochs=2, n_centres=128), random_state=0),
        lambda: KernelGPRegressor(learner=LeaveOneOut(epochs=3, n_centres=128, spread=0.5), random_state=1),
    ),
    "feature": (
        lambda: FeatureGPRegressor(
            n_features=16, learner=SCGD(batch_size=64, learning_rate=0.01, epochs=20), random_state=0
        ),
        lambda: FeatureGPRegressor(
            n_features=16, learner=SCGD(batch_size=64, learning_rate=0.02, epochs=21), random_state=1
        ),
    ),
    "evaluator": (
        lambda: FeatureGPRegressor(
            n_features=16, learner=SCGD(batch_size=64, learning_rate=0.01, epochs=20), random_state=0
        ),
        lambda: FeatureGPRegressor(
            n_features=16,
            learner=SCGD(
                batch_size=64, learning_rate=0.02, epochs=20, evaluator=ByEvidence(validation_fraction=0.25)
            ),
            random_state=1,
        ),
    ),
    "sparse": (
        lambda: SparseGPRegressor(
            n_inducing=8, learner=SVGP(batch_size=64, epochs=40, learning_rate=0.01, steps=64), random_state=0
        ),
        lambda: SparseGPRegressor(
            n_inducing=8, learner=SVGP(batch_size=64, epochs=41, learning_rate=0.02), random_state=1
        ),
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_other_settings_and_other_rows_compile_nothing(family):
    first, other = FAMILIES[family]
    programs(first(), ROWS, seed=0)
    assert programs(other(), OTHER, seed=1) == {}


@pytest.mark.parametrize(
    "settings", [{}, {"solver": "cg"}, {"solver": "local"}], ids=["exact", "near rows", "local"]
)
def test_first_predictions_of_kernel_models_compile_nothing(settings):
    """Of a kernel and a number of inputs that no other test has."""
    X = np.random.default_rng(0).normal(size=(ROWS, 7))
    kernel = kernels.Matern32(np.linspace(1, 2, 7), 1.3)
    model = KernelGPRegressor(kernel, learner=None, random_state=0, **settings)
    model.fit(X, X[:, 0])
    with compiled() as found:
        model.predict(X[:50] + 0.1, return_std=True)
    assert not counts(found)


@pytest.mark.parametrize(
    ("model", "most"),
    [
        (lambda: SparseGPRegressor(random_state=0), 4),
        (lambda: FeatureGPRegressor(learner=learners.SCGD(epochs=20), random_state=0), 5),
    ],
    ids=["sparse", "feature"],
)
def test_a_first_fit_compiles_few_programs(model, most):
    """Of a number of inputs that no other test has, beside the probe of XLA's options."""
    X = np.random.default_rng(0).normal(size=(ROWS, 9))
    with compiled() as found:
        model().fit(X, np.sin(X[:, 0]) + 0.1 * np.random.default_rng(1).normal(size=ROWS))
    names = [name for name in counts(found) if "lambda" not in name]
    assert sum(counts(found)[name] for name in names) <= most, counts(found)
