"""Rotation of the inputs: kept if left-out rows gain, in all that follows a fit."""

from typing import NamedTuple

import numpy as np
import pytest

from stochgp import KernelGPRegressor, kernels, learners, load
from stochgp.data.memory import MemorySource
from stochgp.families import rotation
from stochgp.kernels.warped import kernel_and_directions
from stochgp.learners import LeaveOneOut
from stochgp.likelihoods import Gaussian
from stochgp.likelihoods.noise import known_noise
from stochgp.objectives.conditionals import Conditional

N, D = 500, 3
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(N + 400, D))
F = np.sin(2.0 * (X[:, 0] + X[:, 1] - X[:, 2]))
Y = F + 0.2 * GENERATOR.normal(size=len(F))
SETTINGS = {"random_state": 0, "time_order": "interpolate", "likelihood": "gaussian"}
FEW = LeaveOneOut(n_centres=256)


def fitted(n=N, **settings):
    return KernelGPRegressor(**(SETTINGS | settings)).fit(X[:n], Y[:n])


def nlpd(model):
    return -np.mean(model.predict_distribution(X[N:]).logpdf(Y[N:]))


@pytest.fixture(scope="module", autouse=True)
def _few_rows_count_as_enough():
    """Of 500 rows the likelihood of all of them is quick."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rotation, "MIN_ROWS", 400)
        yield


@pytest.fixture(scope="module", params=["all rows", "left-out rows"])
def both(request):
    """(A fit along the inputs, one whose inputs may be rotated) by the likelihood of all rows and by leave-one-out."""
    learner = "auto" if request.param == "all rows" else FEW
    straight = kernels.Matern32(np.full(D, D**0.5))
    return fitted(kernel=straight, learner=learner), fitted(learner=learner)


def test_oblique_functions_gain_by_rotated_inputs(both):
    straight, rotated = both
    assert straight.plan_["rotation"]["choice"] == 0
    assert rotated.plan_["rotation"]["choice"] >= 1
    assert "gains" in rotated.plan_["rotation"]["why"]
    assert nlpd(rotated) < nlpd(straight) - 0.05
    assert any("stage" in entry for entry in rotated.history_)
    assert kernel_and_directions(rotated.kernel_) is not None
    assert isinstance(straight.kernel_, kernels.Matern32)


def test_what_follows_a_fit_knows_the_directions(both, tmp_path):
    rotated = both[1]
    rotated.save(tmp_path / "model.stochgp")
    loaded = load(tmp_path / "model.stochgp")
    np.testing.assert_array_equal(loaded.predict(X[N:]), rotated.predict(X[N:]))
    assert "Matern32 on rotated inputs" in loaded.summary()
    noise = Gaussian(known_noise(rotated.noise_variance_ / np.var(Y[:N])))
    kept = KernelGPRegressor(rotated.kernel_, learner=None, **SETTINGS | {"likelihood": noise}).fit(
        X[:N], Y[:N]
    )
    np.testing.assert_allclose(kept.predict(X[N:]), rotated.predict(X[N:]), atol=2e-3)


def test_learning_goes_on_from_a_checkpoint(tmp_path):
    file = tmp_path / "run"
    first = KernelGPRegressor(learner=FEW, **SETTINGS).fit(X[:N], Y[:N], checkpoint=file)
    assert (tmp_path / "run.refit").exists()
    again = KernelGPRegressor(learner=FEW, **SETTINGS).fit(X[:N], Y[:N], checkpoint=file)
    np.testing.assert_array_equal(again.predict(X[N:]), first.predict(X[N:]))


def test_a_run_that_is_stopped_keeps_what_it_has(both):
    """The callback ends the run that follows the rounds, which keeps its rotation."""
    stop = lambda entry: "stage" in entry
    model = KernelGPRegressor(learner=both[1].learner, **SETTINGS).fit(X[:N], Y[:N], callback=stop)
    assert model.plan_["rotation"]["choice"] == both[1].plan_["rotation"]["choice"]
    assert model.plan_["ended"]["choice"] == "stopped"


REFUSED = {
    "a kernel that was given": (
        {"kernel": kernels.Matern32(np.full(D, 2.0)), "learner": FEW},
        N,
        "the kernel was given as an object",
    ),
    "few rows": ({}, 300, "needs at least 400 rows"),
    "one lengthscale": (
        {"kernel": "linear", "learner": FEW},
        N,
        "one lengthscale for each",
    ),
    "another learner": ({"learner": learners.BSGD(epochs=1)}, N, "BSGD cannot learn a rotation"),
}


@pytest.mark.parametrize(("settings", "n", "why"), REFUSED.values(), ids=REFUSED)
def test_why_lengthscales_stay_along_the_inputs(settings, n, why):
    entry = fitted(n, **settings).plan_["rotation"]
    assert entry["choice"] == 0
    assert why in entry["why"]


@pytest.mark.parametrize(
    ("levels", "kept", "n_trials"),
    [
        ([0.5, 0.51, 0.6, 0.59, 0.9], 3, 4),
        ([0.5, 0.51, 0.515, 0.9], 1, 3),
        ([0.5, 0.4, 0.9], 1, 2),
        ([0.01, 0.5, 0.4], 2, 3),
    ],
)
def test_a_round_in_doubt_is_followed_by_one_more(levels, kept, n_trials, monkeypatch):
    """Mean log densities of the judging rows after each round, with errors of about 0.02."""
    generator, trials = np.random.default_rng(3), []
    noise = 0.5 * generator.normal(size=(1 + len(levels), 2000))
    scores = noise - noise.mean(axis=1, keepdims=True) + np.array([0, *levels])[:, None]

    class Run(NamedTuple):
        gp: int
        seconds: float = 0.0

    class Trial:
        def scored_briefly(self, gp, *args):
            trials.append(gp)
            return gp, None

    monkeypatch.setattr(rotation, "_rotated", lambda gp, M: gp + 1)
    monkeypatch.setattr(rotation, "_outer_products", lambda *args: np.ones((2, 2)))
    monkeypatch.setattr(rotation, "TRIAL", Trial())
    monkeypatch.setattr(
        rotation, "predicted_by_others", lambda gp, *args: Conditional(-scores[gp], None, None)
    )
    monkeypatch.setattr(rotation, "SCORED", 2000)
    monkeypatch.setattr(rotation, "clusters", lambda *args: np.arange(2000))
    source = MemorySource(np.zeros((5000, 2)), np.zeros(5000))
    *_, ((gp, _), n_rounds, _) = rotation._rounds(Run(0), source)
    assert (gp, n_rounds, trials) == (kept, kept, list(range(1, n_trials + 1)))
