"""`python -m experiments NAME [--quick] [--slow] [--jobs K] [--only key=value ...] [--figures]` or `--list`.

Runs the cells that have no result yet and appends a line for each to experiments/results/NAME.jsonl; then, or with --figures alone
without running anything, makes experiments/results/NAME.md and docs/figures/NAME.png of what is there.
"""

import argparse
import importlib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments import frame
from measuring import store
from measuring.tables import markdown

EXPERIMENTS = {
    "x1": "recovery of two variances by SCGD",
    "exactness": "distance of every variant from the full-batch optimum against batch size",
    "x2": "the sweep of MINIMAX's penalty",
    "x3": "linear deep kernel on six UCI sets against the published NLML",
    "x4": "Gaussian deep kernel on six UCI sets against the published NLML",
    "x5": "attention kernel: NLML against epochs and time",
    "x6": "attention kernel: memory against batch size",
    "x7": "time of a step against N, M and B, with fitted exponents",
    "x19": "recovery of two variances of a kernel GP by mini-batches",
    "x20": "convergence of the full gradient under mini-batches of a kernel GP",
    "x21": "mini-batches of neighbours on the sgGP paper's benchmarks",
    "x22": "mini-batches of neighbours on two million rows",
    "x11": "full-batch gradient descent on the primal and the dual objective",
    "x12": "estimators of the dual gradient",
    "x13": "adaptive optimisers against momentum",
    "x14": "momentum and averages of iterates",
    "x15": "step sizes and batch sizes of two estimators",
    "x16": "posteriors with published hyperparameters: Cholesky, CG, SDD, auto",
    "stability": "does default stochastic dual descent ever diverge?",
    "iterative": "the iterative learner of kernel GPs against the full batch",
    "deep_kernel": "a deep kernel on bike, by mini-batches and a closing refit",
    "kernel_defaults": "KernelGPRegressor() as it comes on six UCI sets",
    "defaults": "FeatureGPRegressor() as it comes on six UCI sets",
}
RESULTS, FIGURES = frame.ROOT / "experiments" / "results", frame.ROOT / "docs" / "figures"


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.name is None:
        sys.stdout.write("".join(f"{name:12} {text}\n" for name, text in EXPERIMENTS.items()))
        return 0 if options.list else 2
    experiment = importlib.import_module(f"experiments.{options.name}")
    cells = [cell for cell in experiment.cells(options.quick, options.slow) if _wanted(cell, options.only)]
    path = options.results / f"{options.name}{'-quick' if options.quick else ''}.jsonl"
    if options.list:
        done = {store.key(record["settings"]) for record in store.read(path)}
        lines = [f"{'done' if store.key(cell) in done else 'to do'}  {store.key(cell)}\n" for cell in cells]
        sys.stdout.write("".join(lines))
        return 0
    failed = 0
    if not options.figures:
        command = _command(sys.argv[1:] if arguments is None else arguments)
        run = frame.Options(options.jobs, options.max_seconds, options.grace, command, options.commit)
        outcome = frame.run(options.name, cells, path, run, _report)
        _report(f"{outcome.finished} finished, {outcome.failed} failed, {outcome.left} left; {path}")
        failed = outcome.failed
    _show(experiment, path, options)
    return 1 if failed else 0


def _show(experiment, path: Path, options: argparse.Namespace) -> None:
    """Table and figure of the lines at `path`."""
    records = store.read(path)
    if not records:
        _report(f"{path} has no lines: no table")
        return
    table = path.with_suffix(".md")
    table.write_text(markdown(experiment, records, options.name), encoding="utf-8")
    _report(f"{table}")
    if options.quick and options.results == RESULTS:
        return
    folder = FIGURES if options.results == RESULTS else options.results
    figure = experiment.figure(records)
    if figure is not None:
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / f"{options.name}.png", dpi=120, bbox_inches="tight")
        _report(f"{folder / options.name}.png")


def _command(arguments: Sequence[str]) -> str:
    """The command to repeat a run, without where its lines go."""
    places = {
        i + shift for i, word in enumerate(arguments) if word in ("--results", "--commit") for shift in (0, 1)
    }
    kept = [word for i, word in enumerate(arguments) if i not in places]
    return shlex.join(["python", "-m", "experiments", *kept])


def _wanted(cell: store.Cell, only: list[str]) -> bool:
    """Whether the cell has one of the values of every `key=value,value`."""
    for condition in only:
        name, _, values = condition.partition("=")
        if str(cell.get(name)) not in values.split(","):
            return False
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    names = ", ".join(EXPERIMENTS)
    parser.add_argument("name", nargs="?", choices=EXPERIMENTS, metavar="NAME", help=f"one of: {names}")
    parser.add_argument(
        "--list", action="store_true", help="list the experiments, or the cells of NAME, and stop"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a trial of seconds, kept apart from the results"
    )
    parser.add_argument("--slow", action="store_true", help="also the cells that take long on two cores")
    parser.add_argument("--jobs", type=int, default=1, metavar="K", help="processes, each pinned to one core")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="KEY=VALUE",
        help="only cells with these settings; VALUE,VALUE is or",
    )
    parser.add_argument("--max-seconds", type=float, metavar="S", help="begin no cell after S seconds")
    parser.add_argument(
        "--grace", type=float, default=60.0, metavar="S", help="then drop cells still running after S more"
    )
    parser.add_argument(
        "--results", type=Path, default=RESULTS, metavar="DIR", help="where lines and tables go"
    )
    parser.add_argument(
        "--figures", action="store_true", help="table and figure from the lines there, without running"
    )
    parser.add_argument(
        "--commit", metavar="TEXT", help="recorded in place of git's answer, where there is no git"
    )
    return parser


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
