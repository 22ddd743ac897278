"""Leave-one-out learned on by Vecchia's likelihood: kept where left-out rows gain, repeated by a plan, refused where it has no meaning."""

import jax
import numpy as np
import pytest
from scipy import stats

import stochgp.selection.choices as choices
import stochgp.selection.polish as polish
from stochgp import KernelGPRegressor
from stochgp.learners import LeaveOneOut, Vecchia
from stochgp.learning.fit import fit
from stochgp.learning.sampling import host_inputs
from stochgp.selection.left_out import JudgingRows, predicted_by_others

N = 600
GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(-2, 2, size=(N + 400, 2))
Y = np.sin(X[:, 0]) + np.cos(1.5 * X[:, 1]) + 0.1 * X[:, 0] * X[:, 1]
NOISY = np.sin(4 * X[:, 0]) + 0.5 * GENERATOR.normal(size=len(X))
SETTINGS = {
    "random_state": 0,
    "new_rows": "between",
    "n_samples": 0,
    "kernel": "matern32",
    "metric": "inputs",
}
FEW = LeaveOneOut(n_centres=256, epochs=24, n_neighbours=16, n_scored=1, spread=1.0)


@pytest.fixture(autouse=True)
def _few_rows_are_learned_by_leave_one_out(monkeypatch):
    _set(monkeypatch)


def fitted(y=Y, **settings):
    return KernelGPRegressor(**(SETTINGS | settings)).fit(X[:N], y[:N])


def scores_by(monkeypatch, gains, trial=1.0):
    """Scores of the models in the order in which they are asked for: the first one's, and then `gains` above those of the model that it is compared with."""
    noise = np.random.default_rng(1).normal(size=N)
    asked = iter([0.0, trial, 0.0, *gains, 0.0, -1.0, 0.0, -1.0])  # what is not said loses
    monkeypatch.setattr(polish._Polish, "scores", lambda self, gp: noise + next(asked))


@pytest.fixture(scope="module")
def straight():
    with pytest.MonkeyPatch.context() as patch:
        _set(patch)
        return fitted(learner=FEW)


def _set(patch):
    """Of 600 rows the default would be the likelihood of all."""
    patch.setattr(choices, "FULL_BATCH_ROWS", 100)
    patch.setattr(choices, "ROW_BY_ROW", FEW)


def test_a_function_without_noise_gains_and_noise_hides_that(straight):
    density = lambda model: model.predict_distribution(X[N:]).logpdf(Y[N:]).mean()
    polished = fitted()
    assert polished.plan_["polish"]["choice"] in ("vecchia", "full-batch")
    assert density(polished) > density(straight) + 1.0
    assert fitted(NOISY).plan_["polish"]["choice"] is None


def test_left_out_rows_decide(monkeypatch, straight):
    for gain, choice in ((1.0, "vecchia"), (-1.0, None)):
        with monkeypatch.context() as patch:
            scores_by(patch, [gain])
            model = fitted()
        assert model.plan_["learner"]["choice"] == "LeaveOneOut"
        assert model.plan_["polish"]["choice"] == choice
        assert f"gains {gain:.4f}" in model.plan_["polish"]["why"]
        same = np.array_equal(model.kernel_.lengthscale, straight.kernel_.lengthscale)
        assert same == (choice is None)
    assert straight.plan_["polish"] == {"choice": None, "why": "as asked"}


def test_a_trial_that_does_not_pay_ends_it(monkeypatch, straight):
    learned, names = polish._Polish.learned, []
    monkeypatch.setattr(polish._Polish, "learned", lambda self, start, name: (names.append(name), learned(self, start, name))[1])  # fmt: skip
    scores_by(monkeypatch, [1.0], trial=-1.0)
    model = fitted()
    assert names == [polish.TRIAL]
    assert (
        model.plan_["polish"]["choice"] is None
        and "'vecchia-trial' gains -1.0" in model.plan_["polish"]["why"]
    )
    np.testing.assert_array_equal(model.kernel_.lengthscale, straight.kernel_.lengthscale)


