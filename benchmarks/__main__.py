"""`python -m benchmarks NAME [--json] [--quick] [--only KEY=VALUE ...]` or `--list`. Progress on stderr, the figures on stdout.

A line for each row, with the command, commit and machine, is appended to benchmarks/results/NAME.jsonl; not by --quick. A benchmark of cells
appends a line when a cell is finished, and passes over those that have one; `NAME --list` shows them.
"""

import argparse
import importlib
import json
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import resuming
from measuring import machine, store
from measuring.places import BENCHMARKS as RESULTS

BENCHMARKS = {
    "acquisition": "seconds and memory of a batch of 8 by qLogEI from 20,000 points, beside BoTorch's exact GP",
    "arena": "raw tables: our estimators as they come against boosting, forests and ridge regression, tuned",
    "classes": "tables of classes: our classifier as it comes beside CatBoost and logistic regression",
    "demo": "the demonstration on flights that leave the gate, beside ridge regression and boosting",
    "feature_steps": "time of a step of SCGD, MINIMAX and BSGD against eager PyTorch",
    "kernel_products": "entries of K a second in products K V, by the shape of a tile, on a processor or a GPU",
    "solver_steps": "time of a step of stochastic dual descent against a plain un-tiled one",
    "solver_systems": "seconds of every solver to a residual of 1e-4 of systems that have hardly any noise",
    "solver_times": "time to a posterior mean of every solver against PyTorch and GPyTorch",
    "sggp": "time of a step of mini-batches of neighbours on a kernel GP against eager PyTorch",
    "sggp_fits": "whole fits by mini-batches of neighbours against GPyTorch's SGPR and SVGP",
    "gpboost_fits": "the default kernel GP against GPBoost's Vecchia approximation on four UCI sets",
    "first_fits": "seconds of import, first and next fit and help in fresh processes, against scikit-learn",
    "programs": "how many programs a first fit, a fit of other rows and a grid search compile",
    "many_rows": "default kernel GPs of a million rows, learned and predicted from",
    "memory": "peak resident memory against batch size and against N",
    "files": "fits of files of more rows than memory, under a limit of 1 GB",
    "memory_limits": "peaks of random fits, predictions and functions under memory limits",
    "sparse": "steps of SVGP, SGPR and a deep SVGP against GPyTorch; SVDGP against its number of functions; fits by SoftKI",
    "tanimoto": "a block of Tanimoto similarities of molecules against RDKit's bulk routine",
    "updates": "1,000 new rows for a kernel GP of 50,000, against a fit of all",
    "time_limits": "seconds of fits under time limits, compilation included",
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.list and options.name is None:
        _print("\n".join(f"{name:15} {text}" for name, text in BENCHMARKS.items()))
        return 0
    if options.name is None:
        parser.error("which benchmark? --list shows them")
    return _run(options)


def records(name: str, keys: Sequence[str], result: dict, where: dict) -> list[store.Record]:
    """A line for each row of a result: its `keys` are settings, all else is measured."""
    common = _common(name, where) | {"finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    return [
        {
            "settings": result["settings"] | {k: row[k] for k in keys},
            "results": {k: value for k, value in row.items() if k not in keys},
            **common,
        }
        for row in result["rows"]
    ]


def _common(name: str, where: dict, only: Sequence[str] = ()) -> dict:
    """What all lines of a run say."""
    chosen = ["--only", *only] if only else []
    return {"benchmark": name, "command": shlex.join(["python", "-m", "benchmarks", name, *chosen]), **where}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "name", nargs="?", choices=BENCHMARKS, metavar="NAME", help="one of: " + ", ".join(BENCHMARKS)
    )
    parser.add_argument(
        "--list", action="store_true", help="list the benchmarks, or the cells of NAME, and stop"
    )
    parser.add_argument("--json", action="store_true", help="print exactly one JSON object")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes and few repetitions: a trial that leaves no lines"
    )
    store.add_only(parser)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="where lines go")
    return parser


def _run(options: argparse.Namespace) -> int:
    name = options.name
    try:
        benchmark: Any = importlib.import_module(f"benchmarks.{name}")
    except ModuleNotFoundError as error:
        print(
            f"benchmark {name} needs the package {error.name}: pip install 'stochgp[bench]'", file=sys.stderr
        )
        return 1
    if hasattr(benchmark, "cells"):
        return _resume(benchmark, options)
    if options.only or options.list:
        print(f"benchmark {name} has no cells to choose from", file=sys.stderr)
        return 1
    where = machine.describe()  # before the run: its load average is then that of the others on the machine
    found = benchmark.run(options.quick, _report)
    if not options.quick:
        for record in records(name, benchmark.KEYS, found, where):
            store.append(options.results / f"{name}.jsonl", record)
    _show(benchmark, where, found, options)
    return 0


def _resume(benchmark: Any, options: argparse.Namespace) -> int:
    """Of a benchmark of cells: those without a line are run."""
    only = store.conditions(options.only)
    cells = [cell for cell in benchmark.cells(options.quick) if store.wanted(cell, only)]
    path = None if options.quick else options.results / f"{options.name}.jsonl"
    if options.list:
        done = set() if path is None else {store.key(record["settings"]) for record in store.read(path)}
        _print("\n".join(f"{'done ' if store.key(c) in done else 'to do'}  {store.key(c)}" for c in cells))
        return 0
    where = machine.describe()
    common = _common(options.name, where, options.only)
    outcome = resuming.run(benchmark, cells, path, common, _report)
    rows = [record["settings"] | record["results"] for record in outcome.records]
    _show(benchmark, where, {"settings": {}, "rows": rows}, options)
    return 1 if outcome.failed else 0


def _show(benchmark: Any, where: dict, found: dict, options: argparse.Namespace) -> None:
    result = {"benchmark": options.name, "quick": options.quick} | where | found
    _print(json.dumps(result) if options.json else _text(result, *benchmark.table(result)))


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _text(result: dict, headings: list[str], rows: list[list]) -> str:
    cells = [headings, *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    machine_facts = result["machine"]
    versions = ", ".join(f"{package} {version}" for package, version in result["versions"].items())
    notes = [
        f"commit {result['commit']}",
        f"{machine_facts['processor']}, {machine_facts['cores_usable']} cores, "
        f"load {machine_facts['load_average'][0]} at the start",
        versions,
    ]
    return "\n".join([*lines, *notes])


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
