"""Feature GPs on few rows: no collapse, intervals that hold, results that do not hang on the seed; and runs that say when they are still moving."""

import functools

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sweeps import some_of

from stochgp import FeatureGPRegressor
from stochgp.learners import SCGD, ByEvidence
from stochgp.learners.evaluators import SETTLED_BY

N, N_NEW, NOISE = 120, 2_000, 0.1


def make_data(seed):
    """A smooth function of three inputs, the first of them rounded: (X, y, new X, new y)."""
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(N + N_NEW, 3))
    X[:, 0] = np.round(X[:, 0], 3)
    y = np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] * X[:, 2] + NOISE * generator.normal(size=len(X))
    return X[:N], y[:N], X[N:], y[N:]


@functools.cache
def scores(seed, random_state, epochs=None):
    """(RMSE, NLPD, coverage at 95 %) on new rows, in units of the targets' standard deviation."""
    X, y, X_new, y_new = make_data(seed)
    model = FeatureGPRegressor(learner=SCGD(epochs=epochs), random_state=random_state).fit(X, y)
    mean, std = model.predict(X_new, return_std=True, include_noise=True)
    z, std = (y_new - mean) / std, std / y.std()
    nlpd = np.mean(np.log(std) + z**2 / 2) + np.log(2 * np.pi) / 2
    return np.sqrt(np.mean((y_new - mean) ** 2)) / y.std(), nlpd, np.mean(np.abs(z) < 1.96)


@pytest.mark.parametrize("epochs", [None, 60])
@pytest.mark.parametrize("seed", some_of([0, 1, 2], [1]))
def test_nothing_collapses(seed, epochs):
    """Before, seed 1 ended with noise at its floor, intervals that held 5 %, and an NLPD of 611; a constant has 1.42."""
    rmse, nlpd, coverage = scores(seed, 0, epochs)
    assert rmse < 0.6 and nlpd < 1.0 and coverage > 0.8


@pytest.mark.long
def test_results_do_not_hang_on_the_seed():
    errors = [scores(1, random_state)[0] for random_state in range(3)]
    assert max(errors) < 1.3 * min(errors)


def test_few_rows_are_learned_from_all_of_them():
    """The features are those of a run on all rows; the variances those that the held-out rows of the run before chose."""
    X, y, _, _ = make_data(1)
    model = FeatureGPRegressor(random_state=0).fit(X, y)
    closing = model.fit_report_["refit_steps"]
    assert closing > 0
    assert model.n_iter_ == model.history_[-1]["step"] + closing
    seen = [e for e in model.history_ if "criterion" in e and "step" in e]
    chosen = min(seen, key=lambda e: e["criterion"])
    np.testing.assert_allclose(model.noise_variance_, chosen["noise_variance"], rtol=1e-5)
    many = np.repeat(X, 8, axis=0) + 1e-3 * np.arange(8 * N)[:, None]
    quick = FeatureGPRegressor(random_state=0, learner=SCGD(epochs=1, learning_rate=1e-3)).fit(
        many, np.repeat(y, 8)
    )
    assert "refit_steps" not in quick.fit_report_


def test_a_fit_worse_than_a_constant_is_said():
    """Targets without any structure, and a model that may not learn how much noise there is."""
    generator = np.random.default_rng(0)
    X, y = generator.normal(size=(60, 2)), generator.normal(size=60)
    learner = SCGD(evaluator=ByEvidence(refit=False), learning_rate=1e-6, epochs=2)
    with pytest.warns(ConvergenceWarning, match="worse than by a constant"):
        model = FeatureGPRegressor("rff", n_features=20, learner=learner, random_state=0).fit(X, y)
    found, constant = (model.fit_report_[name] for name in ("held_out_nlpd", "constant_nlpd"))
    assert found > constant
    assert constant == pytest.approx(np.log(y.std()) + np.log(2 * np.pi) / 2 + 0.5, abs=0.5)
    assert "Note: held-out rows are predicted worse than by a constant" in model.summary()


# Settled


def run(criterion, n_evaluations=40):
    """A history whose criterion is that function of the share of the steps taken."""
    return [{"step": i, "nlml": criterion(i / max(n_evaluations, 1))} for i in range(n_evaluations + 1)]


def cosine_path(share):
    """How much of its way a cosine rate has gone: in the last tenth of the steps 0.4 %."""
    return share + np.sin(np.pi * share) / np.pi


@pytest.mark.parametrize(
    ("criterion", "settled"),
    [
        (
            lambda share: 2 - 2 * cosine_path(share),
            False,
        ),  # would go on by 2 nats at a rate that does not fall
        (
            lambda share: 3 * SETTLED_BY * (1 - cosine_path(share)),
            False,
        ),  # as far again, at that rate, as in the last half
        (lambda share: -(0.9 ** (40 * share)), False),  # has only got worse
        (lambda share: np.exp(-20 * share), True),
        (lambda share: np.exp(-20 * share) + 0.5 * SETTLED_BY * share, True),
    ],
    ids=["moving", "slowed by its rate alone", "worse", "plateau", "plateau with noise"],
)
def test_a_run_is_settled_only_where_a_rate_that_could_move_it_did_not(criterion, settled):
    history = run(criterion)
    assert ByEvidence().settled(history) == settled
    tenth = history[-5]["nlml"] - history[-1]["nlml"]
    assert tenth < SETTLED_BY  # the last tenth says nothing of it


@pytest.mark.parametrize("n_evaluations", [0, 1, 3])
def test_few_evaluations_cannot_tell(n_evaluations):
    assert not ByEvidence().settled(run(lambda share: 1.0, n_evaluations))
