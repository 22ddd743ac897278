"""The one loop: steps in compiled stretches, a visit of the host between them."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from stochgp.data.streams import AbstractSource, Rows, independent_batches, shuffled_batches
from stochgp.learners import checkpoint as checkpoints
from stochgp.learners.base import AbstractLearner, Planned
from stochgp.learners.descent import start_rate
from stochgp.learners.visit import Split, Visit, examine, make_split, on_all_rows
from stochgp.models import FeatureGP
from stochgp.planning import RATES, StepPlan, plan_steps, trial_steps
from stochgp.results import RESULTS, FitResult

Report = Callable[[dict[str, float]], object]

SLOWER = 0.3
MOST_RECOVERIES = 6
DIVERGED_BY = 1.0  # nats per datum above the best
SETTLED_BY = 0.01  # nats per datum


class _Setting(NamedTuple):
    """What does not change during a run."""

    learner: AbstractLearner
    gp: FeatureGP
    source: AbstractSource
    split: Split
    plan: StepPlan
    seed: tuple[int, ...]
    init_key: PRNGKeyArray
    step_key: PRNGKeyArray
    count: float


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
        return _fit(learner, gp, source, key, progress, checkpoint, time_limit)


def _fit(learner, gp, source, key, progress, checkpoint, time_limit) -> FitResult:
    clock = _Clock(time_limit)
    setting = _set_up(learner, gp, source, key)
    history: list[dict[str, float]] = []

    def record(entry: dict[str, float]) -> None:
        history.append(entry)
        if progress is not None:
            progress(entry)

    mark = (
        checkpoints.fingerprint(learner, gp, setting.plan, setting.seed, _sketch(source))
        if checkpoint
        else ""
    )
    result = RESULTS.successful
    at = _start(setting, 0.0)
    try:
        resumed = checkpoints.read(checkpoint, at, mark) if checkpoint else None
        if resumed is None:
            rate = _choose_rate(setting, clock, record)
            at = _start(setting, rate)
            record(_entry(setting, at.best, at.step, clock, rate=rate))
        else:
            at, facts = resumed
            for entry in facts["history"]:
                history.append(entry)
            clock.add(facts["seconds"])
        result, at = _loop(setting, at, history, record, clock, checkpoint, mark)
    except KeyboardInterrupt:
        result = RESULTS.interrupted
    return _finish(setting, at, history, clock, result)


def _loop(setting, at, history, record, clock, checkpoint, mark) -> tuple[RESULTS, _Progress]:
    """Steps and visits until the plan is done or something ends it."""
    recoveries = sum(1 for entry in history if entry.get("recovered"))
    try:
        while at.step < setting.plan.total_steps:
            state, taken, info = _stretch(setting, at, clock)
            visit = examine(setting.learner, setting.learner.model(state), setting.source, setting.split)
            step = at.step + taken
            lost = not np.isfinite(visit.criterion) or visit.criterion > at.best.criterion + DIVERGED_BY
            record(_entry(setting, visit, step, clock, recovered=float(lost), **info))
            if lost:
                recoveries += 1
                slower = setting.learner.slower(at.best_state, SLOWER)
                at = _Progress(slower, slower, at.best, step)
                if recoveries > MOST_RECOVERIES:
                    return RESULTS.diverged, at
            else:
                state = _anchored(setting, state, visit)
                better = visit.criterion <= at.best.criterion
                at = _Progress(
                    state,
                    state if better else at.best_state,
                    visit if better else at.best,
                    step,
                )
            if checkpoint:
                checkpoints.write(checkpoint, at, {"history": history, "seconds": clock.elapsed()}, mark)
            if clock.over():
                return RESULTS.time_limit, at
            if not lost and setting.learner.finished(info):
                return RESULTS.successful, at
    except KeyboardInterrupt:
        return RESULTS.interrupted, at
    return (RESULTS.successful if _settled(history) else RESULTS.not_settled), at


def _set_up(learner: AbstractLearner, gp: FeatureGP, source: AbstractSource, key: PRNGKeyArray) -> _Setting:
    split_key, batch_key, init_key, step_key = jax.random.split(key, 4)
    split = make_split(source.size, learner.validation_fraction, _seed(split_key))
    plan = plan_steps(
        len(split.train),
        4 * (source.n_inputs + 2) * learner.batches_per_step,
        learner.batch_size,
        learner.epochs,
    )
    count = _total_weight(source, split)
    return _Setting(learner, gp, source, split, plan, _seed(batch_key), init_key, step_key, count)


def _start(setting: _Setting, rate: float, total_steps: int | None = None) -> _Progress:
    """Step 0, visited."""
    total = setting.plan.total_steps if total_steps is None else total_steps
    planned = Planned(len(setting.split.train), setting.count, total, rate)
    state = setting.learner.init(setting.gp, planned, key=setting.init_key)
    visit = examine(setting.learner, setting.gp, setting.source, setting.split)
    state = _anchored(setting, state, visit)
    return _Progress(state, state, visit, 0)


def _anchored(setting: _Setting, state: Any, visit: Visit) -> Any:
    if not setting.learner.anchors:
        return state
    gp = visit.gp.with_variances(*visit.fitted)
    return setting.learner.anchor(state, gp, visit.spectrum, *visit.fitted)


def _stretch(setting: _Setting, at: _Progress, clock: "_Clock") -> tuple[Any, int, dict[str, float]]:
    """(state, steps taken, means of Info) of the steps up to the next visit; fewer where time is over."""
    plan, state, taken, infos = setting.plan, at.state, 0, []
    until = min(plan.steps_per_visit, plan.total_steps - at.step)
    while taken < until:
        n_steps = min(plan.chunk_steps, until - taken)
        state, info = _run(setting, state, at.step + taken, n_steps)
        infos.append(info)
        taken += n_steps
        if clock.over():
            break
    means = {name: float(np.mean([getattr(i, name) for i in infos])) for name in infos[0]._fields}
    return state, taken, means


def _run(setting: _Setting, state: Any, step: int, n_steps: int) -> tuple[Any, Any]:
    learner, plan, train = setting.learner, setting.plan, setting.split.train
    key = jax.random.fold_in(setting.step_key, step)
    if learner.batch_size is None:
        return _run_on_all(learner, state, setting.source.take(train), key, n_steps)
    draw = independent_batches if learner.replace else shuffled_batches
    streams = [
        draw(train, plan.batch_size, step, n_steps, (*setting.seed, i))
        for i in range(learner.batches_per_step)
    ]
    indices = streams[0] if len(streams) == 1 else np.stack(streams, axis=1)
    return _run_batches(learner, state, setting.source.take(indices), key)


@eqx.filter_jit
def _run_batches(learner: AbstractLearner, state: Any, batches: Rows, key: Array) -> tuple[Any, Any]:
    """One scan over a stack of batches; Info's means."""
    return _scan(
        learner, state, lambda inputs: inputs[0], (batches, jax.random.split(key, batches.y.shape[0]))
    )


