"""Markdown tables, and the published numbers beside ours."""

import csv
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from measuring.places import shared
from measuring.store import Record


def markdown(experiment: Any, records: list[Record], name: str) -> str:
    """The experiment's page: what it is, its tables, and where the lines were measured."""
    parts = [f"# {name}", (experiment.__doc__ or "").strip(), *experiment.page(records), _where(records)]
    return "\n\n".join(parts) + "\n"


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def spread(values: Iterable[float | None], digits: int = 3) -> str:
    """Mean ± sample standard deviation; the mean alone where there is one value, "n/a" where one is missing."""
    known = _known(values)
    if not known:
        return "n/a"
    text = f"{statistics.fmean(known):.{digits}f}"
    return text if len(known) == 1 else f"{text} ± {statistics.stdev(known):.{digits}f}"


def mean(values: Iterable[float | None]) -> float:
    """NaN where there is none or one is missing."""
    known = _known(values)
    return statistics.fmean(known) if known else math.nan


def _known(values: Iterable[float | None]) -> list[float]:
    """The values; none of them where one is missing."""
    values = list(values)
    known = [value for value in values if value is not None and math.isfinite(value)]
    return known if len(known) == len(values) else []


def number(value: float | None, digits: int = 3) -> str:
    return "n/a" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def published(kernel: str, metric: str) -> dict[tuple[str, int, str], float]:
    """{(set, batch size, method): mean over five splits} of the SCGD paper's first version; empty where the table is not at hand."""
    path = shared(f"paper_tables/scgd_minimax_{metric}_{kernel}.csv")
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as lines:
        return {
            (r["dataset"], int(r["batch_size"]), r["method"]): float(r["mean"]) for r in csv.DictReader(lines)
        }


def _where(records: list[Record]) -> str:
    """Commits, machines and commands of the lines, each once."""
    commits = sorted({str(r["commit"])[:12] for r in records})
    machines = sorted(
        {f"{r['machine']['processor']} ({r['machine']['cores_physical']} cores)" for r in records}
    )
    versions = sorted({f"Python {r['versions']['python']}, JAX {r['versions']['jax']}" for r in records})
    commands = sorted({f"`{r['command']}`" for r in records})
    lines = [
        f"{len(records)} cells, {sum(r['seconds'] for r in records) / 3600:.2f} hours of one core each.",
        f"Commits: {', '.join(commits)}.",
        f"Machines: {'; '.join(machines)}; {'; '.join(versions)}.",
        f"Commands: {', '.join(commands)}.",
    ]
    return "\n".join(lines)
