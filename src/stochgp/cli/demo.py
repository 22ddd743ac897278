"""The main job on real data: how late does a flight arrive?"""

import functools
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from cyclopts import Parameter
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from stochgp import KernelGPRegressor, data, metrics, plots
from stochgp.budget import peak_resident
from stochgp.cli.output import check_picture, show, write_picture
from stochgp.distributions import AbstractDistribution, Normal

MEMORY_LIMIT = "1.2GB"
KERNEL = "matern12"  # delays change abruptly: of the Matérn kernels the roughest
SPLITS = {"random": "flights", "by day": "flights:by-day"}
CATBOOST_TREES = 1000


class Prediction(NamedTuple):
    """Of the observations of the test rows, and the seconds of fitting and predicting."""

    law: AbstractDistribution
    seconds: float


def demo(
    *,
    out: str = "demo.png",
    seed: int = 0,
    quiet: Annotated[bool, Parameter(negative="")] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Learn the arrival delays of 273,853 flights; print scores beside other methods, and draw a report.

    A tenth of the flights is held out: random flights, whose neighbours on the same day remain, and then whole days.

    Parameters
    ----------
    out
        The picture: calibration, predicted against actual, the training criterion over time, for the random flights.
    seed
        Of the division into training and test flights, and of the learning.
    quiet
        No progress on stderr.
    as_json
        One JSON object on stdout.
    """
    check_picture(out)
    report = _compared(out, seed, verbose=0 if quiet else 1)
    if as_json:
        show(report, True)
    else:
        _print(report)


def _compared(out: str, seed: int, *, verbose: int) -> dict[str, Any]:
    """The scores of all methods on all divisions; the picture of the first one."""
    report: dict[str, Any] = {"splits": {}}
    peak = 0
    sets = {split: data.load(name, seed=seed) for split, name in SPLITS.items()}
    for split, flights in sets.items():
        model = KernelGPRegressor(KERNEL, memory_limit=MEMORY_LIMIT, random_state=seed, verbose=verbose)
        ours = _timed(_gp, model, flights)
        peak = max(peak, peak_resident())
        if not report["splits"]:
            _draw(out, flights, model, ours)
        sizes = {"n_train": len(flights.y), "n_test": len(flights.y_test)}
        report["splits"][split] = sizes | {"models": {"stochgp": _scores(flights.y_test, ours)}}
    for split, flights in sets.items():  # apart, so that their memory does not count as ours
        for rival, predict in _rivals(seed):
            report["splits"][split]["models"][rival] = _scores(flights.y_test, _timed(predict, flights))
    return report | {"peak_memory": peak, "picture": out}


def _gp(model: KernelGPRegressor, flights: data.Dataset) -> AbstractDistribution:
    model.fit(flights.X, flights.y)
    return model.predict_distribution(flights.X_test)


def _rivals(seed: int) -> Iterator[tuple[str, Callable[[data.Dataset], AbstractDistribution]]]:
    """Name and method: point predictors have the constant standard deviation of their training residuals."""
    ridge = make_pipeline(StandardScaler(), Ridge())
    boosted = HistGradientBoostingRegressor(max_iter=300, random_state=seed)
    large = HistGradientBoostingRegressor(max_iter=1500, max_leaf_nodes=127, random_state=seed)
    yield "ridge", functools.partial(_point, ridge)
    yield "boosting, 300 trees of 31 leaves", functools.partial(_point, boosted)
    yield "boosting, 1,500 trees of 127", functools.partial(_point, large)
    if importlib.util.find_spec("catboost") is not None:
        yield f"CatBoost, {CATBOOST_TREES:,} trees", functools.partial(_catboost, seed)


def _point(rival: Any, flights: data.Dataset) -> AbstractDistribution:
    rival.fit(flights.X, flights.y)
    std = float(np.sqrt(np.mean((flights.y - rival.predict(flights.X)) ** 2)))
    mean = rival.predict(flights.X_test)
    return Normal(mean, np.full(len(mean), std))


def _catboost(seed: int, flights: data.Dataset) -> AbstractDistribution:
    """Its Gaussian with a variance for each row."""
    from catboost import CatBoostRegressor  # pyright: ignore[reportMissingImports]

    settings = {"loss_function": "RMSEWithUncertainty", "random_seed": seed, "verbose": False}
    rival = CatBoostRegressor(iterations=CATBOOST_TREES, allow_writing_files=False, **settings)
    found = rival.fit(flights.X, flights.y).predict(flights.X_test)
    return Normal(found[:, 0], np.sqrt(found[:, 1]))


def _timed(predict: Callable[..., AbstractDistribution], *given: Any) -> Prediction:
    begun = time.perf_counter()
    law = predict(*given)
    return Prediction(law, time.perf_counter() - begun)


def _scores(y: np.ndarray, found: Prediction) -> dict[str, float]:
    """With standard errors over rows: the errors of delays are heavy-tailed."""
    law, seconds = found
    squares, densities = (y - law.mean) ** 2, -law.logpdf(y)
    rmse, root = float(metrics.rmse(y, law.mean)), len(y) ** 0.5
    return {
        "rmse": rmse,
        "rmse_stderr": float(np.std(squares)) / (2 * rmse * root),
        "nlpd": float(np.mean(densities)),
        "nlpd_stderr": float(np.std(densities)) / root,
        "crps": metrics.crps(y, law),
        "coverage_95": metrics.coverage(y, law),
        "seconds": seconds,
    }


def _draw(out: str, flights: data.Dataset, model: KernelGPRegressor, ours: Prediction) -> None:
    """The picture, whole or not at all."""
    figure = plots.fit_report(
        flights.y_test, ours.law, history=model.history_, quantity="arrival delay", unit="minutes"
    )
    write_picture(figure, out)


def _print(report: dict[str, Any]) -> None:
    lines = ["Arrival delay in minutes; ± are standard errors over the held-out rows"]
    for split, found in report["splits"].items():
        held_out = "random flights" if split == "random" else "whole days"
        lines.append(
            f"\n{found['n_train']:,} flights to learn from, {found['n_test']:,} held out: {held_out}"
        )
        lines.append(f"{'':34}{'RMSE':>14}{'NLPD':>16}{'CRPS':>8}{'coverage':>10}{'seconds':>9}")
        for name, row in found["models"].items():
            rmse = f"{row['rmse']:.2f} ± {row['rmse_stderr']:.2f}"
            nlpd = f"{row['nlpd']:.3f} ± {row['nlpd_stderr']:.3f}"
            rest = f"{row['crps']:8.2f}{row['coverage_95']:10.3f}{row['seconds']:9.1f}"
            lines.append(f"{name:34}{rmse:>14}{nlpd:>16}{rest}")
    peak = f"peak memory of stochgp {report['peak_memory'] / 1e9:.2f} GB"
    lines.append(f"\n{peak}; picture {Path(report['picture']).resolve()}")
    sys.stdout.write("\n".join(lines) + "\n")
