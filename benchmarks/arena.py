"""`arena`: scores of default estimators on raw tables, compared with other packages.

A cell is a table, a division, a method and a variant, and runs on all cores. Tuning of another method may
take as many seconds as the fit of `GPRegressor()` to the same rows, at most 40,000. Our estimators get the
raw tables; other methods get dates as numbers (`arena_inputs`). Scores are in standard deviations of the
training targets. All cells take about a day on two cores. Methods and tables of missing packages (extra
`bench`) are skipped.
"""

import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import arena_tuning
from benchmarks.arena_rivals import RIVALS, Predicted
from benchmarks.arena_summary import divisions, ranks, shares, sides
from benchmarks.arena_tables import TABLES, Rows, divided
from measuring import store, tables
from measuring.harness import AbsentError

ROWS, QUICK_ROWS = 40_000, 1_500
QUICK_SECONDS = 5.0  # seconds of tuning in quick runs
AFTER_REFUSAL = 300.0  # seconds of tuning if the pool refuses the table
OURS = {"pool": "GPRegressor", "kernel": "KernelGPRegressor", "feature": "FeatureGPRegressor"}


def cells(quick: bool, slow: bool) -> list[store.Cell]:
    """Return all cells, table by table, with the pool first: tuning needs its seconds."""
    rows = QUICK_ROWS if quick else ROWS
    every = [(side, "default") for side in (*OURS, *RIVALS)]
    every += [(side, "tuned") for side, rival in RIVALS.items() if rival.draw is not None]
    return [
        {"table": name, "split": split, "side": side, "variant": variant, "rows": rows}
        for name, found in TABLES.items()
        for split in found.splits
        for side, variant in every
    ]


def depends(cell: store.Cell, records: list[store.Record]) -> dict[str, float] | None:
    """Return the seconds for tuning, which are those of the pool's fit; None if unknown."""
    if cell["variant"] != "tuned":
        return {}
    if cell["rows"] == QUICK_ROWS:
        return {"seconds": QUICK_SECONDS}
    same = {name: cell[name] for name in ("table", "split", "rows")}
    pool = store.select(records, **same, side="pool", variant="default")
    return {"seconds": pool[0]["results"].get("fit_seconds", AFTER_REFUSAL)} if pool else None


def page(records: list[store.Record]) -> list[str]:
    """Return shares of divisions, mean ranks, all records, and the best method per division."""
    parts = (shares, ranks, sides, divisions)
    return [tables.table(*part(store.rows(records))) for part in parts]


def run(cell: store.Cell) -> dict[str, Any]:
    """Return scores, seconds and peak memory of a cell, or {"refused": message}.

    `cell` has table, split, side, variant and rows. For tuning it also has the allowed seconds.
    """
    from stochgp.budget import peak_resident

    warnings.simplefilter("ignore")
    table, rival = TABLES[cell["table"]], RIVALS.get(cell["side"])
    train, test = divided(table.load(), cell["split"], cell["rows"])
    if rival is not None and len(train.y) > (rival.most_rows or np.inf):
        raise AbsentError(f"{cell['side']}: {len(train.y):,} rows are too many")
    sizes = {"n_train": len(train.y), "n_test": len(test.y), "n_columns": train.X.shape[1]}
    begun = time.perf_counter()
    try:
        predict, facts = _ours(cell, train) if cell["side"] in OURS else _rivals(cell, train, table.dates)
        fitted = time.perf_counter()
        found = predict(test.X)
    except (TypeError, ValueError) as refused:
        if cell["side"] not in OURS:
            raise
        return sizes | {"refused": f"{type(refused).__name__}: {refused}"}
    seconds = {"fit_seconds": fitted - begun, "predict_seconds": time.perf_counter() - fitted}
    return sizes | seconds | {"peak_bytes": peak_resident()} | facts() | scores(found, test.y, train.y)


def scores(found: Any, y: np.ndarray, seen: np.ndarray) -> dict[str, float]:
    """Return scores in units of the standard deviation of the training targets `seen`.

    `repeated` is the share of the most frequent training target. If it is large, log densities mean little.
    """
    from stochgp import metrics

    scale = float(np.std(seen))
    values, counts = np.unique(seen, return_counts=True)
    predicted, mean = distribution_of(found, scale, float(np.diff(values).min(initial=np.inf)))
    found = {
        "rmse": metrics.rmse(y, mean) / scale,
        "nlpd": metrics.nlpd(y, predicted) - np.log(scale),
        "crps": metrics.crps(y, predicted) / scale,
        "coverage50": metrics.coverage(y, predicted, level=0.5),
        "coverage95": metrics.coverage(y, predicted, level=0.95),
        "repeated": counts.max() / len(seen),
    }
    return {name: float(value) for name, value in found.items()}


def distribution_of(found: Any, scale: float, step: float) -> tuple[Any, np.ndarray]:
    """Return the distribution and the mean of each row."""
    if not isinstance(found, Predicted):
        return found, found.mean
    from benchmarks.quantiles import QuantileDistribution
    from stochgp.distributions import Normal

    mean = np.asarray(found.mean, np.float64)
    if found.quantiles is not None:
        return QuantileDistribution.through(found.quantiles, scale, step), mean
    return Normal(mean, np.asarray(found.std, np.float64)), mean


def _ours(cell: store.Cell, rows: Rows) -> tuple[Callable[[Any], Any], Callable[[], dict]]:
    """Return predictions of a default estimator, and further results of its fit."""
    import stochgp

    model = getattr(stochgp, OURS[cell["side"]])(random_state=0)
    model.fit(rows.X, rows.y, groups=rows.groups)
    weights = getattr(model, "weights_", None)
    return model.predict_distribution, lambda: {} if weights is None else {"weights": dict(weights)}


def _rivals(
    cell: store.Cell, rows: Rows, dates: Any
) -> tuple[Callable[[Any], Predicted], Callable[[], dict]]:
    found = arena_tuning.fit(RIVALS[cell["side"]], rows, cell["split"], dates, cell.get("seconds"))
    return found.predict, lambda: arena_tuning.facts(found)
