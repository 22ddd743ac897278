"""The main job on real data: how late does a flight arrive?"""

import io
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from stochgp import FeatureGPRegressor, data, metrics, plots
from stochgp.budget import peak_resident
from stochgp.cli.output import check_can_write, show
from stochgp.names import lookup

MEMORY_LIMIT = "1.2GB"
TIME_LIMIT = 170.0  # seconds of learning; no limit on a quiet machine with two cores
_NAMES = ("rmse", "nlpd", "crps", "coverage_95", "seconds")


def demo(
    *,
    out: str = "demo.png",
    seed: int = 0,
    quiet: Annotated[bool, Parameter(negative="")] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Learn the arrival delays of 273,853 flights; print metrics beside ridge regression and gradient boosting, and draw a report.

    Parameters
    ----------
    out
        The picture: calibration, predicted against actual, the marginal likelihood over time.
    seed
        Of the division into training and test flights, and of the learning.
    quiet
        No progress on stderr.
    as_json
        One JSON object on stdout.
    """
    check_can_write(out)
    lookup(Path(out).suffix, dict.fromkeys((".png", ".pdf", ".svg")), "type of picture")
    flights = data.load("flights", seed=seed)
    model = FeatureGPRegressor(
        memory_limit=MEMORY_LIMIT, time_limit=TIME_LIMIT, random_state=seed, verbose=0 if quiet else 1
    )
    rows, mean, std = {}, *_gp(model, flights)
    rows["stochgp"] = _scores(flights.y_test, mean, std) | {"seconds": model.fit_seconds_}
    rivals: dict[str, Any] = {
        "ridge": make_pipeline(StandardScaler(), Ridge()),
        "gradient boosting": HistGradientBoostingRegressor(max_iter=300, random_state=seed),
    }
    for name, rival in rivals.items():
        rows[name] = _rival(rival, flights)
    _draw(out, flights, model, mean, std)
    report = {
        "n_train": len(flights.y),
        "n_test": len(flights.y_test),
        "models": rows,
        "peak_memory": peak_resident(),
        "picture": out,
    }
    if as_json:
        show(report, True)
    else:
        _print(report)


def _gp(model: FeatureGPRegressor, flights: data.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the observations of the test rows."""
    model.fit(flights.X, flights.y)
    return model.predict(flights.X_test, return_std=True, include_noise=True)


def _rival(rival: Any, flights: data.Dataset) -> dict[str, float]:
    """Metrics of a point predictor with the constant standard deviation of its training residuals."""
    begun = time.perf_counter()
    rival.fit(flights.X, flights.y)
    seconds = time.perf_counter() - begun
    std = float(np.sqrt(np.mean((flights.y - rival.predict(flights.X)) ** 2)))
    mean = rival.predict(flights.X_test)
    return _scores(flights.y_test, mean, np.full(len(mean), std)) | {"seconds": seconds}


def _scores(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> dict[str, float]:
    return {
        "rmse": float(metrics.rmse(y, mean)),
        "nlpd": float(metrics.nlpd(y, mean, std)),
        "crps": float(metrics.crps(y, mean, std)),
        "coverage_95": float(metrics.coverage(y, mean, std)),
    }


def _draw(
    out: str, flights: data.Dataset, model: FeatureGPRegressor, mean: np.ndarray, std: np.ndarray
) -> None:
    """The picture, whole or not at all."""
    figure = plots.fit_report(
        flights.y_test, mean, std, model.history_, quantity="arrival delay", unit="minutes"
    )
    picture = io.BytesIO()
    figure.savefig(picture, format=Path(out).suffix[1:])
    Path(out).write_bytes(picture.getvalue())


def _print(report: dict[str, Any]) -> None:
    heads = ("RMSE", "NLPD", "CRPS", "coverage", "seconds")
    lines = [
        f"Arrival delay in minutes, {report['n_train']:,} flights to learn from, {report['n_test']:,} held out",
        f"{'':18}" + "".join(f"{head:>10}" for head in heads),
    ]
    for name, row in report["models"].items():
        rmse, nlpd, crps, coverage, seconds = (row[key] for key in _NAMES)
        lines.append(f"{name:18}{rmse:10.2f}{nlpd:10.3f}{crps:10.2f}{coverage:10.3f}{seconds:10.1f}")
    lines.append(
        f"peak memory {report['peak_memory'] / 1e9:.2f} GB; picture {Path(report['picture']).resolve()}"
    )
    sys.stdout.write("\n".join(lines) + "\n")
