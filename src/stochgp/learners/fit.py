"""The one loop: steps in compiled stretches, a visit of the host between them."""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from stochgp.data.streams import AbstractSource
from stochgp.deadline import TimeIsUpError, within
from stochgp.learners.base import AbstractLearner, Problem
from stochgp.learners.evidence import ByEvidence
from stochgp.learners.judge import AbstractJudge, ByLoss, Division, Numbers, Seed, Visit
from stochgp.learners.log import Log, Report
from stochgp.learners.steps import take_stretch
from stochgp.models import AbstractGP
from stochgp.numerics.seeds import key_of, seed_of, split
from stochgp.planning.steps import first_trial_steps
from stochgp.results import RESULTS, FitResult
from stochgp.storage import checkpoint as checkpoints

SLOWER = 0.3
MOST_RECOVERIES = 6
DIVERGED_BY = 1.0  # nats per datum above the lowest criterion
SHARE_FOR_TRIALS = 0.3  # of the time limit


class Extent(NamedTuple):
    """How far a run is to go that was cut short once, to be as long again; None = as far as it is planned."""

    steps: int | None = None
    trials: int | None = None  # of rates


WHOLE = Extent()


class Progress(NamedTuple):
    """Where a run stands: enough to go on from."""

    state: Any
    best_state: Any  # of the visit of the lowest criterion
    kept: Visit  # what the run would return now
    lowest: float
    step: int


class Setting(NamedTuple):
    """What does not change during a run."""

    learner: AbstractLearner
    judge: AbstractJudge
    gp: AbstractGP
    problem: Problem
    division: Division
    init_key: PRNGKeyArray
    seed: Seed
    extent: Extent


def fit(
    learner: AbstractLearner,
    gp: AbstractGP,
    source: AbstractSource,
    *,
    key: PRNGKeyArray,
    progress: Report | None = None,
    checkpoint: str | os.PathLike | None = None,
    time_limit: float | None = None,
    extent: Extent = WHOLE,
) -> FitResult:
    """Learn θ of `gp` from the rows of `source`.

    After every stretch of steps the host visits: the learner's judge looks at the state, the history gets an entry, the checkpoint is
    written. A criterion that is not finite, or 1 nat per datum above the lowest, sends the run back to the visit of the lowest one, and on at
    0.3 of the rate. This happens at most 6 times; such entries have `recovered` 1. The judge says which visit the run returns, and which
    rates are tried first.

    `progress` is called with every entry of the history; if it returns True, the run ends as by Ctrl-C. `checkpoint` names a file: where it
    exists, the run goes on from it and gives the same result as an unbroken one. `time_limit` is in seconds; it, a deadline around this call
    (`deadline.within`) and Ctrl-C end the run with the visit that it would return. No step and no visit is begun that is expected to end
    later. `extent` ends a run where another one was cut: its number of trials and its steps.

    `converged`: the learner said that it had finished; or all planned steps were taken and the judge finds the run settled.

    Raises ValueError for a checkpoint of another run.
    """
    with jax.enable_x64(True), within(time_limit):
        log = Log(progress)
        return _fit(_set_up(learner, gp, source, key, extent), log, checkpoint)


def judge_of(learner: AbstractLearner, gp: AbstractGP) -> AbstractJudge:
    """The learner's own, or the one that suits the model: by evidence where that takes M × M numbers, else by loss.

    Raises ValueError for a judge that asks for evidence of a model that has no such numbers.
    """
    judge = learner.judge
    if judge is None:
        return ByEvidence() if gp.has_moments else ByLoss()
    if isinstance(judge, ByEvidence) and not gp.has_moments:
        raise ValueError(
            f"{type(learner).__name__} is to be judged by evidence, which {type(gp).__name__} has no moments for"
        )
    return judge


def _set_up(
    learner: AbstractLearner, gp: AbstractGP, source: AbstractSource, key: PRNGKeyArray, extent: Extent
) -> Setting:
    """Where there is no time to prepare the learner, the run has no steps."""
    prepare, init, step, divide = split(key, 4)
    judge = judge_of(learner, gp)
    division = judge.divide(source, seed_of(divide))
    plan, prepared = learner.plan(division.train.size, source.n_inputs, judge), None
    try:
        if extent.steps != 0:
            prepared = learner.prepare(gp, division.train, plan, seed_of(prepare))
    except TimeIsUpError:
        extent = Extent(0, 0)
    problem = Problem(division.train, plan, prepared)
    return Setting(learner, judge, gp, problem, division, key_of(init), seed_of(step), extent)


