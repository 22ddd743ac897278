"""Experiments on UCI sets: later cells take the rate found, tables come from the lines."""

import importlib
import math
import os
import pkgutil

import numpy as np
import pytest
from sweeps import some_of

import stochgp
from experiments import floors, stages, uci
from measuring import harness
from stochgp.distributions import Normal


@pytest.mark.parametrize("name", some_of(["uci_linear", "uci_gaussian"], ("uci_linear",)))
def test_inducing_points_of_a_deep_kernel_bound_its_likelihood(name):
    """The quick cell of SVGP: −ELBO of its q(f) is above the exact NLML at the same hyperparameters."""
    experiment = importlib.import_module(f"experiments.{name}")
    cell = next(c for c in experiment.cells(True, False) if c["method"] == "svgp" and c["rate"] != uci.TUNED)
    found = experiment.run(cell)
    assert found["nlml"] <= -found["elbo"] < found["nlml"] + 2
    assert {"rmse", "nlpd", "nlpd_raw", "coverage95", "fit_seconds", "rate", "curve"} <= set(found)


def test_a_cell_runs_on_one_core_in_a_process_of_its_own():
    cell = {"set": "synthetic", "split": 0, "batch": 32, "method": "scgd-adam", "epochs": 2, "rate": 0.001}
    answer = harness.apart("experiments.uci_linear", "run", cell, core=min(os.sched_getaffinity(0)))
    assert math.isfinite(answer["results"]["nlml"])
    threads = answer["where"]["threads"]
    assert threads["cores_usable"] == 1 and threads["OMP_NUM_THREADS"] == "1"


def test_floors_score_in_standard_deviations_of_the_training_targets():
    """Of N(0, s²) the log score at a small resolution is the NLPD of N(0, 1)."""
    y, s = 3.0 * np.random.default_rng(0).normal(size=400), 3.0
    found = floors.scores(Normal(np.zeros(400), np.full(400, s)), y, s)
    expected = 0.5 * math.log(2 * math.pi) + 0.5 * np.mean((y / s) ** 2)
    assert found["nlpd"] == pytest.approx(expected, rel=1e-9)
    assert found["log_score"] == pytest.approx(expected, abs=1e-3)
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((y / s) ** 2)), rel=1e-9)
    assert abs(found["coverage95"] - 0.95) < 0.04 and abs(found["coverage50"] - 0.5) < 0.08


@pytest.mark.parametrize("stage", stages.STAGES)
def test_a_stage_that_is_switched_off_exists(stage):
    """Its settings are those of its estimators, and the functions that it replaces are there to be replaced."""
    models, settings, replaced, _ = stages.STAGES[stage]
    assert all(set(settings) <= set(getattr(stochgp, model)().get_params()) for model in models)
    for name in replaced:
        assert callable(pkgutil.resolve_name(name))
