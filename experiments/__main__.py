"""`python -m experiments NAME [--quick] [--slow] [--jobs K] [--only key=value ...] [--group GROUP] [--figures]`; without NAME, a list of all.

NAME is a name or the papers' number (x16). NAME --list shows the cells, what is done of them and the groups that they are in.
Runs the cells that have no result yet and appends a line for each to experiments/results/NAME.jsonl; then, or with --figures alone
without running anything, makes experiments/results/NAME.md and docs/figures/NAME.png of what is there.
"""

import argparse
import importlib
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments import catalogue, frame
from measuring import store
from measuring.places import EXPERIMENTS as RESULTS
from measuring.places import FIGURES
from measuring.tables import markdown


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    options.only = store.conditions(options.only)
    if options.name is None:
        sys.stdout.write(catalogue.listing())
        return 0
    experiment = importlib.import_module(f"experiments.{options.name}")
    groups: dict[str, store.Group] = getattr(experiment, "GROUPS", {})
    if options.group not in (None, *groups):
        raise SystemExit(
            f"{options.name} has no group {options.group!r}; it has {', '.join(groups) or 'none'}"
        )
    chosen = (options.only, groups.get(options.group, {}))
    cells = experiment.cells(options.quick, options.slow)
    cells = [cell for cell in cells if all(store.wanted(cell, only) for only in chosen)]
    path = options.results / f"{options.name}{'-quick' if options.quick else ''}.jsonl"
    if options.list:
        done = {store.key(record["settings"]) for record in store.read(path)}
        for cell in cells:
            state = "done " if store.key(cell) in done else "to do"
            within = [name for name, group in groups.items() if store.wanted(cell, group)]
            sys.stdout.write("  ".join([state, store.key(cell), *within]) + "\n")
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments", description=__doc__)
    names = ", ".join(catalogue.NAMES)
    parser.add_argument("name", nargs="?", type=_named, metavar="NAME", help=f"one of: {names}")
    parser.add_argument(
        "--list", action="store_true", help="list the experiments, or the cells of NAME, and stop"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a trial of seconds, kept apart from the results"
    )
    parser.add_argument("--slow", action="store_true", help="also the cells that take long on two cores")
    parser.add_argument("--jobs", type=int, default=1, metavar="K", help="processes, each pinned to one core")
    store.add_only(parser)
    parser.add_argument(
        "--group", metavar="GROUP", help="only the cells of a group that the experiment names"
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


def _named(text: str) -> str:
    try:
        return catalogue.named(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _report(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
