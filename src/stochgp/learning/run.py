"""A run of a learner: what does not change in it, where it stands, and whether it goes on."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import PRNGKeyArray

from stochgp.learning.base import AbstractLearner, Problem
from stochgp.learning.judge import AbstractJudge, Division, Evaluation, Numbers, Seed
from stochgp.learning.step_plan import LONGER
from stochgp.models import AbstractGP
from stochgp.results import RESULTS, FitResult

GAIN = 0.01  # nats per datum by which a cycle must be better than the one before, for another to follow


class Setting(NamedTuple):
    """What does not change during a run."""

    learner: AbstractLearner
    judge: AbstractJudge
    gp: AbstractGP
    problem: Problem
    division: Division
    init_key: PRNGKeyArray
    seed: Seed
    max_steps: int | None = None


class Progress(NamedTuple):
    """Where a run stands: enough to go on from.

    A run of a given number of steps is one cycle, in which the rate falls to 0. One with patience goes on with cycles LONGER each, from the
    best state of all before, for as long as the last one gained GAIN and another fits into its plan.
    """

    state: Any
    best_state: Any  # of the evaluation of the lowest criterion
    kept: Evaluation  # what the run would return now
    lowest: float
    step: int
    until: int  # the step with which the cycle ends
    first: int = 0  # the step with which it began
    before: float = (
        np.inf
    )  # the lowest criterion then; of the first cycle, after which there is another one in any case, inf
    stalled: bool = False  # whether the run ended as the last cycle gained too little
    cut: bool = False  # whether time cut the last stretch short


def begun(setting: Setting, evaluation: Evaluation) -> Progress:
    """Step 0, of which `evaluation` is the evaluation."""
    learner, plan = setting.learner, setting.problem.plan
    state = learner.init(setting.gp, setting.problem, key=setting.init_key)
    state = learner.after_evaluation(state, evaluation)
    lowest = evaluation.criterion if np.isfinite(evaluation.criterion) else np.inf
    if not has_patience(setting):
        return Progress(state, state, evaluation, lowest, 0, plan.total_steps)
    state = learner.decaying(state, plan.first_cycle)
    return Progress(state, state, evaluation, lowest, 0, plan.first_cycle)


def has_patience(setting: Setting) -> bool:
    """Whether the run goes on for as long as it gains: where its plan has cycles, and no rule of the step sets the rate."""
    return setting.problem.plan.first_cycle > 0 and not callable(setting.learner.learning_rate)


def next_cycle(setting: Setting, at: Progress) -> Progress:
    """Another cycle, where one has ended, gained something and another fits; else where the run stands."""
    if not has_patience(setting) or at.step < at.until or at.cut:
        return at
    if not at.lowest < at.before - GAIN:
        return at._replace(stalled=True)
    n_steps = LONGER * (at.until - at.first)
    if at.step + n_steps > setting.problem.plan.total_steps:
        return at
    state = setting.learner.decaying(at.best_state, n_steps)
    return at._replace(
        state=state, best_state=state, first=at.step, until=at.step + n_steps, before=at.lowest
    )


def with_rate(setting: Setting, rate: float | None, total_steps: int | None = None) -> Setting:
    """The run at this rate; `total_steps` of them in all, whatever its plan says."""
    plan = setting.problem.plan
    plan = plan if total_steps is None else plan._replace(total_steps=total_steps, first_cycle=0)
    return setting._replace(problem=setting.problem._replace(rate=rate, plan=plan))


def entry_of(setting: Setting, evaluation: Evaluation, step: int) -> Numbers:
    """What the history says of an evaluation."""
    return {
        "step": step,
        "epoch": step / setting.problem.plan.steps_per_epoch,
        **setting.judge.entry(evaluation),
    }


def joined(first: FitResult, second: FitResult) -> FitResult:
    """Both runs as one: the second went on where the first ended."""
    later = [after(first, entry) for entry in second.history]
    is_cut = second.result not in (RESULTS.successful, RESULTS.not_settled, RESULTS.diverged)
    return second._replace(
        n_iter=first.n_iter + second.n_iter,
        history=[*first.history, *later],
        seconds=first.seconds + second.seconds,
        result=second.result if is_cut else first.result,
        converged=first.converged and not is_cut,
        plan=first.plan,
    )


def after(first: FitResult, entry: dict[str, float]) -> dict[str, float]:
    """An entry of the run that goes on from `first`."""
    return entry | {"step": entry["step"] + first.n_iter, "stage": 1.0}
