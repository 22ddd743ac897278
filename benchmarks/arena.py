"""`arena`: raw tables, our estimators as they come against boosting, forests and ridge regression, as they come and tuned.

Each cell (a table, its division, a side, its variant) runs in a process of its own that finds nothing compiled on disk, on all cores. A tuned rival has as many
seconds as `GPRegressor()` took to fit on the same rows: at 40,000 training rows at most. `GPRegressor(time_limit=20)` is a variant too. Our estimators are given the tables as they are, text, dates and gaps
included; what they refuse is in the line. Rivals are given numbers made of the dates by their known format (`arena_inputs`). Scores are in units of the standard
deviation of the training targets. Cells that are done are passed over, so that a run may be stopped at any time; `--only side=pool table=diamonds`
chooses. All cells take about a day on two cores. Rivals and tables whose packages are missing (extra bench) are skipped.
"""

import functools
from typing import Any

from benchmarks.arena_cell import IN_HASTE, OURS
from benchmarks.arena_rivals import RIVALS
from benchmarks.arena_summary import in_haste, ranks, shares, sides, table
from benchmarks.arena_tables import TABLES, AbsentError, divided
from benchmarks.resuming import apart
from measuring import store

__all__ = ["cells", "depends", "in_haste", "lacking", "measure", "ranks", "shares", "sides", "table"]
ROWS, QUICK_ROWS = 40_000, 1_500
QUICK_SECONDS = 5.0  # of tuning
AFTER_REFUSAL = 300.0  # of tuning where our pool refused the table
CACHE = "JAX_COMPILATION_CACHE_DIR"  # empty: a process finds no compiled code


def cells(quick: bool) -> list[store.Cell]:
    """All cells, table by table; the pool comes first, since tuning takes its seconds."""
    rows = QUICK_ROWS if quick else ROWS
    sides = [(side, "default") for side in (*OURS, *RIVALS)] + [("pool", IN_HASTE)]
    sides += [(side, "tuned") for side, rival in RIVALS.items() if rival.draw is not None]
    return [
        {"table": name, "split": split, "side": side, "variant": variant, "rows": rows}
        for name, found in TABLES.items()
        for split in found.splits
        for side, variant in sides
    ]


def lacking(cell: store.Cell) -> str | None:
    """Why the cell cannot be run here; None where it can."""
    rival = RIVALS.get(cell["side"])
    if rival is not None and not rival.is_installed:
        return f"{cell['side']}: the package {rival.package} is not installed: pip install 'stochgp[bench]'"
    if (absent := _absent(cell["table"])) is not None:
        return absent
    if rival is None or rival.most_rows is None:
        return None
    n_rows = _n_rows(cell["table"], cell["split"], cell["rows"])
    return f"{cell['side']}: {n_rows:,} rows are too many" if n_rows > rival.most_rows else None


@functools.cache
def _n_rows(name: str, split: str, most: int) -> int:
    """Training rows."""
    return len(divided(TABLES[name].load(), split, most)[0].y)


@functools.cache
def _absent(name: str) -> str | None:
    try:
        TABLES[name].read()
    except AbsentError as absent:
        return f"{name}: {absent}"
    return None


def depends(cell: store.Cell, records: list[store.Record]) -> dict[str, float] | None:
    """The seconds of a tuned rival: those of our pool's fit; None where that is not measured yet."""
    if cell["variant"] != "tuned":
        return {}
    if cell["rows"] == QUICK_ROWS:
        return {"seconds": QUICK_SECONDS}
    same = {name: cell[name] for name in ("table", "split", "rows")}
    pool = store.select(records, **same, side="pool", variant="default")
    return {"seconds": pool[0]["results"].get("fit_seconds", AFTER_REFUSAL)} if pool else None


def measure(cell: store.Cell) -> dict[str, Any]:
    """Of a process of its own; `RuntimeError` with its last line where it fails or is killed."""
    return apart("benchmarks.arena_cell", cell, {CACHE: ""})