def _fit(setting: Setting, log: Log, checkpoint: str | os.PathLike | None) -> FitResult:
    # The visit of θ₀, with which every trial and the run begin.
    with log.visits.piece():
        first = setting.judge.at_start(setting.gp, setting.division)
    if setting.extent.steps == 0:
        log.add(_entry(setting, first, 0))
        return _finish(setting, Progress(None, None, first, first.criterion, 0), log, RESULTS.time_limit)
    log.pieces.expected = max(log.pieces.expected, log.visits.seconds)  # both compile
    any_rate = next(iter(_rates(setting)), None)  # a state has the shape of a checkpoint's whatever its rate
    at, result = _begun(_with_rate(setting, any_rate), first), RESULTS.interrupted
    mark = "" if checkpoint is None else _mark(setting)
    resumed = None if checkpoint is None else checkpoints.read(checkpoint, at, mark)

    def save(at: Progress) -> None:
        if checkpoint is not None:
            checkpoints.write(checkpoint, at, log.facts(), mark)

    try:
        if resumed is None:
            rate = _choose_rate(setting, first, log)
            setting = _with_rate(setting, rate)
            at = _begun(setting, first)
            log.add(_entry(setting, first, 0), **_rate_of(setting))
        else:
            at, facts = resumed
            log.go_on_from(facts)
        result, at = _loop(setting, at, log, save)
    except KeyboardInterrupt:
        pass
    except TimeIsUpError:
        result = RESULTS.time_limit
    return _finish(setting, at, log, result)


def _loop(
    setting: Setting, at: Progress, log: Log, save: Callable[[Progress], None]
) -> tuple[RESULTS, Progress]:
    """Steps and visits until the plan is done or something ends it."""
    try:
        ended = _ended(setting, at, log) or log.result()  # a resumed run may be over
        while ended is None:
            at = _advance(setting, at, log)
            if _is_whole(setting, at):
                save(at)
            ended = _ended(setting, at, log) or log.result()
    except KeyboardInterrupt:
        return RESULTS.interrupted, at
    except TimeIsUpError:
        return RESULTS.time_limit, at
    return ended, at


def _is_whole(setting: Setting, at: Progress) -> bool:
    """Whether the visit is a planned one: from others, which a time limit cuts short, an unbroken run would not have gone on."""
    plan = setting.problem.plan
    return at.step >= plan.total_steps or at.step % plan.steps_per_visit == 0


def _advance(setting: Setting, at: Progress, log: Log) -> Progress:
    """One stretch and one visit; from a lost one back to the best visit at a smaller rate."""
    learner, judge = setting.learner, setting.judge
    most = None if setting.extent.steps is None else setting.extent.steps - at.step
    state, taken, numbers = take_stretch(
        learner, at.state, setting.problem, at.step, setting.seed, pieces=log.pieces, most=most, is_over=log.is_over
    )  # fmt: skip
    with log.visits.piece():
        visit, step = judge.look(learner.model(state), numbers, setting.division), at.step + taken
    criterion = visit.criterion
    lost = not np.isfinite(criterion) or criterion > at.lowest + DIVERGED_BY
    log.add(_entry(setting, visit, step), recovered=float(lost), **numbers)
    if lost:
        return _back(setting, at)._replace(step=step)
    state = learner.after_visit(state, visit)
    if criterion > at.lowest:
        return at._replace(state=state, kept=at.kept if judge.returns_best else visit, step=step)
    return Progress(state, state, visit, criterion, step)


def _back(setting: Setting, at: Progress) -> Progress:
    """At the best visit, at a smaller rate."""
    slower, kept = setting.learner.slower(at.best_state, SLOWER), at.kept
    if not setting.judge.returns_best:
        loss = at.lowest if np.isfinite(at.lowest) else np.nan
        kept = setting.judge.look(setting.learner.model(slower), {"loss": loss}, setting.division)
    return Progress(slower, slower, kept, at.lowest, at.step)


def _ended(setting: Setting, at: Progress, log: Log) -> RESULTS | None:
    """How the run ended as far as its history says, None where it goes on."""
    lost = [entry.get("recovered", 0.0) > 0 for entry in log.history]
    last, begun = log.history[-1], at.step > 0
    done = at.step >= setting.problem.plan.total_steps or (begun and setting.learner.exhausted(last))
    if sum(lost) > MOST_RECOVERIES or (done and lost[-1]):
        return RESULTS.diverged
    if begun and not lost[-1] and setting.learner.finished(last):
        return RESULTS.successful
    if not done and setting.extent.steps is not None and at.step >= setting.extent.steps:
        return RESULTS.time_limit
    if done:
        return RESULTS.successful if setting.judge.settled(log.history) else RESULTS.not_settled
    return None


