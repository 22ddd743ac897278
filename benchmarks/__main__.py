"""`python -m benchmarks NAME [--json] [--quick]` or `--list`. Progress on stderr, the figures on stdout."""

import argparse
import importlib
import json
import sys
from collections.abc import Sequence

from benchmarks import machine

BENCHMARKS = {
    "feature_steps": "time of a step of SCGD, MINIMAX and BSGD against eager PyTorch",
    "solver_steps": "time of a step of stochastic dual descent against a plain un-tiled one",
    "solver_times": "time to a posterior mean of every solver against PyTorch and GPyTorch",
    "sggp": "time of a step of mini-batches of neighbours on a kernel GP against eager PyTorch",
    "sggp_fits": "whole fits by mini-batches of neighbours against GPyTorch's SGPR and SVGP",
    "memory": "peak resident memory against batch size and against N",
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "name", nargs="?", choices=BENCHMARKS, metavar="NAME", help="one of: " + ", ".join(BENCHMARKS)
    )
    parser.add_argument("--list", action="store_true", help="list the benchmarks and stop")
    parser.add_argument("--json", action="store_true", help="print exactly one JSON object")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes and few repetitions: a trial, not a measurement"
    )
    options = parser.parse_args(arguments)
    if options.list:
        _print("\n".join(f"{name:15} {text}" for name, text in BENCHMARKS.items()))
        return 0
    if options.name is None:
        parser.error("which benchmark? --list shows them")
    return _run(options.name, quick=options.quick, as_json=options.json)


def _run(name: str, *, quick: bool, as_json: bool) -> int:
    try:
        benchmark = importlib.import_module(f"benchmarks.{name}")
    except ModuleNotFoundError as error:
        print(
            f"benchmark {name} needs the package {error.name}: pip install 'stochgp[bench]'", file=sys.stderr
        )
        return 1
    where = machine.describe()  # before the run: its load average is then that of the others on the machine
    result = benchmark.run(quick, lambda line: print(line, file=sys.stderr, flush=True))
    result = {"benchmark": name, "quick": quick} | where | result
    _print(json.dumps(result) if as_json else _text(result, *benchmark.table(result)))
    return 0


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
