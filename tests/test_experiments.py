"""The experiments' frame: what is done is not done again, a cut line is passed over, later cells take the rate found, tables come from the lines."""

import importlib
import json
import math
import os
import subprocess
import sys

import pytest

from experiments import store, tables, uci
from experiments.__main__ import EXPERIMENTS, main
from experiments.frame import ROOT, Options, run
from experiments.methods import METHODS


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
    }
    return {"settings": cell(**settings), "results": results, "seconds": 1.0, "command": "a command", **where}


def test_appended_records_come_back_and_the_last_of_a_cell_counts(tmp_path):
    path = tmp_path / "a" / "results.jsonl"
    for nlml in (1.0, 2.0):
        store.append(path, record(nlml))
    store.append(path, record(math.nan, split=1))
    assert [r["results"]["nlml"] for r in store.read(path)] == [2.0, None]


def test_a_line_cut_short_by_a_kill_costs_that_line_only(tmp_path):
    path = tmp_path / "results.jsonl"
    store.append(path, record(1.0))
    with path.open("a") as lines:
        lines.write('{"settings": {"set": "bi')
    store.append(path, record(2.0, split=1))
    assert [r["results"]["nlml"] for r in store.read(path)] == [1.0, 2.0]


def test_later_splits_wait_for_all_rates_of_split_0_and_take_the_best():
    later = cell(split=1, rate=uci.TUNED)
    trials = [
        record(nlml, rate=rate)
        for rate, nlml in zip(METHODS["scgd-adam"].rates, (1.0, -1.0, 0.0), strict=True)
    ]
    assert uci.depends(later, trials[:2]) is None
    assert uci.depends(later, trials) == {"rate": METHODS["scgd-adam"].rates[1]}
    assert uci.depends(cell(), []) == {}


@pytest.mark.parametrize("name", EXPERIMENTS)
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
    text = tables.markdown(importlib.import_module("experiments.x3"), found, "x3")
    assert "a processor" in text and "`a command`" in text and "| bike | scgd-adam | 1 |" in text


@pytest.fixture(scope="module")
def quick_run(tmp_path_factory):
    """A quick run of x1 in its own process, as a user starts it."""
    folder = tmp_path_factory.mktemp("results")
    command = [sys.executable, "-m", "experiments", "x1", "--quick", "--results", str(folder)]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(
        [*command, "--only", "variant=published"], cwd=ROOT, env=variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_a_run_writes_lines_table_and_figure(quick_run):
    (line,) = store.read(quick_run / "x1-quick.jsonl")
    assert line["settings"]["variant"] == "published" and math.isfinite(line["results"]["gap"])
    assert {"commit", "machine", "versions", "threads", "command", "seconds"} <= set(line)
    assert line["threads"]["cores_usable"] == 1 and line["threads"]["OMP_NUM_THREADS"] == "1"
    assert "| published | 200 | 5.0/3.0 | 1 |" in (quick_run / "x1-quick.md").read_text()
    assert (quick_run / "x1.png").read_bytes().startswith(b"\x89PNG")


def test_cells_that_are_done_are_not_run_again(quick_run):
    path, said = quick_run / "x1-quick.jsonl", []
    before = path.read_bytes()
    cells = [r["settings"] for r in store.read(path)]
    outcome = run("x1", cells, path, Options(), said.append)
    assert outcome == (0, 0, 0) and path.read_bytes() == before
    assert main(["x1", "--quick", "--results", str(quick_run), "--figures"]) == 0
    assert path.read_bytes() == before


def test_a_cell_that_fails_leaves_no_line_and_the_others_go_on(tmp_path):
    path, said = tmp_path / "x7.jsonl", []
    cells = [
        {"method": "no such learner", "N": 64, "B": 8, "M": 4},
        {"method": "BSGD", "N": 64, "B": 8, "M": 4},
    ]
    outcome = run("x7", cells, path, Options(), said.append)
    assert outcome == (1, 1, 0) and [r["settings"]["method"] for r in store.read(path)] == ["BSGD"]
    assert any("FAILED" in line and "no such learner" in line for line in said)


def test_no_cell_begins_after_the_time_is_over(tmp_path):
    outcome = run(
        "x7",
        [{"method": "BSGD", "N": 64, "B": 8, "M": 4}],
        tmp_path / "x7.jsonl",
        Options(seconds=-1.0),
        print,
    )
    assert outcome == (0, 0, 1) and not (tmp_path / "x7.jsonl").exists()
