"""Summaries of the arena: shares of wins, mean ranks, and all records."""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from scipy.stats import rankdata, studentized_range

Row = dict[str, Any]
OURS = "pool"
OF_DISTRIBUTIONS = ("catboost", "lightgbm", "ngboost", "quantile forest", "svgp", "gpboost", "exact")
SCORES = ("nlpd", "crps", "rmse")
LEVEL = 0.05  # level of Nemenyi's test


def shares(rows: list[Row]) -> tuple[list[str], list[list]]:
    """Return on how many divisions the pool has a lower score than every other method.

    NLPD and CRPS are compared with methods that predict distributions, and RMSE with all methods. Each method
    uses its better variant for the score.
    """
    by_split = {"all": None, "random": "random", "time": "time", "group": "group"}
    lines = []
    for name, split in by_split.items():
        found = [rows for cell, rows in by_division(rows) if split in (None, cell[1])]
        found = [rows for rows in found if pool_of(rows) is not None]
        if not found:
            continue
        ahead = [_share(found, ("nlpd", "crps")), *(_share(found, (score,)) for score in SCORES)]
        lines.append([name, len(found), *ahead, *(_covered(found, c) for c in ("coverage50", "coverage95"))])
    headings = ["split", "divisions", "NLPD and CRPS", "NLPD", "CRPS", "RMSE", "50 % covers", "95 % covers"]
    return headings, lines


def ranks(rows: list[Row]) -> tuple[list[str], list[list]]:
    """Return mean ranks of default methods on their common divisions, and a critical difference.

    Methods with results on fewer than half of the divisions are left out. The critical difference is q √(k(k
    + 1)/6N) for k methods and N divisions (Demšar, JMLR 2006, section 3.2.2). A refusal has the last rank.
    """
    defaults = [row for row in rows if row["variant"] == "default"]
    found = [{row["side"]: row for row in rows} for _, rows in by_division(defaults)]
    n_lines = Counter(row["side"] for row in defaults)
    sides = [side for side, n in n_lines.items() if 2 * n >= len(found)]
    full = [rows for rows in found if rows.keys() >= set(sides)]
    headings = ["side", "divisions", *(score.upper() for score in SCORES)]
    if len(sides) < 2 or not full:
        return headings, []
    by_score = [
        [rankdata([_value(rows[side], score) for side in sides]) for rows in full] for score in SCORES
    ]
    means = [[statistics.fmean(ranks[i] for ranks in of) for of in by_score] for i in range(len(sides))]
    lines = [
        [side, len(full), *(f"{m:.2f}" for m in row)] for row, side in sorted(zip(means, sides, strict=True))
    ]
    k, q = len(sides), studentized_range.ppf(1 - LEVEL, len(sides), math.inf) / math.sqrt(2)
    least = q * math.sqrt(k * (k + 1) / (6 * len(full)))
    return headings, [*lines, ["critical difference", "", *[f"{least:.2f}"] * len(SCORES)]]


def sides(rows: list[Row]) -> tuple[list[str], list[list]]:
    """Return all records: scores, coverages, seconds and memory, sorted by NLPD."""
    headings = ["table", "split", "rows", "side", *(score.upper() for score in SCORES)]
    headings += ["50 %", "95 %", "fit s", "predict s", "MB"]
    fields = (*SCORES, "coverage50", "coverage95")
    lines = []
    for (name, split, _), found in by_division(rows):
        for row in sorted(found, key=lambda row: _value(row, "nlpd")):
            seconds = [
                f"{row[part]:.1f}" if part in row else "" for part in ("fit_seconds", "predict_seconds")
            ]
            memory = f"{row['peak_bytes'] / 1e6:.0f}" if "peak_bytes" in row else ""
            scored = ["refused", *[""] * 4] if "refused" in row else [_number(row.get(f)) for f in fields]
            lines.append([name, split, row["n_train"], _named(row), *scored, *seconds, memory])
    return headings, lines


def divisions(rows: list[Row]) -> tuple[list[str], list[list]]:
    """Return the scores of the pool on each division, with the best other method."""
    headings = ["table", "split", "rows"]
    for score in SCORES:
        headings += [score.upper(), f"{score.upper()} of the best other", f"best by {score.upper()}"]
    lines = []
    for (name, split, _), found in by_division(rows):
        ours = pool_of(found)
        if ours is None or "refused" in ours:
            continue
        line = [name, split, ours["n_train"]]
        for score in SCORES:
            other = best_of(found, score)
            line += [
                _number(ours[score]),
                *(("", "") if other is None else (_number(other[score]), _named(other))),
            ]
        lines.append([*line, ours["coverage95"], ours["fit_seconds"]])
    return [*headings, "95 %", "fit s"], [
        [*line[:-2], f"{line[-2]:.3f}", f"{line[-1]:.0f}"] for line in lines
    ]


def _share(divisions: list[list[Row]], scores: tuple[str, ...]) -> str:
    """Return `k of n` divisions on which the pool is best in all of the scores."""
    ahead = []
    for rows in divisions:
        ours, best = pool_of(rows), [best_of(rows, score) for score in scores]
        if ours is not None and None not in best:
            pairs = zip(scores, best, strict=True)
            ahead.append(all(_value(ours, score) < _value(rival or {}, score) for score, rival in pairs))
    return f"{sum(ahead)} of {len(ahead)}"


def _covered(divisions: list[list[Row]], field: str) -> str:
    """Return median, minimum and maximum of the coverages of the pool."""
    values = [ours[field] for rows in divisions if (ours := pool_of(rows)) is not None and field in ours]
    if not values:
        return ""
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def by_division(rows: Iterable[Row]) -> list[tuple[tuple, list[Row]]]:
    """Return the records of each table, split and number of rows, in order."""
    found: dict[tuple, list[Row]] = {}
    for row in rows:
        found.setdefault((row["table"], row["split"], row["rows"]), []).append(row)
    return list(found.items())


def pool_of(rows: list[Row]) -> Row | None:
    return next((row for row in rows if (row["side"], row["variant"]) == (OURS, "default")), None)


def best_of(rows: list[Row], score: str) -> Row | None:
    """Return the other method with the lowest score, or None."""
    is_rival: Callable[[Row], bool] = lambda row: (
        row["side"] not in ("pool", "kernel", "feature")
        and (score == "rmse" or row["side"] in OF_DISTRIBUTIONS)
    )
    return min((row for row in rows if is_rival(row)), key=lambda row: _value(row, score), default=None)


def _value(row: Row, score: str) -> float:
    """Return the score, or infinity if it is missing or not finite."""
    value = row.get(score)
    return math.inf if value is None else value


def _named(row: Row) -> str:
    return row["side"] + ("" if row["variant"] == "default" else f", {row['variant']}")


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}" if abs(value) < 100 else f"{value:.0f}"
