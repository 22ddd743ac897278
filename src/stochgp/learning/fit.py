"""The loop of learning: compiled stretches of steps, with an evaluation on the host after each."""

import os
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from stochgp.data.memory import MemorySource
from stochgp.deadline import TimeIsUpError, within
from stochgp.devices import agreed, from_first, is_writer, together
from stochgp.learners.base import AbstractLearner, Problem
from stochgp.learners.evaluators import AbstractEvaluator, ByLoss
from stochgp.learners.evidence import ByEvidence
from stochgp.learning.run import Log, Loop, Progress, Report, choose_rate
from stochgp.models import AbstractGP
from stochgp.numerics.arrays import on_host
from stochgp.numerics.seeds import key_of, seed_of, split
from stochgp.results import RESULTS, FitResult
from stochgp.storage import checkpoint as checkpoints

DONE = (RESULTS.successful, RESULTS.not_settled)
SLOWER = 0.3
MAX_RECOVERIES = 6
DIVERGED_BY = 1.0  # nats per datum above the lowest criterion
SURE = 3.0  # standard errors of a criterion that is the mean of noisy losses, which one row can dominate


def fit(
    learner: AbstractLearner,
    gp: AbstractGP,
    source: MemorySource,
    *,
    key: PRNGKeyArray,
    progress: Report | None = None,
    checkpoint: str | os.PathLike | None = None,
    time_limit: float | None = None,
    max_steps: int | None = None,
) -> FitResult:
    """Learn θ of `gp` from the rows of `source`.

    After every stretch of steps the learner's evaluator evaluates the state, the history gets an entry, and the checkpoint is written. A criterion that is
    not finite, or 1 nat per datum above the lowest (a mean of noisy losses: by three of its standard errors), returns the run to the state of the
    lowest one, at 0.3 of the rate. This happens at most 6 times; such entries have `recovered` 1. The evaluator says which state the run returns, and
    which rates are tried first. Of several processes all call this with the same rows; process 0 alone reads and writes the checkpoint.

    `converged`: the learner has finished; or all planned steps were taken and the evaluator finds the run settled.

    Raises CheckpointError, a ValueError, for a damaged checkpoint and for that of another run.

    Parameters
    ----------
    learner, gp : AbstractLearner, AbstractGP
        How θ is learned; the model, with the θ at which the run starts.
    source : MemorySource
        All rows, of which the evaluator may hold some out. Its mesh shares passes and large batches.
    key : JAX key
        Of all that is random: held-out rows, preparation, first state and steps.
    progress : function or None
        Called with every entry of the history; if it returns True, the run ends as by Ctrl-C.
    checkpoint : path or None
        A file: if it exists, the run resumes from it and gives the same result as an unbroken one.
    time_limit, max_steps : float or None, int or None
        Seconds, and steps; 0 steps = the model is evaluated as it is. They, a deadline around this call (`deadline.within`) and Ctrl-C end the run
        with the state that it would return. No step and no evaluation is begun that is expected to end later.
    """
    with jax.enable_x64(True), together(source.mesh), within(time_limit):
        log = Log(progress)
        return _fit(_set_up(learner, gp, source, key, max_steps), log, checkpoint)


def continued(
    first: FitResult,
    gp: AbstractGP,
    learner: AbstractLearner,
    source: MemorySource,
    *,
    progress: Report | None = None,
    **options: Any,
) -> FitResult:
    """`first` and a run that follows it with another model and learner: steps, seconds and history of both. `options` are those of `fit`.

    With the key of `first` the same rows are held out.
    """
    later = lambda entry: entry | {"step": entry["step"] + first.n_iter, "stage": 1.0}
    report = None if progress is None else lambda entry: progress(later(entry))
    second = fit(learner, gp, source, progress=report, **options)
    return second._replace(
        n_iter=first.n_iter + second.n_iter,
        history=[*first.history, *map(later, second.history)],
        seconds=first.seconds + second.seconds,
        plan=first.plan,
    )


def unless_ended(first: FitResult, second: FitResult) -> RESULTS:
    """The result of a run whose second part was given up: that of the second if the user ended it, else that of the first."""
    return second.result if second.result in (RESULTS.interrupted, RESULTS.stopped) else first.result


