"""Markdown tables of results, and where their lines were measured."""

import math
import re
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

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


def printed(value: float | int, spec: str) -> str:
    """A number in running text: a true minus sign, exponents without zeros."""
    text = re.sub(r"e([+-])0*(\d)", r"e\1\2", format(value, spec)).replace("e+", "e")
    return text.replace("-", "−", 1) if text.startswith("-") else text


def _where(records: list[Record]) -> str:
    """Commits, machines and commands of the lines, each once."""
    commits = sorted({str(r["commit"])[:12] for r in records})
    machines = sorted(
        {f"{r['machine']['processor']} ({r['machine']['cores_physical']} cores)" for r in records}
    )
    versions = sorted({f"Python {r['versions']['python']}, JAX {r['versions']['jax']}" for r in records})
    commands = sorted({f"`{r['command']}`" for r in records})
    cores = sorted({r["threads"]["cores_usable"] for r in records if "threads" in r})
    notes = sorted({r["note"] for r in records if "note" in r})
    lines = [
        f"{len(records)} cells, {sum(r['seconds'] for r in records) / 3600:.2f} hours; cores used: {' or '.join(map(str, cores))}.",
        f"Commits: {', '.join(commits)}.",
        f"Machines: {'; '.join(machines)}; {'; '.join(versions)}.",
        f"Commands: {', '.join(commands)}.",
        *(f"{sum(r.get('note') == note for r in records)} lines: {note}." for note in notes),
    ]
    return "\n".join(lines)