@eqx.filter_jit
def _run_on_all(
    learner: AbstractLearner, state: Any, rows: Rows, key: Array, n_steps: int
) -> tuple[Any, Any]:
    return _scan(learner, state, lambda _: rows, (None, jax.random.split(key, n_steps)))


def _scan(learner: AbstractLearner, state: Any, batch_of: Callable, inputs: Any) -> tuple[Any, Any]:
    dynamic, static = eqx.partition(state, eqx.is_array)

    def body(carry: Any, item: Any) -> tuple[Any, Any]:
        new, info = learner.step(eqx.combine(carry, static), batch_of(item), key=item[1])
        return eqx.filter(new, eqx.is_array), info

    dynamic, infos = jax.lax.scan(body, dynamic, inputs)
    return eqx.combine(dynamic, static), jax.tree.map(jnp.mean, infos)


def _choose_rate(setting: _Setting, clock: "_Clock", record: Report) -> float:
    """The rate given; otherwise the one of RATES whose short trial, with its own decay, ends at the lowest criterion."""
    given = setting.learner.learning_rate
    if given is not None:
        return start_rate(given, None)
    n_steps, found = trial_steps(setting.plan), {}
    for rate in RATES:
        at = _start(setting, rate, n_steps)
        state = at.state
        for step in range(0, n_steps, setting.plan.chunk_steps):
            state, _ = _run(setting, state, step, setting.plan.chunk_steps)
        visit = examine(setting.learner, setting.learner.model(state), setting.source, setting.split)
        found[rate] = visit.criterion if np.isfinite(visit.criterion) else np.inf
        record({"trial_rate": rate, "criterion": float(visit.criterion), "seconds": clock.elapsed()})
        if found[rate] == np.inf or clock.over(0.3):
            break
    return min(found, key=lambda rate: found[rate])


def _entry(setting: _Setting, visit: Visit, step: int, clock: "_Clock", **more: float) -> dict[str, float]:
    entry = {
        "step": step,
        "epoch": step / setting.plan.steps_per_epoch,
        "seconds": clock.elapsed(),
        "nlml": visit.nlml,
        "variance": visit.chosen.variance,
        "noise_variance": visit.chosen.noise_variance,
        **more,
    }
    return entry if visit.nlpd is None else {**entry, "held_out_nlpd": visit.nlpd}


def _finish(setting: _Setting, at: _Progress, history: list, clock: "_Clock", result: RESULTS) -> FitResult:
    spectrum, nlml = on_all_rows(at.best, setting.source, setting.split)
    gp = at.best.gp.with_variances(*at.best.chosen)
    converged = result is RESULTS.successful
    return FitResult(gp, spectrum, nlml, at.step, converged, result, history, clock.elapsed())


def _settled(history: list[dict[str, float]]) -> bool:
    """Whether the best criterion improved by less than SETTLED_BY over the last tenth of the visits, at least one."""
    values = [entry.get("held_out_nlpd", entry["nlml"]) for entry in history if "step" in entry]
    lowest = np.minimum.accumulate([v if np.isfinite(v) else np.inf for v in values])
    return (
        bool(lowest[-1 - max(1, len(lowest) // 10)] - lowest[-1] < SETTLED_BY) if len(lowest) > 1 else False
    )


def _total_weight(source: AbstractSource, split: Split) -> float:
    chunks = source.chunks(split.train, 65_536)
    return float(sum(np.sum(np.asarray(rows.weight), dtype=np.float64) for rows in chunks))


def _sketch(source: AbstractSource) -> tuple:
    """A few numbers that change when the data does."""
    rows = source.take(np.linspace(0, source.size - 1, min(source.size, 1000)).astype(np.int64))
    return (source.size, source.n_inputs, rows.X, rows.y, rows.weight)


def _seed(key: PRNGKeyArray) -> tuple[int, ...]:
    return tuple(int(word) for word in np.ravel(jax.random.bits(key, (2,), jnp.uint32)))


class _Clock:
    """Seconds since the start, of earlier parts of a resumed run too; the limit is for this call."""

    def __init__(self, limit: float | None):
        self.begun, self.limit, self.earlier = time.perf_counter(), limit, 0.0

    def add(self, seconds: float) -> None:
        self.earlier += seconds

    def elapsed(self) -> float:
        return self.earlier + time.perf_counter() - self.begun

    def over(self, fraction: float = 1.0) -> bool:
        return self.limit is not None and time.perf_counter() - self.begun > fraction * self.limit
