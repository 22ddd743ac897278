"""Feature GPs that choose their noise: found where it is, refused where it is not, asked for, in files and plans."""

import numpy as np
import pytest

import stochgp
from stochgp import FeatureGPRegressor, learners
from stochgp.learning.evidence import HeldOutRows
from stochgp.selection import noise_of_inputs
from stochgp.selection import row_noise as choosing
from stochgp.selection.curves import CURVED

N = 1_500
QUICK = {"features": "rff", "n_features": 30, "random_state": 0, "learning_rate": 0.03, "epochs": 30}
JUDGE = learners.ByEvidence(validation_fraction=0.4)
LEARNER = learners.SCGD(batch_size=300, judge=JUDGE, optimizer=learners.muon)


def rows(spread, seed=0):
    """Noise whose standard deviation is exp(spread · x₂)/5."""
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(N, 2))
    std = 0.2 * np.exp(spread * X[:, 1])
    return X, np.sin(2 * X[:, 0]) + std * generator.normal(size=N), std


COMPARED = []  # evidence of all runs that `found` compared


@pytest.fixture(scope="module")
def found():
    X, y, _ = rows(0.8)

    def best(*runs):
        COMPARED.extend(run.evidence for run in runs)
        return noise_of_inputs.best_constant(*runs)

    def compared(first, second, what):
        COMPARED.extend((first, second))
        return noise_of_inputs.compared(first, second, what)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choosing, "best_constant", best)
        patch.setattr(choosing, "compared", compared)
        return FeatureGPRegressor(learner=LEARNER, **QUICK).fit(X, y)


def test_runs_that_are_compared_held_out_the_same_rows(found):
    """Other rows would be in other cells, in another order."""
    assert len(COMPARED) == 6  # first and twin; the better and the head; the head and heavy tails
    cell = COMPARED[0].held_out.cell
    assert len(cell) == 0.4 * N and len(np.unique(cell)) == 64
    for evidence in COMPARED:
        np.testing.assert_array_equal(evidence.held_out.cell, cell)


def test_noise_that_follows_an_input_is_found(found):
    X, _, std = rows(0.8, seed=1)
    assert found.plan_["likelihood"]["choice"] == "row-noise"
    latent, noisy = (found.predict(X, return_std=True, include_noise=given)[1] for given in (False, True))
    assert np.corrcoef(np.log(noisy**2 - latent**2), np.log(std**2))[0, 1] > 0.9


def test_constant_noise_is_left_constant():
    """The gate refuses: what more steps bring, and gains of fitted chance, are no reason."""
    chosen = []
    for seed in range(3):
        X, y, _ = rows(0.0, seed)
        chosen.append(FeatureGPRegressor(learner=LEARNER, **QUICK).fit(X, y).plan_["likelihood"]["choice"])
    assert chosen == ["gaussian"] * 3


def test_a_saved_model_keeps_its_noise(found, tmp_path):
    X = rows(0.8, seed=1)[0]
    found.save(tmp_path / "model.stochgp")
    again = stochgp.load(tmp_path / "model.stochgp")
    for one, other in zip(
        *(m.predict(X, return_std=True, include_noise=True) for m in (found, again)), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_what_an_earlier_fit_chose_is_taken_again_to_the_same_bits(found):
    X, y, _ = rows(0.8)
    again = FeatureGPRegressor(learner=LEARNER, **QUICK)
    vars(again)["_chosen_likelihood"] = found.plan_.likelihood.choice
    again.fit(X, y)
    np.testing.assert_array_equal(again.predict(X), found.predict(X))
    assert again.plan_.likelihood.why == "as an earlier fit chose"


def test_few_rows_choose_nothing_and_are_given_what_they_ask_for():
    X, y, _ = rows(0.8)
    some = FeatureGPRegressor(learner=LEARNER, **QUICK).fit(X[:300], y[:300])
    assert some.plan_["likelihood"]["choice"] == "gaussian"
    assert "too few" in some.plan_["likelihood"]["why"]
    asked = FeatureGPRegressor(learner=LEARNER, likelihood="row-noise", **QUICK).fit(X[:300], y[:300])
    assert asked.plan_["likelihood"]["choice"] == "row-noise"
    assert asked.n_iter_ > some.n_iter_


def evidence_of(value, count, cell):
    held_out = HeldOutRows(value, count, 0 * value, 1 + 0 * value, cell)
    return learners.Evidence(None, None, 0.0, 0.0, 0.0)._replace(held_out=held_out)


def gain_of(first, second):
    return noise_of_inputs.compared(first, second, "other").gains["other"]


def test_the_gain_is_that_of_rows():
    """Rows weigh what they count, and equal rows of a cell are one row: repeated ones gain as much, with the same error."""
    generator = np.random.default_rng(0)
    one, other = generator.normal(size=(2, 400))
    count, cell = generator.integers(1, 4, 400), np.arange(400) // 5
    first, second = (evidence_of(v, count.astype(float), cell) for v in (one, other))
    found, better = gain_of(first, second), one - other
    mean = np.average(better, weights=count)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-12)
    sums = (count / count.sum() * (better - mean)).reshape(80, 5).sum(axis=1)
    np.testing.assert_allclose(found.error, np.sqrt(80 / 79 * np.sum(sums**2)), rtol=1e-12)
    repeated = [np.repeat(part, count) for part in (one, other, cell)]
    ones = np.ones(count.sum())
    again = gain_of(*(evidence_of(v, ones, repeated[2]) for v in repeated[:2]))
    np.testing.assert_allclose(again[:2], found[:2], rtol=1e-12)
    assert noise_of_inputs.compared(first, first, "the same").name is None
    better = evidence_of(one - 1, count.astype(float), cell)
    assert noise_of_inputs.compared(first, better, "better").name == "better"


