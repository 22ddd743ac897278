"""X4: Gaussian deep kernel on UCI sets, compared with the table of the SCGD paper.

The kernel has 1000 Fourier features of the output of a two-layer network. Batches have 64 rows, and runs 100
epochs. Rates, data and scores are those of `uci_linear`. Without `--slow`, SCGD runs with Adam and Muon on
splits 0 and 1 of bike, elevators and pol. Frequencies and phases are fixed; lengthscale (√128 at the start)
and variance train. `svgp` has this kernel and 64 inducing points.
"""

from experiments import uci
from experiments.problems import SETS
from measuring.store import Cell, Record

BATCH, EPOCHS, QUICK_EPOCHS = 64, 100, 1
FIRST, SPLITS = ("bike", "elevators", "pol"), (0, 1, 2, 3, 4)
depends, ONE_CORE = uci.depends, True


def cells(quick: bool, slow: bool) -> list[Cell]:
    if quick:
        return [
            c
            for m in ("scgd-adam", "svgp")
            for c in uci.tuned_cells("synthetic", (0, 1), BATCH, m, QUICK_EPOCHS)
        ]
    found = []
    for name in SETS if slow else FIRST:
        for method in ("scgd-muon", "scgd-adam", "svgp", *(("bsgd-adam",) if slow else ())):
            found += uci.tuned_cells(name, SPLITS if slow else (0, 1), BATCH, method, EPOCHS)
    return found


def run(cell: Cell) -> dict:
    return uci.run(cell, "rbf")


def page(records: list[Record]) -> list[str]:
    return uci.page(records, "gaussian")
