"""Run the cells of experiments and benchmarks in separate processes, and store results.

A cell is one combination of settings. A module of `experiments` or `benchmarks` has

- `cells(quick, slow)`, which returns all cells;
- `run(cell)`, which returns results, or a list of results that differ in the settings KEYS of the module;
- `page(records)`, which returns Markdown tables and notes;
- optionally `depends(cell, records)`, which returns settings from results of other cells, or None;
- optionally ONE_CORE, which is True if a cell runs on one core;
- optionally RESULTS, the folder of its results; the default is `results`.
"""

import argparse
import importlib
import json
import os
import queue
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from types import MappingProxyType
from typing import Any

from measuring import machine, store
from measuring.store import ROOT, Cell, Record

CACHE = "JAX_COMPILATION_CACHE_DIR"  # an empty value disables the cache of compiled code
ALL_CORES = -1
ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1") | {
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
}
Report = Callable[[str], object]
ABSENT = (
    "measuring.harness.AbsentError",
    "ModuleNotFoundError",
    "ImportError",
)  # errors that skip a cell


class AbsentError(Exception):
    """Data or a package of a cell is missing on this machine."""


def apart(
    module: str,
    function: str,
    argument: Any,
    *,
    core: int = ALL_CORES,
    timeout: float | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return results and machine of `module.function(argument)`, run in a new process.

    Raises RuntimeError with the last line of the process if it fails or is killed.
    """
    paths = os.pathsep.join(p for p in (str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH")) if p)
    environment = (
        os.environ | (ONE_THREAD if core != ALL_CORES else {}) | {**variables} | {"PYTHONPATH": paths}
    )
    command = [sys.executable, "-m", "measuring.harness", module, function, json.dumps(argument), str(core)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, timeout=timeout)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


def choice(model: Any, name: str, default: Any = None) -> Any:
    """Return a decision of a fit, or `default` if the fit did not make it."""
    return model.plan_.get(name, {"choice": default})["choice"]


def run(
    name: str, cells: list[Cell], path: Path | None, common: Record, report: Report, jobs: int = 1
) -> tuple:
    """Run the cells of module `name` that have no results in `path`, and append them.

    Return all records of the cells, and the number of failed cells. A failed cell runs again in the next
    call. Each record contains `common`.
    """
    module = importlib.import_module(name)
    records, failed = [] if path is None else store.read(path), 0
    waiting = [cell for cell in cells if not _has_line(module, cell, records)]
    report(f"{len(waiting)} cells to run, {len(cells) - len(waiting)} done")
    cores: queue.SimpleQueue[int] = queue.SimpleQueue()
    usable = sorted(os.sched_getaffinity(0)) if getattr(module, "ONE_CORE", False) else [ALL_CORES]
    for worker in range(jobs):
        cores.put(usable[worker % len(usable)])
    depends = getattr(module, "depends", lambda cell, records: {})
    with ThreadPoolExecutor(jobs) as pool:
        while ready := [(cell, more) for cell in waiting if (more := depends(cell, records)) is not None]:
            waiting = [cell for cell in waiting if depends(cell, records) is None]
            futures = {pool.submit(_one, name, cell | more, cores): (cell, more) for cell, more in ready}
            for future in as_completed(futures):
                cell, more = futures[future]
                try:
                    answer = future.result()
                except RuntimeError as error:
                    absent = str(error).startswith(ABSENT)
                    report(f"{'skipped' if absent else 'FAILED'} {json.dumps(cell)}: {error}")
                    failed += not absent
                    continue
                found = _records(module, cell, more, answer, common)
                records += found
                report(
                    f"{answer['seconds']:7.1f} s {json.dumps(cell | more)} {json.dumps(answer['results'])[:1000]}"
                )
                for record in found:
                    if path is not None:
                        store.append(path, record)
    if waiting:
        report(f"{len(waiting)} cells wait for cells that are not run")
    return [record for record in records if any(_is_of(module, record, cell) for cell in cells)], failed


def _one(name: str, cell: Cell, cores: "queue.SimpleQueue[int]") -> dict[str, Any]:
    core, begun = cores.get(), time.perf_counter()
    fresh = {CACHE: ""} if name.startswith("benchmarks.") else {}
    try:
        answer = apart(name, "run", cell, core=core, variables=fresh)
    finally:
        cores.put(core)
    return answer | {"seconds": round(time.perf_counter() - begun, 3)}


def _records(module: Any, cell: Cell, more: dict, answer: dict, common: Record) -> list[Record]:
    """Return a record for each row of an answer."""
    keys = getattr(module, "KEYS", ())
    rows = answer["results"] if isinstance(answer["results"], list) else [answer["results"]]
    about = {"from_others": more, "seconds": answer["seconds"], **common, **answer["where"]}
    about["finished"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    return [
        {
            "settings": cell | {k: row[k] for k in keys},
            "results": {k: v for k, v in row.items() if k not in keys},
            **about,
        }
        for row in rows
    ]


def _is_of(module: Any, record: Record, cell: Cell) -> bool:
    keys = getattr(module, "KEYS", ())
    return {k: v for k, v in record["settings"].items() if k not in keys} == cell


def _has_line(module: Any, cell: Cell, records: list[Record]) -> bool:
    return any(_is_of(module, record, cell) for record in records)


def main(package: str, names: Mapping[str, str], arguments: Sequence[str] | None = None) -> int:
    """Run the command `python -m PACKAGE`; `names` describes each of its modules."""
    parser = _parser(package, names)
    options = parser.parse_args(arguments)
    if options.name is None:
        print("\n".join(f"{name:16} {text}" for name, text in names.items()))
        return 0
    name, report = f"{package}.{options.name}", lambda line: print(line, file=sys.stderr, flush=True)
    module = importlib.import_module(name)
    only = {key: values.split(",") for key, _, values in (word.partition("=") for word in options.only)}
    chosen = lambda cell: all(str(cell.get(key)) in values for key, values in only.items())
    cells = [cell for cell in module.cells(options.quick, options.slow) if chosen(cell)]
    folder = options.results or getattr(module, "RESULTS", ROOT / package / "results")
    path = None if options.quick else folder / f"{options.name}.jsonl"
    records = [] if path is None else store.read(path)
    failed = 0
    if options.list:
        states = ("done " if _has_line(module, cell, records) else "to do" for cell in cells)
        print("\n".join(f"{state}  {store.key(cell)}" for state, cell in zip(states, cells, strict=True)))
        return 0
    if not options.table:
        words = [
            word
            for key, word in zip(["", *sys.argv[1:]], sys.argv[1:], strict=False)
            if "--results" not in (key, word)
        ]
        command = shlex.join(["python", "-m", package, *(words if arguments is None else arguments)])
        common = {package.removesuffix("s"): options.name, "command": command}
        records, failed = run(name, cells, path, common, report, options.jobs)
    print("\n\n".join(module.page(records) if records else ["no lines"]))
    return 1 if failed else 0


def _parser(package: str, names: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {package}",
        description="Run the cells of NAME that have no results, and print the tables of NAME. Without NAME, list all names.",
    )
    add = parser.add_argument
    add("name", nargs="?", type=str.lower, choices=names, metavar="NAME", help="one of: " + ", ".join(names))
    add("--list", action="store_true", help="list the cells of NAME and whether they are done")
    add("--table", action="store_true", help="print the tables of NAME without running cells")
    add("--quick", action="store_true", help="run a trial of a few seconds without storing results")
    add("--slow", action="store_true", help="also run the slow cells")
    add("--jobs", type=int, default=1, metavar="K", help="number of processes at a time")
    add(
        "--only",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="run only cells with these settings; a comma separates alternative values",
    )
    add("--results", type=Path, metavar="DIR", help="folder for results")
    return parser


def _answer(module: str, function: str, argument: str, core: str) -> None:
    if int(core) != ALL_CORES:
        os.sched_setaffinity(0, {int(core)})  # must precede the start of JAX
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # all other output goes to stderr
    where = machine.describe()
    results = getattr(importlib.import_module(module), function)(json.loads(argument))
    if devices := machine.accelerators():
        where["machine"]["accelerators"] = devices
    answers.write(json.dumps({"results": results, "where": where}, default=float) + "\n")


if __name__ == "__main__":
    _answer(*sys.argv[1:])
