"""X3: UCI sets, linear deep kernel of 128 features (two layers of 128, ReLU), against the SCGD paper's table.

100 epochs; rates tuned on split 0 by the exact NLML over three values of each optimiser (AdaDelta 0.3, 1, 3; Adam 0.001, 0.003, 0.01;
Muon 0.003, 0.01, 0.03), the other splits at the rate found. No rows are held out: the criterion is the training NLML, as in the paper,
so the held-out figures show what that costs. Inputs and targets are standardised; NLML, RMSE and raw NLPD are in the raw units of the
targets. The published variants (AdaDelta, constant rate, SCGD with b = 0.9, MINIMAX with μ = 1, w as a parameter) learn no scale of the
kernel, which starts at k(x, x) ≈ 1, and end without a refit, at the iterate of lowest NLML among the epochs' ends. The others are anchored
at every epoch and refit scale and noise; their rates fall to zero along a cosine. `svgp` has the same kernel and as many inducing points as rows in a
batch (`inducing`): its NLML is the exact one at its hyperparameters, its predictions are of its q(f).
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
