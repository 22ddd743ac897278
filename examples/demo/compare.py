"""The main job on real data: at the minute a flight leaves the gate, how late will it arrive?"""

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
from stochgp.storage.trees import check_can_write, replacing

MEMORY_LIMIT = "2GB"
FLIGHTS = 8_000  # to learn from
HELD_OUT = 0.1  # of the days
TESTED = 10_000  # flights of these days: errors of the scores are those of the days, so that all 32,000 would say no more
# Dates would let rows of the same day explain each other, and the days to predict have none. For the same reason days are groups: of 12,000 flights, one seed,
# RMSE 14.6, NLPD 3.975 and CRPS 7.48 against 15.0, 3.992 and 7.70 without.
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
    """Learn how late flights out of New York arrive, from what is known when they leave the gate; print scores beside other methods, draw two pictures.

    A tenth of the days of 2013 is held out.

    Parameters
    ----------
    out
        The picture of some arrivals; that of how far to trust them is written beside it, with -trust in its name.
    flights
        How many flights of the other days to learn from; fewer are quicker.
    seed
        Of the days, the flights and the learning.
    quiet
        No progress on stderr.
    as_json
        One JSON object on stdout.
    """
    check_can_write(out)
    report = _compared(out, flights, seed, verbose=0 if quiet else 1)
    if as_json:
        show(report, True)
    else:
        _print(report)


def _compared(out: str, flights: int, seed: int, *, verbose: int) -> dict[str, Any]:
    """The scores of all methods, what ours says, and its pictures."""
    known, new = _divided(flights, seed)
    model = GPRegressor(memory_limit=MEMORY_LIMIT, random_state=seed, verbose=verbose)
    predicted, seconds = _timed(_gp, model, known, new)
    peak = peak_resident()  # before the others, whose memory is not ours
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
    """(At most so many flights of nine tenths of the days, at random; at most 10,000 of the others)."""
    if flights < 1:
        raise ValueError(f"--flights is {flights}; it must be at least 1")
    found = departures()
    train, test = train_test_indices(len(found.lost), HELD_OUT, seed, found.day)
    generator = np.random.default_rng(seed)
    known = found.some(np.sort(generator.permutation(train)[:flights]))
    new = found.some(np.sort(generator.permutation(test)[:TESTED]))
    del found
    release()  # so that the limit is left to learning
    return known, new


def _gp(model: GPRegressor, known: Departures, new: Departures) -> AbstractDistribution:
    inputs, others = (part.table.drop_columns(list(NOT_LEARNED)) for part in (known, new))
    model.fit(inputs, known.lost, groups=known.day)
    return model.predict_distribution(others)


def _timed(predict: Callable[..., Any], *given: Any) -> tuple[Any, float]:
    """(What is predicted of the minutes that the test flights lost, the seconds of fitting and predicting)."""
    begun = time.perf_counter()
    predicted = predict(*given)
    return predicted, time.perf_counter() - begun


def _scores(new: Departures, predicted: Any, seconds: float) -> dict[str, float | None]:
    """Of minutes lost, which are those of the arrival delay; standard errors are over days, as flights of a day are related."""
    y = new.lost
    day = np.unique(new.day, return_inverse=True)[1]
    square, square_error = paired((y - predicted.mean) ** 2, day)
    crps, crps_error = paired(predicted.crps(y), day)
    nlpd, nlpd_error = None, None  # quantiles have no density
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