def evaluator_of(learner: AbstractLearner, gp: AbstractGP) -> AbstractEvaluator:
    """The learner's own, or the one that suits the model: by evidence if that takes M × M numbers, else by loss.

    Raises ValueError for evidence of a model that has no moments.
    """
    evaluator = learner.evaluator
    if evaluator is None:
        return ByEvidence() if gp.has_moments else ByLoss()
    if isinstance(evaluator, ByEvidence) and not gp.has_moments:
        raise ValueError(
            f"{type(learner).__name__} is to be evaluated by evidence, which {type(gp).__name__} has no moments for"
        )
    return evaluator


def _set_up(
    learner: AbstractLearner,
    gp: AbstractGP,
    source: MemorySource,
    key: PRNGKeyArray,
    max_steps: int | None,
) -> Loop:
    """The run; without time to prepare the learner, one of no steps."""
    prepare, init, step, divide = split(key, 4)
    evaluator = evaluator_of(learner, gp)
    division = evaluator.divide(source, seed_of(divide))
    plan, prepared = learner.plan(division.train.size, source.n_inputs, evaluator), None
    try:
        if max_steps != 0:
            prepared = learner.prepare(gp, division.train, plan, seed_of(prepare))
    except TimeIsUpError:
        max_steps = 0
    problem = Problem(division.train, plan, prepared)
    return Loop(learner, evaluator, gp, problem, division, key_of(init), seed_of(step), max_steps)


def _fit(loop: Loop, log: Log, checkpoint: str | os.PathLike | None) -> FitResult:
    # The evaluation of θ₀, with which every trial and the run begin.
    with log.evaluations.piece():
        first = loop.evaluator.initial(loop.gp, loop.division)
    if loop.max_steps == 0:
        log.add(loop.entry(first, 0))
        return _finish(loop, Progress(None, None, first, first.criterion, 0, 0), log, RESULTS.time_limit)
    # All of these compile.
    log.pieces.expected = max(log.pieces.expected, log.evaluations.seconds, loop.learner.first_seconds)
    # A state has the shape of a checkpoint's whatever its rate.
    any_rate = next(iter(loop.evaluator.rates(loop.division.train.size)), None)
    at, result = loop.at_rate(any_rate).begin(first), RESULTS.interrupted
    mark = "" if checkpoint is None else _mark(loop)
    resumed = None if checkpoint is None else _read(checkpoint, at, mark)
    notes = {} if checkpoint is None or not is_writer() else checkpoints.notes(checkpoint)

    def save(at: Progress) -> None:
        if checkpoint is not None and is_writer():
            checkpoints.write(checkpoint, at, log.facts(), mark, notes)

    try:
        if resumed is None:
            rate, end = choose_rate(loop, first, log)
            loop = loop.at_rate(rate)
            at = loop.begin(first)
            known = loop.learner.learning_rate if rate is None else rate
            log.add(
                loop.entry(first, 0),
                **({} if known is None or callable(known) else {"rate": float(known)}),
            )
            if end is not None:
                at = end
                log.add(loop.entry(at.kept, at.step))
        else:
            at, facts = resumed
            log.resume(facts)
        result, at = _loop(loop, at, log, save)
    except KeyboardInterrupt:
        pass
    except TimeIsUpError:
        result = RESULTS.time_limit
    return _finish(loop, at, log, result)


def _read(checkpoint: str | os.PathLike, like: Progress, mark: str) -> tuple[Progress, dict[str, Any]] | None:
    """The checkpoint of a run, which process 0 reads. Raises CheckpointError, in every process, for that of another run."""
    found, error = None, None
    try:
        found = checkpoints.read(checkpoint, like, mark) if is_writer() else None
    except checkpoints.CheckpointError as refused:
        error = str(refused)
    error, facts = from_first((error, None if found is None else found[1]))
    if error is not None:
        raise checkpoints.CheckpointError(error)
    if facts is None:
        return None
    return agreed(like if found is None else found[0]), facts


