"""Markdown tables of results, and published results of papers (measuring/published).

`scgd_minimax_nlml_*` are tables 2 and 3 of the SCGD paper (v1): training NLML per row in raw target units.
`sdd_uci` is table 1 of Lin et al. (2024). `sggp_benchmarks` and `sggp_toy` are tables 1 and 2 of the sgGP
paper: RMSE, minutes of training on one core, and gigabytes. Targets have unit variance in both.
"""

import csv
import functools
import math
import re
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from measuring.store import ROOT

PUBLISHED = ROOT / "measuring" / "published"


@functools.cache
def published(name: str) -> tuple[dict[str, str], ...]:
    """Return the rows of a published table."""
    with (PUBLISHED / f"{name}.csv").open(newline="", encoding="utf-8") as lines:
        return tuple(csv.DictReader(lines))


def nlml(kernel: str) -> dict[tuple[str, int, str], float]:
    """Return mean NLML per set, batch size and method of the SCGD paper, for a kernel."""
    lines = published(f"scgd_minimax_nlml_{kernel}")
    return {(r["dataset"], int(r["batch_size"]), r["method"]): float(r["mean"]) for r in lines}


def table(headings: str | Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table. Headings are a list, or a text with " | " between them."""
    headings = headings.split(" | ") if isinstance(headings, str) else headings
    heading, *lines = ("| " + " | ".join(map(_cell, line)) + " |" for line in (headings, *rows))
    return "\n".join([heading, "|" + "---|" * len(headings), *lines])


def _cell(value: Any) -> str:
    return "" if value is None else printed(value, "") if isinstance(value, float) else str(value)


def spread(values: Iterable[float | None], digits: int = 3) -> str:
    """Return mean ± standard deviation, the mean of one value, or "n/a" for missing ones."""
    known = _known(values)
    if not known:
        return "n/a"
    text = f"{statistics.fmean(known):.{digits}f}"
    return text if len(known) == 1 else f"{text} ± {statistics.stdev(known):.{digits}f}"


def mean(values: Iterable[float | None]) -> float:
    """Return the mean, or NaN if there is no value or one is missing."""
    known = _known(values)
    return statistics.fmean(known) if known else math.nan


def _known(values: Iterable[float | None]) -> list[float]:
    """Return the values, or none if one is missing."""
    values = list(values)
    known = [value for value in values if value is not None and math.isfinite(value)]
    return known if len(known) == len(values) else []


def number(value: float | None, digits: int = 3) -> str:
    """Format a number with this many digits, or "n/a" if it is missing or not finite."""
    return "n/a" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def numbers(results: dict[str, Any], **digits: int) -> list[str]:
    """Format these fields of results, each with its number of digits."""
    return [number(results.get(field), n) for field, n in digits.items()]


def printed(value: float | int, spec: str) -> str:
    """Format a number for text, with a minus sign and exponents without zeros."""
    text = re.sub(r"e([+-])0*(\d)", r"e\1\2", format(value, spec)).replace("e+", "e")
    return text.replace("-", "−", 1) if text.startswith("-") else text
