"""Base classes of learners, which learn the parameters θ of a model."""

import abc
import dataclasses
from typing import Any, ClassVar, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.compiled import quick_jit
from stochgp.data.memory import MemorySource
from stochgp.data.rows import Data
from stochgp.learners.descent import (
    Descent,
    Optimizer,
    Schedule,
    Uniform,
    begin,
    cosine,
    decaying,
    move,
    slowed,
    start_rate,
    step_size,
)
from stochgp.learners.evaluators import ByLoss, Evaluator, Numbers, Seed, StepPlan
from stochgp.learners.evidence import ByEvidence
from stochgp.models import AbstractGP
from stochgp.numerics.arrays import on_device

FEW_ROWS = 2_000  # up to this many rows, compiling the steps takes longer than running them
SQUARES = "loss_squared"  # key of the mean squared loss in the metrics of steps


class Problem(NamedTuple):
    """The constants of a run.

    Parameters
    ----------
    source : MemorySource
        The training rows.
    plan : StepPlan
        The plan of the steps.
    prepared : any
        The result of the learner's `prepare`.
    rate : float or None
        The learning rate that short trials selected. If `rate` is None, the learner uses its own rate.
    prior : AbstractGP or None
        The model whose parameters are the centre of the prior. If `prior` is None, the start model is used.
    """

    source: MemorySource
    plan: StepPlan
    prepared: Any
    rate: float | None = None
    prior: AbstractGP | None = None


class AbstractLearner(eqx.Module):
    """Base class of learners, which learn the parameters θ of a model.

    `advance` is deterministic, so a resumed run has the same result as an uninterrupted run. Call the methods
    inside `jax.enable_x64(True)`. `evaluator` compares the states of a run. If `evaluator` is None, feature
    GPs use `ByEvidence()` and other models use `ByLoss()`.
    """

    exact: ClassVar[bool] = False  # True if gradients are exact for the objective on all rows
    first_seconds: ClassVar[float] = 0.0  # minimum seconds of the first steps, including compilation
    batch_size = cast(Any, None)  # without annotation, so that a subclass can declare this field
    learning_rate = cast(Any, None)
    evaluator = cast(Any, None)

    @abc.abstractmethod
    def plan(self, n_rows: int, n_inputs: int, evaluator: Evaluator) -> StepPlan:
        """Return the numbers of steps and evaluations."""

    @abc.abstractmethod
    def peak_bytes(self, gp: AbstractGP, n_rows: int, n_inputs: int) -> int:
        """Return the peak memory in bytes, without the rows, the evaluations and the compiler."""

    def rows_within(self, gp: AbstractGP, n_rows: int, n_inputs: int, seconds: float) -> int:
        """Return the number of rows that the learner can process in `seconds` seconds."""
        return n_rows

    @abc.abstractmethod
    def prepare(self, gp: AbstractGP, source: MemorySource, plan: StepPlan, seed: Seed) -> Any:
        """Compute constants, such as lists of neighbours; a resumed run computes the same ones."""

    @abc.abstractmethod
    def init(self, gp: AbstractGP, problem: Problem, *, key: PRNGKeyArray) -> Any:
        """Return the state before the first step, as a pytree."""

    @abc.abstractmethod
    def advance(
        self, state: Any, problem: Problem, first_step: int, n_steps: int, seed: Seed
    ) -> tuple[Any, Numbers]:
        """Return the state after `n_steps` steps, and the mean metrics of the steps.

        The metrics include "loss". `n_steps` is at most `plan.chunk_steps`.
        """

    def after_evaluation(self, state: Any, evaluation: Any) -> Any:
        """Return the state with which the run continues after an evaluation."""
        return state

    def model(self, state: Any) -> AbstractGP:
        """Return the model with the parameters θ of `state`."""
        return state.gp

    def refitting(self, hessian: Any = None) -> Any:
        """Return a learner for a model near its optimum. `hessian` = Hessian of the loss, or None."""
        return self

    def slower(self, state: Any, factor: float) -> Any:
        """Return the state with its learning rate, if any, multiplied by `factor`."""
        return state

    def finished(self, entry: Numbers) -> bool:
        """Return True if the run has converged according to the last entry of the history."""
        return False

    def seen_rows(self, n_rows: int) -> int:
        """Return the number of rows that the learner uses, out of `n_rows`."""
        return n_rows

    def evaluator_for(self, gp: AbstractGP) -> Evaluator:
        """Return the evaluator. Raises ValueError if `ByEvidence` cannot evaluate `gp`."""
        if self.evaluator is None:
            return ByEvidence() if gp.has_moments else ByLoss()
        if isinstance(self.evaluator, ByEvidence) and not gp.has_moments:
            name, model = type(self).__name__, type(gp).__name__
            raise ValueError(f"ByEvidence cannot evaluate {name}: {model} has no moments; use ByLoss()")
        return self.evaluator

    def check_common(self, *counts: str) -> None:
        """Raise ValueError for invalid fields. `counts` names further fields that are counts."""
        for name in ("batch_size", "epochs", *counts):
            value = getattr(self, name, None)
            if value is not None and (isinstance(value, bool) or value != int(value) or value < 1):
                raise ValueError(f"{name} is {value}; it must be a whole number of at least 1")
        rate = self.learning_rate
        if rate is not None and not callable(rate) and (isinstance(rate, str) or not 0 < rate < float("inf")):
            raise ValueError(f"learning_rate is {rate!r}; it must be positive and finite")
        spread = getattr(self, "spread", None)  # standard deviation of the prior of some learners
        if spread is not None and not 0 < spread < float("inf"):
            raise ValueError(f"spread is {spread}; it must be positive and finite, or None")


