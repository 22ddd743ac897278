"""Learners: frozen values that say how θ is learned. `learning.fit` owns the loop."""

import abc
import dataclasses
from typing import Any, ClassVar, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, PRNGKeyArray

from stochgp.compiled import quick_jit
from stochgp.data.memory import MemorySource
from stochgp.data.rows import Data
from stochgp.devices import on_all, on_one, spread
from stochgp.learners.descent import (
    Descent,
    Optimizer,
    Schedule,
    begin,
    cosine,
    decaying,
    move,
    slowed,
    start_rate,
    step_size,
)
from stochgp.learners.evaluators import AbstractEvaluator, ByLoss, Numbers, Seed, StepPlan, size_of_few
from stochgp.learners.evidence import ByEvidence
from stochgp.learners.sampling import AbstractSampling, Uniform, row_bytes
from stochgp.models import AbstractGP
from stochgp.numerics.arrays import on_device

FEW_ROWS = 2_000  # with which steps take less time than their program
MIN_SHARED_BATCH = 4096  # rows; smaller batches take no less time on several devices (docs/methods/scale.md)
SQUARES = "loss_squared"  # of the steps, from which the standard error of their mean follows


class Problem(NamedTuple):
    """What does not change during a run.

    Parameters
    ----------
    source, plan : MemorySource, StepPlan
        The training rows, on the device or on the host; batch size, number of steps, and steps between two evaluations.
    prepared : any
        What the learner's `prepare` computed once before the first step.
    rate : float or None
        The learning rate that short trials chose, None = the learner's own.
    prior : AbstractGP or None
        The parameters around which the prior of a learner is, if not those at which the run starts.
    """

    source: MemorySource
    plan: StepPlan
    prepared: Any
    rate: float | None = None
    prior: AbstractGP | None = None


class AbstractLearner(eqx.Module):
    """How θ of a model is learned.

    The arrays of a state suffice to resume, and `advance` is a deterministic function of its arguments: so a killed run
    resumes to the same bits. All methods are called on the host, where x64 is enabled, and may jit inside. A learner of mini-batches is an
    `AbstractBatchLearner`, with a pure `step(state, batch, *, key)`.

    `batch_size` and `learning_rate` are None unless a leaf has such fields. `evaluator` says how the states of a run are evaluated; None = what suits
    the model: `ByEvidence()` for feature GPs, `ByLoss()` for others.
    """

    gradients: ClassVar[str] = "unknown"  # "exact", "unbiased", "estimated" or "biased": those that θ follows
    shares_steps: ClassVar[bool] = False  # whether devices can share the rows of a batch
    first_seconds: ClassVar[float] = 0.0  # least time for the first steps, which compile
    batch_size = cast(Any, None)  # not annotated: a leaf may have such a field, in any place
    learning_rate = cast(Any, None)
    evaluator = cast(Any, None)

    @abc.abstractmethod
    def plan(self, n_rows: int, n_inputs: int, evaluator: AbstractEvaluator) -> StepPlan:
        """How many steps, and how many between evaluations, at which time limit, Ctrl-C and checkpoint act."""

    @abc.abstractmethod
    def peak_bytes(self, gp: AbstractGP, n_rows: int, n_inputs: int) -> int:
        """The peak memory of learning, beside the rows, the evaluations and the compiler's."""

    def rows_within(self, gp: AbstractGP, n_rows: int, n_inputs: int, seconds: float) -> int:
        """Return how many of the rows it can learn from in so many seconds."""
        return n_rows

    @abc.abstractmethod
    def prepare(self, gp: AbstractGP, source: MemorySource, plan: StepPlan, seed: Seed) -> Any:
        """What is computed once, such as lists of neighbours: deterministic, since a resumed run computes it again."""

    @abc.abstractmethod
    def init(self, gp: AbstractGP, problem: Problem, *, key: PRNGKeyArray) -> Any:
        """The state before the first step: a pytree."""

    @abc.abstractmethod
    def advance(
        self, state: Any, problem: Problem, first_step: int, n_steps: int, seed: Seed
    ) -> tuple[Any, Numbers]:
        """(State after the steps first_step … first_step + n_steps − 1, their numbers for the history).

        `n_steps` is at most `plan.chunk_steps`. The numbers contain "loss", per datum: the average over these steps.
        """

    def after_evaluation(self, state: Any, evaluation: Any) -> Any:
        """The state that the run continues from after an evaluation."""
        return state

    def model(self, state: Any) -> AbstractGP:
        """θ of the state."""
        return state.gp

    def refitting(self) -> Any:
        """The same for a start near the optimum: with fewer steps, if it can tell how many suffice."""
        return self

    def slower(self, state: Any, factor: float) -> Any:
        """The state with its learning rate, if it has one, multiplied by `factor`."""
        return state

    def finished(self, entry: Numbers) -> bool:
        """Return True if the run has converged according to the last entry of the history."""
        return False

    def to_go_on(self, state: Any) -> Any:
        """The part of a run's last state from which further rows are learned; None if the learner learns from no stream."""
        return None

    def seen_rows(self, n_rows: int) -> int:
        """How many of so many rows it learns from."""
        return n_rows

    def exactness(self, entry: Numbers) -> str:
        """`gradients`, according to the last entry of the history."""
        return self.gradients

    def evaluator_for(self, gp: AbstractGP) -> AbstractEvaluator:
        """The learner's own, or the one that suits the model: by evidence if that takes M × M numbers, else by loss.

        Raises ValueError for evidence of a model that has no moments.
        """
        if self.evaluator is None:
            return ByEvidence() if gp.has_moments else ByLoss()
        if isinstance(self.evaluator, ByEvidence) and not gp.has_moments:
            name, model = type(self).__name__, type(gp).__name__
            raise ValueError(f"{name} is to be evaluated by evidence, which {model} has no moments for")
        return self.evaluator

    def check_common(self, *counts: str) -> None:
        """Raises ValueError, naming the field, for impossible settings; `counts` are further fields that are whole numbers from 1 on, or None."""
        for name in ("batch_size", "epochs", *counts):
            value = getattr(self, name, None)
            if value is not None and (isinstance(value, bool) or value != int(value) or value < 1):
                raise ValueError(f"{name} is {value}; it must be a whole number of at least 1")
        rate = self.learning_rate
        if rate is not None and not callable(rate) and (isinstance(rate, str) or not 0 < rate < float("inf")):
            raise ValueError(f"learning_rate is {rate!r}; it must be positive and finite")
        spread = getattr(self, "spread", None)  # of the prior of some learners
        if spread is not None and not 0 < spread < float("inf"):
            raise ValueError(f"spread is {spread}; it must be positive and finite, or None")


