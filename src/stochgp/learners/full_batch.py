"""Descent on the exact marginal likelihood of all rows, or of a random subset, by L-BFGS."""

import abc
import contextlib
import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, cast

import equinox as eqx
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from stochgp import deadline
from stochgp.data.memory import MemorySource, shuffled_batches
from stochgp.data.rows import Data
from stochgp.deadline import Pace, TimeIsUpError
from stochgp.kernels import dense
from stochgp.kernels.dense import TILE
from stochgp.learners import lbfgs
from stochgp.learners.base import AbstractLearner, Problem
from stochgp.learners.conditionals import MAX_PARAMETERS, LeaveOneOut
from stochgp.learners.evaluators import ByLoss, Evaluator, Numbers, Seed, StepPlan
from stochgp.learners.lbfgs import Quasi
from stochgp.models import AbstractGP, FeatureGP, KernelGP
from stochgp.numerics.arrays import packed, unpacked, unpacked_alike
from stochgp.objectives import nlml_and_gradient
from stochgp.parameters import partition

STEPS, REFIT_STEPS = 100, 5
MIN_PAIRS = 3  # pairs in the memory from which its quadratic is trusted
HESSIAN_ROWS = 1_000
ROUNDING = 1e-12  # relative rounding of the loss
EVALUATION = 2e-11  # seconds of a first evaluation per cubed number of rows
# Rows that a fit takes about this many seconds for, on two cores of 2023; time grows with the power 2.5 of the rows.
ROWS_IN_TIME, SECONDS_OF_ROWS, MIN_ROWS = 3_000, 30.0, 200
EVALUATION_PRODUCTS = 1e10  # of one evaluation, about a second
MAX_STEPS_PER_EVALUATION = 20
STEPS_PER_PASS = 5  # between evaluations that are themselves a pass over the rows


class QuasiState(eqx.Module):
    """The point of L-BFGS, and values computed there."""

    gp: AbstractGP  # the structure, and the part that does not train
    at: Quasi
    known: Any  # further values of the loss there, such as the optimal q(v)
    settled: np.bool_


class AbstractQuasiNewton(AbstractLearner):
    """Descent by L-BFGS until a step promises less than `tolerance`, or rounding stops it."""

    exact: ClassVar[bool] = True
    epochs: eqx.AbstractVar[int | None]
    tolerance: eqx.AbstractVar[float]
    steps: ClassVar[tuple[int, int]] = (STEPS, 1)  # of a run whose `epochs` are None, and between evaluations

    def __check_init__(self) -> None:
        self.check_common()
        if not 0 <= self.tolerance < math.inf:
            raise ValueError(f"tolerance is {self.tolerance}; it must be finite and at least 0")

    def partition(self, gp: Any) -> tuple[Any, Any]:
        """Return the part that L-BFGS moves and the rest."""
        return partition(gp)

    def plan(self, n_rows: int, n_inputs: int, evaluator: Evaluator) -> StepPlan:
        """Plan one step per epoch."""
        steps, between = self.steps
        return whole_steps(n_rows, steps if self.epochs is None else self.epochs, between)

    @abc.abstractmethod
    def loss(self, gp: Any, problem: Problem) -> "Loss":
        """Return the loss of the problem's rows; `gp` gives the structure."""

    def advance(
        self, state: QuasiState, problem: Problem, first_step: int, n_steps: int, seed: Seed
    ) -> tuple[QuasiState, Numbers]:
        """Take `n_steps` steps; a settled state stays. "loss" is the value after them."""
        loss, taken = self.loss(state.gp, problem), 0
        while taken < n_steps:
            try:
                state = state if state.settled else self.step(state, loss)
            except TimeIsUpError:
                if taken == 0:
                    raise
                break
            taken += 1
        found = {"loss": state.at.value, "gradient_norm": np.linalg.norm(state.at.gradient)}
        found |= {"unsettled": not state.settled, "evaluations": loss.evaluations, "taken": taken}
        return state, {name: float(value) for name, value in found.items()}

    def step(self, state: QuasiState, loss: "Loss") -> QuasiState:
        """Return the state after one step."""
        at = lbfgs.step(state.at, loss, loss.rounding)
        settled = at.stuck or (at.n_pairs >= MIN_PAIRS and lbfgs.promised(at) < self.tolerance)
        known = loss.known.get(at.x.tobytes(), state.known)
        return QuasiState(state.gp, at, known, np.bool_(settled))

    def model(self, state: QuasiState) -> AbstractGP:
        theta, rest = self.partition(state.gp)
        return eqx.combine(unpacked_alike(state.at.x, theta), rest)

    def finished(self, entry: Numbers) -> bool:
        return entry["unsettled"] == 0