def test_a_polished_model_is_nearer_to_the_optimum_of_vecchias_likelihood(monkeypatch):
    seen, taken = {}, polish._Polish.compared

    def compared(self, old, start, name):
        if name == polish.VECCHIA:
            seen["before"], seen["source"], seen["learner"] = old.gp, self.source, self.learners[name]
        found = taken(self, old, start, name)
        seen.setdefault("after", found[0].gp)
        return found

    monkeypatch.setattr(polish._Polish, "compared", compared)
    scores_by(monkeypatch, [1.0])
    model = fitted()
    learner = seen["learner"]
    assert isinstance(learner, Vecchia)
    assert (learner.n_centres, learner.spread, learner.searches) == (256, 1.0, 0)
    first, last = (
        fit(learner, seen[when], seen["source"], key=jax.random.key(0)).history[1]["loss"]
        for when in ("before", "after")
    )
    assert last < first - 0.001
    assert any("stage" in entry for entry in model.history_)


def test_scores_are_cross_fitted_student_densities(monkeypatch):
    """Each half by the t of the highest likelihood of the other; scipy's own fit of both parameters."""
    seen = {}
    monkeypatch.setattr(polish._Polish, "compared", lambda self, old, *_: (seen.update(p=self, gp=old.gp), (old, False, "")) [1])  # fmt: skip
    fitted(NOISY)
    p, gp = seen["p"], seen["gp"]
    scores = p.scores(gp)
    found = predicted_by_others(gp, p.source, host_inputs(p.source), p.judges.rows)
    z, V = np.asarray(found.z, float), np.asarray(found.variance, float)
    assert sorted(np.unique(p.half)) == [0, 1] and abs(np.mean(p.half) - 0.5) < 0.01
    for half in (0, 1):
        fits, scored = p.half != half, p.half == half
        nu, _, scale = stats.t.fit(z[fits], floc=0)
        wanted = stats.t.logpdf(z[scored], min(nu, 1000.0), scale=scale) - 0.5 * np.log(V[scored])
        np.testing.assert_allclose(scores[scored], wanted, atol=0.02)


def test_scale_and_tails_play_no_part_in_the_comparison():
    """Variances times any constant leave the scores as they are: another likelihood may not win or lose by its noise level."""
    from types import SimpleNamespace

    rng = np.random.default_rng(2)
    z, V = rng.standard_t(4, size=500), rng.uniform(0.5, 2, 500)
    half, one = np.arange(500) % 2, np.ones(500)
    scores = []
    for c in (1.0, 100.0):
        found = SimpleNamespace(z=z / c**0.5, variance=c * V)
        judges = SimpleNamespace(predicted=lambda gp, found=found: found, weight=one)
        scores.append(polish._Polish(*[None] * 4, judges, half).scores(None))
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-4)


def test_a_plan_repeats_it(monkeypatch):
    scores_by(monkeypatch, [1.0])
    first = fitted()
    monkeypatch.setattr(polish._Polish, "scores", None)  # nothing is compared
    again = fitted(plan=first.plan_)
    assert again.plan_["polish"] == {"choice": "vecchia", "why": "as given"}
    np.testing.assert_array_equal(again.predict(X[N:]), first.predict(X[N:]))
    older = first.plan_.without("polish")
    assert fitted(plan=older).plan_["polish"]["choice"] is None


TURNED = {
    "turned lengthscales": ([1.0, -0.5], "turned"),
    "those before": ([1.0, 2.0], "before"),
}


