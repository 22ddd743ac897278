"""The experiments' frame: what is done is not done again, a cut line is passed over, later cells take the rate found, tables come from the lines."""

import importlib
import json
import math
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from sweeps import some_of

from experiments import catalogue, uci
from experiments.__main__ import main
from experiments.frame import Options, run
from experiments.methods import METHODS
from experiments.problems import scores, unit_scores
from measuring import store, tables
from measuring.places import ROOT


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


def record(nlml=0.0, **settings):
    results = {
        "nlml": nlml, "rmse": 0.1, "nlpd": 0.2, "nlpd_raw": 0.3, "coverage95": 0.95, "fit_seconds": 1.0, "rate": 1e-3,
    }  # fmt: skip
    where = {
        "commit": "0" * 40,
        "machine": {"processor": "a processor", "cores_physical": 2},
        "versions": {"python": "3.12", "jax": "0.11"},
        "threads": {"cores_usable": 1},
    }
    return {"settings": cell(**settings), "results": results, "seconds": 1.0, "command": "a command", **where}


def test_later_splits_wait_for_all_rates_of_split_0_and_take_the_best():
    later = cell(split=1, rate=uci.TUNED)
    trials = [
        record(nlml, rate=rate)
        for rate, nlml in zip(METHODS["scgd-adam"].rates, (1.0, -1.0, 0.0), strict=True)
    ]
    assert uci.depends(later, trials[:2]) is None
    assert uci.depends(later, trials) == {"rate": METHODS["scgd-adam"].rates[1]}
    assert uci.depends(cell(), []) == {}


def test_aliases_are_the_papers_numbers_in_the_docstrings():
    for alias, name in catalogue.ALIASES.items():
        first = importlib.import_module(f"experiments.{name}").__doc__.splitlines()[0]
        assert alias in re.findall(r"\bx\d+(?=[ :,])", first.lower())
        assert catalogue.named(alias.upper()) == catalogue.named(name) == name
    with pytest.raises(ValueError, match=r"no experiment is called 'x99'; there are uci_linear, "):
        catalogue.named("x99")


def test_without_a_name_every_experiment_is_listed(capsys):
    assert main([]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in lines] == list(catalogue.NAMES)
    found = {alias: line[0] for line in lines for alias in line[1:3] if alias in catalogue.ALIASES}
    assert found == catalogue.ALIASES


