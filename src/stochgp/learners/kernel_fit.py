"""The loop of the learners of kernel GPs: stretches of steps, a cheap visit of the host between them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from stochgp.data.streams import AbstractSource
from stochgp.learners.kernel_base import AbstractKernelLearner, KernelProblem, Seed
from stochgp.learners.log import Log, Report
from stochgp.models import KernelGP
from stochgp.results import RESULTS
from stochgp.storage import checkpoint as checkpoints

SLOWER = 0.3
MOST_RECOVERIES = 6
DIVERGED_BY = 1.0  # nats per datum above the lowest loss
SETTLED_BY = 0.01  # nats per datum


class KernelFitResult(NamedTuple):
    """What `fit_kernel` returns. Losses are per datum, of the targets that the learner saw."""

    gp: KernelGP  # the model with θ̂
    loss: (
        float  # the learner's loss, averaged over the steps before the last good visit; NaN before the first
    )
    n_iter: int  # steps taken
    converged: bool
    result: RESULTS
    history: list[dict[str, float]]
    seconds: float


class _Progress(NamedTuple):
    """Where a run stands: enough to go on from."""

    state: Any  # of the last good visit
    loss: float
    best_state: Any  # of the visit of the lowest loss
    best_loss: float
    step: int


class _Setting(NamedTuple):
    learner: AbstractKernelLearner
    problem: KernelProblem
    seed: Seed


def fit_kernel(
    learner: AbstractKernelLearner,
    gp: KernelGP,
    source: AbstractSource,
    *,
    key: PRNGKeyArray,
    progress: Report | None = None,
    checkpoint: str | Path | None = None,
    time_limit: float | None = None,
) -> KernelFitResult:
    """Learn θ of the kernel GP from the rows of `source`.

    The learner takes a stretch of steps; the host then looks at the average loss of these steps, adds an entry to the history and
    writes the checkpoint: no work that grows with the rows. A loss or a θ that is not finite, or a loss 1 nat per datum above the lowest,
    sends the run back to the visit of the lowest loss at 0.3 of the rate, at most 6 times; such entries have `recovered` 1. The run
    returns its last good visit. `progress` is called with every entry. `checkpoint` names a file: where it exists, the run goes on from
    it and gives the same result as an unbroken one. `time_limit` is in seconds; it and Ctrl-C end the run with the last good visit.

    `converged`: the learner said that it had finished; or all planned steps were taken and the mean loss of the last fifth of the
    visits differs from that of the fifth before by less than 0.01 nats per datum or less than twice its standard error.

    Raises ValueError for a checkpoint of another run.
    """
    with jax.enable_x64(True):
        return _fit(learner, gp, source, key, Log(progress, time_limit), checkpoint)


def _fit(
    learner: AbstractKernelLearner,
    gp: KernelGP,
    source: AbstractSource,
    key: PRNGKeyArray,
    log: Log,
    checkpoint: str | Path | None,
) -> KernelFitResult:
    setting, at = _start(learner, gp, source, key)
    mark = "" if checkpoint is None else _mark(setting, gp)
    resumed = None if checkpoint is None else checkpoints.read(checkpoint, at, mark)

    def save(at: _Progress) -> None:
        if checkpoint is not None:
            checkpoints.write(checkpoint, at, log.facts(), mark)

    result = RESULTS.interrupted
    try:
        if resumed is None:
            log.add(_entry(setting, at.state, 0))
        else:
            at, facts = resumed
            log.go_on_from(facts)
        result, at = _loop(setting, at, log, save)
    except KeyboardInterrupt:
        pass
    converged = result is RESULTS.successful
    return KernelFitResult(
        learner.model(at.state), at.loss, at.step, converged, result, log.history, log.seconds()
    )


def _start(
    learner: AbstractKernelLearner, gp: KernelGP, source: AbstractSource, key: PRNGKeyArray
) -> tuple[_Setting, _Progress]:
    prepare_key, init_key, step_key = jax.random.split(key, 3)
    plan = learner.plan(source.size)
    problem = KernelProblem(source, plan, learner.prepare(gp, source, plan, _seed(prepare_key)))
    state = learner.init(gp, problem, key=init_key)
    return _Setting(learner, problem, _seed(step_key)), _Progress(state, np.nan, state, np.inf, 0)


def _loop(
    setting: _Setting, at: _Progress, log: Log, save: Callable[[_Progress], None]
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


def _advance(setting: _Setting, at: _Progress, log: Log) -> _Progress:
    """One stretch and one visit; from a lost one back to the best visit at a smaller rate."""
    learner, plan = setting.learner, setting.problem.plan
    n_steps = min(plan.steps_per_visit, plan.total_steps - at.step)
    state, numbers = learner.advance(at.state, setting.problem, at.step, n_steps, setting.seed)
    loss, step = float(numbers["loss"]), at.step + n_steps
    lost = not (np.isfinite(loss) and _is_finite(learner.model(state))) or loss > at.best_loss + DIVERGED_BY
    log.add(_entry(setting, state, step), recovered=float(lost), **numbers)
    if lost:
        slower = learner.slower(at.best_state, SLOWER)
        return at._replace(state=slower, loss=_or_nan(at.best_loss), best_state=slower, step=step)
    if loss > at.best_loss:
        return at._replace(state=state, loss=loss, step=step)
    return _Progress(state, loss, state, loss, step)


def _ended(setting: _Setting, at: _Progress, log: Log) -> RESULTS | None:
    """How the run ended as far as its history says, None where it goes on."""
    lost = [entry.get("recovered", 0.0) > 0 for entry in log.history]
    last = log.history[-1]
    spent = at.step > 0 and setting.learner.exhausted(last)
    done = spent or at.step >= setting.problem.plan.total_steps
    if sum(lost) > MOST_RECOVERIES or (done and lost[-1]):
        return RESULTS.diverged
    if at.step > 0 and not lost[-1] and setting.learner.finished(last):
        return RESULTS.successful
    if done:
        return RESULTS.successful if _has_settled(log.history) else RESULTS.not_settled
    return None


def _has_settled(history: list[dict[str, float]]) -> bool:
    """Whether the mean loss of the last fifth of the good visits and of the fifth before cannot be told apart, or hardly."""
    losses = np.array([e["loss"] for e in history if "loss" in e and not e["recovered"]])
    n = len(losses) // 5 if len(losses) >= 10 else 1
    if len(losses) < 2:
        return False
    before, last = losses[-2 * n : -n], losses[-n:]
    error = np.sqrt((np.var(before) + np.var(last)) / max(n - 1, 1))
    return bool(abs(np.mean(before) - np.mean(last)) < max(SETTLED_BY, 2 * error))


def _entry(setting: _Setting, state: Any, step: int) -> dict[str, float]:
    noise = float(setting.learner.model(state).noise_variance)
    return {"step": step, "epoch": step / setting.problem.plan.steps_per_epoch, "noise_variance": noise}


def _is_finite(gp: KernelGP) -> bool:
    return all(
        bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(gp) if eqx.is_inexact_array(leaf)
    )


def _or_nan(loss: float) -> float:
    return loss if np.isfinite(loss) else np.nan


def _mark(setting: _Setting, gp: KernelGP) -> str:
    """The fingerprint of a run; a thousand rows stand for the data."""
    source = setting.problem.source
    rows = source.take(np.linspace(0, source.size - 1, min(source.size, 1000)).astype(np.int64))
    return checkpoints.fingerprint(setting.learner, gp, setting.problem.plan, setting.seed, source.size, rows)


def _seed(key: PRNGKeyArray) -> Seed:
    return tuple(int(word) for word in np.ravel(jax.random.bits(key, (2,), jnp.uint32)))
