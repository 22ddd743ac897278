"""The demo: predict at departure how late a flight will arrive."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter

from examples.demo.departures import MANY_LEVELS, Departures, departures
from examples.demo.pictures import arrivals_figure, trust_figure
from examples.demo.rivals import rivals
from examples.demo.words import Arrivals, examples_of, promises_of, said_of, widths_of
from stochgp import GPRegressor
from stochgp.budget import peak_resident, release
from stochgp.cli.rows import show
from stochgp.data import train_test_indices
from stochgp.distributions import AbstractDistribution
from stochgp.numerics.clustered import paired
from stochgp.storage.writing import check_can_write, replacing

MEMORY_LIMIT = "2GB"
FLIGHTS = 8_000  # training flights
HELD_OUT = 0.1  # share of the days
TESTED = 10_000  # test flights; more would not reduce standard errors, which are over days
# The model gets no dates, because they would identify days, and days of test flights are new. For the same
# reason, days are groups.
NOT_LEARNED = (*MANY_LEVELS, "month", "day_of_year")
COVERED = (0.5, 0.95)


def demo(
    *,
    out: str = "demo.png",
    flights: int = FLIGHTS,
    seed: int = 0,
    quiet: Annotated[bool, Parameter(negative="")] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Predict the arrival delay of flights from New York, and compare several methods.

    The demo holds out a tenth of the days of 2013, prints scores, and draws two pictures.

    Parameters
    ----------
    out
        The file of the picture of arrivals. A second picture, with -trust in its name, shows the calibration.
    flights
        The number of training flights; fewer flights take less time.
    seed
        The seed of the held-out days, the flights and the fit.
    quiet
        Print no progress.
    as_json
        Print one JSON object.
    """
    check_can_write(out)
    report = _compared(out, flights, seed, verbose=0 if quiet else 1)
    if as_json:
        show(report, True)
    else:
        _print(report)


def _compared(out: str, flights: int, seed: int, *, verbose: int) -> dict[str, Any]:
    """Return the scores of all methods, and draw the pictures."""
    known, new = _divided(flights, seed)
    model = GPRegressor(memory_limit=MEMORY_LIMIT, random_state=seed, verbose=verbose)
    predicted, seconds = _timed(_gp, model, known, new)
    peak = peak_resident()  # before other methods use memory
    found = Arrivals(predicted, new)
    examples, promises, widths = examples_of(found), promises_of(found), widths_of(found)
    pictures = [out, str(Path(out).with_stem(f"{Path(out).stem}-trust"))]
    for path, figure in zip(
        pictures, (arrivals_figure(found, examples), trust_figure(found, promises, widths)), strict=True
    ):
        with replacing(path) as partial:
            figure.savefig(partial, format=Path(path).suffix[1:])
    models: dict[str, Any] = {"stochgp": _scores(new, predicted, seconds)}
    for rival, predict in rivals(seed):
        models[rival] = None if predict is None else _scores(new, *_timed(predict, known, new))
    return {
        "n_train": len(known.lost),
        "n_test": len(new.lost),
        "test_days": len(np.unique(new.day)),
        "models": models,
        "flights": examples,
        "promises": promises,
        "widths": widths,
        "peak_memory": peak,
        "pictures": pictures,
    }


def _divided(flights: int, seed: int) -> tuple[Departures, Departures]:
    """Return training flights, and test flights of the held-out days."""
    if flights < 1:
        raise ValueError(f"--flights must be at least 1, but is {flights}")
    found = departures()
    train, test = train_test_indices(len(found.lost), HELD_OUT, seed, found.day)
    generator = np.random.default_rng(seed)
    known = found.some(np.sort(generator.permutation(train)[:flights]))
    new = found.some(np.sort(generator.permutation(test)[:TESTED]))
    del found
    release()  # frees memory for the fit
    return known, new


def _gp(model: GPRegressor, known: Departures, new: Departures) -> AbstractDistribution:
    inputs, others = (part.table.drop_columns(list(NOT_LEARNED)) for part in (known, new))
    model.fit(inputs, known.lost, groups=known.day)
    return model.predict_distribution(others)


def _timed(predict: Callable[..., Any], *given: Any) -> tuple[Any, float]:
    """Return the prediction, and the seconds of fitting and predicting."""
    begun = time.perf_counter()
    predicted = predict(*given)
    return predicted, time.perf_counter() - begun


def _scores(new: Departures, predicted: Any, seconds: float) -> dict[str, float | None]:
    """Return scores with standard errors over days, because flights of a day are related."""
    y = new.lost
    day = np.unique(new.day, return_inverse=True)[1]
    square, square_error = paired((y - predicted.mean) ** 2, day)
    crps, crps_error = paired(predicted.crps(y), day)
    nlpd, nlpd_error = None, None  # predicted quantiles have no density
    if isinstance(predicted, AbstractDistribution):
        nlpd, nlpd_error = paired(-predicted.logpdf(y), day)
    scores: dict[str, float | None] = {
        "rmse": square**0.5,
        "rmse_stderr": square_error / (2 * square**0.5),
        "nlpd": nlpd,
        "nlpd_stderr": nlpd_error,
        "crps": crps,
        "crps_stderr": crps_error,
    }
    for level in COVERED:
        lower, upper = predicted.interval(level).T
        scores[f"coverage_{100 * level:.0f}"] = float(np.mean((lower <= y) & (y <= upper)))
    return scores | {"seconds": seconds}


def _print(report: dict[str, Any]) -> None:
    lines = [
        "At the minute a flight leaves the gate: how late will it arrive?",
        f"{report['n_train']:,} flights out of New York in 2013 to learn from; {report['n_test']:,} flights of {report['test_days']} other days predicted",
        *said_of(report),
        "\nScores of the arrival delay in minutes; ± are standard errors over the held-out days",
        f"{'':20}{'RMSE':>15}{'NLPD':>16}{'CRPS':>14}{'in 50 %':>9}{'in 95 %':>9}{'seconds':>9}",
    ]
    for name, row in report["models"].items():
        if row is None:
            lines.append(f"{name:20} left out: its package is not installed")
            continue
        pairs = [_pair(row, "rmse", 2), _pair(row, "nlpd", 3), _pair(row, "crps", 2)]
        shares = f"{100 * row['coverage_50']:9.1f}{100 * row['coverage_95']:9.1f}"
        lines.append(f"{name:20}{pairs[0]:>15}{pairs[1]:>16}{pairs[2]:>14}{shares}{row['seconds']:9.1f}")
    peak = f"peak memory of stochgp {report['peak_memory'] / 1e9:.2f} GB"
    pictures = " and ".join(str(Path(picture).resolve()) for picture in report["pictures"])
    lines.append(f"\n{peak}; pictures {pictures}")
    sys.stdout.write("\n".join(lines) + "\n")


def _pair(row: dict[str, Any], name: str, digits: int) -> str:
    if row[name] is None:
        return "no density"
    return f"{row[name]:.{digits}f} ± {row[f'{name}_stderr']:.{digits}f}"
