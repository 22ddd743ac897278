"""Markdown tables of results, and the published results in measuring/published, as printed in the papers.

`scgd_minimax_nlml_linear`, `scgd_minimax_nlml_gaussian`: the SCGD paper's first version, tables 2 and 3: training NLML per datum in raw
target units, mean and standard deviation over five splits. `sdd_uci`: Lin et al. 2024, table 1: unit-variance targets. `sggp_benchmarks`,
`sggp_toy`: the sgGP paper, tables 1 and 2: RMSE of unit-variance targets, minutes of training on one core, gigabytes.
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
    """The lines of a published table."""
    with (PUBLISHED / f"{name}.csv").open(newline="", encoding="utf-8") as lines:
        return tuple(csv.DictReader(lines))


def nlml(kernel: str) -> dict[tuple[str, int, str], float]:
    """{(set, batch size, method): mean NLML} of the SCGD paper for the "linear" or the "gaussian" kernel."""
    lines = published(f"scgd_minimax_nlml_{kernel}")
    return {(r["dataset"], int(r["batch_size"]), r["method"]): float(r["mean"]) for r in lines}


def table(headings: str | Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table; headings as a list, or as a text with " | " between them."""
    headings = headings.split(" | ") if isinstance(headings, str) else headings
    heading, *lines = ("| " + " | ".join(map(_cell, line)) + " |" for line in (headings, *rows))
    return "\n".join([heading, "|" + "---|" * len(headings), *lines])


def _cell(value: Any) -> str:
    return "" if value is None else printed(value, "") if isinstance(value, float) else str(value)


def spread(values: Iterable[float | None], digits: int = 3) -> str:
    """Mean ± sample standard deviation; the mean alone of one value, "n/a" if one is missing."""
    known = _known(values)
    if not known:
        return "n/a"
    text = f"{statistics.fmean(known):.{digits}f}"
    return text if len(known) == 1 else f"{text} ± {statistics.stdev(known):.{digits}f}"


def mean(values: Iterable[float | None]) -> float:
    """NaN if there is no value or one is missing."""
    known = _known(values)
    return statistics.fmean(known) if known else math.nan


def _known(values: Iterable[float | None]) -> list[float]:
    """The values; none of them if one is missing."""
    values = list(values)
    known = [value for value in values if value is not None and math.isfinite(value)]
    return known if len(known) == len(values) else []


def number(value: float | None, digits: int = 3) -> str:
    """A number with so many digits; "n/a" if it is missing or not finite."""
    return "n/a" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def numbers(results: dict[str, Any], **digits: int) -> list[str]:
    """These fields of results, each with so many digits."""
    return [number(results.get(field), n) for field, n in digits.items()]


def printed(value: float | int, spec: str) -> str:
    """A number in running text: a true minus sign, exponents without zeros."""
    text = re.sub(r"e([+-])0*(\d)", r"e\1\2", format(value, spec)).replace("e+", "e")
    return text.replace("-", "−", 1) if text.startswith("-") else text
