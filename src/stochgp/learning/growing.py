"""What learners of decoupled processes share: batches, functions that grow from their rows, the optimiser's part."""

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int32, PRNGKeyArray

from stochgp.data.streams import Batch
from stochgp.deadline import COMPILING
from stochgp.learning.base import Problem
from stochgp.learning.descent import Descent, Optimizer, begin, move, start_rate, step_size
from stochgp.learning.judge import AbstractJudge, Numbers
from stochgp.learning.sampling import Uniform, row_bytes
from stochgp.learning.step_plan import CHUNK_BYTES, StepPlan
from stochgp.learning.steps import AbstractBatchLearner
from stochgp.models import SparseGP
from stochgp.objectives.decoupled import Parts, bound_parts
from stochgp.parameters import trainable_mask
from stochgp.variational import Decoupled
from stochgp.variational.functions import TILE

STEPS = 2048
RATE = 0.01
TRIAL_RATES = (
    1e-2,
    3e-2,
    1e-1,
)  # at the paper's lowest, 0.001, 2,048 steps learned nothing that 0.01 did not


class GrowingState(eqx.Module):
    """What a step carries on: the model, its descent, and how many rows there are."""

    gp: SparseGP
    descent: Descent
    n_rows: Float[Array, ""]  # N
    count: Float[Array, ""]  # Σρ of all rows


class GrowingInfo(NamedTuple):
    """What a step says."""

    loss: Float[Array, ""]  # −bound per datum, estimated by the batch
    divergence: Float[Array, ""]  # KL(q ‖ p) per datum
    functions: Float[Array, ""]  # of the mean that are there


class AbstractGrowing(AbstractBatchLearner):
    """A learner of `Decoupled` (Cheng and Boots 2017, algorithm 1).

    Every step takes a batch, makes functions of its first `growth` rows as long as there is room, and moves the model.
    """

    batch_size: eqx.AbstractVar[int]
    optimizer: eqx.AbstractVar[Optimizer]
    growth: eqx.AbstractVar[int]
    slowing: eqx.AbstractVar[float]

    @abc.abstractmethod
    def partition(self, gp: SparseGP) -> tuple[SparseGP, SparseGP]:
        """(what the optimiser moves, the rest)."""

    def check_growing(self) -> None:
        """Raises ValueError for impossible settings."""
        self.check_common()
        if self.growth < 1:
            raise ValueError(f"growth is {self.growth}; it must be at least 1")
        if not self.slowing >= 0:
            raise ValueError(f"slowing is {self.slowing}; it must be at least 0")

    def plan(self, n_rows: int, n_inputs: int, judge: AbstractJudge) -> StepPlan:
        return judge.plan_steps(n_rows, row_bytes(n_inputs), self.batch_size, self.epochs, STEPS)

    def need_bytes(self, gp: SparseGP, n_rows: int, n_inputs: int) -> int:
        """Batches; a tile of the mean's functions and all of the covariance's by the rows of a batch, with their derivatives; the optimiser."""
        q: Any = gp.approximation
        B, M, P = min(self.batch_size, n_rows), q.mean_functions.capacity, q.n_inducing
        drawn = self.sampling.need_bytes(n_rows, n_inputs, B, STEPS)
        kernels = 4 * 8 * B * min(M, TILE) + 8 * 6 * P * (B + P)
        return drawn + 3 * CHUNK_BYTES + kernels + 4 * 6 * (M * (2 * n_inputs + 1) + P * (P + 2 * n_inputs))

    def init(self, gp: SparseGP, problem: Problem, *, key: PRNGKeyArray) -> GrowingState:
        """Raises TypeError for a model whose q(f) is not `Decoupled`."""
        if not isinstance(gp.approximation, Decoupled):
            raise TypeError(
                f"{type(self).__name__} learns Decoupled processes, not {type(gp.approximation).__name__}"
            )
        rate = start_rate(self.learning_rate, RATE if problem.rate is None else problem.rate)
        descent = begin(self.partition(gp)[0], self.optimizer, rate, problem.plan.total_steps)
        n, count = (jnp.asarray(v, jnp.float32) for v in (problem.source.size, problem.source.count))
        return GrowingState(gp, descent, n, count)

    def to_go_on(self, state: GrowingState) -> GrowingState:
        return state

    @property
    def unread(self) -> dict[str, Any]:
        return {"batch_size": 1, "judge": None, "sampling": Uniform()}

    @property
    def first_seconds(self) -> float:
        return COMPILING

    def exactness(self, entry: Numbers) -> tuple[str, str]:
        return "unbiased", "of the lower bound, whose gap to the likelihood the inducing functions set"

    def ascend(
        self,
        gp: SparseGP,
        batch: Batch,
        state: GrowingState,
        columns: Int32[Array, " J"] | None,
        carried: Callable[[SparseGP], SparseGP] = lambda gp: gp,
    ) -> tuple[GrowingState, GrowingInfo]:
        """A step of `gp` along the gradient of the batch's bound per datum, by what `partition` moves; `columns` of K_α, None = all.

        `carried` gives a model whose functions and kernel have moved the q that goes with them, and leaves `gp` itself as it is.
        """
        trainable, rest = self.partition(gp)

        def loss(t: SparseGP) -> tuple[Array, Parts]:
            parts = bound_parts(carried(eqx.combine(t, rest)), batch, state.n_rows, columns)
            return (parts.of_mean + parts.of_covariance - parts.fit) / state.count, parts

        (value, parts), gradient = jax.value_and_grad(loss, has_aux=True)(trainable)
        theta, descent = move(trainable, gradient, state.descent, self.optimizer, self.size(state.descent))
        divergence = (parts.of_mean + parts.of_covariance) / state.count
        q: Any = gp.approximation
        info = GrowingInfo(value, divergence, q.mean_functions.used.astype(value.dtype))
        return GrowingState(carried(eqx.combine(theta, rest)), descent, state.n_rows, state.count), info

    def size(self, descent: Descent) -> Float[Array, ""]:
        """γ_t = γ₀ · decay / (1 + slowing √t), or what a rule says."""
        size = step_size(descent, self.learning_rate, self.decay)
        if callable(self.learning_rate):
            return size
        return size / (1 + self.slowing * jnp.sqrt(descent.step))


def grown(gp: SparseGP, batch: Batch, n: int, start: Float[Array, " n"] | None = None) -> SparseGP:
    """With functions of the first n rows of the batch, as far as there is room; `start` on the diagonal of L, None = 0."""
    q: Any = gp.approximation
    X = batch.X[:n]
    start = jnp.zeros(X.shape[0], q.root.dtype) if start is None else start
    return eqx.tree_at(lambda g: g.approximation, gp, q.grown(X, start))


def all_but_q(gp: SparseGP, *moved: str) -> tuple[SparseGP, SparseGP]:
    """(What trains, the rest); of a, "weights", and L, "root", only those named train."""
    mask = trainable_mask(gp)
    for name in {"weights", "root"} - set(moved):
        mask = eqx.tree_at(lambda g, name=name: getattr(g.approximation, name), mask, False)
    return eqx.partition(gp, mask)
