"""Experiments and benchmarks share: the harness of cells, lines on disk, the machine, published numbers; who imports whom."""

import ast
import importlib
import json
import math
from typing import ClassVar

import numpy as np
import pytest

from benchmarks.__main__ import NAMES as BENCHMARKS
from experiments.__main__ import NAMES as EXPERIMENTS
from measuring import harness, store, tables

FORBIDDEN = {
    "benchmarks": {"experiments"},
    "measuring": {"experiments", "benchmarks"},
    "src": {"experiments", "benchmarks", "measuring"},
}
MODULES = [*(f"experiments.{name}" for name in EXPERIMENTS), *(f"benchmarks.{name}" for name in BENCHMARKS)]


def imported(path):
    """Modules that a file imports, wherever it does so."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_the_package_imports_none_of_what_stands_beside_it(folder):
    files = sorted((store.ROOT / folder).rglob("*.py"))
    found = {f"{file.name}: {m}" for file in files for m in imported(file)}
    assert (
        files and {f for f in found if f.partition(": ")[2].partition(".")[0] in FORBIDDEN[folder]} == set()
    )


@pytest.mark.parametrize("name", MODULES)
def test_cells_are_json_and_all_different(name):
    module = importlib.import_module(name)
    for quick, slow in ((True, False), (False, False), (False, True)):
        cells = module.cells(quick, slow)
        assert len({store.key(json.loads(store.key(c))) for c in cells}) == len(cells) > 0
    assert callable(module.run) and callable(module.page)


@pytest.mark.parametrize("name", MODULES)
def test_lines_are_of_cells_that_can_be_run_again(name):
    """At least one: some lines are of cells that were measured at other sizes."""
    module = importlib.import_module(name)
    package, _, name = name.partition(".")
    records = store.read(store.ROOT / package / "results" / f"{name}.jsonl")
    cells = module.cells(False, True)
    assert not records or any(harness._is_of(module, record, cell) for record in records for cell in cells)


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


class Module:
    """A benchmark of four sides, whose processes are replaced by functions."""

    KEYS = ("way",)
    ran: ClassVar[list[str]] = []

    @staticmethod
    def cells(quick, slow):
        return [{"side": side} for side in "abcd"]

    @staticmethod
    def depends(cell, records):
        return {} if cell["side"] != "a" else {"before": len(records)} if records else None

    @staticmethod
    def page(records):
        return [tables.table("side", [[row["side"], row["way"]] for row in store.rows(records)])]


@pytest.fixture
def module(monkeypatch):
    """Side b fails once, c is absent; the others have a row for each of two ways."""
    failed = []

    def apart(name, function, cell, **settings):
        Module.ran.append(cell["side"])
        if cell["side"] == "b" and not failed:
            failed.append(cell)
            raise RuntimeError("exit status -9")
        if cell["side"] == "c":
            raise RuntimeError("ModuleNotFoundError: No module named 'c'")
        where = {"commit": "0", "machine": {}, "versions": {}, "threads": {}}
        return {"results": [{"way": way, "value": 1.0} for way in ("x", "y")], "where": where}

    Module.ran = []
    monkeypatch.setattr(harness.importlib, "import_module", lambda name: Module)
    monkeypatch.setattr(harness, "apart", apart)
    return Module


def test_a_run_passes_over_cells_with_lines_and_repeats_those_that_failed(module, tmp_path, capsys):
    call = ["arena", "--results", str(tmp_path)]
    assert harness.main("benchmarks", BENCHMARKS, call) == 1
    assert module.ran == ["b", "c", "d", "a"]  # a waits for another cell
    lines = store.read(tmp_path / "arena.jsonl")
    assert [r["settings"] for r in lines] == [{"side": s, "way": w} for s in "da" for w in "xy"]
    assert lines[-1]["from_others"] == {"before": 2} and lines[0]["results"] == {"value": 1.0}
    assert lines[0]["benchmark"] == "arena" and {"command", "commit", "finished", "seconds"} <= set(lines[0])
    said = capsys.readouterr()
    assert "| d | x |" in said.out and "4 cells to run, 0 done" in said.err
    assert 'FAILED {"side": "b"}: exit status -9' in said.err and 'skipped {"side": "c"}' in said.err
    assert harness.main("benchmarks", BENCHMARKS, call) == 0 and module.ran[4:] == ["b", "c"]
    assert harness.main("benchmarks", BENCHMARKS, [*call, "--list"]) == 0
    assert [line[:5] for line in capsys.readouterr().out.splitlines()[-4:]] == [
        "done ",
        "done ",
        "to do",
        "done ",
    ]


def test_conditions_narrow_the_cells_and_a_quick_trial_leaves_no_lines(module, tmp_path, capsys):
    call = ["arena", "--quick", "--results", str(tmp_path), "--only", "side=d,e"]
    assert harness.main("benchmarks", BENCHMARKS, call) == 0
    assert module.ran == ["d"] and list(tmp_path.iterdir()) == [] and "| d | y |" in capsys.readouterr().out


def test_a_process_answers_or_says_why_not():
    found = harness.apart("measuring.store", "key", {"b": 1, "a": 2})
    assert found["results"] == '{"a": 2, "b": 1}'
    assert found["where"]["versions"]["numpy"] == np.__version__ and found["where"]["commit"]
    with pytest.raises(RuntimeError, match="AttributeError"):
        harness.apart("measuring.store", "nothing", {})


def test_published_tables_are_those_of_the_papers():
    folder = store.shared("paper_tables")
    if not folder.is_dir():
        pytest.skip("the shared tables are not at hand")
    for path in tables.PUBLISHED.glob("*.csv"):
        assert path.read_text() == (folder / path.name).read_text(), path.name
