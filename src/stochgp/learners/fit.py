"""The one loop: steps in compiled stretches, a visit of the host between them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from stochgp.data.streams import AbstractSource
from stochgp.learners.base import AbstractLearner, Planned
from stochgp.learners.descent import start_rate
from stochgp.learners.log import Log, Report
from stochgp.learners.stretch import Setting, set_up, take_steps, take_stretch
from stochgp.learners.visit import Visit, examine, on_all_rows
from stochgp.models import FeatureGP
from stochgp.planning.steps import RATES, trial_steps
from stochgp.results import RESULTS, FitResult
from stochgp.storage import checkpoint as checkpoints

SLOWER = 0.3
MOST_RECOVERIES = 6
DIVERGED_BY = 1.0  # nats per datum above the best
SETTLED_BY = 0.01  # nats per datum


class _Progress(NamedTuple):
    """Where a run stands: enough to go on from."""

    state: Any
    best_state: Any
    best: Visit
    step: int


def fit(
    learner: AbstractLearner,
    gp: FeatureGP,
    source: AbstractSource,
    *,
    key: PRNGKeyArray,
    progress: Report | None = None,
    checkpoint: str | Path | None = None,
    time_limit: float | None = None,
) -> FitResult:
    """Learn θ of `gp` from the rows of `source`.

    After every stretch of steps (an epoch) the host visits: exact moments in float64, the exact NLML with refitted variances, the
    held-out NLPD if the learner holds rows out, one entry of the history, and the learner's anchor. The visit of the lowest criterion
    is what the run returns. A criterion that is not finite, or 1 nat per datum above the best, sends the run back to the best visit at
    0.3 of the rate, at most 6 times. `progress` is called with every entry of the history. `checkpoint` names a file that is
    written at every visit; where it exists, the run goes on from it and gives the same result as an unbroken one. `time_limit` is in
    seconds; it and Ctrl-C end the run with the best visit so far.

    Raises ValueError for a checkpoint of another run.
    """
    with jax.enable_x64(True):
        return _fit(learner, gp, source, key, Log(progress, time_limit), checkpoint)


def _fit(
    learner: AbstractLearner,
    gp: FeatureGP,
    source: AbstractSource,
    key: PRNGKeyArray,
    log: Log,
    checkpoint: str | Path | None,
) -> FitResult:
    setting = set_up(learner, gp, source, key)
    first = examine(learner, gp, source, setting.split)  # of θ₀: what every trial and the run begin with
    at, result = _start(setting, first, 0.0), RESULTS.interrupted
    mark = "" if checkpoint is None else _mark(setting)
    resumed = None if checkpoint is None else checkpoints.read(checkpoint, at, mark)

    def save(at: _Progress) -> None:
        if checkpoint is not None:
            checkpoints.write(checkpoint, at, log.facts(), mark)

    try:
        if resumed is None:
            rate = _choose_rate(setting, first, log)
            at = _start(setting, first, rate)
            log.add(_entry(setting, at.best, at.step), rate=rate)
        else:
            at, facts = resumed
            log.go_on_from(facts)
        result, at = _loop(setting, at, log, save)
    except KeyboardInterrupt:
        pass
    return _finish(setting, at, log, result)


def _loop(
    setting: Setting, at: _Progress, log: Log, save: Callable[[_Progress], None]
) -> tuple[RESULTS, _Progress]:
    """Steps and visits until the plan is done or something ends it."""
    try:
        ended = _ended(setting, at, log)  # a resumed run may be over
        while ended is None:
            at = _advance(setting, at, log)
            save(at)
            ended = _ended(setting, at, log) or (RESULTS.time_limit if log.is_over() else None)
    except KeyboardInterrupt:
        return RESULTS.interrupted, at
    return ended, at


def _advance(setting: Setting, at: _Progress, log: Log) -> _Progress:
    """One stretch and one visit; from a lost one back to the best visit at a smaller rate."""
    state, taken, info = take_stretch(setting, at.state, at.step, log.is_over)
    visit, step = _visit(setting, state), at.step + taken
    lost = not np.isfinite(visit.criterion) or visit.criterion > at.best.criterion + DIVERGED_BY
    log.add(_entry(setting, visit, step), recovered=float(lost), **info)
    if lost:
        slower = setting.learner.slower(at.best_state, SLOWER)
        return _Progress(slower, slower, at.best, step)
    state = _anchored(setting, state, visit)
    if visit.criterion > at.best.criterion:
        return at._replace(state=state, step=step)
    return _Progress(state, state, visit, step)


def _ended(setting: Setting, at: _Progress, log: Log) -> RESULTS | None:
    """How the run ended as far as its history says, None where it goes on."""
    lost = [entry.get("recovered", 0.0) > 0 for entry in log.history]
    done = at.step >= setting.plan.total_steps
    if sum(lost) > MOST_RECOVERIES or (done and lost[-1]):
        return RESULTS.diverged
    if at.step > 0 and not lost[-1] and setting.learner.finished(log.history[-1]):
        return RESULTS.successful
    if done:
        return RESULTS.successful if _has_settled(log.history) else RESULTS.not_settled
    return None


def _has_settled(history: list[dict[str, float]]) -> bool:
    """Whether the best criterion improved by less than SETTLED_BY over the last tenth of the visits, at least one.

    A run that only ever got worse than its start has not settled.
    """
    found = [entry.get("held_out_nlpd", entry["nlml"]) for entry in history if "step" in entry]
    values = [v if np.isfinite(v) else np.inf for v in found]
    lowest = np.minimum.accumulate(values)
    if lowest[-1] == values[0] and values[-1] > values[0] + SETTLED_BY:
        return False
    before = len(lowest) - 1 - max(1, len(lowest) // 10)
    return before >= 0 and bool(lowest[before] - lowest[-1] < SETTLED_BY)


def _start(setting: Setting, visit: Visit, rate: float, total_steps: int | None = None) -> _Progress:
    """Step 0, of which `visit` is the visit."""
    total = setting.plan.total_steps if total_steps is None else total_steps
    planned = Planned(len(setting.split.train), visit.spectrum.count, total, rate)
    state = setting.learner.init(setting.gp, planned, key=setting.init_key)
    state = _anchored(setting, state, visit)
    return _Progress(state, state, visit, 0)


def _visit(setting: Setting, state: Any) -> Visit:
    return examine(setting.learner, setting.learner.model(state), setting.source, setting.split)


def _anchored(setting: Setting, state: Any, visit: Visit) -> Any:
    if not setting.learner.anchors:
        return state
    gp = visit.gp.with_variances(*visit.fitted)
    return setting.learner.anchor(state, gp, visit.spectrum, *visit.fitted)


def _choose_rate(setting: Setting, first: Visit, log: Log) -> float:
    """The rate given; otherwise the one of RATES whose short trial, with its own decay, ends at the lowest criterion."""
    given = setting.learner.learning_rate
    if given is not None:
        return start_rate(given, None)
    n_steps, found = trial_steps(setting.plan), {}
    for rate in RATES:
        criterion = _try_rate(setting, first, rate, n_steps)
        found[rate] = criterion if np.isfinite(criterion) else np.inf
        log.add({"trial_rate": rate, "criterion": criterion})
        if found[rate] == np.inf or log.is_over(0.3):
            break
    return min(found, key=lambda rate: found[rate])


def _try_rate(setting: Setting, first: Visit, rate: float, n_steps: int) -> float:
    """The criterion after `n_steps` as the run would take them, anchors included."""
    plan = setting.plan
    at = _start(setting, first, rate, n_steps)
    state, visit = at.state, at.best
    for step in range(0, n_steps, plan.chunk_steps):
        state, _ = take_steps(setting, state, step, plan.chunk_steps)
        taken = step + plan.chunk_steps
        if taken == n_steps or taken % plan.steps_per_visit == 0:
            visit = _visit(setting, state)
            if not np.isfinite(visit.criterion):
                return visit.criterion
            state = _anchored(setting, state, visit)
    return visit.criterion


def _entry(setting: Setting, visit: Visit, step: int) -> dict[str, float]:
    entry = {
        "step": step,
        "epoch": step / setting.plan.steps_per_epoch,
        "nlml": visit.nlml,
        "variance": visit.chosen.variance,
        "noise_variance": visit.chosen.noise_variance,
    }
    return entry if visit.nlpd is None else {**entry, "held_out_nlpd": visit.nlpd}


def _finish(setting: Setting, at: _Progress, log: Log, result: RESULTS) -> FitResult:
    spectrum, nlml = on_all_rows(at.best, setting.source, setting.split)
    gp = at.best.gp.with_variances(*at.best.chosen)
    converged = result is RESULTS.successful
    return FitResult(gp, spectrum, nlml, at.step, converged, result, log.history, log.seconds())


def _mark(setting: Setting) -> str:
    """The fingerprint of a run; a thousand rows stand for the data."""
    size = setting.source.size
    rows = setting.source.take(np.linspace(0, size - 1, min(size, 1000)).astype(np.int64))
    return checkpoints.fingerprint(setting.learner, setting.gp, setting.plan, setting.seed, size, rows)
