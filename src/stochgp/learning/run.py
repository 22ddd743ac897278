"""A run of a learner: its log, its steps between evaluations, its cycles, and trials of learning rates."""

import dataclasses
import logging
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import PRNGKeyArray

from stochgp import deadline
from stochgp.deadline import Pace, TimeIsUpError
from stochgp.devices import agreed
from stochgp.learners.base import SQUARES, AbstractLearner, Problem
from stochgp.learners.evaluators import AbstractEvaluator, Division, Numbers, Seed
from stochgp.learners.step_plan import LONGER, trial_steps
from stochgp.models import AbstractGP
from stochgp.results import RESULTS

Report = Callable[[dict[str, float]], object]
FIRST_PIECE = 0.3  # seconds that the first part of a stretch takes at least, since it has to be compiled
GAIN = 0.01  # nats per datum by which a cycle must be better than the one before, for another to follow
SHARE_FOR_TRIALS = 0.3  # of the time limit

logger = logging.getLogger("stochgp.learners")


class Log:
    """The history of a run and its clock. Seconds include earlier parts of a resumed run; the deadline is that of this call.

    `evaluations` is the pace of evaluations, for which the stretch before them leaves time, `pieces` that of the compiled parts of a stretch.
    """

    def __init__(self, report: Report | None):
        self.history: list[dict[str, float]] = []
        self.report, self.stopped = report, False
        self.begun, self.earlier, self.allowed = time.perf_counter(), 0.0, deadline.left()
        self.evaluations, self.pieces = Pace(), Pace()
        self.pieces.expected = FIRST_PIECE

    def add(self, entry: dict[str, float], **more: float) -> None:
        """A report that returns True stops the run."""
        self.history.append({**entry, "seconds": self.seconds(), **more})
        logger.debug("%s", self.history[-1])
        if self.report is not None and self.report(self.history[-1]) is True:
            self.stopped = True

    def resume(self, facts: dict[str, Any]) -> None:
        self.history.extend(facts["history"])
        self.earlier = facts["seconds"]
        logger.info("a run resumes after %d evaluations and %.1f s", len(self.history), self.earlier)

    def facts(self) -> dict[str, Any]:
        return {"history": self.history, "seconds": self.seconds()}

    def seconds(self) -> float:
        return self.earlier + time.perf_counter() - self.begun

    def result(self) -> RESULTS | None:
        """How the run ends now, if it is over."""
        return RESULTS.stopped if self.stopped else RESULTS.time_limit if self.is_over() else None

    def is_over(self, fraction: float = 1.0) -> bool:
        """Return True if another piece and its evaluation would end after this fraction of the time that the run was given."""
        kept = 0.0 if fraction == 1.0 else (1 - fraction) * self.allowed
        return self.stopped or deadline.left() < kept + self.evaluations.expected + self.pieces.expected


class Progress(NamedTuple):
    """The state of a run: enough to resume it.

    A run of a given number of steps is one cycle, in which the rate falls to 0. A run in cycles adds cycles LONGER each, from the
    best state of all before, for as long as the last one gained GAIN and another fits into its plan.
    """

    state: Any
    best_state: Any  # of the evaluation of the lowest criterion
    kept: Any  # the evaluation that the run would return now
    lowest: float
    step: int
    until: int  # the step with which the cycle ends
    first: int = 0  # the step with which it began
    before: float = np.inf  # the lowest criterion then; inf in the first cycle, which is always followed
    stalled: bool = False  # whether the run ended as the last cycle gained too little
    cut: bool = False  # whether time cut the last stretch short


@dataclasses.dataclass(frozen=True)
class Loop:
    """What does not change during a run."""

    learner: AbstractLearner
    evaluator: AbstractEvaluator
    gp: AbstractGP
    problem: Problem
    division: Division
    init_key: PRNGKeyArray
    seed: Seed
    max_steps: int | None = None

    @property
    def in_cycles(self) -> bool:
        """Whether the run continues for as long as it gains: if its plan has cycles, and no rule of the step sets the rate."""
        return self.problem.plan.first_cycle > 0 and not callable(self.learner.learning_rate)

    def at_rate(self, rate: float | None, total_steps: int | None = None) -> "Loop":
        """The run at this rate; in one cycle of `total_steps`, if given."""
        plan = self.problem.plan
        plan = plan if total_steps is None else plan._replace(total_steps=total_steps, first_cycle=0)
        return dataclasses.replace(self, problem=self.problem._replace(rate=rate, plan=plan))

    def begin(self, evaluation: Any) -> Progress:
        """Step 0, with its evaluation."""
        plan, until = self.problem.plan, self.problem.plan.total_steps
        state = self.learner.init(self.gp, self.problem, key=self.init_key)
        state = self.learner.after_evaluation(state, evaluation)
        lowest = evaluation.criterion if np.isfinite(evaluation.criterion) else np.inf
        if self.in_cycles:
            state, until = self.learner.decaying(state, plan.first_cycle), plan.first_cycle
        return Progress(state, state, evaluation, lowest, 0, until)

    def take(
        self, at: Progress, log: Log, most: int | None, is_over: Callable[[], bool]
    ) -> tuple[Any, int, Numbers, Any]:
        """(State after a stretch, steps taken, means of their numbers, the evaluation)."""
        args = (self.learner, at.state, self.problem, at.step, self.seed)
        state, taken, numbers = take_stretch(*args, pieces=log.pieces, most=most, is_over=is_over)
        with log.evaluations.piece():
            evaluation = self.evaluator.evaluate(self.learner.model(state), numbers, self.division)
        return state, taken, numbers, evaluation

    def next_cycle(self, at: Progress) -> Progress:
        """The start of another cycle, if one has ended, gained something and another fits; else `at`."""
        if not self.in_cycles or at.step < at.until or at.cut:
            return at
        if not at.lowest < at.before - GAIN:
            return at._replace(stalled=True)
        until = at.step + LONGER * (at.until - at.first)
        if until > self.problem.plan.total_steps:
            return at
        state = self.learner.decaying(at.best_state, until - at.step)
        return at._replace(state=state, best_state=state, first=at.step, until=until, before=at.lowest)

    def entry(self, evaluation: Any, step: int) -> Numbers:
        """The entry of an evaluation in the history."""
        epoch = step / self.problem.plan.steps_per_epoch
        return {"step": step, "epoch": epoch, **self.evaluator.entry(evaluation)}


