"""SGPR: the collapsed bound of all rows, by L-BFGS."""

import math
from typing import cast

import equinox as eqx
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from stochgp import deadline
from stochgp.data.streams import AbstractSource
from stochgp.deadline import COMPILING, Pace, TimeIsUpError
from stochgp.learning.base import AbstractLearner, Problem
from stochgp.learning.descent import Optimizer
from stochgp.learning.judge import AbstractJudge, Numbers, Seed
from stochgp.learning.schedules import Schedule, constant
from stochgp.learning.step_plan import StepPlan
from stochgp.models import SparseGP
from stochgp.numerics import lbfgs
from stochgp.numerics.arrays import on_device, packed, unpacked, unpacked_alike
from stochgp.numerics.lbfgs import Quasi
from stochgp.objectives.collapsed import CHUNK_BYTES, lower_bound_and_gradient
from stochgp.parameters import trainable_mask
from stochgp.variational import InducingPoints, Naturals

STEPS, PER_EVALUATION = 200, 5
PATIENCE = 5  # steps over which the improvement is looked at
ROUNDING = 1e-11  # relative, of the bound
EVALUATION = 4e-10  # seconds of a first evaluation, per row and square of the inducing points


class SGPRState(eqx.Module):
    """What a step carries on: the point of L-BFGS and the optimal q(v) there."""

    gp: SparseGP  # the structure, and what does not train
    at: Quasi
    naturals: Naturals  # the optimal q(v) there
    recent: Float[np.ndarray, " T"]  # the last values, newest last
    settled: np.bool_


