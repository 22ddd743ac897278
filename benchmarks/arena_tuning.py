"""Tune a method with random settings on held-out rows, within a number of seconds."""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from benchmarks.arena_rivals import Predict, Predicted, Rival, Settings
from benchmarks.arena_tables import Rows, division

LARGER = 1.25  # number of all rows, divided by that of a trial


class Trial(NamedTuple):
    """Settings, their loss and root mean square error on held-out rows, and the seconds."""

    settings: Settings
    loss: float
    deviation: float
    seconds: float


class Tuned(NamedTuple):
    """Predictions of the final fit, the chosen trial (or None), and the number of trials."""

    predict: Predict
    trial: Trial | None
    n_trials: int


def fit(rival: Rival, rows: Rows, split: str, dates: Mapping[str, str], seconds: float | None) -> Tuned:
    """Fit with the best of several random settings; `seconds=None` uses the defaults.

    Rows are held out as the test rows were: a random fifth, the last fifth, or whole groups. A trial starts
    only if the final fit is expected to end within `seconds`. The first trial uses the defaults. For point
    predictions, the standard deviation is that of the held-out rows.
    """
    begun = time.perf_counter()
    train, held = division(len(rows.y), split, rows.groups)
    parts = rows.some(train), rows.some(held)
    trials: list[Trial] = []
    generator, draw = np.random.default_rng(0), rival.draw
    if seconds is not None and draw is not None:
        while _is_time(trials, seconds - (time.perf_counter() - begun)):
            trials.append(_trial(rival, parts, dates, draw(generator) if trials else {}))
    best = min(trials, key=lambda trial: trial.loss) if trials else None
    predict = rival.fitted(rows.X, rows.y, dates, {} if best is None else best.settings)
    if predict(parts[1].X.iloc[:1]).is_point:
        best = best or _trial(rival, parts, dates, {})
        return Tuned(_with_deviation(predict, best.deviation), best, len(trials))
    return Tuned(predict, best, len(trials))


def _is_time(trials: list[Trial], left: float) -> bool:
    """Return True if another trial and the final fit are expected to end in time."""
    if not trials:
        return left > 0
    best = min(trials, key=lambda trial: trial.loss)
    slowest = max(trial.seconds for trial in trials)
    return slowest + LARGER * max(best.seconds, slowest) < left


def _trial(rival: Rival, parts: tuple[Rows, Rows], dates: Mapping[str, str], settings: Settings) -> Trial:
    begun = time.perf_counter()
    rows, held = parts
    found: Predicted = rival.fitted(rows.X, rows.y, dates, settings)(held.X)
    deviation = float(np.sqrt(np.mean((held.y - found.mean) ** 2)))
    return Trial(settings, found.loss(held.y), deviation, time.perf_counter() - begun)


def _with_deviation(predict: Predict, std: float) -> Predict:
    return lambda X: predict(X).with_deviation(std)


def facts(found: Tuned) -> dict[str, Any]:
    """Return the results of the search for a record."""
    return {"trials": found.n_trials} | (
        {"settings": found.trial.settings} if found.trial and found.n_trials else {}
    )