def test_a_group_is_a_part_of_the_cells_and_conditions_narrow_it(capsys):
    """The published recipe: two methods, two batch sizes, three sets, three rates of split 0."""
    listed = ["uci_linear", "--list", "--group", "published-recipe"]
    assert main(listed) == 0
    cells = [json.loads(line.split("  ")[1]) for line in capsys.readouterr().out.splitlines()]
    assert len(cells) == 2 * 2 * 3 * 3 and {c["method"] for c in cells} == {
        "scgd-published",
        "minimax-published",
    }
    assert {c["split"] for c in cells} == {0} and {c["set"] for c in cells} == {"bike", "elevators", "pol"}
    assert main([*listed, "--only", "set=pol,protein"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 12
    with pytest.raises(SystemExit, match="uci_linear has no group 'nothing'; it has published-recipe"):
        main(["uci_linear", "--group", "nothing"])


def test_scores_of_scaled_predictions_are_those_of_unit_variance():
    """RMSE falls by the scale, NLPD by its logarithm, the coverage stays."""
    generator, s = np.random.default_rng(0), 3.7
    y, mean, std = generator.normal(size=50), generator.normal(size=50), 0.5 + generator.random(50)
    raw, unit = scores(y, mean, std), unit_scores(y, mean, std, s)
    assert unit["rmse"] == pytest.approx(raw["rmse"] / s, rel=1e-12)
    assert unit["nlpd"] == pytest.approx(raw["nlpd"] - math.log(s), rel=1e-12)
    assert unit["coverage95"] == raw["coverage95"]


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_cells_are_json_all_different_and_have_a_cost(name):
    experiment = importlib.import_module(f"experiments.{name}")
    for quick, slow in ((True, False), (False, False), (False, True)):
        cells = experiment.cells(quick, slow)
        assert len({store.key(json.loads(store.key(c))) for c in cells}) == len(cells) > 0
        assert all(experiment.cost(c) > 0 for c in cells)


def test_wins_are_counted_against_the_better_published_number():
    found = [
        record(nlml, rate=rate)
        for rate, nlml in zip(METHODS["scgd-adam"].rates, (1.0, -1.0, 0.0), strict=True)
    ]
    lines = uci.summaries(found, 32, 100)
    published = {("bike", 32, "SCGD"): -0.5, ("bike", 32, "MINIMAX"): -0.9}
    assert "-0.100 adam" in uci.win_table(lines, published, 32) and "1 of 1" in uci.win_table(
        lines, published, 32
    )
    published["bike", 32, "MINIMAX"] = -1.1
    assert "+0.100 adam" in uci.win_table(lines, published, 32) and "0 of 1" in uci.win_table(
        lines, published, 32
    )


def test_a_page_says_where_its_lines_are_from():
    found = [record(rate=rate) for rate in METHODS["scgd-adam"].rates]
    text = tables.markdown(importlib.import_module("experiments.uci_linear"), found, "uci_linear")
    assert (
        "a processor" in text
        and "`a command`" in text
        and "cores used: 1" in text
        and "| bike | scgd-adam | 1 |" in text
    )


@pytest.mark.parametrize("name", some_of(["uci_linear", "uci_gaussian"], ("uci_linear",)))
def test_inducing_points_of_a_deep_kernel_bound_its_likelihood(name):
    """The quick cell of SVGP: −ELBO of its q(f) is above the exact NLML at the same hyperparameters."""
    experiment = importlib.import_module(f"experiments.{name}")
    cell = next(c for c in experiment.cells(True, False) if c["method"] == "svgp" and c["rate"] != uci.TUNED)
    found = experiment.run(cell)
    assert found["nlml"] <= -found["elbo"] < found["nlml"] + 2
    assert {"rmse", "nlpd", "nlpd_raw", "coverage95", "fit_seconds", "rate", "curve"} <= set(found)


QUICK = ["set=synthetic", "method=scgd-adam", "rate=0.001"]


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory):
    """A quick run of uci_linear by its alias in a process of its own, as a user starts it."""
    folder = tmp_path_factory.mktemp("results")
    command = [
        sys.executable,
        "-m",
        "experiments",
        "X3",
        "--quick",
        "--results",
        str(folder),
        "--only",
        *QUICK,
    ]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_run_writes_lines_and_table(quick_run):
    line, *_ = store.read(quick_run / "uci_linear-quick.jsonl")
    assert line["settings"]["method"] == "scgd-adam" and math.isfinite(line["results"]["nlml"])
    assert {"commit", "machine", "versions", "threads", "command", "seconds"} <= set(line)
    assert line["threads"]["cores_usable"] == 1 and line["threads"]["OMP_NUM_THREADS"] == "1"
    assert "experiments X3 --quick" in (quick_run / "uci_linear-quick.md").read_text()


def test_cells_that_are_done_are_not_run_again(quick_run):
    path, said = quick_run / "uci_linear-quick.jsonl", []
    before = path.read_bytes()
    outcome = run("uci_linear", [r["settings"] for r in store.read(path)], path, Options(), said.append)
    assert outcome == (0, 0, 0) and path.read_bytes() == before


@pytest.mark.long
def test_a_cell_that_fails_leaves_no_line_and_the_others_go_on(tmp_path):
    path, said = tmp_path / "uci_linear.jsonl", []
    cells = [cell(set="bike", split=10, epochs=2), cell(set="synthetic", epochs=2)]
    outcome = run("uci_linear", cells, path, Options(), said.append)
    assert outcome == (1, 1, 0) and [r["settings"]["set"] for r in store.read(path)] == ["synthetic"]
    assert any("FAILED" in line and "split 10 does not exist" in line for line in said)


def test_no_cell_begins_after_the_time_is_over(tmp_path):
    path = tmp_path / "uci_linear.jsonl"
    outcome = run("uci_linear", [cell(set="synthetic", epochs=2)], path, Options(seconds=-1.0), print)
    assert outcome == (0, 0, 1) and not path.exists()
