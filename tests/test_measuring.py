"""What experiments and benchmarks share: who imports whom, lines on disk, timing, the machine, published numbers, queries of lines."""

import ast
import json
import math

import numpy as np
import pytest

from measuring import machine, papers, store, timing
from measuring.places import BENCHMARKS, EXPERIMENTS, ROOT, shared

FORBIDDEN = {
    "experiments": {"benchmarks"},
    "benchmarks": {"experiments"},
    "measuring": {"experiments", "benchmarks"},
    "src": {"experiments", "benchmarks", "measuring"},
}


def imported(path):
    """Modules that a file imports, wherever it does so; data sets may be imported by all but the package."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_experiments_and_benchmarks_know_nothing_of_each_other_and_the_package_of_none(folder):
    files, found = sorted((ROOT / folder).rglob("*.py")), set()
    for file in files:
        modules = {m for m in imported(file) if folder == "src" or not m.startswith("benchmarks.datasets")}
        found |= {f"{file.name}: {m}" for m in modules if m.partition(".")[0] in FORBIDDEN[folder]}
    assert files and found == set()


def line(result, **settings):
    return {"settings": settings, "results": {"value": result}}


def test_appended_records_come_back_and_the_last_of_a_cell_counts(tmp_path):
    path = tmp_path / "a" / "results.jsonl"
    for value in (1.0, 2.0):
        store.append(path, line(value, split=0))
    store.append(path, line(math.nan, split=1))
    assert [r["results"]["value"] for r in store.read(path)] == [2.0, None]


def test_a_line_cut_short_by_a_kill_costs_that_line_only(tmp_path):
    path = tmp_path / "results.jsonl"
    store.append(path, line(1.0, split=0))
    with path.open("a") as lines:
        lines.write('{"settings": {"set": "bi')
    store.append(path, line(2.0, split=1))
    assert [r["results"]["value"] for r in store.read(path)] == [1.0, 2.0]


def test_sides_alternate_and_never_overlap():
    calls = []
    sides = {name: lambda name=name: calls.append(name) for name in "ab"}
    seconds = timing.alternate(sides, blocks=2, epochs=1)
    assert calls == ["a", "a", "b", "b", "b", "b", "a", "a"]  # each block: one untimed epoch, one timed
    assert {name: len(found) for name, found in seconds.items()} == {"a": 2, "b": 2}


def test_speedup_is_the_other_sides_median_over_the_first():
    sides = {"ours": timing.per_step([1.0, 2.0, 9.0], 2), "rival": timing.per_step([6.0], 2)}
    assert sides["ours"] == {"median_us": 1e6, "min_us": 5e5, "max_us": 4.5e6, "epochs": 3}
    assert timing.speedups(sides) == {"rival": 3.0}


def test_machine_description_is_json_and_names_versions():
    found = json.loads(json.dumps(machine.describe()))
    assert set(found) == {"commit", "machine", "versions", "threads"}
    assert found["versions"]["numpy"] == np.__version__ and {"python", "jax"} <= set(found["versions"])
    assert found["machine"]["memory_bytes"] > 0 and found["threads"]["cores_usable"] >= 1


def test_commit_and_history_of_a_folder_without_git_are_none(tmp_path):
    assert machine.commit(tmp_path) is None and machine.history(tmp_path) is None


def test_published_tables_are_those_of_the_papers():
    folder = shared("paper_tables")
    if not folder.is_dir():
        pytest.skip("the shared tables are not at hand")
    for path in papers.FOLDER.glob("*.csv"):
        assert path.read_text() == (folder / path.name).read_text(), path.name


def test_a_published_number_is_that_of_the_one_line():
    where = {"dataset": "bike", "batch_size": 32, "method": "MINIMAX"}
    assert (
        papers.value("scgd_minimax_nlml_linear", "mean", **where)
        == papers.nlml("linear")["bike", 32, "MINIMAX"]
    )
    with pytest.raises(ValueError, match="wanted one with a number"):
        papers.value("scgd_minimax_nlml_linear", "mean", dataset="bike")
    with pytest.raises(ValueError, match="wanted one with a number"):
        papers.value("sdd_uci", "mean", metric="nll", method="SDD", dataset="protein")


def test_every_file_of_results_has_a_name_of_its_own():
    assert {p.stem for p in EXPERIMENTS.glob("*.jsonl")} & {
        p.stem for p in BENCHMARKS.glob("*.jsonl")
    } == set()
