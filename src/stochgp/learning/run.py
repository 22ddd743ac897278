"""The run of a learner: steps, evaluations, checkpoints, and trials of learning rates."""

import logging
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import PRNGKeyArray

from stochgp import deadline
from stochgp.data.memory import MemorySource
from stochgp.deadline import Pace, TimeIsUpError
from stochgp.learners.base import SQUARES, AbstractLearner, Problem
from stochgp.learners.evaluators import LONGER, Numbers, Seed, trial_steps
from stochgp.models import AbstractGP
from stochgp.numerics.arrays import on_host
from stochgp.numerics.seeds import key_of, seed_of, split
from stochgp.results import RESULTS, FitResult
from stochgp.sharding import agreed, from_first, is_writer
from stochgp.storage import checkpoint as checkpoints

Report = Callable[[dict[str, float]], object]

SLOWER = 0.3
MAX_RECOVERIES = 6
DIVERGED_BY = 1.0  # nats per datum: the run has diverged if its criterion rises by more
SURE = 3.0  # number of standard errors that a rise of a noisy criterion must exceed in addition
FIRST_PIECE = 0.3  # minimum expected seconds of the first steps, including compilation
GAIN = 0.01  # nats per datum: another cycle follows if the last cycle gained more
SHARE_FOR_TRIALS = 0.3  # maximum share of the time limit for trials of learning rates

logger = logging.getLogger("stochgp.learners")


class Progress(NamedTuple):
    """The progress of a run: all values that are needed to resume the run.

    During a cycle, the learning rate falls to 0. A run with a fixed number of steps is one cycle. A run with
    several cycles adds a longer cycle if the last cycle lowered the criterion by more than 0.01 nats per
    datum. The new cycle begins at the best state.
    """

    state: Any
    best_state: Any  # the state with the lowest criterion
    kept: Any  # the evaluation that the run would return now
    lowest: float  # the lowest criterion
    step: int
    until: int  # the last step of the current cycle
    first: int = 0  # the first step of the current cycle
    before: float = np.inf  # the lowest criterion before the current cycle
    stalled: bool = False  # True if the run ended because the last cycle gained too little
    cut: bool = False  # True if the deadline ended the last block of steps early


