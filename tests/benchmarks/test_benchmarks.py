"""The benchmarks without their rivals: names, lines of results, the library's sides."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest

from benchmarks import __main__ as entry
from benchmarks import (
    classes,
    demo,
    first_fits,
    gpboost_fits,
    library,
    memory,
    sggp_fits,
    solver_steps,
    solver_times,
)
from benchmarks.problem import make_problem
from measuring import store
from stochgp.parameters import partition


def test_list_names_every_benchmark(capsys):
    assert entry.main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(entry.BENCHMARKS)


class Counting:
    """A benchmark of two rows."""

    KEYS = ("side", "size")

    @staticmethod
    def run(quick, report):
        report("a line of progress")
        rows = [{"side": side, "size": 3, "seconds": 0.5 + quick} for side in ("ours", "theirs")]
        return {"settings": {"dtype": "float32"}, "rows": rows}

    @staticmethod
    def table(result):
        return ["side", "seconds"], [[row["side"], row["seconds"]] for row in result["rows"]]


@pytest.fixture
def counting(monkeypatch):
    monkeypatch.setattr(entry.importlib, "import_module", lambda name: Counting)
    return Counting


def test_a_run_leaves_a_line_for_each_row(counting, tmp_path, capsys):
    assert entry.main(["memory", "--json", "--results", str(tmp_path)]) == 0
    printed, lines = json.loads(capsys.readouterr().out), store.read(tmp_path / "memory.jsonl")
    assert [r["settings"] for r in lines] == [
        {"dtype": "float32", "side": side, "size": 3} for side in ("ours", "theirs")
    ]
    assert [r["results"] for r in lines] == [{"seconds": 0.5}] * 2
    for record in lines:
        assert record["benchmark"] == "memory" and record["command"] == "python -m benchmarks memory"
        assert {"commit", "machine", "versions", "threads", "finished"} <= set(record)
        assert record["commit"] == printed["commit"]


def test_a_quick_trial_leaves_none(counting, tmp_path, capsys):
    assert entry.main(["memory", "--quick", "--results", str(tmp_path)]) == 0
    assert "theirs" in capsys.readouterr().out and list(tmp_path.iterdir()) == []


def test_a_missing_rival_is_one_line(monkeypatch, capsys):
    def missing(name):
        raise ModuleNotFoundError("no", name="torch")

    monkeypatch.setattr(entry.importlib, "import_module", missing)
    assert entry.main(["feature_steps"]) == 1
    said = capsys.readouterr()
    assert (
        said.out == ""
        and said.err == "benchmark feature_steps needs the package torch: pip install 'stochgp[bench]'\n"
    )


def test_the_demos_report_becomes_rows():
    scores = {"rmse": 1.0, "nlpd": 2.0, "crps": 0.5, "coverage_50": 0.5, "coverage_95": 0.95, "seconds": 3.0}
    models = {"stochgp": scores, "ridge": scores, "CatBoost": None, "quantiles": scores | {"nlpd": None}}
    sizes = {"n_train": 9, "n_test": 4, "test_days": 2}
    result = demo.from_report({"models": models, "peak_memory": 7, **sizes}, 4.0)
    first, *others = result["rows"]
    side = {"split": demo.SPLIT, "side": "stochgp"}
    assert first == {**side, **scores, **sizes, "command_seconds": 4.0, "peak_bytes": 7}
    assert [(row["side"], row["nlpd"]) for row in others] == [("ridge", 2.0), ("quantiles", None)]
    assert [row[2] for row in demo.table(result)[1]] == [2.0, 2.0, ""]


def test_classes_are_scored_by_the_probability_of_the_right_one():
    frame = pd.DataFrame({"a": np.arange(20.0), "b": ["x", None] * 10, "y": [1, 2, 2, None] * 5})
    X, y, X_new, y_new = classes.divided(frame, "y", None)
    assert (len(X), len(X_new)) == (12, 3) and set(y) | set(y_new) == {"1.0", "2.0"}
    assert not set(X["a"]) & set(X_new["a"])
    certain = lambda X, y: lambda X: (np.tile([0.25, 0.75], (len(X), 1)), [1.0, 2.0])
    found = classes.scored(certain, X, y, X_new, y_new)
    share = np.mean(y_new == "2.0")
    assert found["log_loss"] == pytest.approx(-share * np.log(0.75) - (1 - share) * np.log(0.25))
    assert found["accuracy"] == pytest.approx(share)
    model = classes._logistic(X, y)
    P, names = model(X_new)
    np.testing.assert_allclose(P.sum(axis=1), 1)
    assert names == ["1.0", "2.0"]


def test_first_fits_are_told_by_medians_of_processes_that_take_turns(monkeypatch):
    """Of three processes a cell, after one that fills the folder of compiled code; a side without a figure leaves its cell of the table empty."""
    begun, kept = [], [cell for cell in first_fits.CELLS if cell[0].endswith(first_fits.KEPT)]

    def process(side, n_rows, folder):
        begun.append((side, n_rows))
        turn = [1.0, 4.0, 2.0][(begun.count((side, n_rows)) - 1) % 3]
        fits = {} if side == "help" else {"import_seconds": 0.5, "first_seconds": turn, "rmse": 0.1}
        return {"process_seconds": 2 * turn} | fits

    monkeypatch.setattr(first_fits, "_in_fresh_process", process)
    monkeypatch.setattr(first_fits, "REPEATS", 3)
    result = first_fits.run(False, lambda line: None)
    assert begun == kept + list(first_fits.CELLS) * 3
    assert [(row["side"], row["n_rows"]) for row in result["rows"]] == list(first_fits.CELLS)
    assert result["rows"][0]["first_seconds"] == {"median": 2.0, "least": 1.0, "greatest": 4.0}
    headings, lines = first_fits.table(result)
    assert lines[0] == ["kernel", 500, 4.0, 0.5, 2.0, "", 0.1] and len(headings) == len(lines[0])
    assert lines[-1] == ["help", "", 4.0, "", "", "", ""]


def test_first_fits_of_both_sides_are_of_the_same_rows_and_kernel(monkeypatch):
    """With as many rows as they have in a process: RMSE of the function within noise of each other; the next fit has other rows."""
    monkeypatch.setattr(first_fits, "FIRST", 60)
    monkeypatch.setattr(first_fits, "NEXT", 61)
    ours, theirs = (first_fits.measure(side, 60) for side in ("kernel", "scikit-learn"))
    assert set(ours) == set(theirs) == {"import_seconds", "first_seconds", "next_seconds", "rmse"}
    assert abs(ours["rmse"] - theirs["rmse"]) < 0.05
    assert not np.any(first_fits.simulated(61, 1)[0][:60] == first_fits.simulated(60, 0)[0])


@pytest.mark.parametrize(
    "benchmark",
    [demo, first_fits, gpboost_fits, memory, sggp_fits, solver_steps, solver_times],
    ids=lambda m: m.__name__,
)
def test_keys_are_the_names_of_the_cells(benchmark):
    assert benchmark.KEYS and all(isinstance(key, str) for key in benchmark.KEYS)


def test_every_benchmark_module_imports_without_its_rivals_or_says_which(capsys):
    """Here, with or without PyTorch: a module either imports or the command names the package."""
    for name in entry.BENCHMARKS:
        try:
            module = entry.importlib.import_module(f"benchmarks.{name}")
        except ModuleNotFoundError as error:
            assert error.name == "torch" and name in ("feature_steps", "sggp")
        else:
            assert callable(module.cells if hasattr(module, "cells") else module.run) and callable(
                module.table
            )


@pytest.mark.parametrize("method", ["scgd", "minimax", "bsgd"])
def test_the_librarys_side_takes_the_steps_of_an_epoch(method):
    side = library.LibrarySide(make_problem(64, 3, 4), method, "adam", 8)
    before = side.step
    side.epoch()
    assert side.step - before == side.n_steps == side.facts()["steps"] and side.n_steps % 8 == 0


def test_minimax_starts_where_its_projection_is_inactive():
    """A₀ = F + 0.1 tr(F)/M I at the start, F = ΦᵀΦ + σ²I, and no step of an epoch needed a decomposition."""
    problem = make_problem(64, 3, 4)
    gp = library.make_gp(problem)
    with jax.enable_x64(True):
        Phi = np.asarray(gp.features(jnp.asarray(problem.X)), np.float64)
    F = Phi.T @ Phi + problem.noise_variance * np.eye(4)
    side = library.LibrarySide(problem, "minimax", "adam", 8)
    side.epoch()
    assert side.facts()["decomposed"] == 0
    with jax.enable_x64(True):
        source = library.DeviceRows(problem.X, problem.y)
        found = library._inside(side.state, gp, source)
    np.testing.assert_allclose(found.A, F + 0.1 * np.trace(F) / 4 * np.eye(4), rtol=1e-4, atol=1e-4)


def test_adadelta_takes_bsgds_steps_of_the_sum_over_the_batch():
    """Three steps are those of optax.adadelta on ∇(yᵀA⁻¹y + log|A|), the gradient of the paper and of the other sides."""
    problem, B, n_steps = make_problem(64, 3, 4), 16, 3
    with jax.enable_x64(True):
        gp = library.make_gp(problem)
        learner = library.make_learner("bsgd", "adadelta", B)
        source = library.DeviceRows(problem.X, problem.y)
        plan = learner.plan(source.size, source.n_inputs, library.JUDGE)
        state = learner.init(gp, library.Run(source, plan, None), key=jax.random.key(0))
        batch = source.take(np.arange(B))
        theta, rest = partition(gp)

        def loss(theta):
            A = eqx.combine(theta, rest).covariance(batch.X, batch.weight)
            return batch.y @ jnp.linalg.solve(A, batch.y) + jnp.linalg.slogdet(A)[1]

        rule = optax.adadelta(library.RATES["adadelta"])
        memory = rule.init(theta)
        for _ in range(n_steps):
            state, _ = learner.step(state, batch, key=jax.random.key(0))
            updates, memory = rule.update(jax.grad(loss)(theta), memory, theta)
            theta = optax.apply_updates(theta, updates)
        for found, wanted in zip(
            jax.tree.leaves(partition(state.gp)[0]), jax.tree.leaves(theta), strict=True
        ):
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
