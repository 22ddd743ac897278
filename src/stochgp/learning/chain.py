"""One learner after another: each starts from what the one before has learned."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import PRNGKeyArray

from stochgp import deadline
from stochgp.data.streams import AbstractSource
from stochgp.deadline import Pace, TimeIsUpError
from stochgp.learners.base import AbstractLearner, Problem
from stochgp.learners.descent import Optimizer, Schedule, constant
from stochgp.learners.evaluators import AbstractEvaluator, ByLoss, Numbers, Seed
from stochgp.learners.step_plan import StepPlan
from stochgp.learning.run import take_stretch
from stochgp.models import AbstractGP


class ChainState(eqx.Module):
    """The states of the learners, and the stage: the number of the learner that takes the next step."""

    stage: np.int64
    taken: np.int64  # steps of this stage
    states: tuple[Any, ...]  # of every learner
    offset: np.float64  # between this stage's loss and the chain's
    loss: np.float64

    def at_stage(self, made: Any, **fields: Any) -> "ChainState":
        """With another state of the learner of this stage."""
        i = int(self.stage)
        states = (*self.states[:i], made, *self.states[i + 1 :])
        return dataclasses.replace(self, states=states, **fields)


class Chain(AbstractLearner):
    """The learners in turn, such as a quick one on few rows and a careful one on more. Their own fields count, not the chain's.

    A learner that ends early is followed by the next at once. A step of the chain is all steps of its current learner up to the next evaluation.
    "loss" continues without a jump from one learner to the next, although their losses differ.

    `converged`: the last learner's.

    Parameters
    ----------
    learners : tuple of AbstractLearner
        In the order in which they learn, at least one.
    batch_size, epochs, learning_rate, optimizer, decay
        Fields of every learner, not to be given to a chain but to its learners: ValueError for anything but the default.
    evaluator : AbstractEvaluator or None
        How the states of the chain are evaluated; None = `ByEvidence()` for feature GPs, `ByLoss()` for others.
    """

    learners: tuple[AbstractLearner, ...]
    batch_size: None = None
    epochs: None = None
    learning_rate: None = None
    optimizer: Optimizer = optax.adam
    decay: Schedule = constant
    evaluator: AbstractEvaluator | None = None

    def __check_init__(self) -> None:
        if len(self.learners) == 0:
            raise ValueError("a chain needs at least one learner")
        plain = {field.name: field.default for field in dataclasses.fields(self)}
        for name in ("batch_size", "epochs", "learning_rate", "optimizer", "decay"):
            if getattr(self, name) is not plain[name]:
                raise ValueError(f"{name} is given to a chain: give it to one of its learners")

    @property
    def loss_shift(self) -> float:
        """The first learner's, whose loss the others continue."""
        return self.learners[0].loss_shift

    def exactness(self, entry: Numbers) -> tuple[str, str]:
        return self.learners[-1].exactness(entry)

    def seen_rows(self, n_rows: int) -> int:
        return self.learners[-1].seen_rows(n_rows)

    def plan(self, n_rows: int, n_inputs: int, evaluator: AbstractEvaluator) -> StepPlan:
        plans = [learner.plan(n_rows, n_inputs, evaluator) for learner in self.learners]
        return StepPlan(n_rows, 1, sum(plan.n_evaluations for plan in plans), 1)

    def need_bytes(self, gp: AbstractGP, n_rows: int, n_inputs: int) -> int:
        """Of all of them; what they prepare stays."""
        return sum(learner.need_bytes(gp, n_rows, n_inputs) for learner in self.learners)

    def within(self, gp: AbstractGP, n_rows: int, n_inputs: int, free: int) -> "Chain":
        within = tuple(learner.within(gp, n_rows, n_inputs, free) for learner in self.learners)
        return dataclasses.replace(self, learners=within)

    def rows_within(self, gp: AbstractGP, n_rows: int, n_inputs: int, seconds: float) -> int:
        """As many as all of them can learn from in equal parts of the time."""
        share = seconds / len(self.learners)
        return min(learner.rows_within(gp, n_rows, n_inputs, share) for learner in self.learners)

    def prepare(self, gp: AbstractGP, source: AbstractSource, plan: StepPlan, seed: Seed) -> Any:
        """A problem for each learner."""
        evaluator, problems = ByLoss() if self.evaluator is None else self.evaluator, []
        for i, learner in enumerate(self.learners):
            own = learner.plan(source.size, source.n_inputs, evaluator)
            problems.append(Problem(source, own, learner.prepare(gp, source, own, _seed(seed, i))))
        return tuple(problems)

    def init(self, gp: AbstractGP, problem: Problem, *, key: PRNGKeyArray) -> ChainState:
        """All learners' states have their place from the start, so that a checkpoint of any stage fits."""
        pairs = zip(self.learners, problem.prepared, strict=True)
        states = tuple(learner.init(gp, own, key=key) for learner, own in pairs)
        return ChainState(np.int64(0), np.int64(0), states, np.float64(0), np.float64(np.nan))

    def advance(
        self, state: ChainState, problem: Problem, first_step: int, n_steps: int, seed: Seed
    ) -> tuple[ChainState, Numbers]:
        numbers: Numbers = {}
        for _ in range(n_steps):
            state, numbers = self._evaluation(state, problem, seed)
        return state, numbers

    def model(self, state: ChainState) -> AbstractGP:
        return self.learners[int(state.stage)].model(state.states[int(state.stage)])

    def slower(self, state: ChainState, factor: float) -> ChainState:
        """Of the current learner."""
        i = int(state.stage)
        return state.at_stage(self.learners[i].slower(state.states[i], factor))

    def finished(self, entry: Numbers) -> bool:
        return entry["ended"] > 0

    def exhausted(self, entry: Numbers) -> bool:
        return entry["spent"] > 0

    def _evaluation(self, state: ChainState, problem: Problem, seed: Seed) -> tuple[ChainState, Numbers]:
        """One stretch of the current learner, and the change to the next one if it has ended. Raises TimeIsUpError if it would not end in time."""
        i, step, pieces = int(state.stage), int(state.taken), Pace()
        learner, own = self.learners[i], problem.prepared[i]
        wanted = min(own.plan.steps_per_evaluation, own.plan.total_steps - step)
        is_over = lambda: deadline.left() < pieces.expected
        args = (learner, state.states[i], own, step, _seed(seed, i))
        made, n_steps, numbers = take_stretch(*args, pieces=pieces, is_over=is_over)
        if n_steps < wanted:
            raise TimeIsUpError(f"a stretch of {wanted} steps does not end in time")
        offset = float(state.loss) - numbers["loss"] if i > 0 and step == 0 else float(state.offset)
        loss, taken, over = numbers["loss"] + offset, step + n_steps, learner.finished(numbers)
        counts = {"taken": np.int64(taken), "offset": np.float64(offset), "loss": np.float64(loss)}
        state = state.at_stage(made, **counts)
        is_last, spent = i == len(self.learners) - 1, taken >= own.plan.total_steps
        if not is_last and (over or spent):
            state = self._next(state, problem, seed)
        ends = {"ended": float(is_last and over), "spent": float(is_last and spent)}
        return state, {**numbers, "loss": loss, "stage": float(i), **ends}

    def _next(self, state: ChainState, problem: Problem, seed: Seed) -> ChainState:
        """The next learner begins with what has been learned."""
        gp, i = self.model(state), int(state.stage) + 1
        key = jax.random.wrap_key_data(jnp.asarray(_seed(seed, i), jnp.uint32))
        begun = self.learners[i].init(gp, problem.prepared[i], key=key)
        state = ChainState(np.int64(i), np.int64(0), state.states, np.float64(0), state.loss)
        return state.at_stage(begun)


def _seed(seed: Seed, i: int) -> Seed:
    """Another one for every learner."""
    return (*seed[:-1], (seed[-1] + i) % 2**32)
