"""Switch off one stage of a default fit at a time, to measure its gain and its cost.

Results are in experiments/stages.jsonl. `--table` compares each result with the default fit of the same
commit. A stage is switched off by a setting, or by replacing a function.
"""

import statistics
from typing import Any
from unittest import mock

import numpy as np

from experiments import floors
from measuring import machine, tables
from measuring.store import ROOT, Cell, Record

ONE_CORE = True
RESULTS = ROOT / "experiments"
NOTHING = "nothing"
KERNEL, POOL, FEATURE, SPARSE = "KernelGPRegressor", "GPRegressor", "FeatureGPRegressor", "SparseGPRegressor"
ROWS = {KERNEL: 4000, POOL: 1200, FEATURE: 2500, SPARSE: 2500}
FEW_SETS = ("pol", "kin40k", "protein")  # sets for feature and sparse GPs
FEW_ROWS = 150
IN_TIME = ("metro", "steel", "computers", "seattle")
REGRESSOR = "stochgp.pools.regressor."


def _first(value: Any, *_: Any, **__: Any) -> Any:
    return value


def _none(*_: Any, **__: Any) -> None:
    return None


# For each stage: estimators, settings, replaced functions, and tables (None = all).
STAGES: dict[str, tuple[tuple[str, ...], dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    NOTHING: ((KERNEL, POOL, FEATURE, SPARSE), {}, {}, ()),
    "rotation of the inputs": ((KERNEL,), {}, {"stochgp.families.kernel.rotate_inputs": lambda *_: (None, None)}, ()),
    "error distribution": ((KERNEL, POOL, FEATURE, SPARSE), {"likelihood": "gaussian"}, {}, ()),
    "start from few rows": ((KERNEL,), {}, {"stochgp.families.kernel.optimum_of_few": _first}, ()),
    "noise floor": ((KERNEL,), {}, {"stochgp.families.kernel_posterior.noise_floor": lambda gp, *_: (gp, 0.0, "")}, ()),
    "scale of variances": ((KERNEL,), {}, {"stochgp.posteriors.kernel.AbstractKernelPosterior.calibrated": lambda self, group=None: (self, 1.0)}, ()),
    "averages over hyperparameters": ((KERNEL,), {}, {"stochgp.families.kernel_posterior.integrated": _first}, ()),
    "decoupled mean": ((SPARSE,), {"n_inducing_mean": 0}, {}, ()),
    "member trees": ((POOL,), {"members": ["kernel", "linear"]}, {}, ()),
    "member linear": ((POOL,), {"members": ["kernel", "trees"]}, {}, ()),
    "pooling": ((POOL,), {"ensemble": False}, {}, ()),
    "transform of the targets": ((POOL,), {}, {REGRESSOR + "choose_transform": _none}, ()),
    "counts": ((POOL,), {"target": "real"}, {}, ()),
    "hurdle model": ((POOL,), {"point_mass": None}, {}, ()),
    "held-out rows join": ((POOL,), {}, {REGRESSOR + "GPRegressor._refit": lambda self, members, rows, role, weights, *_: weights}, ()),
    "cut at 0": ((POOL,), {}, {REGRESSOR + "truncate": _first}, ()),
    "calibration of the pool": ((POOL,), {}, {REGRESSOR + "calibrated": _first}, ()),
    "wider variances of later rows": ((POOL,), {}, {REGRESSOR + "widen_for_later_times": lambda members, others, context: others}, IN_TIME),
}  # fmt: skip


def cells(quick: bool, slow: bool) -> list[Cell]:
    shared = {"seed": 0, "commit": machine.commit()}
    if quick:
        return [
            {"stage": "pooling", "table": "diabetes", "split": "random", "model": POOL, "rows": 200, **shared}
        ]
    found = []
    for stage, (models, _, _, chosen) in STAGES.items():
        for model in models:
            sets = FEW_SETS if model in (FEATURE, SPARSE) else floors.SETS
            splits = floors.SPLITS if model == POOL else [(name, "0") for name in sets]
            few = stage in (NOTHING, "averages over hyperparameters") and model == KERNEL
            for rows in (ROWS[model], FEW_ROWS) if few else (ROWS[model],):
                some = [(t, s) for t, s in splits if not chosen or t in chosen]
                found += [{"stage": stage, "table": t, "split": s, "model": model, "rows": rows, **shared} for t, s in some]  # fmt: skip
    return found


def run(cell: Cell) -> dict:
    _, settings, replaced, _ = STAGES[cell["stage"]]
    patches = [mock.patch(name, value) for name, value in replaced.items()]
    for patch in patches:
        patch.start()
    try:
        return floors.run(cell, **settings)
    finally:
        mock.patch.stopall()


def page(records: list[Record]) -> list[str]:
    """Return a row for each stage: changes of the scores if the stage is switched off."""
    found = {(_key(r), r["settings"]["stage"], r["settings"]["model"]): r["results"] for r in records}
    rows = []
    for stage, model in dict.fromkeys((s, m) for _, s, m in found if s != NOTHING):
        pairs = [
            (found[key, stage, model], found[key, NOTHING, model])
            for key, s, m in found
            if (s, m) == (stage, model) and (key, NOTHING, model) in found
        ]
        if pairs:
            changes = np.array([floors.change(without, whole) for without, whole in pairs])
            changed = sum(without["crps"] != whole["crps"] for without, whole in pairs)
            crps, log = changes[:, 0], changes[:, len(floors.RATIOS) + 1]
            seconds = statistics.median(changes[:, 1])
            numbers = np.median(crps), np.nanmean(crps), np.nanmedian(log), np.nanmean(log), np.mean(log > 0.01), seconds  # fmt: skip
            rows.append([stage, model, len(pairs), changed, *map(tables.number, numbers)])
    names = ["without", "of", "tables", "changed", "CRPS, median ratio", "mean", "log score, median difference", "mean", "share above 0.01", "seconds, ratio"]  # fmt: skip
    return [tables.table(names, rows)]


def _key(record: Record) -> tuple:
    return tuple(record["settings"][k] for k in ("table", "split", "rows", "seed", "commit"))
