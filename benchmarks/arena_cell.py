"""One cell of the arena in this process, which should be a fresh one: `python -m benchmarks.arena_cell CELL`, CELL and the answer in JSON."""

import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import arena_tables, arena_tuning
from benchmarks.arena_rivals import RIVALS, Predicted
from benchmarks.arena_tables import Rows
from measuring import timing

IN_HASTE, SECONDS = "20 s", 20.0  # a variant of the pool: its `time_limit`
OURS = {"pool": "GPRegressor", "kernel": "KernelGPRegressor", "feature": "FeatureGPRegressor"}


def measure(cell: dict[str, Any]) -> dict[str, Any]:
    """Scores, seconds and the peak of memory of a cell, or {"refused": what our estimator said}.

    `cell` has table, split, side, variant and rows; of a tuned rival also the seconds that it may take.
    """
    warnings.simplefilter("ignore")
    table = arena_tables.TABLES[cell["table"]]
    train, test = arena_tables.divided(table.load(), cell["split"], cell["rows"])
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
    peak = {"peak_bytes": timing.resident("VmHWM")} if timing.can_reset_peak() else {}
    return sizes | seconds | peak | facts() | scores(found, test.y, train.y)


def scores(found: Any, y: np.ndarray, seen: np.ndarray) -> dict[str, float]:
    """Of predictions, ours or a rival's, in units of the standard deviation of the training targets, `seen`.

    `repeated` is the share of the most frequent training target: where it is large, a density says little, since it may be as great as one likes there.
    """
    from stochgp import metrics

    scale = float(np.std(seen))
    values, counts = np.unique(seen, return_counts=True)
    predicted, mean = distribution_of(found, scale, float(np.diff(values).min(initial=np.inf)))
    found = {
        "rmse": metrics.rmse(y, mean) / scale,
        "nlpd": metrics.nlpd(y, predicted)
        - np.log(scale),  # of counts as of a density of 1/scale around each
        "crps": metrics.crps(y, predicted) / scale,
        "coverage50": metrics.coverage(y, predicted, level=0.5),
        "coverage95": metrics.coverage(y, predicted, level=0.95),
        "repeated": counts.max() / len(seen),
    }
    return {name: float(value) for name, value in found.items()}


def distribution_of(found: Any, scale: float, step: float) -> tuple[Any, np.ndarray]:
    """(The distribution of each row, its mean): a rival's mean is the one that it predicts."""
    if not isinstance(found, Predicted):
        return found, found.mean
    from benchmarks.quantiles import QuantileDistribution
    from stochgp.distributions import Normal

    mean = np.asarray(found.mean, np.float64)
    if found.quantiles is not None:
        return QuantileDistribution.through(found.quantiles, scale, step), mean
    return Normal(mean, np.asarray(found.std, np.float64)), mean


def _ours(cell: dict[str, Any], rows: Rows) -> tuple[Callable[[Any], Any], Callable[[], dict]]:
    """(Predictions, what else a line says) of an estimator of defaults, its `time_limit` aside, given the table as it comes; loading it counts as fitting."""
    import stochgp

    limit = {"time_limit": SECONDS} if cell["variant"] == IN_HASTE else {}
    model = getattr(stochgp, OURS[cell["side"]])(random_state=0, **limit)
    model.fit(rows.X, rows.y, groups=rows.groups)
    weights = getattr(model, "weights_", None)
    return model.predict_distribution, lambda: {} if weights is None else {"weights": dict(weights)}


def _rivals(
    cell: dict[str, Any], rows: Rows, dates: Any
) -> tuple[Callable[[Any], Predicted], Callable[[], dict]]:
    found = arena_tuning.fit(RIVALS[cell["side"]], rows, cell["split"], dates, cell.get("seconds"))
    return found.predict, lambda: arena_tuning.facts(found)


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1])), default=float))