def test_a_gain_that_rows_of_a_group_share_is_one_of_groups():
    """20 groups of 30 rows that gain alike by chance: clear in 1 of 20 draws or so, in most where rows are taken as independent."""
    clear = {"groups": 0, "rows": 0}
    for seed in range(40):
        generator = np.random.default_rng(seed)
        gains = np.repeat(generator.normal(size=20), 30) + 0.1 * generator.normal(size=600)
        for name, cell in (("groups", np.arange(600) // 30), ("rows", np.arange(600))):
            first, second = (evidence_of(v, np.ones(600), cell) for v in (gains, 0 * gains))
            clear[name] += noise_of_inputs.compared(first, second, name).name is not None
    assert clear["groups"] <= 5 and clear["rows"] >= 10


def test_an_unknown_likelihood_is_refused():
    X, y, _ = rows(0.0)
    with pytest.raises(ValueError, match="likelihood"):
        FeatureGPRegressor(likelihood="gausian", **QUICK).fit(X[:50], y[:50])


@pytest.mark.long
def test_probabilities_of_skewed_noise_are_recalibrated_again_and_come_back_from_a_file(tmp_path):
    """The density of new rows gains what half of the rows said of the other half; predictions stay the mean."""

    def skewed(n, seed):
        generator = np.random.default_rng(seed)
        X = generator.uniform(-2, 2, size=(n, 1))
        return X, np.sin(2 * X[:, 0]) + 0.3 * (generator.exponential(size=n) - 1)

    (X, y), (Z, z) = skewed(4_400, 0), skewed(4_000, 1)
    learner = learners.SCGD(batch_size=300, judge=learners.ByEvidence(validation_fraction=0.5))
    settings = QUICK | {"epochs": 4}
    model = FeatureGPRegressor(learner=learner, **settings).fit(X, y)
    assert model.plan_["likelihood"]["choice"].endswith(CURVED)
    found, noise = model.predict_distribution(Z), 0.3 * (-np.log1p(-np.array([0.05, 0.5, 0.95])) - 1)
    np.testing.assert_allclose(
        found.quantile([0.05, 0.5, 0.95]) - np.sin(2 * Z), np.tile(noise, (4_000, 1)), atol=0.12
    )
    plain = FeatureGPRegressor(learner=learner, likelihood="student-t", **settings).fit(X, y)
    assert found.logpdf(z).mean() > plain.predict_distribution(Z).logpdf(z).mean() + 0.1
    mean, std = model.predict(Z, return_std=True, include_noise=True)
    np.testing.assert_allclose(std, found.std, rtol=1e-9)
    np.testing.assert_array_equal(mean, model.predict(Z))
    again = FeatureGPRegressor(learner=learner, **settings)
    vars(again)["_chosen_likelihood"] = model.plan_.likelihood.choice
    again.fit(X, y)
    np.testing.assert_array_equal(again.predict_distribution(Z).logpdf(z), found.logpdf(z))
    model.save(tmp_path / "m")
    np.testing.assert_array_equal(
        stochgp.load(tmp_path / "m").predict_distribution(Z).logpdf(z), found.logpdf(z)
    )
    u = found[np.arange(50)]._tails(model.sample_y(Z[:50], 200, include_noise=True))[0]
    assert abs(u.mean() - 0.5) < 4 * (1 / 12 / 50 / 20) ** 0.5  # draws of f are shared by near rows
