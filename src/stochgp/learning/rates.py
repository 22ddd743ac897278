"""Which learning rate a run takes: short trials of one, of larger ones while they are better, else of smaller ones."""

from collections.abc import Callable

import numpy as np

from stochgp.learning.judge import Evaluation
from stochgp.learning.log import Log
from stochgp.learning.run import Progress, Setting, begun, has_patience, next_cycle, with_rate
from stochgp.learning.step_plan import trial_steps
from stochgp.learning.steps import take_stretch

SHARE_FOR_TRIALS = 0.3  # of the time limit


def choose_rate(setting: Setting, first: Evaluation, log: Log) -> tuple[float | None, Progress | None]:
    """(The rate, where the run stands after its trial), None for what there is not.

    Every rate is tried for a few steps, with its own decay. The best trial is the first cycle of a run with patience, which goes on from there;
    a run of a given number of steps begins again. A trial that is lost is worse than any other. Without time for one, the middle rate as it is.
    """
    rates, learner = setting.judge.rates(setting.division.train.size), setting.learner
    if learner.learning_rate is not None or learner.batch_size is None or not rates:
        return None, None
    plan, begin = setting.problem.plan, first_of(rates)
    n_steps = plan.first_cycle or trial_steps(plan)
    if len(rates) == 1:
        return rates[0], None
    ends: dict[int, Progress] = {}

    def criterion(i: int) -> float | None:
        if log.is_over(SHARE_FOR_TRIALS):
            return None
        found = _try_rate(with_rate(setting, rates[i], n_steps), first, log)
        if found is None:
            return None
        value, end = found
        ends[i] = end
        log.add({"trial_rate": rates[i], "trial_steps": n_steps, "criterion": value})
        return value if np.isfinite(value) else np.inf

    best = bracketed(len(rates), begin, criterion)
    end = ends.get(best)
    if end is None or not np.isfinite(end.lowest) or not has_patience(setting):
        return rates[best], None
    return rates[best], next_cycle(with_rate(setting, rates[best]), end)


def first_of(rates: tuple[float, ...]) -> int:
    """The place of the rate that is tried first: the middle one."""
    return len(rates) // 2


def bracketed(n: int, begin: int, criterion: Callable[[int], float | None]) -> int:
    """Which of n places in order has the lowest criterion, upwards from `begin` while it falls; where the first step up is no better, downwards.

    `criterion` returns None where there is no time for more.
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


def _try_rate(setting: Setting, first: Evaluation, log: Log) -> tuple[float, Progress] | None:
    """(The criterion after all steps of `setting`, where that is), taken as the run would take them, evaluations included; None where time is over before."""
    at, plan, learner = begun(setting, first), setting.problem.plan, setting.learner
    is_over = lambda: log.is_over(SHARE_FOR_TRIALS)
    while at.step < plan.total_steps:
        wanted = min(plan.steps_per_evaluation, plan.total_steps - at.step)
        state, taken, numbers = take_stretch(
            learner, at.state, setting.problem, at.step, setting.seed, pieces=log.pieces, is_over=is_over
        )
        with log.evaluations.piece():
            evaluation = setting.judge.look(learner.model(state), numbers, setting.division)
        step, criterion = at.step + taken, evaluation.criterion
        if not np.isfinite(criterion):
            return criterion, at
        state = learner.after_evaluation(state, evaluation)
        at = at._replace(state=state, step=step, until=plan.total_steps)
        if criterion <= at.lowest:
            at = at._replace(best_state=state, kept=evaluation, lowest=criterion)
        if taken < wanted or (step < plan.total_steps and is_over()):
            return None
    return criterion, at