class Run:
    """The rows, progress, history and clock of one call of `fit`.

    `seconds` includes earlier parts of a resumed run. `evaluations` predicts the duration of an evaluation,
    and `pieces` predicts the duration of a compiled block of steps.
    """

    def __init__(
        self, learner: Any, gp: AbstractGP, source: MemorySource, key: PRNGKeyArray,
        report: Report | None, prior: AbstractGP | None = None,
    ):  # fmt: skip
        prepare, init, step, divide = split(key, 4)
        self.learner, self.gp, self.evaluator = learner, gp, learner.evaluator_for(gp)
        self.init_key, self.seed, self.report = key_of(init), seed_of(step), report
        self.begun, self.earlier, self.allowed = time.perf_counter(), 0.0, deadline.left()
        self.evaluations, self.pieces, self.stopped = Pace(), Pace(), False
        self.takes_steps = True
        self.history: list[dict[str, float]] = []
        self.division = self.evaluator.divide(source, seed_of(divide))
        rows, self.held_out = self.division
        plan, prepared = learner.plan(rows.size, source.n_inputs, self.evaluator), None
        try:
            prepared = learner.prepare(gp, rows, plan, seed_of(prepare))
        except TimeIsUpError:
            self.takes_steps = False
        self.problem = Problem(rows, plan, prepared, prior=prior)

    def result(self, checkpoint: str | os.PathLike | None) -> FitResult:
        """Run from the start or the checkpoint to the end."""
        first = self.evaluated(self.gp, {})
        self.at, ended = Progress(None, None, first, first.criterion, 0, 0), RESULTS.interrupted
        if not self.takes_steps:
            self.add(self.entry(first, 0))
            return self._finish(RESULTS.time_limit)
        # The first block of steps compiles, as the first evaluation did.
        self.pieces.expected = max(FIRST_PIECE, self.evaluations.seconds, self.learner.first_seconds)
        # The learning rate does not change the structure of a state.
        any_rate = next(iter(self.evaluator.rates(self.problem.source.size)), None)
        self.at = self.begin(first, self.problem._replace(rate=any_rate))
        mark = "" if checkpoint is None else self._mark()
        facts = None if checkpoint is None else self._read(checkpoint, mark)
        notes = {} if checkpoint is None or not is_writer() else checkpoints.notes(checkpoint)
        try:
            if facts is None:
                self._start(first)
            else:
                self.history.extend(facts["history"])
                self.earlier = facts["seconds"]
            ended = self._ended()  # a resumed run may have ended
            while ended is None:
                self._advance()
                # Skip an incomplete block: an uninterrupted run has no evaluation after it.
                if checkpoint is not None and is_writer() and not self.at.cut:
                    facts = {"history": self.history, "seconds": self.seconds()}
                    checkpoints.write(checkpoint, self.at, facts, mark, notes)
                ended = self._ended()
        except KeyboardInterrupt:
            ended = RESULTS.interrupted
        except TimeIsUpError:
            ended = RESULTS.time_limit
        return self._finish(ended)

    def add(self, entry: Numbers, **more: float) -> None:
        """Append an entry to the history, and stop the run if `progress` returns True."""
        self.history.append({**entry, "seconds": self.seconds(), **more})
        logger.debug("%s", self.history[-1])
        if self.report is not None and self.report(self.history[-1]) is True:
            self.stopped = True

    def entry(self, evaluation: Any, step: int) -> Numbers:
        return {"step": step, "epoch": step / self.problem.plan.steps_per_epoch, **evaluation.numbers()}

    def seconds(self) -> float:
        return self.earlier + time.perf_counter() - self.begun

    def is_over(self, fraction: float = 1.0) -> bool:
        """Return True if another block of steps would exceed this fraction of the time limit."""
        kept = 0.0 if fraction == 1.0 else (1 - fraction) * self.allowed  # inf without a time limit
        return self.stopped or deadline.left() < kept + self.evaluations.expected + self.pieces.expected

    @property
    def in_cycles(self) -> bool:
        """True if the plan has cycles and the learning rate is not a function of the step."""
        return self.problem.plan.first_cycle > 0 and not callable(self.learner.learning_rate)

    def evaluated(self, gp: AbstractGP, numbers: Numbers) -> Any:
        with self.evaluations.piece():
            return self.evaluator.evaluate(gp, numbers, self.division)

    def begin(self, evaluation: Any, problem: Problem) -> Progress:
        """Return the progress at step 0, with its evaluation."""
        until = problem.plan.total_steps
        state = self.learner.init(self.gp, problem, key=self.init_key)
        state = self.learner.after_evaluation(state, evaluation)
        lowest = evaluation.criterion if np.isfinite(evaluation.criterion) else np.inf
        if problem.plan.first_cycle and self.in_cycles:
            until = problem.plan.first_cycle
            state = self.learner.decaying(state, until)
        return Progress(state, state, evaluation, lowest, 0, until)

    def _start(self, first: Any) -> None:
        """Begin with the best learning rate in trials; the best trial may be the first cycle."""
        rate, end = self._choose_rate(first)
        self.problem = self.problem._replace(rate=rate)
        self.at = self.begin(first, self.problem)
        known = self.learner.learning_rate if rate is None else rate
        self.add(self.entry(first, 0), **({} if known is None or callable(known) else {"rate": float(known)}))
        if end is not None:
            self.at = self._next_cycle(end)
            self.add(self.entry(self.at.kept, self.at.step))

    def _read(self, checkpoint: str | os.PathLike, mark: str) -> dict[str, Any] | None:
        """Read the checkpoint, if it exists, in process 0, and return its history and seconds."""
        found, error = None, None
        try:
            found = checkpoints.read(checkpoint, self.at, mark) if is_writer() else None
        except checkpoints.CheckpointError as refused:
            error = str(refused)
        error, facts = from_first((error, None if found is None else found[1]))
        if error is not None:
            raise checkpoints.CheckpointError(error)
        if facts is not None:
            self.at = agreed(self.at if found is None else found[0])
        return facts

    def _mark(self) -> str:
        """Return the fingerprint of a run, from its settings and at most 1,000 rows."""
        source = self.problem.source
        some = np.linspace(0, source.size - 1, min(source.size, 1000)).astype(np.int64)
        group = () if source.group is None else (source.group[some],)
        parts = (self.learner, self.evaluator, self.gp, self.problem.plan, self.seed, source.size)
        return checkpoints.fingerprint(*parts, source.take(some), *group)

    def _stretch(self, at: Progress, problem: Problem, share: float = 1.0) -> tuple[Progress, Any, Numbers]:
        """Return the progress at the next evaluation, the evaluation, and the mean metrics."""
        wanted = min(problem.plan.steps_per_evaluation, at.until - at.step)
        state, taken, numbers = take_stretch(
            self.learner, at.state, problem, at.step, self.seed,
            pieces=self.pieces, most=wanted, is_over=lambda: self.is_over(share),
        )  # fmt: skip
        evaluation = self.evaluated(self.learner.model(state), numbers)
        return at._replace(state=state, step=at.step + taken, cut=taken < wanted), evaluation, numbers

    def _kept(self, at: Progress, evaluation: Any) -> Progress:
        """Return the progress after an evaluation of a run that has not diverged."""
        at = at._replace(state=self.learner.after_evaluation(at.state, evaluation))
        if evaluation.criterion <= at.lowest:
            at = at._replace(best_state=at.state, lowest=evaluation.criterion)
        worse = self.evaluator.is_exact and evaluation.criterion > at.kept.criterion
        return at if worse else at._replace(kept=evaluation)

    def _advance(self) -> None:
        """Take steps until the next evaluation, and return to the best state after divergence."""
        at, evaluation, numbers = self._stretch(self.at, self.problem)
        lost = not np.isfinite(evaluation.criterion)
        lost = lost or evaluation.criterion - SURE * evaluation.error > at.lowest + DIVERGED_BY
        self.add(self.entry(evaluation, at.step), recovered=float(lost), **numbers)
        self.at = self._back(at) if lost else self._next_cycle(self._kept(at, evaluation))

    def _back(self, at: Progress) -> Progress:
        """Return the progress at the best state, with a smaller learning rate."""
        slower, kept = self.learner.slower(at.best_state, SLOWER), at.kept
        if at.step < at.until and self.in_cycles:
            slower = self.learner.decaying(slower, at.until - at.step)
        if not self.evaluator.is_exact:
            loss = at.lowest if np.isfinite(at.lowest) else np.nan
            kept = self.evaluator.evaluate(self.learner.model(slower), {"loss": loss}, self.division)
        return at._replace(state=slower, best_state=slower, kept=kept)

    def _next_cycle(self, at: Progress) -> Progress:
        """Return the progress, with another cycle if the last cycle ended and gained enough."""
        if not self.in_cycles or at.step < at.until or at.cut:
            return at
        if not at.lowest < at.before - GAIN:
            return at._replace(stalled=True)
        until = at.step + LONGER * (at.until - at.first)
        if until > self.problem.plan.total_steps:
            return at
        state = self.learner.decaying(at.best_state, until - at.step)
        return at._replace(state=state, best_state=state, first=at.step, until=until, before=at.lowest)

    def _ended(self) -> RESULTS | None:
        """Return the reason for the end of the run, or None if it continues."""
        lost = [entry.get("recovered", 0.0) > 0 for entry in self.history]
        step, done = self.at.step, self.at.step >= self.at.until
        if sum(lost) > MAX_RECOVERIES or (done and lost[-1]):
            return RESULTS.diverged
        if step > 0 and not lost[-1] and self.learner.finished(self.history[-1]):
            return RESULTS.successful
        if done:
            settled = self.at.stalled if self.in_cycles else self.evaluator.settled(self.history)
            return RESULTS.successful if settled else RESULTS.not_settled
        return RESULTS.stopped if self.stopped else RESULTS.time_limit if self.is_over() else None

    def _choose_rate(self, first: Any) -> tuple[float | None, Progress | None]:
        """Return the best learning rate in trials, and the progress after its trial or None."""
        rates, plan = self.evaluator.rates(self.problem.source.size), self.problem.plan
        if self.learner.learning_rate is not None or self.learner.batch_size is None or not rates:
            return None, None
        if len(rates) == 1:
            return rates[0], None
        ends, n_steps = dict[int, Progress](), plan.first_cycle or trial_steps(plan)

        def criterion(i: int) -> float | None:
            found = None if self.is_over(SHARE_FOR_TRIALS) else self._try_rate(rates[i], n_steps, first)
            if found is None:
                return None
            value, ends[i] = found
            self.add({"trial_rate": rates[i], "trial_steps": n_steps, "criterion": value})
            return value if np.isfinite(value) else np.inf

        best = bracketed(len(rates), len(rates) // 2, criterion)
        end = ends.get(best)
        return rates[best], end if end is not None and np.isfinite(end.lowest) and self.in_cycles else None

    def _try_rate(self, rate: float, n_steps: int, first: Any) -> tuple[float, Progress] | None:
        """Return the criterion and the progress after `n_steps` steps; None without enough time."""
        plan = self.problem.plan._replace(total_steps=n_steps, first_cycle=0)
        problem = self.problem._replace(rate=rate, plan=plan)
        at, criterion = self.begin(first, problem), np.nan
        while at.step < n_steps:
            at, evaluation, _ = self._stretch(at, problem, SHARE_FOR_TRIALS)
            criterion = evaluation.criterion
            if not np.isfinite(criterion):
                break
            at = self._kept(at, evaluation)
            if at.cut or (at.step < n_steps and self.is_over(SHARE_FOR_TRIALS)):
                return None
        return criterion, at

    def _finish(self, ended: RESULTS) -> FitResult:
        gp, evidence = self.evaluator.finalize(self.at.kept, self.division)
        state = self.at.state
        # `partial_fit` continues from the state, which must belong to the returned model.
        if state is not None and not eqx.tree_equal(on_host(self.learner.model(state)), on_host(gp)):
            state = None
        n_held_out = 0 if self.held_out is None else self.held_out.size
        return FitResult(
            gp, self.at.kept.criterion, evidence, self.at.step, ended is RESULTS.successful, ended,
            self.history, self.seconds(), self.problem.plan, n_held_out, state,
        )  # fmt: skip


def take_stretch(
    learner: AbstractLearner, state: Any, problem: Problem, step: int, seed: Seed,
    *, pieces: Pace, most: int | None = None, is_over: Callable[[], bool] = lambda: False,
) -> tuple[Any, int, Numbers]:  # fmt: skip
    """Return the state at the next evaluation, the number of steps, and their mean metrics.

    The block ends early after `most` steps or at the deadline. Raises TimeIsUpError if no step is possible.
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
        means["loss_error"] = float(np.sqrt(max(squares - means["loss"] ** 2, 0.0) / taken))  # pyrefly: ignore[division-by-zero]
    state, means = agreed((state, means))
    return state, taken, means


def bracketed(n: int, begin: int, criterion: Callable[[int], float | None]) -> int:
    """Return the index of the lowest criterion among n ordered options, starting at `begin`.

    The search goes up while the criterion falls, else down. The search ends if `criterion` returns None.
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