def _loop(loop: Loop, at: Progress, log: Log, save: Callable[[Progress], None]) -> tuple[RESULTS, Progress]:
    """Steps and evaluations until the plan is done or something ends it."""
    try:
        ended = _ended(loop, at, log) or log.result()  # a resumed run may be over
        while ended is None:
            at = _advance(loop, at, log)
            if not at.cut:  # else an unbroken run would not have continued from here
                save(at)
            ended = _ended(loop, at, log) or log.result()
    except KeyboardInterrupt:
        return RESULTS.interrupted, at
    except TimeIsUpError:
        return RESULTS.time_limit, at
    return ended, at


def _advance(loop: Loop, at: Progress, log: Log) -> Progress:
    """One stretch and one evaluation; after divergence, the best state at a smaller rate."""
    wanted = min(loop.problem.plan.steps_per_evaluation, at.until - at.step)
    most = wanted if loop.max_steps is None else min(wanted, loop.max_steps - at.step)
    state, taken, numbers, evaluation = loop.take(at, log, most, log.is_over)
    criterion, step = evaluation.criterion, at.step + taken
    lost = not np.isfinite(criterion) or criterion - SURE * evaluation.error > at.lowest + DIVERGED_BY
    log.add(loop.entry(evaluation, step), recovered=float(lost), **numbers)
    at = at._replace(step=step, cut=taken < wanted)
    if lost:
        return _back(loop, at)
    state = loop.learner.after_evaluation(state, evaluation)
    at = at._replace(state=state)
    if criterion <= at.lowest:
        at = at._replace(best_state=state, lowest=criterion)
    if not (loop.evaluator.returns_best and criterion > at.kept.criterion):
        at = at._replace(kept=evaluation)
    return loop.next_cycle(at)


def _back(loop: Loop, at: Progress) -> Progress:
    """At the best evaluation, at a smaller rate."""
    slower, kept = loop.learner.slower(at.best_state, SLOWER), at.kept
    if at.step < at.until and loop.in_cycles:
        slower = loop.learner.decaying(slower, at.until - at.step)
    if not loop.evaluator.returns_best:
        loss = at.lowest if np.isfinite(at.lowest) else np.nan
        kept = loop.evaluator.evaluate(loop.learner.model(slower), {"loss": loss}, loop.division)
    return at._replace(state=slower, best_state=slower, kept=kept)


def _ended(loop: Loop, at: Progress, log: Log) -> RESULTS | None:
    """How the run ended according to its history; None if it continues."""
    lost = [entry.get("recovered", 0.0) > 0 for entry in log.history]
    last, moved = log.history[-1], at.step > 0
    done = at.step >= at.until or (moved and loop.learner.exhausted(last))
    if sum(lost) > MAX_RECOVERIES or (done and lost[-1]):
        return RESULTS.diverged
    if moved and not lost[-1] and loop.learner.finished(last):
        return RESULTS.successful
    if not done and loop.max_steps is not None and at.step >= loop.max_steps:
        return RESULTS.time_limit
    if done:
        settled = at.stalled if loop.in_cycles else loop.evaluator.settled(log.history)
        return RESULTS.successful if settled else RESULTS.not_settled
    return None


def _finish(loop: Loop, at: Progress, log: Log, result: RESULTS) -> FitResult:
    gp, evidence = loop.evaluator.finalize(at.kept, loop.division)
    learner, held_out, state = loop.learner, loop.division.held_out, at.state
    # Streams need the state of the model that is returned.
    if state is not None and not eqx.tree_equal(on_host(learner.model(state)), on_host(gp)):
        state = None
    return FitResult(
        gp,
        at.kept.criterion,
        evidence,
        at.step,
        result is RESULTS.successful,
        result,
        log.history,
        log.seconds(),
        loop.problem.plan,
        0 if held_out is None else held_out.size,
        None if state is None else learner.to_go_on(state),
    )


def _mark(loop: Loop) -> str:
    """The fingerprint of a run; a thousand rows stand for the data."""
    source = loop.division.train
    some = np.linspace(0, source.size - 1, min(source.size, 1000)).astype(np.int64)
    group = () if source.group is None else (source.group[some],)
    parts = (loop.learner, loop.evaluator, loop.gp, loop.problem.plan, loop.seed, source.size)
    return checkpoints.fingerprint(*parts, source.take(some), *group)
