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
from measuring import harness, store
from stochgp.distributions import Normal


def cell(**settings):
    return {
        "set": "bike",
        "split": 0,
        "batch": 32,
        "method": "scgd-adam",
        "epochs": 100,
        "rate": 1e-3,
        **settings,
    }


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


def test_floors_compare_the_newest_lines_with_those_of_the_baseline(tmp_path, monkeypatch):
    monkeypatch.setattr(floors, "RESULTS", tmp_path)

    def line(table, commit, day, **scores):
        settings = {"table": table, "split": "time", "model": "GPRegressor", "rows": 9, "seed": 0}
        results = dict.fromkeys(floors.COLUMNS, 1.0) | scores
        return {
            "settings": settings | {"commit": commit},
            "commit": commit,
            "results": results,
            "finished": f"2026-01-0{day}",
        }

    lines = [
        line("a", "c" * 40, 3, crps=0.5, nlpd=0.75, fit_cpu_seconds=2.0),
        line("a", floors.BASELINE, 1, crps=0.25),
        line("a", "b" * 40, 2, crps=9.0),
        line("b", floors.BASELINE, 1),
        line("b", "c" * 40, 3, nlpd=None, coverage95=0.9),
        line("new", "c" * 40, 3),
    ]
    second = line("a", "c" * 40, 3, crps=0.5)
    second["settings"] |= {"seed": 1}
    assert (
        "| a | time | 1 | 2.000 |" in floors.page([*lines, second])[1]
    )  # a seed without a line of the baseline
    scores, comparison = floors.page(lines)
    assert "| a | time | 0 | ccccccc | 0.5000 | 0.750 |" in scores and "| new |" in scores
    rows = [row.strip("| ").split(" | ") for row in comparison.splitlines()[2:]]
    assert rows == [
        ["a", "time", "0", "2.000", "2.000", "1.000", "-0.250", "0.000", "0.000"],
        ["b", "time", "0", "1.000", "1.000", "1.000", "n/a", "0.000", "-0.100"],
        ["median", "", "", "1.500", "1.500", "1.000", "-0.250", "0.000", "-0.050"],
    ]
    assert len(floors.page(lines[1:2])) == 1


def test_floors_score_in_standard_deviations_of_the_training_targets():
    """Of N(0, s²) the log score at a small resolution is the NLPD of N(0, 1)."""
    y, s = 3.0 * np.random.default_rng(0).normal(size=400), 3.0
    found = floors.scores(Normal(np.zeros(400), np.full(400, s)), y, s)
    expected = 0.5 * math.log(2 * math.pi) + 0.5 * np.mean((y / s) ** 2)
    assert found["nlpd"] == pytest.approx(expected, rel=1e-9)
    assert found["log_score"] == pytest.approx(expected, abs=1e-3)
    assert found["rmse"] == pytest.approx(np.sqrt(np.mean((y / s) ** 2)), rel=1e-9)
    assert abs(found["coverage95"] - 0.95) < 0.04 and abs(found["coverage50"] - 0.5) < 0.08


def test_each_floor_of_the_baseline_is_recorded():
    found = [
        r for r in store.read(store.ROOT / "experiments" / "floors.jsonl") if r["commit"] == floors.BASELINE
    ]
    names = {(r["settings"]["table"], r["settings"]["split"]) for r in found}
    assert names == {(cell["table"], cell["split"]) for cell in floors.cells(False, False)}
    assert all(set(floors.COLUMNS) <= set(r["results"]) for r in found)


@pytest.mark.parametrize("stage", stages.STAGES)
def test_a_stage_that_is_switched_off_exists(stage):
    """Its settings are those of its estimators, and the functions that it replaces are there to be replaced."""
    models, settings, replaced, _ = stages.STAGES[stage]
    assert all(set(settings) <= set(getattr(stochgp, model)().get_params()) for model in models)
    for name in replaced:
        assert callable(pkgutil.resolve_name(name))