@pytest.mark.parametrize(("gains", "kept"), TURNED.values(), ids=TURNED)
def test_where_turns_gained_the_better_of_both_ends_is_kept(gains, kept, monkeypatch):
    """The scores: of the turned model, of what was made of it, then of that again, and of what was made of the one before."""
    import stochgp.selection.metric as metric

    monkeypatch.setattr(metric, "FEWEST_ROWS", 400)
    monkeypatch.setattr(metric, "MOST_ROUNDS", 1)
    judged = JudgingRows.preferred
    wanted = lambda self, a, b, name: (
        metric.Preference(name, {}, "as a test wants it")
        if name in ("turn 1", "all of it")
        else judged(self, a, b, name)
    )
    monkeypatch.setattr(JudgingRows, "preferred", wanted)
    scores_by(monkeypatch, [gains[0], 0.0, gains[1]])
    model = fitted(metric="auto")
    assert model.plan_["polish"]["choice"] == "vecchia"
    assert model.plan_["metric"]["choice"] == (1 if kept == "turned" else 0)
    again = fitted(metric="auto", plan=model.plan_)
    np.testing.assert_array_equal(again.predict(X[N:]), model.predict(X[N:]))


def test_learning_goes_on_from_a_checkpoint(tmp_path, monkeypatch):
    scores_by(monkeypatch, [1.0, 0.0, 1.0] + [0.0, 1.0] + [0.0, 1.0, 0.0, 1.0])
    first, again = (
        KernelGPRegressor(**SETTINGS).fit(X[:N], Y[:N], checkpoint=tmp_path / "run") for _ in range(2)
    )
    assert all((tmp_path / f"run.polish.{name}").exists() for name in ("vecchia", "full-batch"))
    np.testing.assert_array_equal(again.predict(X[N:]), first.predict(X[N:]))


def test_a_run_that_is_stopped_keeps_leave_one_out(straight):
    model = KernelGPRegressor(**SETTINGS).fit(X[:N], Y[:N], callback=lambda entry: "stage" in entry)
    assert model.plan_["polish"] == {"choice": None, "why": "further steps were ended"}
    assert model.plan_["ended"]["choice"] == "stopped"
    np.testing.assert_array_equal(model.kernel_.lengthscale, straight.kernel_.lengthscale)


def test_the_exact_likelihood_of_a_subset_follows_where_it_gains(monkeypatch):
    scores_by(monkeypatch, [1.0, 0.0, 1.0])
    both = fitted()
    assert both.plan_["polish"]["choice"] == "full-batch"
    scores_by(monkeypatch, [1.0, 0.0, -1.0])
    first = fitted()
    assert first.plan_["polish"]["choice"] == "vecchia"
    assert not np.array_equal(both.kernel_.lengthscale, first.kernel_.lengthscale)
    again = fitted(plan=both.plan_)
    np.testing.assert_array_equal(again.predict(X[N:]), both.predict(X[N:]))


def test_a_run_that_is_stopped_later_keeps_what_was_found(monkeypatch):
    """The callback ends the exact likelihood: nothing follows it, and Vecchia's model stays."""
    learned, names = polish._Polish.learned, []

    def stopped(self, start, name):
        names.append(name)
        return learned(self, start, name)

    monkeypatch.setattr(polish._Polish, "learned", stopped)
    scores_by(monkeypatch, [1.0])
    model = KernelGPRegressor(**SETTINGS).fit(X[:N], Y[:N], callback=lambda _: polish.EXACT in names)
    assert names == [polish.TRIAL, polish.VECCHIA, polish.EXACT]
    assert model.plan_["polish"]["choice"] == "vecchia"
    assert "further steps were ended" in model.plan_["polish"]["why"]
    assert model.plan_["ended"]["choice"] == "stopped"


def test_groups_and_many_rows_are_left_to_leave_one_out():
    model = KernelGPRegressor(**SETTINGS).fit(X[:N], NOISY[:N], groups=np.arange(N) // 2)
    assert model.plan_["polish"]["choice"] is None
    assert "no notice of groups" in model.plan_["polish"]["why"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(polish, "LOCAL_ROWS", N - 1)
        assert fitted(NOISY).plan_["polish"]["choice"] is None


def test_other_learners_are_left_as_they_are():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choices, "FULL_BATCH_ROWS", 3000)
        assert "only leave-one-out" in fitted(NOISY).plan_["polish"]["why"]
    assert fitted(NOISY, learner="vecchia", epochs=4).plan_["polish"]["choice"] is None
