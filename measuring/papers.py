"""Published results as tables of text, in measuring/published, as printed in the papers.

`scgd_minimax_nlml_linear`, `scgd_minimax_nlml_gaussian`: the SCGD paper's first version, tables 2 and 3: training NLML per datum in raw
target units, mean and standard deviation over five splits. `sdd_uci`: Lin et al. 2024, table 1: unit-variance targets. `sggp_benchmarks`,
`sggp_toy`: the sgGP paper, tables 1 and 2: RMSE of unit-variance targets, minutes of training on one core, gigabytes.
"""

import csv
import functools

from measuring.places import ROOT

FOLDER = ROOT / "measuring" / "published"


@functools.cache
def rows(table: str) -> tuple[dict[str, str], ...]:
    """The lines of a table."""
    with (FOLDER / f"{table}.csv").open(newline="", encoding="utf-8") as lines:
        return tuple(csv.DictReader(lines))


def value(table: str, column: str, **where: object) -> float:
    """The number of the one line that has these values; `ValueError` where there is not exactly one, or no number in it."""
    found = [row for row in rows(table) if all(row[name] == str(v) for name, v in where.items())]
    if len(found) != 1 or not found[0][column]:
        raise ValueError(
            f"{table} has {len(found)} lines with {where} and a {column}, wanted one with a number"
        )
    return float(found[0][column])


def nlml(kernel: str) -> dict[tuple[str, int, str], float]:
    """{(set, batch size, method): mean NLML} of the SCGD paper for the "linear" or the "gaussian" kernel."""
    table = rows(f"scgd_minimax_nlml_{kernel}")
    return {(r["dataset"], int(r["batch_size"]), r["method"]): float(r["mean"]) for r in table}
