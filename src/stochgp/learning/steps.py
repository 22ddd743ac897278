"""Steps in compiled scans: what runs on the device between two evaluations of the host."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stochgp.data.streams import AbstractSource, Batch
from stochgp.deadline import Pace, TimeIsUpError
from stochgp.learning.base import AbstractLearner, Problem
from stochgp.learning.judge import Numbers, Seed
from stochgp.learning.sampling import AbstractSampling
from stochgp.learning.step_plan import StepPlan, size_of_few
from stochgp.numerics.arrays import on_device

SQUARES = "loss_squared"  # of the steps, on their way to the standard error of their mean


class AbstractBatchLearner(AbstractLearner):
    """A learner of mini-batches: it says what a step does; which rows a step is given, and scans of steps, are the same for all.

    n_streams   how many independent batches a step takes, as a stack where they are several
    fills       whether batches are filled up by rows of weight 0 to one of few sizes, so that runs of nearby sizes share the compiled scan
    """

    n_streams: ClassVar[int] = 1
    fills: ClassVar[bool] = False
    sampling: eqx.AbstractVar[Any]  # AbstractSampling, or None where `sampling_for` chooses one

    @abc.abstractmethod
    def step(self, state: Any, batch: Batch, *, key: PRNGKeyArray) -> tuple[Any, Any]:
        """(State after one step on `batch`, what it saw: numbers by name, "loss" among them). Pure; fit for jit and scan."""

    def sampling_for(self, gp: Any) -> AbstractSampling:
        """What chooses the rows of a batch for this model."""
        return self.sampling

    def prepare(self, gp: Any, source: AbstractSource, plan: StepPlan, seed: Seed) -> Any:
        """What the sampling has to know of all rows."""
        return self.sampling_for(gp).prepare(source, plan.batch_size, plan.total_steps, seed)

    def advance(
        self, state: Any, problem: Problem, first_step: int, n_steps: int, seed: Seed
    ) -> tuple[Any, Numbers]:
        sampling, how = self.sampling_for(state.gp), {"n_streams": self.n_streams, "fills": self.fills}
        return advance_by_batches(self, sampling, state, problem, first_step, n_steps, seed, **how)


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
    """(state, steps taken, means of their numbers) of the steps from `step` up to the next evaluation, at most `most`; fewer where time is over.

    Raises TimeIsUpError where not even the first part ends in time.
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
    state, means = problem.devices.broadcast((state, means))
    return state, taken, means


def advance_by_batches(
    learner: AbstractLearner,
    sampling: AbstractSampling,
    state: Any,
    problem: Problem,
    first_step: int,
    n_steps: int,
    seed: Seed,
    *,
    n_streams: int = 1,
    fills: bool = False,
) -> tuple[Any, Numbers]:
    """`advance` of learners whose `step(state, batch, *, key)` takes a mini-batch, or a stack of `n_streams` independent ones.

    With `fills` a batch is filled up by rows of weight 0 to one of few sizes, so that runs of nearby sizes share the compiled scan.

    Factorisations inside a step are of blocks, each on one thread: beside the threads of XLA's products those of LAPACK wait longer than they work.
    """
    B = problem.plan.batch_size
    seeds = [seed] if n_streams == 1 else [(*seed, i) for i in range(n_streams)]
    streams = [sampling.batches(problem.prepared, first_step, n_steps, B, s) for s in seeds]
    indices = streams[0] if n_streams == 1 else np.stack(streams, axis=1)
    factors, devices = sampling.factors(problem.prepared, B), problem.devices
    if fills and size_of_few(B) > B and size_of_few(B) % devices.count == 0:
        indices, factors = _filled(indices, np.ones(B) if factors is None else factors)
    batches = problem.source.take(indices)
    if factors is not None:
        weight = np.asarray(batches.weight)
        batches = batches._replace(weight=on_device(weight * factors.astype(weight.dtype)))
    if devices.steps:
        state, batches = devices.replicate(state), devices.place(batches, axis=indices.ndim - 1)
    state, info, squares = _scan(
        learner.of_steps(), state, batches, np.asarray(first_step), np.asarray(seed, np.uint32)
    )
    numbers = {name: float(value) for name, value in info._asdict().items()} | {SQUARES: float(squares)}
    return devices.local(state) if devices.steps else state, numbers


def _filled(
    indices: Int[np.ndarray, "... B"], factors: Float[np.ndarray, " B"]
) -> tuple[Int[np.ndarray, "... P"], Float[np.ndarray, " P"]]:
    """Row 0 at further places, whose weights are multiplied by 0; all others by P/B, since steps divide by the size P."""
    B = len(factors)
    P = size_of_few(B)
    wider = np.pad(indices, [(0, 0)] * (indices.ndim - 1) + [(0, P - B)])
    return wider, np.concatenate([factors * (P / B), np.zeros(P - B)])


@eqx.filter_jit
def _scan(learner: Any, state: Any, batches: Batch, first_step: Any, seed: Any) -> tuple[Any, Any, Array]:
    """(State after a step on each of a stack of batches, means of what the steps saw, that of the squared losses).

    A step's key depends on its number alone.
    """
    dynamic, static = eqx.partition(state, eqx.is_array)
    key = jax.random.wrap_key_data(seed)
    steps = first_step + jnp.arange(batches.y.shape[0])

    def body(carry: Any, item: Any) -> tuple[Any, Any]:
        batch, i = item
        new, info = learner.step(eqx.combine(carry, static), batch, key=jax.random.fold_in(key, i))
        return eqx.filter(new, eqx.is_array), info

    dynamic, infos = jax.lax.scan(body, dynamic, (batches, steps))
    squares = jnp.mean(jnp.square(infos.loss.astype(jnp.float64)))
    return eqx.combine(dynamic, static), jax.tree.map(jnp.mean, infos), squares
