"""What a user may not expect of a fit is said: in `plan_`, in `summary()`, in the log and, with `verbose`, on stderr."""

import logging

import numpy as np
import pytest

from stochgp import KernelGPRegressor
from stochgp.estimators.report import with_notes
from stochgp.families import kernel_posterior, left_out
from stochgp.learners import BSGD, FullBatch

LEARNED = "hyperparameters were learned from 30 of the 60 rows"
SUBSET = FullBatch(subset_rows=30, epochs=3)


def make_data(n=60):
    X = np.random.default_rng(0).uniform(-2, 2, (n, 2))
    return X, np.sin(2 * X[:, 0]) * X[:, 1]


def words(text):
    return " ".join(text.split())


def test_a_subset_local_prediction_and_raised_noise_are_said_everywhere(monkeypatch, capsys, caplog):
    X, y = make_data()
    with caplog.at_level(logging.INFO, "stochgp.estimators"):
        local = KernelGPRegressor(learner=SUBSET, solver="local", random_state=0, verbose=1).fit(X, y)
    for text in (local.summary(), caplog.text, capsys.readouterr().err):
        assert LEARNED in words(text)
        assert "predictions use only nearby rows (set by the user): covariances, function" in words(text)
    assert local.plan_["learning_rows"]["choice"] == 30

    monkeypatch.setattr(left_out, "SMALL", 20)  # as if these were many rows
    monkeypatch.setattr(kernel_posterior, "NOISE_SHARE", 50.0)
    monkeypatch.setattr(kernel_posterior, "MAX_GROWTH", 100.0)
    raised = KernelGPRegressor(learner=SUBSET, solver="cg", random_state=0).fit(X, y)
    floor = raised.plan_["noise_floor"]["choice"]
    assert floor == pytest.approx(raised.noise_variance_ / raised._fitted.target_scale**2)
    assert "Note: the noise variance was raised above the learned value" in words(raised.summary())
    assert capsys.readouterr() == ("", "")  # nothing is written unasked


def test_a_fit_without_surprises_has_no_notes():
    model = KernelGPRegressor(learner=FullBatch(epochs=3), random_state=0).fit(*make_data())
    assert "Note:" not in model.summary() and not {"noise_floor", "learning_rows"} & set(model.plan_)


@pytest.mark.parametrize(
    ("learner", "what"),
    [
        (FullBatch(epochs=2), "exact"),
        (SUBSET, "exact"),
        (BSGD(epochs=2, batch_size=20), "stochastic"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value,
)
def test_the_report_says_what_is_exact(learner, what):
    model = KernelGPRegressor(learner=learner, random_state=0).fit(*make_data())
    assert model.fit_report_["gradients"] == what
    assert model.plan_["learner"]["choice"] == type(learner).__name__


def test_nothing_learned_is_said_as_such():
    plan = KernelGPRegressor(learner=None, random_state=0).fit(*make_data()).plan_
    assert plan["learner"] == {"choice": None, "why": "learner=None keeps the given hyperparameters"}


def test_a_summary_of_many_notes_has_twenty_lines():
    found = with_notes(["first", "second"], [f"note {i} " + "word " * 30 for i in range(30)])
    lines = found.splitlines()
    assert len(lines) <= 20 and lines[0] == "first" and "Note: note 0" in found and "more notes" in lines[-2]
    assert with_notes(["first"], ["one"]).splitlines()[1] == "Note: one"
