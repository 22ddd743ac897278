"""X3: linear deep kernel of 128 features on UCI sets, compared with the SCGD paper.

The network has two layers of 128 units with ReLU, and runs have 100 epochs. Rates are tuned on split 0 by the
exact NLML, over three values per optimiser (AdaDelta 0.3, 1, 3; Adam 0.001, 0.003, 0.01; Muon 0.003, 0.01,
0.03). No rows are held out, as in the paper. NLML, RMSE and raw NLPD are in raw units of the targets. The
published variants use AdaDelta, a constant rate, SCGD with b = 0.9 or MINIMAX with μ = 1, and a fixed scale
of the kernel. They end at the epoch with the lowest NLML. The other variants are anchored at every epoch,
refit scale and noise, and decay the rate to zero. `svgp` has the same kernel and as many inducing points as
rows in a batch.
"""

from experiments import uci
from experiments.problems import SETS
from measuring.store import Cell, Record

BATCHES, EPOCHS, QUICK_EPOCHS = (32, 128), 100, 2
SPLITS = (0, 1, 2, 3, 4)
depends, run, ONE_CORE = uci.depends, uci.run, True


def cells(quick: bool, slow: bool) -> list[Cell]:
    if quick:
        return [
            c
            for m in ("scgd-adam", "bsgd-adam", "svgp")
            for c in uci.tuned_cells("synthetic", (0, 1), 32, m, QUICK_EPOCHS)
        ]
    found = []
    for name in SETS:
        for batch in BATCHES:
            for method in ("scgd-muon", "scgd-adam", "scgd-published", "bsgd-adam", "minimax-published"):
                found += uci.tuned_cells(name, SPLITS, batch, method, EPOCHS)
            splits = SPLITS if slow else (0, 1)
            if slow or batch == 128:
                for method in ("minimax-muon", "svgp"):
                    found += uci.tuned_cells(name, splits, batch, method, EPOCHS)
    return found


def page(records: list[Record]) -> list[str]:
    return uci.page(records, "linear")