class AbstractBatchLearner(AbstractLearner):
    """A learner of mini-batches: a leaf defines its step; batches and scans of steps are the same for all.

    `n_streams` is the number of independent batches of a step, a stack if there are several. With `fills` batches are filled up by rows of
    weight 0 to one of few sizes, so that runs of nearby sizes share the compiled scan.

    Parameters
    ----------
    batch_size : int
        B; all rows if there are fewer.
    epochs : int or None
        Passes over the data; None = chosen by `plan`.
    learning_rate : float, rule of the step, or None
        None: chosen by short trials if the evaluator has rates to try; else the learner's own.
    optimizer : function
        Any optax rule, as a function of its learning rate: `optax.adam`, `optax.adadelta`, `optax.sgd`, …
    decay : function
        Factor on a numeric learning rate, as a function of the fraction of the planned steps taken.
    evaluator : AbstractEvaluator or None
        As of `AbstractLearner`.
    sampling : AbstractSampling or None
        Which rows make a batch; None = as `sampling_for` chooses.
    """

    steps = cast(int, 0)  # of a run whose `epochs` are None, if evaluations are by loss
    n_streams: ClassVar[int] = 1
    fills: ClassVar[bool] = False
    batch_size: int = 256
    epochs: int | None = None
    learning_rate: float | Schedule | None = None
    optimizer: Optimizer = optax.adam
    decay: Schedule = cosine
    evaluator: AbstractEvaluator | None = None
    sampling: Any = Uniform()

    @abc.abstractmethod
    def step(self, state: Any, batch: Data, *, key: PRNGKeyArray) -> tuple[Any, dict[str, Array]]:
        """(State after one step on `batch`, numbers by name, "loss" among them). Pure; fit for jit and scan."""

    def plan(self, n_rows: int, n_inputs: int, evaluator: AbstractEvaluator) -> StepPlan:
        width = self.n_streams * row_bytes(n_inputs)
        return evaluator.plan_steps(n_rows, width, self.batch_size, self.epochs, self.steps)

    def sampling_for(self, gp: Any) -> AbstractSampling:
        """The sampling of this model's batches."""
        return self.sampling

    def slower(self, state: Any, factor: float) -> Any:
        return eqx.tree_at(lambda s: s.descent, state, slowed(state.descent, factor))

    def decaying(self, state: Any, n_steps: int | None) -> Any:
        """The state with a learning rate that decays over the next `n_steps` steps; None = a constant one."""
        return eqx.tree_at(lambda s: s.descent, state, decaying(state.descent, n_steps))

    def begin_descent(self, theta: Any, problem: Problem, default: float | None = None) -> Descent:
        """Step 0 of the optimiser at the learner's rate, that of the trials, or `default`."""
        rate = start_rate(self.learning_rate, default if problem.rate is None else problem.rate)
        return begin(theta, self.optimizer, rate, problem.plan.total_steps)

    def descend(self, theta: Any, gradient: Any, descent: Descent) -> tuple[Any, Descent]:
        """θ and the optimiser's state after a step."""
        return move(theta, gradient, descent, self.optimizer, self.step_size(descent))

    def step_size(self, descent: Descent) -> Array:
        """The size of the next step."""
        return step_size(descent, self.learning_rate, self.decay)

    def compiled(self) -> Any:
        """The learner as a key of compiled steps: fields that no step reads are at their defaults. A numeric rate is in the state."""
        kept = ("batch_size", "epochs", "sampling", "steps")
        plain: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(self) if f.name in kept}
        plain["learning_rate"] = self.learning_rate if callable(self.learning_rate) else None
        own = self.evaluator  # of evidence, `refit` decides what is trained
        plain["evaluator"] = ByEvidence(refit=own.refit) if isinstance(own, ByEvidence) else None
        return dataclasses.replace(self, **plain)

    def prepare(
        self, gp: Any, source: MemorySource, plan: StepPlan, seed: Seed
    ) -> tuple[Any, "AbstractBatchLearner"]:
        """(What the sampling computes of all rows, the learner as a key of compiled steps)."""
        sampled = self.sampling_for(gp).prepare(source, plan.batch_size, plan.total_steps, seed)
        return sampled, self.compiled()

    def advance(
        self, state: Any, problem: Problem, first_step: int, n_steps: int, seed: Seed
    ) -> tuple[Any, Numbers]:
        """Factorisations inside a step are of blocks, each on one thread: beside the threads of XLA's products those of LAPACK wait longer than they work."""
        sampling, B, mesh = self.sampling_for(state.gp), problem.plan.batch_size, problem.source.mesh
        sampled, compiled = problem.prepared
        one = self.n_streams == 1
        seeds = [seed] if one else [(*seed, i) for i in range(self.n_streams)]
        streams = [sampling.batches(sampled, first_step, n_steps, B, s) for s in seeds]
        indices, factors = streams[0] if one else np.stack(streams, axis=1), None
        if self.fills and size_of_few(B) > B:
            indices, factors = filled_batches(indices)
        batches = problem.source.take(indices)
        if factors is not None:
            weight = np.asarray(batches.weight)
            batches = dataclasses.replace(batches, weight=on_device(weight * factors.astype(weight.dtype)))
        is_spread = spreads_batches(self, B, mesh)
        if mesh is not None and is_spread:
            state, batches = on_all(state, mesh), spread(batches, mesh, axis=indices.ndim - 1)
        words = np.asarray(seed, np.uint32)
        scan = _quick_scan if problem.source.size <= FEW_ROWS else _scan
        state, info, squares = scan(compiled, state, batches, np.asarray(first_step), words)
        numbers = {name: float(value) for name, value in info.items()} | {SQUARES: float(squares)}
        return on_one(state) if is_spread else state, numbers


def spreads_batches(learner: Any, batch_size: int, mesh: Mesh | None) -> bool:
    """Whether each of several devices takes a part of every mini-batch."""
    if mesh is None or mesh.size == 1 or not learner.shares_steps:
        return False
    return batch_size >= MIN_SHARED_BATCH and batch_size % mesh.size == 0


def filled_batches(indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(Row 0 at P − B further places of [..., B], factors of weights [P]: 0 there and P/B elsewhere, since steps divide by P)."""
    B = indices.shape[-1]
    P = size_of_few(B)
    wider = np.pad(indices, [(0, 0)] * (indices.ndim - 1) + [(0, P - B)])
    return wider, np.repeat([P / B, 0.0], [B, P - B])


def _steps(learner: Any, state: Any, batches: Data, first_step: Any, seed: Any) -> tuple[Any, Any, Array]:
    """(State after a step on each of a stack of batches, means of their numbers, the mean of the squared losses).

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
    squares = jnp.mean(jnp.square(infos["loss"].astype(jnp.float64)))
    return eqx.combine(dynamic, static), jax.tree.map(jnp.mean, infos), squares


_scan, _quick_scan = eqx.filter_jit(_steps), quick_jit(_steps)