def take_stretch(
    learner: AbstractLearner,
    state: Any,
    problem: Problem,
    step: int,
    seed: Seed,
    *,
    pieces: Pace,
    most: int | None = None,
    is_over: Callable[[], bool] = lambda: False,
) -> tuple[Any, int, Numbers]:
    """(State, steps taken, means of their numbers) of the steps from `step` to the next evaluation, at most `most`; fewer if time is over.

    Raises TimeIsUpError if not even the first part ends in time.
    """
    plan, taken, parts = problem.plan, 0, []
    until = min(plan.steps_per_evaluation, plan.total_steps - step)
    until = until if most is None else min(until, most)
    while taken < until and not (parts and is_over()):
        n_steps = min(plan.chunk_steps, until - taken)
        try:
            with pieces.piece():
                state, numbers = learner.advance(state, problem, step + taken, n_steps, seed)
        except TimeIsUpError:
            if not parts:
                raise
            break
        taken += int(numbers.pop("taken", n_steps))
        parts.append(numbers)
    means = {name: float(np.mean([part[name] for part in parts])) for name in parts[0]}
    if (squares := means.pop(SQUARES, None)) is not None:
        means["loss_error"] = float(np.sqrt(max(squares - means["loss"] ** 2, 0.0) / taken))
    state, means = agreed((state, means))
    return state, taken, means


def choose_rate(loop: Loop, first: Any, log: Log) -> tuple[float | None, Progress | None]:
    """(The learning rate, the progress after its trial), each None if there is none.

    Every rate is tried for a few steps, with its own decay. The best trial is the first cycle of a run in cycles; a run of a given number of
    steps begins again. A trial that diverges is worse than any other. Without time for trials, the middle rate.
    """
    rates, learner = loop.evaluator.rates(loop.division.train.size), loop.learner
    if learner.learning_rate is not None or learner.batch_size is None or not rates:
        return None, None
    if len(rates) == 1:
        return rates[0], None
    plan, ends = loop.problem.plan, dict[int, Progress]()
    n_steps = plan.first_cycle or trial_steps(plan)

    def criterion(i: int) -> float | None:
        if log.is_over(SHARE_FOR_TRIALS):
            return None
        found = _try_rate(loop.at_rate(rates[i], n_steps), first, log)
        if found is None:
            return None
        value, ends[i] = found
        log.add({"trial_rate": rates[i], "trial_steps": n_steps, "criterion": value})
        return value if np.isfinite(value) else np.inf

    best = bracketed(len(rates), len(rates) // 2, criterion)
    end = ends.get(best)
    if end is None or not np.isfinite(end.lowest) or not loop.in_cycles:
        return rates[best], None
    return rates[best], loop.at_rate(rates[best]).next_cycle(end)


def bracketed(n: int, begin: int, criterion: Callable[[int], float | None]) -> int:
    """The index, of n in order, of the lowest criterion: upwards from `begin` while it falls; downwards if the first step up is no better.

    `criterion` returns None if there is no time for more.
    """
    lowest, best = criterion(begin), begin
    if lowest is None:
        return begin
    for direction in (1, -1):
        while 0 <= best + direction < n:
            found = criterion(best + direction)
            if found is None:
                return best
            if not found < lowest:
                break
            lowest, best = found, best + direction
        if best != begin:
            break
    return best


def _try_rate(loop: Loop, first: Any, log: Log) -> tuple[float, Progress] | None:
    """(The criterion after all steps of `loop`, the progress then), by the steps and evaluations of a run; None if time is over before."""
    at, total, criterion = loop.begin(first), loop.problem.plan.total_steps, np.nan
    is_over = lambda: log.is_over(SHARE_FOR_TRIALS)
    while at.step < total:
        wanted = min(loop.problem.plan.steps_per_evaluation, total - at.step)
        state, taken, _, evaluation = loop.take(at, log, None, is_over)
        step, criterion = at.step + taken, evaluation.criterion
        if not np.isfinite(criterion):
            break
        state = loop.learner.after_evaluation(state, evaluation)
        at = at._replace(state=state, step=step, until=total)
        if criterion <= at.lowest:
            at = at._replace(best_state=state, kept=evaluation, lowest=criterion)
        if taken < wanted or (step < total and is_over()):
            return None
    return criterion, at