class BatchState(eqx.Module):
    """The model, the optimiser's state, the number of rows, and the sum of the row weights."""

    gp: Any
    descent: Descent
    n_rows: Float[Array, ""]
    count: Float[Array, ""]


class AbstractBatchLearner(AbstractLearner):
    """Base class of learners that take steps on mini-batches of rows.

    This class draws the batches, and a subclass defines the step. A step uses one batch, or a stack of
    `n_streams` independent batches.

    Parameters
    ----------
    batch_size : int
        The number B of rows in a batch. If there are fewer than B training rows, a batch contains all rows.
    epochs : int or None
        The number of passes over the data. If `epochs` is None, the evaluator computes it.
    learning_rate : float, function of the step, or None
        If `learning_rate` is None, trials select one of the evaluator's rates, if it has rates.
    optimizer : function
        A function of the learning rate that returns an optax optimizer, for example `optax.adam`.
    decay : function
        A function of the completed fraction of the planned steps. It multiplies a constant learning rate.
    evaluator : ByEvidence, ByLoss or None
        See `AbstractLearner`.
    sampling : Uniform, NearestNeighbours or None
        The method that selects the rows of a batch; if `sampling` is None, `sampling_for` decides.
    """

    steps = cast(int, 0)  # number of steps if `epochs` is None and the evaluator is `ByLoss`
    n_streams: ClassVar[int] = 1
    batch_size: int = 256
    epochs: int | None = None
    learning_rate: float | Schedule | None = None
    optimizer: Optimizer = optax.adam
    decay: Schedule = cosine
    evaluator: Evaluator | None = None
    sampling: Any = Uniform()

    @abc.abstractmethod
    def step(self, state: Any, batch: Data, *, key: PRNGKeyArray) -> tuple[Any, dict[str, Array]]:
        """Return the state after a step on `batch`, and metrics with "loss"; a pure function."""

    def plan(self, n_rows: int, n_inputs: int, evaluator: Evaluator) -> StepPlan:
        row_bytes = self.n_streams * 4 * (n_inputs + 2)  # batches on the device are float32
        return evaluator.plan_steps(n_rows, row_bytes, self.batch_size, self.epochs, self.steps)

    def sampling_for(self, gp: Any) -> Any:
        """Return the method that selects the rows of a batch for this model."""
        return self.sampling

    def slower(self, state: Any, factor: float) -> Any:
        return self._each_descent(state, lambda descent: slowed(descent, factor))

    def decaying(self, state: Any, n_steps: int | None) -> Any:
        """Return the state with a rate that decays over `n_steps` steps; None = no decay."""
        return self._each_descent(state, lambda descent: decaying(descent, n_steps))

    def _each_descent(self, state: Any, change: Any) -> Any:
        is_descent = lambda part: isinstance(part, Descent)
        return jax.tree.map(lambda x: change(x) if is_descent(x) else x, state, is_leaf=is_descent)

    def begin(
        self, gp: Any, theta: Any, problem: Problem, default: float | None = None, dtype: Any = jnp.float32
    ) -> tuple[Any, Descent, Array, Array]:
        """Return the fields of `BatchState` at step 0, for the trainable parameters `theta`."""
        rate = start_rate(self.learning_rate, default if problem.rate is None else problem.rate)
        descent = begin(theta, self.optimizer, rate, problem.plan.total_steps)
        return gp, descent, on_device(problem.source.size, dtype), on_device(problem.source.count, dtype)

    def descend(self, theta: Any, gradient: Any, descent: Descent) -> tuple[Any, Descent]:
        """Return the parameters θ and the optimiser's state after a step."""
        return move(theta, gradient, descent, self.optimizer, self.step_size(descent))

    def step_size(self, descent: Descent) -> Array:
        """Return the size of the next step."""
        return step_size(descent, self.learning_rate, self.decay)

    def prepare(
        self, gp: Any, source: MemorySource, plan: StepPlan, seed: Seed
    ) -> tuple[Any, "AbstractBatchLearner"]:
        """Prepare the batches, and set fields of the learner that no step uses to their defaults."""
        sampled = self.sampling_for(gp).prepare(source, plan.batch_size, plan.total_steps, seed)
        names = ("batch_size", "epochs", "sampling", "steps")
        plain: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(self) if f.name in names}
        rate, own = self.learning_rate, self.evaluator  # steps use only its field `refit`
        evaluator = ByEvidence(refit=own.refit) if isinstance(own, ByEvidence) else None
        plain |= {"learning_rate": rate if callable(rate) else None, "evaluator": evaluator}
        return sampled, dataclasses.replace(self, **plain)

    def advance(
        self, state: Any, problem: Problem, first_step: int, n_steps: int, seed: Seed
    ) -> tuple[Any, Numbers]:
        sampling, B = self.sampling_for(state.gp), problem.plan.batch_size
        sampled, compiled = problem.prepared
        draw = lambda *own: sampling.batches(sampled, first_step, n_steps, B, (*seed, *own))
        indices = draw() if self.n_streams == 1 else np.stack([*map(draw, range(self.n_streams))], axis=1)
        batches = problem.source.take(indices)
        words = np.asarray(seed, np.uint32)
        scan = _quick_scan if problem.source.size <= FEW_ROWS else _scan
        state, info, squares = scan(compiled, state, batches, np.asarray(first_step), words)
        numbers = {name: float(value) for name, value in info.items()} | {SQUARES: float(squares)}
        return state, numbers


def _steps(learner: Any, state: Any, batches: Data, first_step: Any, seed: Any) -> tuple[Any, Any, Array]:
    """Return the final state, the mean metrics and the mean squared loss of stacked batches."""
    dynamic, static = eqx.partition(state, eqx.is_array)
    key = jax.random.wrap_key_data(seed)
    steps = first_step + jnp.arange(batches.y.shape[0])

    def body(carry: Any, item: Any) -> tuple[Any, Any]:
        batch, i = item
        new, info = learner.step(eqx.combine(carry, static), batch, key=jax.random.fold_in(key, i))
        return eqx.filter(new, eqx.is_array), info

    dynamic, infos = jax.lax.scan(body, dynamic, (batches, steps))
    squares = jnp.mean(jnp.square(infos["loss"].astype(jnp.float64)))
    return eqx.combine(dynamic, static), jax.tree.map(jnp.mean, infos), squares


_scan, _quick_scan = eqx.filter_jit(_steps), quick_jit(_steps)
