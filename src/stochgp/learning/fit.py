"""The one loop: steps in compiled stretches, an evaluation of the host between them."""

import os
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from stochgp.data.streams import AbstractSource
from stochgp.deadline import TimeIsUpError, within
from stochgp.devices import ONE, Devices
from stochgp.learning.base import AbstractLearner, Problem
from stochgp.learning.evidence import ByEvidence
from stochgp.learning.judge import AbstractJudge, ByLoss, Numbers
from stochgp.learning.log import Log, Report
from stochgp.learning.rates import choose_rate
from stochgp.learning.run import (
    Progress,
    Setting,
    begun,
    entry_of,
    has_patience,
    next_cycle,
    with_rate,
)
from stochgp.learning.steps import take_stretch
from stochgp.models import AbstractGP
from stochgp.numerics.arrays import on_host
from stochgp.numerics.seeds import key_of, seed_of, split
from stochgp.results import RESULTS, FitResult
from stochgp.storage import checkpoint as checkpoints

SLOWER = 0.3
MOST_RECOVERIES = 6
DIVERGED_BY = 1.0  # nats per datum above the lowest criterion
SURE = 3.0  # standard errors of a criterion that is the mean of noisy losses: one row far from all others can be all of such a mean


def fit(
    learner: AbstractLearner,
    gp: AbstractGP,
    source: AbstractSource,
    *,
    key: PRNGKeyArray,
    progress: Report | None = None,
    checkpoint: str | os.PathLike | None = None,
    time_limit: float | None = None,
    max_steps: int | None = None,
    devices: Devices = ONE,
) -> FitResult:
    """Learn θ of `gp` from the rows of `source`.

    After every stretch of steps the learner's judge evaluates the state, the history gets an entry, and the checkpoint is written. A criterion that is
    not finite, or 1 nat per datum above the lowest (a mean of noisy losses: by three of its standard errors), sends the run back to the state of the
    lowest one, and on at 0.3 of the rate. This happens at most 6 times; such entries have `recovered` 1. The judge says which state the run returns, and
    which rates are tried first. Of several processes all call this with the same rows; process 0 alone reads and writes the checkpoint.

    `converged`: the learner said that it had finished; or all planned steps were taken and the judge finds the run settled.

    Raises CheckpointError, a ValueError, for a damaged checkpoint and for that of another run.

    Parameters
    ----------
    learner : AbstractLearner
        How θ is learned.
    gp : AbstractGP
        The model, with the θ at which the run starts.
    source : AbstractSource
        All rows, of which the judge may hold some out.
    key : JAX key
        Of all that is random: held-out rows, preparation, first state and steps.
    progress : function or None
        Called with every entry of the history; if it returns True, the run ends as by Ctrl-C.
    checkpoint : path or None
        A file: where it exists, the run goes on from it and gives the same result as an unbroken one.
    time_limit : float or None
        Seconds. It, a deadline around this call (`deadline.within`) and Ctrl-C end the run with the state that it would return. No step and no
        evaluation is begun that is expected to end later.
    max_steps : int or None
        After so many steps the run ends, as by a time limit; 0 = the model is evaluated as it is.
    devices : Devices
        They share the passes over the rows, and mini-batches where `devices.steps` is True.
    """
    with jax.enable_x64(True), devices.as_one(), within(time_limit):
        log = Log(progress)
        return _fit(_set_up(learner, gp, source, key, max_steps, devices), log, checkpoint)


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
    learner: AbstractLearner,
    gp: AbstractGP,
    source: AbstractSource,
    key: PRNGKeyArray,
    max_steps: int | None,
    devices: Devices,
) -> Setting:
    """Where there is no time to prepare the learner, the run has no steps."""
    prepare, init, step, divide = split(key, 4)
    judge = judge_of(learner, gp)
    division = judge.divide(source, seed_of(divide))._replace(devices=devices)
    plan, prepared = learner.plan(division.train.size, source.n_inputs, judge), None
    try:
        if max_steps != 0:
            prepared = learner.prepare(gp, division.train, plan, seed_of(prepare))
    except TimeIsUpError:
        max_steps = 0
    problem = Problem(division.train, plan, prepared, devices=devices)
    return Setting(learner, judge, gp, problem, division, key_of(init), seed_of(step), max_steps)


def _fit(setting: Setting, log: Log, checkpoint: str | os.PathLike | None) -> FitResult:
    # The evaluation of θ₀, with which every trial and the run begin.
    with log.evaluations.piece():
        first = setting.judge.at_start(setting.gp, setting.division)
    if setting.max_steps == 0:
        log.add(entry_of(setting, first, 0))
        return _finish(setting, Progress(None, None, first, first.criterion, 0, 0), log, RESULTS.time_limit)
    first_seconds = setting.learner.first_seconds
    log.pieces.expected = max(log.pieces.expected, log.evaluations.seconds, first_seconds)  # all compile
    # A state has the shape of a checkpoint's whatever its rate.
    any_rate = next(iter(setting.judge.rates(setting.division.train.size)), None)
    at, result = begun(with_rate(setting, any_rate), first), RESULTS.interrupted
    mark = "" if checkpoint is None else _mark(setting)
    devices = setting.division.devices
    resumed = None if checkpoint is None else _read(checkpoint, at, mark, devices)
    notes = {} if checkpoint is None or not devices.is_writer else checkpoints.notes(checkpoint)

    def save(at: Progress) -> None:
        if checkpoint is not None and devices.is_writer:
            checkpoints.write(checkpoint, at, log.facts(), mark, notes)

    try:
        if resumed is None:
            rate, end = choose_rate(setting, first, log)
            setting = with_rate(setting, rate)
            at = begun(setting, first)
            log.add(entry_of(setting, first, 0), **_rate_of(setting))
            if end is not None:
                at = end
                log.add(entry_of(setting, at.kept, at.step))
        else:
            at, facts = resumed
            log.go_on_from(facts)
        result, at = _loop(setting, at, log, save)
    except KeyboardInterrupt:
        pass
    except TimeIsUpError:
        result = RESULTS.time_limit
    return _finish(setting, at, log, result)


