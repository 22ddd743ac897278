"""The loop: what it returns, and that kills, limits, interrupts and divergence end it well."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from killing import KilledError, stop_at
from reference import dense_nlml
from sweeps import some_of
from toy import KEY, make_gp, make_toy

from stochgp.data.memory import MemorySource
from stochgp.data.rows import Standardiser
from stochgp.features import Network
from stochgp.learners import (
    BSGD,
    SCGD,
    ByEvidence,
    FullBatch,
    Minimax,
    Uniform,
    evaluators,
)
from stochgp.learners.evaluators import RATES, StepPlan
from stochgp.learning import fit
from stochgp.learning.run import bracketed
from stochgp.models import FeatureGP
from stochgp.objectives import moments_of_rows, nlml_of_spectrum, refit, spectrum
from stochgp.parameters import bounded, frozen
from stochgp.results import RESULTS
from stochgp.storage.checkpoint import fingerprint

COMMON = {
    "batch_size": 20,
    "epochs": 30,
    "learning_rate": 1e-2,
    "optimizer": optax.adam,
}  # 3 evaluations of 100 steps
ALONE = COMMON | {"evaluator": ByEvidence(validation_fraction=0.0)}
HALF = COMMON | {
    "batch_size": 10,
    "evaluator": ByEvidence(validation_fraction=0.5),
}  # 100 of 200 rows held out
LEARNERS = {
    "scgd": SCGD(**ALONE),
    "scgd, held out": SCGD(**HALF),
    "scgd, plain": SCGD(
        **COMMON,
        tracking=0.1,
        anchored=False,
        evaluator=ByEvidence(refit=False, validation_fraction=0.0),
        sampling=Uniform(replace=True),
    ),
    "minimax": Minimax(**ALONE),
    "bsgd": BSGD(**HALF),
    "full batch": FullBatch(epochs=30, tolerance=0.0, evaluator=ByEvidence(validation_fraction=0.0)),
}
sweep = pytest.mark.parametrize("name", LEARNERS)


@functools.cache
def _data(n=200):
    toy = make_toy(n, seed=3)
    return MemorySource(toy.X, toy.y)


@functools.cache
def _fit(name, seed=0):
    return fit(LEARNERS[name], make_gp(M=5, dtype=jnp.float32), _data(), key=jax.random.key(seed))


def _leaves(result):
    """All bits of a result but the seconds."""
    history = [{k: v for k, v in entry.items() if k != "seconds"} for entry in result.history]
    return jax.tree.leaves(
        jax.tree.map(np.asarray, (result._replace(history=[], result=None, seconds=0.0), history))
    )


def _assert_same(a, b):
    assert a.result is b.result
    for left, right in zip(_leaves(a), _leaves(b), strict=True):
        np.testing.assert_array_equal(left, right)


def rows_of(source):
    return source.take(np.arange(source.size))


def _dense_nlml(gp, source):
    """Of the returned model, in float64, from its float32 features."""
    rows = rows_of(source)
    Phi = np.sqrt(float(gp.variance)) * np.asarray(gp.features(rows.X), np.float64)
    return dense_nlml(Phi, np.asarray(rows.y, np.float64), float(gp.noise_variance))


# What is returned


@sweep
def test_the_nlml_is_the_dense_one_of_the_model_returned(name):
    found = _fit(name)
    np.testing.assert_allclose(found.nlml, _dense_nlml(found.gp, _data()), rtol=1e-5, atol=1e-6)
    assert found.spectrum.count == 200


@sweep
def test_the_best_evaluation_is_returned(name):
    found, criterion = (
        _fit(name),
        "held_out_nlpd" if LEARNERS[name].evaluator.validation_fraction > 0 else "nlml",
    )
    best = min((e for e in found.history if "step" in e), key=lambda e: e.get("criterion", e[criterion]))
    np.testing.assert_allclose(float(found.gp.noise_variance), best["noise_variance"], rtol=1e-5)
    np.testing.assert_allclose(float(found.gp.variance), best["variance"], rtol=1e-5)
    if criterion == "nlml":
        assert found.nlml == best["nlml"]
        assert found.nlml <= found.history[0]["nlml"]


@sweep
def test_history_and_result(name):
    found = _fit(name)
    assert [e["step"] for e in found.history] == sorted({e["step"] for e in found.history})
    assert found.n_iter == found.history[-1]["step"]
    assert all(np.isfinite(e["nlml"]) and e["seconds"] >= 0 for e in found.history)
    assert found.converged == (found.result is RESULTS.successful)
    assert found.result in (RESULTS.successful, RESULTS.not_settled)
    assert {leaf.dtype for leaf in jax.tree.leaves(found.gp) if eqx.is_inexact_array(leaf)} == {
        jnp.dtype(jnp.float32)
    }


@sweep
def test_the_same_key_gives_the_same_bits(name):
    again = fit(LEARNERS[name], make_gp(M=5, dtype=jnp.float32), _data(), key=KEY)
    _assert_same(again, _fit(name))


def test_progress_sees_every_entry():
    seen = []
    found = fit(LEARNERS["scgd"], make_gp(M=5, dtype=jnp.float32), _data(), key=KEY, progress=seen.append)
    assert seen == found.history


def test_host_and_device_rows_give_the_same_bits():
    toy = make_toy(200, seed=3)
    inputs, targets = Standardiser.fit(3 * toy.X + 7), Standardiser.fit(toy.y)
    X = 3 * toy.X + 7
    gp = make_gp(M=5, dtype=jnp.float32)
    host = MemorySource(X, toy.y, inputs=inputs, targets=targets, on_device=False)
    device = MemorySource(inputs.transform(X, np.float32), targets.transform(toy.y, np.float32))
    for learner in (SCGD(**ALONE | {"epochs": 5}), dataclasses.replace(LEARNERS["full batch"], epochs=3)):
        _assert_same(*(fit(learner, gp, source, key=KEY) for source in (host, device)))


def test_more_features_than_rows_and_a_batch_larger_than_the_data():
    toy = make_toy(12)
    learner = SCGD(batch_size=64, epochs=50, learning_rate=1e-2)
    found = fit(learner, make_gp(M=20, dtype=jnp.float32), MemorySource(toy.X, toy.y), key=KEY)
    np.testing.assert_allclose(
        found.nlml, _dense_nlml(found.gp, MemorySource(toy.X, toy.y)), rtol=1e-4, atol=1e-5
    )


def test_row_weights_are_repeated_rows():
    toy = make_toy(60, seed=3)
    times = np.random.default_rng(0).integers(1, 4, 60)
    weighted = MemorySource(toy.X, toy.y, times)
    repeated = MemorySource(np.repeat(toy.X, times, 0), np.repeat(toy.y, times))
    learner = FullBatch(epochs=5, tolerance=0.0, evaluator=ByEvidence(validation_fraction=0.0))
    a, b = (fit(learner, make_gp(M=5, dtype=jnp.float32), rows, key=KEY) for rows in (weighted, repeated))
    np.testing.assert_allclose(a.nlml, b.nlml, rtol=1e-5)
    np.testing.assert_allclose(a.gp.features.W, b.gp.features.W, rtol=1e-3, atol=1e-4)


# Refits


def test_a_refit_alone_is_the_exact_one():
    """Frozen features: the whole fit is the refit of the two variances, at once."""
    gp = make_gp(M=5, dtype=jnp.float32)
    fixed = FeatureGP(Network(frozen(lambda x: jnp.tanh(x @ gp.features.W)), 2), 0.4, 1.3)
    found = fit(SCGD(**ALONE), fixed, _data(), key=KEY)
    with jax.enable_x64(True):
        s = spectrum(moments_of_rows(fixed, rows_of(_data())))
        v, s2 = refit(s, 1.3, 0.4)
        np.testing.assert_allclose(found.nlml, nlml_of_spectrum(s, v, s2)[0], rtol=1e-9)


def test_variances_stay_frozen_or_within_their_bounds():
    gp = make_gp(M=5, dtype=jnp.float32)
    gp = FeatureGP(gp.features, frozen(0.7), bounded(1.0, 0.5, 2.0))
    found = fit(SCGD(**ALONE), gp, _data(), key=KEY)
    assert float(found.gp.noise_variance) == float(np.float32(0.7))
    assert 0.5 < float(found.gp.variance) < 2.0
    np.testing.assert_allclose(found.nlml, _dense_nlml(found.gp, _data()), rtol=1e-5, atol=1e-6)


def test_without_refit_the_variances_are_those_of_the_descent():
    evaluator = ByEvidence(refit=False, validation_fraction=0.0)
    learner = SCGD(**COMMON | {"optimizer": optax.sgd, "learning_rate": 1e-30}, evaluator=evaluator)
    gp = make_gp(M=5, dtype=jnp.float32)
    found = fit(learner, gp, _data(), key=KEY)
    np.testing.assert_allclose(float(found.gp.noise_variance), float(gp.noise_variance), rtol=1e-6)
    np.testing.assert_allclose(found.nlml, _dense_nlml(gp, _data()), rtol=1e-5)


# Kills, interrupts, limits


@sweep
@pytest.mark.parametrize("entry", some_of([2, 3], [3]))
def test_a_killed_run_resumes_to_the_same_bits(name, entry, tmp_path):
    path, gp = tmp_path / "run", make_gp(M=5, dtype=jnp.float32)
    with pytest.raises(KilledError):
        fit(LEARNERS[name], gp, _data(), key=KEY, checkpoint=path, progress=stop_at(entry, KilledError()))
    _assert_same(fit(LEARNERS[name], gp, _data(), key=KEY, checkpoint=path), _fit(name))
    _assert_same(
        fit(LEARNERS[name], gp, _data(), key=KEY, checkpoint=path), _fit(name)
    )  # ended: nothing to do


def test_a_resumed_run_takes_only_the_steps_that_are_left(tmp_path, monkeypatch):
    """Killed at its third entry, a run has the checkpoint of its second; one that has ended takes no step."""
    steps = [entry["step"] for entry in _fit("scgd").history]
    path, gp, taken, advance = tmp_path / "run", make_gp(M=5, dtype=jnp.float32), [], SCGD.advance

    def counted(self, state, problem, first_step, n_steps, seed):
        taken.extend(range(first_step, first_step + n_steps))
        return advance(self, state, problem, first_step, n_steps, seed)

    monkeypatch.setattr(SCGD, "advance", counted)
    with pytest.raises(KilledError):
        report = stop_at(3, KilledError())
        fit(LEARNERS["scgd"], gp, _data(), key=KEY, checkpoint=path, progress=report)
    assert taken == list(range(steps[2]))
    for first in (steps[1], steps[-1]):
        taken.clear()
        fit(LEARNERS["scgd"], gp, _data(), key=KEY, checkpoint=path)
        assert taken == list(range(first, steps[-1]))


@pytest.mark.parametrize("what", ["key", "learner", "data", "model"])
def test_a_checkpoint_of_another_run_is_refused(what, tmp_path):
    path, gp, key, learner, data = (
        tmp_path / "run",
        make_gp(M=5, dtype=jnp.float32),
        KEY,
        LEARNERS["scgd"],
        _data(),
    )
    with pytest.raises(KilledError):
        fit(learner, gp, data, key=key, checkpoint=path, progress=stop_at(3, KilledError()))
    before = path.read_bytes()
    key = jax.random.key(1) if what == "key" else key
    learner = SCGD(**ALONE | {"learning_rate": 1e-3}) if what == "learner" else learner
    data = MemorySource(data._rows.X, 2 * data._rows.y) if what == "data" else data
    gp = make_gp(M=5, dtype=jnp.float32, seed=2) if what == "model" else gp
    with pytest.raises(ValueError, match="another run"):
        fit(learner, gp, data, key=key, checkpoint=path)
    assert path.read_bytes() == before


def test_a_fingerprint_does_not_see_where_functions_lie():
    """In another process the same function has another address."""
    make = lambda: lambda progress: 1.0 - progress
    first, second = make(), make()
    assert repr(first) != repr(second)
    assert fingerprint(SCGD(decay=first)) == fingerprint(SCGD(decay=second))
    assert fingerprint(SCGD(decay=first)) != fingerprint(SCGD())


@pytest.mark.parametrize("entry", [1, 3])
def test_an_interrupt_keeps_the_best_so_far(entry):
    report = stop_at(entry, KeyboardInterrupt())
    found = fit(LEARNERS["scgd"], make_gp(M=5, dtype=jnp.float32), _data(), key=KEY, progress=report)
    assert found.result is RESULTS.interrupted
    assert not found.converged
    assert found.nlml <= _fit("scgd").history[0]["nlml"]
    np.testing.assert_allclose(found.nlml, _dense_nlml(found.gp, _data()), rtol=1e-5, atol=1e-6)


# Divergence


@pytest.mark.parametrize("method", [SCGD, Minimax, BSGD])
def test_an_absurd_rate_ends_finite(method):
    learner = method(**ALONE | {"learning_rate": 1e3, "optimizer": optax.sgd, "epochs": 100})
    found = fit(learner, make_gp(M=5, dtype=jnp.float32), _data(), key=KEY)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(found.gp) if eqx.is_inexact_array(leaf))
    assert np.isfinite(found.nlml)
    assert found.nlml <= found.history[0]["nlml"]
    if not np.isfinite(found.history[-1]["nlml"]):
        assert found.result is RESULTS.diverged
        assert not found.converged


def test_a_run_lost_seven_times_has_diverged(tmp_path):
    learner = SCGD(**ALONE | {"learning_rate": 1e30, "optimizer": optax.sgd, "epochs": 100})
    gp = make_gp(M=5, dtype=jnp.float32)
    found = fit(learner, gp, _data(), key=KEY, checkpoint=tmp_path / "run")
    assert found.result is RESULTS.diverged
    assert [e.get("recovered", 0.0) for e in found.history] == [0.0] + 7 * [1.0]
    assert found.nlml == found.history[0]["nlml"]
    _assert_same(fit(learner, gp, _data(), key=KEY, checkpoint=tmp_path / "run"), found)


# Rates


@pytest.mark.parametrize("lowest", range(5))
def test_the_best_rate_is_found_in_both_directions(lowest):
    """Of a criterion with one valley: the middle one first, then uphill or downhill until it is no lower; no place twice."""
    asked = []

    def criterion(i):
        asked.append(i)
        return abs(i - lowest)

    assert bracketed(5, 2, criterion) == lowest
    assert len(set(asked)) == len(asked)
    assert asked[:2] == [2, 3]


def test_a_lost_trial_is_the_worst_and_time_ends_the_search():
    values = {2: np.inf, 3: np.inf, 1: 1.0, 0: 2.0}
    assert bracketed(5, 2, values.__getitem__) == 1
    assert bracketed(5, 2, {2: 3.0, 3: 2.0, 4: None}.__getitem__) == 3
    assert bracketed(5, 2, lambda i: None) == 2


def test_rates_are_tried_in_the_open():
    learner = SCGD(**ALONE | {"learning_rate": None})
    found = fit(learner, make_gp(M=5, dtype=jnp.float32), _data(), key=KEY)
    entries = [e for e in found.history if "trial_rate" in e]
    tried = [e["trial_rate"] for e in entries]
    assert tried[:2] == [RATES[2], RATES[3]]
    places = sorted(RATES.index(rate) for rate in tried)
    assert places == list(range(places[0], places[-1] + 1))
    chosen = next(e["rate"] for e in found.history if "rate" in e)
    assert chosen == min(entries, key=lambda e: e["criterion"])["trial_rate"]
    given = fit(SCGD(**ALONE | {"learning_rate": chosen}), make_gp(M=5, dtype=jnp.float32), _data(), key=KEY)
    assert found.nlml == given.nlml  # the trials of a run of a given number of steps change nothing else


# Cycles

PATIENT = ALONE | {"epochs": None, "learning_rate": None}


def patient_plan(monkeypatch, first):
    """Runs without epochs have cycles of `first`, 3 and 9 times as many steps."""
    plan = lambda n, bytes_per_row, batch_size, epochs: StepPlan(batch_size, 10, 13 * first, first, first)
    monkeypatch.setattr(evaluators, "steps_by_epochs", plan)
    monkeypatch.setattr(evaluators, "in_cycles", lambda plan: plan._replace(first_cycle=first))


def test_the_best_trial_is_the_first_cycle(monkeypatch):
    """The run goes on from it: what it would have been at that rate without any trial."""
    patient_plan(monkeypatch, 8)
    gp = make_gp(M=5, dtype=jnp.float32)
    found = fit(SCGD(**PATIENT), gp, _data(), key=KEY)
    rate = next(e["rate"] for e in found.history if "rate" in e)
    given = fit(SCGD(**PATIENT | {"learning_rate": rate}), gp, _data(), key=KEY)
    assert (found.nlml, found.n_iter) == (given.nlml, given.n_iter)


def test_cycles_follow_while_they_gain(monkeypatch):
    patient_plan(monkeypatch, 8)
    gp = make_gp(M=5, dtype=jnp.float32)
    gains = fit(SCGD(**PATIENT | {"learning_rate": 0.03}), gp, _data(), key=KEY)
    assert gains.n_iter == 104
    idle = fit(SCGD(**PATIENT | {"learning_rate": 1e-9}), gp, _data(), key=KEY)
    assert idle.n_iter == 32
    assert idle.converged


@pytest.mark.long
def test_a_run_in_cycles_resumes_to_the_same_bits(monkeypatch, tmp_path):
    patient_plan(monkeypatch, 8)
    gp, learner = make_gp(M=5, dtype=jnp.float32), SCGD(**PATIENT)
    whole = fit(learner, gp, _data(), key=KEY)
    for n_entries in (2, len(whole.history) // 2, len(whole.history) - 1):
        with pytest.raises(KilledError):
            fit(
                learner,
                gp,
                _data(),
                key=KEY,
                checkpoint=tmp_path / "run",
                progress=stop_at(n_entries, KilledError()),
            )
        _assert_same(fit(learner, gp, _data(), key=KEY, checkpoint=tmp_path / "run"), whole)
        (tmp_path / "run").unlink(missing_ok=True)


# Settings of JAX


@pytest.mark.parametrize("x64", [False, True])
def test_the_x64_flag_is_as_before(x64):
    gp = make_gp(M=5, dtype=jnp.float32)
    with jax.enable_x64(x64):
        fit(LEARNERS["full batch"], gp, _data(), key=KEY)
        assert jax.config.jax_enable_x64 is x64
        with pytest.raises(KilledError):
            fit(LEARNERS["full batch"], gp, _data(), key=KEY, progress=stop_at(1, KilledError()))
        assert jax.config.jax_enable_x64 is x64