def _begun(setting: Setting, visit: Visit) -> Progress:
    """Step 0, of which `visit` is the visit."""
    state = setting.learner.init(setting.gp, setting.problem, key=setting.init_key)
    state = setting.learner.after_visit(state, visit)
    lowest = visit.criterion if np.isfinite(visit.criterion) else np.inf
    return Progress(state, state, visit, lowest, 0)


def _with_rate(setting: Setting, rate: float | None, total_steps: int | None = None) -> Setting:
    plan = setting.problem.plan
    plan = plan if total_steps is None else plan._replace(total_steps=total_steps)
    return setting._replace(problem=setting.problem._replace(rate=rate, plan=plan))


def _rate_of(setting: Setting) -> Numbers:
    """For the history: the learning rate, where it is one number that the learner or the trials name."""
    given = setting.learner.learning_rate
    rate = setting.problem.rate if given is None else given
    return {} if rate is None or callable(rate) else {"rate": float(rate)}


def _rates(setting: Setting) -> tuple[float, ...]:
    return setting.judge.rates(setting.division.train.size)


def _choose_rate(setting: Setting, first: Visit, log: Log) -> float | None:
    """By successive halving: every rate is tried for a few steps, with its own decay; the better half for twice as many, until one is left.

    None where none is to be tried. Larger rates than one that was lost are not tried.
    """
    rates, learner = list(_rates(setting)), setting.learner
    if learner.learning_rate is not None or learner.batch_size is None or not rates:
        return None
    n_steps, found, most = first_trial_steps(setting.problem.plan, len(rates)), {}, setting.extent.trials
    tried = lambda: sum("trial_rate" in entry for entry in log.history)
    is_over = lambda: log.is_over(SHARE_FOR_TRIALS) or (most is not None and tried() >= most)
    while len(rates) > 1 and not is_over():
        found = {}
        for rate in rates:
            criterion = _try_rate(_with_rate(setting, rate, n_steps), first, log)
            if criterion is None:
                break
            found[rate] = criterion if np.isfinite(criterion) else np.inf
            log.add({"trial_rate": rate, "trial_steps": n_steps, "criterion": criterion})
            if found[rate] == np.inf or is_over():
                break
        best = sorted(found, key=lambda rate: found[rate])
        rates, n_steps = best[: max(1, len(found) // 2)] or rates, 2 * n_steps
    return rates[0]


def _try_rate(setting: Setting, first: Visit, log: Log) -> float | None:
    """The criterion after all steps of `setting`, taken as the run would take them, visits included; None where time is over before."""
    at, learner = _begun(setting, first), setting.learner
    state, step, criterion = at.state, 0, first.criterion
    is_over = lambda: log.is_over(SHARE_FOR_TRIALS)
    while step < setting.problem.plan.total_steps:
        wanted = min(setting.problem.plan.steps_per_visit, setting.problem.plan.total_steps - step)
        state, taken, numbers = take_stretch(
            learner, state, setting.problem, step, setting.seed, pieces=log.pieces, is_over=is_over
        )
        with log.visits.piece():
            visit = setting.judge.look(learner.model(state), numbers, setting.division)
        step, criterion = step + taken, visit.criterion
        if not np.isfinite(criterion):
            break
        state = learner.after_visit(state, visit)
        if taken < wanted or (step < setting.problem.plan.total_steps and is_over()):
            return None
    return criterion


def _entry(setting: Setting, visit: Visit, step: int) -> Numbers:
    return {"step": step, "epoch": step / setting.problem.plan.steps_per_epoch, **setting.judge.entry(visit)}


def _finish(setting: Setting, at: Progress, log: Log, result: RESULTS) -> FitResult:
    gp, evidence = setting.judge.conclude(at.kept, setting.division)
    converged = result is RESULTS.successful
    held_out = 0 if setting.division.held_out is None else setting.division.held_out.size
    return FitResult(
        gp,
        at.kept.criterion,
        evidence,
        at.step,
        converged,
        result,
        log.history,
        log.seconds(),
        setting.problem.plan,
        held_out,
        setting.learner.loss_shift,
    )


def _mark(setting: Setting) -> str:
    """The fingerprint of a run; a thousand rows stand for the data."""
    source = setting.division.train
    some = np.linspace(0, source.size - 1, min(source.size, 1000)).astype(np.int64)
    rows, group = source.take(some), () if source.group is None else (source.group[some],)
    parts = (
        setting.learner,
        setting.judge,
        setting.gp,
        setting.problem.plan,
        setting.seed,
        source.size,
        rows,
    )
    return checkpoints.fingerprint(*parts, *group)
