"""Steps in compiled stretches: what runs on the device between two visits of the host."""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from stochgp.data.streams import AbstractSource, Rows, independent_batches, shuffled_batches
from stochgp.learners.base import AbstractLearner
from stochgp.learners.visit import Split, make_split
from stochgp.models import FeatureGP
from stochgp.numerics.threads import few_blas_threads
from stochgp.planning.steps import StepPlan, plan_steps


class Setting(NamedTuple):
    """What does not change during a run."""

    learner: AbstractLearner
    gp: FeatureGP
    source: AbstractSource
    split: Split
    plan: StepPlan
    seed: tuple[int, ...]
    init_key: PRNGKeyArray
    step_key: PRNGKeyArray


def set_up(learner: AbstractLearner, gp: FeatureGP, source: AbstractSource, key: PRNGKeyArray) -> Setting:
    """Splits the key and the rows, and plans the steps."""
    split_key, batch_key, init_key, step_key = jax.random.split(key, 4)
    split = make_split(source.size, learner.validation_fraction, _seed(split_key))
    plan = plan_steps(
        len(split.train),
        4 * (source.n_inputs + 2) * learner.batches_per_step,
        learner.batch_size,
        learner.epochs,
    )
    return Setting(learner, gp, source, split, plan, _seed(batch_key), init_key, step_key)


def take_stretch(
    setting: Setting, state: Any, step: int, is_over: Callable[[], bool]
) -> tuple[Any, int, dict[str, float]]:
    """(state, steps taken, means of Info) of the steps from `step` up to the next visit; fewer where time is over."""
    plan, taken, infos = setting.plan, 0, []
    until = min(plan.steps_per_visit, plan.total_steps - step)
    with few_blas_threads(setting.gp.n_features):
        while taken < until:
            n_steps = min(plan.chunk_steps, until - taken)
            state, info = take_steps(setting, state, step + taken, n_steps)
            infos.append(info)
            taken += n_steps
            if is_over():
                break
        means = {name: float(np.mean([getattr(i, name) for i in infos])) for name in infos[0]._fields}
    return state, taken, means


def take_steps(setting: Setting, state: Any, step: int, n_steps: int) -> tuple[Any, Any]:
    """(state after `n_steps` from `step` on in one compiled scan, Info's means)."""
    learner, plan, train = setting.learner, setting.plan, setting.split.train
    key = jax.random.fold_in(setting.step_key, step)
    if learner.batch_size is None:
        return _scan_one_batch(learner, state, setting.source.take(train), key, n_steps)
    draw = independent_batches if learner.replace else shuffled_batches
    streams = [
        draw(train, plan.batch_size, step, n_steps, (*setting.seed, i))
        for i in range(learner.batches_per_step)
    ]
    indices = streams[0] if len(streams) == 1 else np.stack(streams, axis=1)
    return _scan_batches(learner, state, setting.source.take(indices), key)


@eqx.filter_jit
def _scan_batches(learner: AbstractLearner, state: Any, batches: Rows, key: Array) -> tuple[Any, Any]:
    keys = jax.random.split(key, batches.y.shape[0])
    return _scan(learner, state, lambda inputs: inputs[0], (batches, keys))


@eqx.filter_jit
def _scan_one_batch(
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


def _seed(key: PRNGKeyArray) -> tuple[int, ...]:
    return tuple(int(word) for word in np.ravel(jax.random.bits(key, (2,), jnp.uint32)))