class Loss:
    """A loss of the vector of trainable parameters; TimeIsUpError if its evaluation would end too late.

    `evaluate` maps (the model, x) to the value, the gradient and further values at x.
    """

    def __init__(self, evaluate: Callable, parts: tuple[Any, Any], pace: Pace, rounding: float):
        self.evaluate, self.parts, self.pace, self.rounding = evaluate, parts, pace, rounding
        self.evaluations, self.known = 0, dict[bytes, Any]()

    def __call__(self, x: Float[np.ndarray, " P"]) -> tuple[float, Float[np.ndarray, " P"]]:
        deadline.require(self.pace.expected)
        self.evaluations += 1
        theta, rest = self.parts
        with self.pace.piece():
            value, gradient, self.known[x.tobytes()] = self.evaluate(eqx.combine(unpacked(x, theta), rest), x)
        return value, gradient


def whole_steps(n_rows: int, steps: int, between: int) -> StepPlan:
    """Return the plan of at least `steps` steps on all rows, with `between` of them before each evaluation."""
    between = min(between, steps)
    return StepPlan(n_rows, 1, -(-steps // between) * between, between, between)


class Prepared(NamedTuple):
    """The rows, the pace of evaluations, the start (None: the model), and H of the loss there."""

    rows: Data
    pace: Pace
    start: Float[np.ndarray, " P"] | None
    hessian: Float[np.ndarray, "P P"] | None


class FullBatch(AbstractQuasiNewton):
    """Descent on the exact NLML per datum by L-BFGS.

    For a kernel GP on n rows an evaluation is by Cholesky: O(n³), n² numbers of memory. For a feature GP it uses the moments:
    O(n M² + M³), memory for one chunk of features.

    With `spread` s the loss has the penalty ‖x − x₀‖² / (2 s² Σρ), a normal prior of the unconstrained parameters x around their
    start. It determines only parameters on which the rows give no information, such as the lengthscale of an irrelevant input.

    Parameters
    ----------
    epochs, subset_rows : int or None
        Steps at most, None = 100; rows of a random subset, None = all rows.
    spread : float or None
        s, for the logarithms of variances and lengthscales; None = no prior, the maximum of the likelihood.
    tolerance : float
        The run has converged if the quadratic of L-BFGS promises less than this in nats per datum, or at the limit of rounding.
    evaluator : ByEvidence, ByLoss or None
        See `AbstractLearner`.
    """

    epochs: int | None = None
    subset_rows: int | None = None
    spread: float | None = None
    tolerance: float = 1e-4
    evaluator: Evaluator | None = None

    def __check_init__(self) -> None:
        self.check_common("subset_rows")

    def seen_rows(self, n_rows: int) -> int:
        return n_rows if self.subset_rows is None else min(n_rows, self.subset_rows)

    def plan(self, n_rows: int, n_inputs: int, evaluator: Evaluator) -> StepPlan:
        """Plan one step per epoch and an evaluation about every second."""
        size, steps = self.seen_rows(n_rows), STEPS if self.epochs is None else self.epochs
        in_a_second = min(max(1, int(EVALUATION_PRODUCTS / size**3)), MAX_STEPS_PER_EVALUATION)
        between = STEPS_PER_PASS if evaluator.is_exact else in_a_second
        return whole_steps(size, steps, between)

    def peak_bytes(self, gp: AbstractGP, n_rows: int, n_inputs: int) -> int:
        """Bytes of float64 rows; for a kernel GP also of its matrix, replaced in place, and tiles."""
        size = self.seen_rows(n_rows)
        if gp.has_moments:
            return 2 * 8 * size * (n_inputs + 2) + 4 * 8 * cast(FeatureGP, gp).n_features ** 2
        whole = 8 * size**2 + 8 * size * (4 * min(TILE, size) + 8 * n_inputs)
        if not self._is_informed(gp, size):
            return whole
        # The search on leave-one-out densities ends before the matrix is made.
        return max(whole, 8 * size * n_inputs + LeaveOneOut().peak_bytes(gp, size, n_inputs))

    def rows_within(self, gp: AbstractGP, n_rows: int, n_inputs: int, seconds: float) -> int:
        """For a kernel GP, the number of rows for which about forty evaluations fit into the time."""
        if gp.has_moments or not seconds < math.inf:
            return n_rows
        rows = int(ROWS_IN_TIME * (max(seconds, 0.0) / SECONDS_OF_ROWS) ** 0.4)
        return n_rows if rows >= self.seen_rows(n_rows) else max(rows, MIN_ROWS)

    def prepare(self, gp: AbstractGP, source: MemorySource, plan: StepPlan, seed: Seed) -> Prepared:
        """Prepare the rows, on the host in float64."""
        size = self.seen_rows(source.size)
        if size < source.size:
            rows = np.arange(source.size, dtype=np.int32)
            source = source.some(shuffled_batches(rows, size, 0, 1, seed)[0])
        start = hessian = None
        if self._is_informed(gp, size):
            near, hessian = LeaveOneOut(spread=self.spread, searches=1).scored_briefly(gp, source, seed)
            start = packed(self.partition(near)[0])
        return Prepared(source.on_host(np.arange(size)), Pace(EVALUATION * size**3), start, hessian)

    def _is_informed(self, gp: AbstractGP, n_rows: int) -> bool:
        """Return True if the run starts near the leave-one-out optimum, with its Hessian."""
        if gp.has_moments or n_rows < HESSIAN_ROWS:
            return False
        terms = dense.terms_of(cast(KernelGP, gp).kernel)
        return terms is not None and len(packed(partition(gp)[0])) <= MAX_PARAMETERS

    def init(self, gp: AbstractGP, problem: Problem, *, key: PRNGKeyArray | None = None) -> QuasiState:
        start = problem.prepared.start
        at = lbfgs.begin(packed(self.partition(gp)[0]) if start is None else start, problem.prepared.hessian)
        return QuasiState(gp, at, None, np.bool_(False))

    def loss(self, gp: AbstractGP, problem: Problem) -> Loss:
        """Return the NLML per datum and the penalty of the prior, centred at `problem.prior` or at `gp`."""
        rows, parts = problem.prepared.rows, self.partition(gp)
        start = packed(parts[0] if problem.prior is None else self.partition(problem.prior)[0])
        pull = 0.0 if self.spread is None else 1 / (self.spread**2 * float(rows.weight.sum()))

        def evaluate(gp: AbstractGP, x: np.ndarray) -> tuple[float, np.ndarray, None]:
            found, away = nlml_and_gradient(gp, rows), x - start
            gradient = packed(found.gradient) + pull * away
            return found.nlml + 0.5 * pull * float(away @ away), gradient, None

        return Loss(evaluate, parts, problem.prepared.pace, ROUNDING)

    def refitting(self) -> Any:
        """Return the learner for a start near the optimum: at most 5 steps."""
        return dataclasses.replace(self, epochs=REFIT_STEPS)

    def optimum(self, gp: Any, prior: Any, source: MemorySource) -> Any:
        """Return the optimum or the model at the deadline, starting at `gp`, prior around `prior`."""
        prepared = Prepared(source.on_host(np.arange(source.size)), Pace(), None, None)
        problem = Problem(source, self.plan(source.size, source.n_inputs, ByLoss()), prepared, prior=prior)
        loss, state = self.loss(gp, problem), self.init(gp, problem)
        with contextlib.suppress(TimeIsUpError):
            for _ in range(STEPS):
                if state.settled:
                    break
                state = self.step(state, loss)
        return self.model(state)