class SGPR(AbstractLearner):
    """Descent on minus the collapsed bound per datum (Titsias 2009), `objectives.collapsed`, by L-BFGS; also called VSGPR.

    Kernel, noise and inducing points follow its exact gradient; q(u) is optimal at every step. An evaluation takes two passes over the rows:
    O(N M² + M³), and memory for one chunk of rows whatever N is. All is in float64.

    `converged`: the run ended by `tolerance`, or where rounding allows no more. Raises TypeError for a model without inducing points.

    Parameters
    ----------
    batch_size : None
        All rows at every step; ValueError for a number.
    epochs : int or None
        Steps at most; None = 200.
    learning_rate, optimizer : None
        L-BFGS has no rate and takes no optax rule; ValueError for anything else.
    decay : function
        Not used: there is no rate.
    tolerance : float
        The run ends where the loss, in nats per datum, changed by less than this in 5 steps, or where rounding allows no more.
    judge : AbstractJudge or None
        How states are evaluated; None = `ByLoss()`.
    """

    batch_size: int | None = None
    epochs: int | None = None
    learning_rate: float | Schedule | None = None
    optimizer: Optimizer | None = None
    decay: Schedule = constant
    tolerance: float = 1e-4
    judge: AbstractJudge | None = None

    def __check_init__(self) -> None:
        self.check_common()
        for name in ("batch_size", "learning_rate", "optimizer"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name} is {getattr(self, name)}; SGPR takes all rows by L-BFGS: leave it None"
                )
        if not 0 <= self.tolerance < math.inf:
            raise ValueError(f"tolerance is {self.tolerance}; it must be finite and at least 0")

    def plan(self, n_rows: int, n_inputs: int, judge: AbstractJudge) -> StepPlan:
        """A step is an epoch."""
        steps = STEPS if self.epochs is None else self.epochs
        between = min(PER_EVALUATION, steps)
        return StepPlan(n_rows, 1, -(-steps // between) * between, between, between)

    def need_bytes(self, gp: SparseGP, n_rows: int, n_inputs: int) -> int:
        """A chunk and its derivatives, matrices of inducing points, the pairs of L-BFGS."""
        M = gp.approximation.n_inducing
        moving = len(packed(self.partition(gp)[0]))
        return 8 * CHUNK_BYTES + 8 * 20 * M**2 + 8 * 4 * lbfgs.PAIRS * moving

    def prepare(self, gp: SparseGP, source: AbstractSource, plan: StepPlan, seed: Seed) -> Pace:
        """How long an evaluation takes."""
        return Pace(EVALUATION * source.size * gp.approximation.n_inducing**2)

    def init(self, gp: SparseGP, problem: Problem, *, key: PRNGKeyArray) -> SGPRState:
        q = gp.approximation
        if not isinstance(q, InducingPoints):
            raise TypeError(f"SGPR learns InducingPoints, not {type(q).__name__}")
        M = q.n_inducing
        naturals = Naturals(on_device(np.eye(M)[None]), on_device(np.zeros((1, M))))
        start = lbfgs.begin(packed(self.partition(gp)[0]))
        return SGPRState(gp, start, naturals, np.full(PATIENCE + 1, np.inf), np.bool_(False))

    def advance(
        self, state: SGPRState, problem: Problem, first_step: int, n_steps: int, seed: Seed
    ) -> tuple[SGPRState, Numbers]:
        """`n_steps` steps, fewer where it settles before. "loss" is that after them."""
        loss, taken = _Loss(self, state, problem), 0
        while taken < n_steps and not state.settled:
            try:
                state = self.step(state, loss)
            except TimeIsUpError:
                if taken == 0:
                    raise
                break
            taken += 1
        numbers = {
            "loss": float(state.at.value),
            "gradient_norm": float(np.linalg.norm(state.at.gradient)),
            "unsettled": float(not state.settled),
            "evaluations": float(loss.evaluations),
            "taken": float(max(taken, 1)),
        }
        return state, numbers

    def step(self, state: SGPRState, loss: "_Loss") -> SGPRState:
        """The state after one step."""
        at = lbfgs.step(state.at, loss, ROUNDING)
        recent = np.append(state.recent[1:], at.value)
        settled = at.stuck or bool(recent.max() - recent.min() < self.tolerance)
        naturals = loss.optima.get(at.x.tobytes(), state.naturals)
        return SGPRState(state.gp, at, naturals, recent, np.bool_(settled))

    def model(self, state: SGPRState) -> SparseGP:
        """θ and the optimal q(u), in the dtypes of the model."""
        theta, rest = self.partition(state.gp)
        return at_naturals(eqx.combine(unpacked_alike(state.at.x, theta), rest), state.naturals)

    def partition(self, gp: SparseGP) -> tuple[SparseGP, SparseGP]:
        """(what L-BFGS moves, the rest): q(v) is in the rest."""
        return without_gaussian(gp)

    def slower(self, state: SGPRState, factor: float) -> SGPRState:
        """It has no rate; L-BFGS never climbs."""
        return state

    def finished(self, entry: Numbers) -> bool:
        return entry["unsettled"] == 0

    @property
    def first_seconds(self) -> float:
        return COMPILING

    def exactness(self, entry: Numbers) -> tuple[str, str]:
        return "exact", "of the collapsed lower bound of all rows"


def without_gaussian(gp: SparseGP) -> tuple[SparseGP, SparseGP]:
    """(what trains in a model of inducing points apart from q(v), the rest)."""
    mask = eqx.tree_at(
        lambda g: (g.approximation.mean, g.approximation.root), trainable_mask(gp), (False, False)
    )
    return eqx.partition(gp, mask)


def at_naturals(gp: SparseGP, naturals: Naturals) -> SparseGP:
    """The model of inducing points with the q(u) of these natural parameters."""
    return eqx.tree_at(lambda g: g.approximation, gp, cast(InducingPoints, gp.approximation).at(naturals))


class _Loss:
    """Minus the bound per datum as a function of the vector of what trains; keeps the optimal q(v) of each of its points.

    Raises TimeIsUpError instead of an evaluation that would end after the deadline.
    """

    def __init__(self, learner: SGPR, state: SGPRState, problem: Problem):
        self.learner, self.source, self.pace = learner, problem.source, problem.prepared
        self.devices = problem.devices
        self.theta, self.rest = learner.partition(state.gp)
        self.evaluations, self.optima = 0, {}

    def __call__(self, x: Float[np.ndarray, " P"]) -> tuple[float, Float[np.ndarray, " P"]]:
        deadline.require(self.pace.expected)
        self.evaluations += 1
        with self.pace.piece():
            gp = eqx.combine(unpacked(x, self.theta), self.rest)
            found = lower_bound_and_gradient(gp, self.source, self.learner.partition, self.devices)
            found = self.devices.broadcast(found)
        self.optima[x.tobytes()] = found.naturals
        return -found.bound, -packed(found.gradient)