def _read(
    checkpoint: str | os.PathLike, like: Progress, mark: str, devices: Devices
) -> tuple[Progress, dict[str, Any]] | None:
    """What process 0 finds in the file of a run. Raises ValueError, in every process, for that of another run."""
    found, error = None, None
    try:
        found = checkpoints.read(checkpoint, like, mark) if devices.is_writer else None
    except checkpoints.CheckpointError as refused:
        error = str(refused)
    agreed = devices.agree({"error": error, "facts": None if found is None else found[1]})
    if agreed["error"] is not None:
        raise checkpoints.CheckpointError(agreed["error"])
    if agreed["facts"] is None:
        return None
    return devices.broadcast(like if found is None else found[0]), agreed["facts"]


def _loop(
    setting: Setting, at: Progress, log: Log, save: Callable[[Progress], None]
) -> tuple[RESULTS, Progress]:
    """Steps and evaluations until the plan is done or something ends it."""
    try:
        ended = _ended(setting, at, log) or log.result()  # a resumed run may be over
        while ended is None:
            at = _advance(setting, at, log)
            if not at.cut:  # else an unbroken run would not have gone on from here
                save(at)
            ended = _ended(setting, at, log) or log.result()
    except KeyboardInterrupt:
        return RESULTS.interrupted, at
    except TimeIsUpError:
        return RESULTS.time_limit, at
    return ended, at


def _advance(setting: Setting, at: Progress, log: Log) -> Progress:
    """One stretch and one evaluation; from a lost one back to the best evaluation at a smaller rate."""
    learner, judge = setting.learner, setting.judge
    wanted = min(setting.problem.plan.steps_per_evaluation, at.until - at.step)
    most = wanted if setting.max_steps is None else min(wanted, setting.max_steps - at.step)
    state, taken, numbers = take_stretch(
        learner, at.state, setting.problem, at.step, setting.seed, pieces=log.pieces, most=most, is_over=log.is_over
    )  # fmt: skip
    with log.evaluations.piece():
        evaluation, step = judge.look(learner.model(state), numbers, setting.division), at.step + taken
    criterion = evaluation.criterion
    lost = not np.isfinite(criterion) or criterion - SURE * evaluation.error > at.lowest + DIVERGED_BY
    log.add(entry_of(setting, evaluation, step), recovered=float(lost), **numbers)
    at = at._replace(step=step, cut=taken < wanted)
    if lost:
        return _back(setting, at)
    state = learner.after_evaluation(state, evaluation)
    at = at._replace(state=state)
    if criterion <= at.lowest:
        at = at._replace(best_state=state, lowest=criterion)
    if not (judge.returns_best and criterion > at.kept.criterion):
        at = at._replace(kept=evaluation)
    return next_cycle(setting, at)


def _back(setting: Setting, at: Progress) -> Progress:
    """At the best evaluation, at a smaller rate."""
    slower, kept = setting.learner.slower(at.best_state, SLOWER), at.kept
    if at.step < at.until and has_patience(setting):
        slower = setting.learner.decaying(slower, at.until - at.step)
    if not setting.judge.returns_best:
        loss = at.lowest if np.isfinite(at.lowest) else np.nan
        kept = setting.judge.look(setting.learner.model(slower), {"loss": loss}, setting.division)
    return at._replace(state=slower, best_state=slower, kept=kept)


def _ended(setting: Setting, at: Progress, log: Log) -> RESULTS | None:
    """How the run ended as far as its history says, None where it goes on."""
    lost = [entry.get("recovered", 0.0) > 0 for entry in log.history]
    last, moved = log.history[-1], at.step > 0
    done = at.step >= at.until or (moved and setting.learner.exhausted(last))
    if sum(lost) > MOST_RECOVERIES or (done and lost[-1]):
        return RESULTS.diverged
    if moved and not lost[-1] and setting.learner.finished(last):
        return RESULTS.successful
    if not done and setting.max_steps is not None and at.step >= setting.max_steps:
        return RESULTS.time_limit
    if done:
        settled = at.stalled if has_patience(setting) else setting.judge.settled(log.history)
        return RESULTS.successful if settled else RESULTS.not_settled
    return None


def _rate_of(setting: Setting) -> Numbers:
    """For the history: the learning rate, where it is one number that the learner or the trials name."""
    given = setting.learner.learning_rate
    rate = setting.problem.rate if given is None else given
    return {} if rate is None or callable(rate) else {"rate": float(rate)}


def _finish(setting: Setting, at: Progress, log: Log, result: RESULTS) -> FitResult:
    gp, evidence = setting.judge.conclude(at.kept, setting.division)
    converged = result is RESULTS.successful
    held_out = 0 if setting.division.held_out is None else setting.division.held_out.size
    state, learner = _state_of(setting, at, gp), setting.learner
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
        None if state is None else learner.standard_errors(state),
        None if state is None else learner.to_go_on(state),
    )


def _state_of(setting: Setting, at: Progress, gp: AbstractGP) -> Any:
    """The state that the run ended with, where its model is the one returned; else None."""
    if at.state is None:
        return None
    same = eqx.tree_equal(on_host(setting.learner.model(at.state)), on_host(gp))
    return at.state if same else None


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
