"""L-BFGS descent on the exact marginal likelihood of all rows or of a random subset.

The direction of a step follows Nocedal and Wright (2006), algorithm 7.4. The line search follows Lewis and
Overton (2013), but fits a parabola instead of halving the step.
"""

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
from stochgp.learners.base import AbstractLearner, Problem
from stochgp.learners.conditionals import MAX_PARAMETERS, LeaveOneOut
from stochgp.learners.evaluators import ByLoss, Evaluator, Numbers, Seed, StepPlan
from stochgp.models import AbstractGP, FeatureGP, KernelGP
from stochgp.numerics.arrays import packed, unpacked, unpacked_alike
from stochgp.objectives import nlml_and_gradient
from stochgp.parameters import partition

STEPS, REFIT_STEPS = 100, 5
MIN_PAIRS = 3  # minimum number of steps in memory for a reliable prediction of the decrease
HESSIAN_ROWS = 1_000
ROUNDING = 1e-12  # relative rounding error of the loss
EVALUATION = 2e-11  # seconds of the first evaluation, divided by N³
# A fit on 3,000 rows takes about 30 s on two cores of 2023. The time grows with N to the power 2.5.
ROWS_IN_TIME, SECONDS_OF_ROWS, MIN_ROWS = 3_000, 30.0, 200
EVALUATION_PRODUCTS = 1e10  # number of multiplications in about a second
MAX_STEPS_PER_EVALUATION = 20
STEPS_PER_PASS = 5  # steps between evaluations if an evaluation is a pass over all rows
PAIRS, MOST_SCALING = 30, 2.0
DECREASE, CURVATURE = 1e-4, 0.9  # constants of the Wolfe conditions
MOST_EVALUATIONS = 12  # maximum number of evaluations in a line search
LARGEST_MOVE = 2.0  # maximum change of a coordinate in one step
LEAST_GAIN = 10.0  # minimum predicted decrease of a step, in rounding errors of the loss
STRAIGHT = 1e-10  # minimum relative curvature of a step that is kept in memory


class Quasi(eqx.Module):
    """A point of an L-BFGS run, its loss, and the memory of steps and gradient changes."""

    x: Float[np.ndarray, " P"]
    value: np.float64
    gradient: Float[np.ndarray, " P"]
    steps: Float[np.ndarray, "H P"]
    changes: Float[np.ndarray, "H P"]
    n_pairs: np.int64
    stuck: np.bool_  # True if no step lowers the loss by more than its rounding error
    is_given: np.bool_  # True while the memory contains only a given Hessian


def begin(x: Float[np.ndarray, " P"], hessian: Float[np.ndarray, "P P"] | None = None) -> Quasi:
    """Return the state at x, with a memory that approximates `hessian`."""
    steps, changes, n_pairs = np.zeros((PAIRS, len(x))), np.zeros((PAIRS, len(x))), 0
    if hessian is not None and np.isfinite(hessian).all():
        curvatures, directions = np.linalg.eigh(hessian)
        known = np.flatnonzero(curvatures > STRAIGHT * curvatures[-1])[::-1][:PAIRS]
        n_pairs = len(known)
        steps[PAIRS - n_pairs :] = directions[:, known].T
        changes[PAIRS - n_pairs :] = (directions[:, known] * curvatures[known]).T
    nan, zero, false = np.float64(np.nan), np.zeros(len(x)), np.bool_(False)
    return Quasi(x, nan, zero, steps, changes, np.int64(n_pairs), false, np.bool_(n_pairs > 0))


def promised(at: Quasi) -> float:
    """Return the predicted decrease of the loss in the next step; inf with an empty memory."""
    return -0.5 * float(at.gradient @ _direction(at)) if at.n_pairs > 0 else math.inf


def step(at: Quasi, loss: Any, rounding: float) -> Quasi:
    """Return the state after one step, for a loss with the relative rounding error `rounding`."""
    at = _at(at, at.x, loss) if math.isnan(at.value) else at
    found = None
    if at.n_pairs > 0:
        direction = _direction(at)
        if -0.5 * float(at.gradient @ direction) < LEAST_GAIN * rounding * (1 + abs(float(at.value))):
            return dataclasses.replace(at, stuck=np.bool_(True))
        found = _search(at, direction, loss, rounding)
    if found is None:  # the memory is empty or misleading
        at = dataclasses.replace(at, n_pairs=np.int64(0), is_given=np.bool_(False))
        found = _search(at, -at.gradient / max(1.0, float(np.linalg.norm(at.gradient))), loss, rounding)
    return dataclasses.replace(at, stuck=np.bool_(True)) if found is None else _moved(at, found)


def _at(at: Quasi, x: Float[np.ndarray, " P"], loss: Any) -> Quasi:
    value, gradient = loss(x)
    return dataclasses.replace(at, x=x, value=np.float64(value), gradient=gradient)


def _moved(at: Quasi, to: Quasi) -> Quasi:
    """Return the state `to`, with the step from `at` in its memory.

    A given Hessian is first multiplied by the ratio of measured to predicted curvature along the step, but by
    1 to MOST_SCALING (self-scaling, Oren and Luenberger 1974).
    """
    s, c, scale = to.x - at.x, to.gradient - at.gradient, 1.0
    if not s @ c > STRAIGHT * np.linalg.norm(s) * np.linalg.norm(c):
        return to
    if at.is_given:
        S, C = at.steps[-at.n_pairs :], at.changes[-at.n_pairs :]
        predicted = np.sum(np.square(C @ s) / np.sum(S * C, axis=1))
        scale = float(np.clip(s @ c / predicted, 1, MOST_SCALING))
    steps, changes = np.vstack([at.steps[1:], s]), np.vstack([scale * at.changes[1:], c])
    n_pairs = np.int64(min(at.n_pairs + 1, PAIRS))
    return dataclasses.replace(to, steps=steps, changes=changes, n_pairs=n_pairs, is_given=np.bool_(False))


def _direction(at: Quasi) -> np.ndarray:
    """Return −H g for the gradient g and the inverse Hessian H of the memory."""
    q = -at.gradient
    pairs = [(at.steps[-i], at.changes[-i]) for i in range(1, int(at.n_pairs) + 1)]
    weights = []
    for s, c in pairs:
        weights.append((s @ q) / (s @ c))
        q = q - weights[-1] * c
    s, c = pairs[0]
    q = q * (s @ c) / (c @ c)
    for (s, c), weight in zip(reversed(pairs), reversed(weights), strict=True):
        q = q + (weight - (c @ q) / (s @ c)) * s
    return q


def _search(at: Quasi, direction: np.ndarray, loss: Any, rounding: float) -> Quasi | None:
    """Return a point that meets both Wolfe conditions, else the tried point of lowest loss."""
    direction = direction * min(1.0, LARGEST_MOVE / max(float(np.abs(direction).max(initial=0.0)), 1e-300))
    slope, value = float(at.gradient @ direction), float(at.value)
    if not slope < 0:
        return None
    slack = rounding * (1 + abs(value))
    low, high, t, best = 0.0, math.inf, 1.0, None
    for _ in range(MOST_EVALUATIONS):
        if t * -slope < slack and t < 1:  # the change of the loss is below its rounding error
            break
        trial = _at(at, at.x + t * direction, loss)
        if math.isfinite(trial.value) and trial.value <= value + DECREASE * t * slope + slack:
            best = trial if best is None or trial.value < best.value else best
            if trial.gradient @ direction >= CURVATURE * slope:
                return trial
            low = t
        else:
            high = t
        rise = float(trial.value) - value
        if low == 0 and t == high and math.isfinite(rise):  # fit a parabola to the start and to t
            t = min(max(-slope * high**2 / (2 * (rise - slope * high)), 0.1 * high), 0.5 * high)
        else:
            t = 2 * t if high == math.inf else (low + high) / 2
    return best


class QuasiState(eqx.Module):
    """The state of a run of L-BFGS."""

    gp: AbstractGP  # the model at the start, which provides the parts that do not train
    at: Quasi
    known: Any  # by-products of the loss at this point, such as the optimal q(u)
    settled: np.bool_


class AbstractQuasiNewton(AbstractLearner):
    """Base class of L-BFGS learners, which stop if the predicted gain is below `tolerance`."""

    exact: ClassVar[bool] = True
    epochs: eqx.AbstractVar[int | None]
    tolerance: eqx.AbstractVar[float]
    steps: ClassVar[tuple[int, int]] = (STEPS, 1)  # default number of steps, and steps per evaluation

    def __check_init__(self) -> None:
        self.check_common()
        if not 0 <= self.tolerance < math.inf:
            raise ValueError(f"tolerance is {self.tolerance}; it must be finite and at least 0")

    def partition(self, gp: Any) -> tuple[Any, Any]:
        """Return the trainable part of the model and the rest."""
        return partition(gp)

    def plan(self, n_rows: int, n_inputs: int, evaluator: Evaluator) -> StepPlan:
        steps, between = self.steps
        return whole_steps(n_rows, steps if self.epochs is None else self.epochs, between)

    @abc.abstractmethod
    def loss(self, gp: Any, problem: Problem) -> "Loss":
        """Return the loss on the rows of `problem`, for models with the structure of `gp`."""

    def advance(
        self, state: QuasiState, problem: Problem, first_step: int, n_steps: int, seed: Seed
    ) -> tuple[QuasiState, Numbers]:
        """Take up to `n_steps` steps, until convergence. "loss" is the loss after the last step."""
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
        at = step(state.at, loss, loss.rounding)
        settled = at.stuck or (at.n_pairs >= MIN_PAIRS and promised(at) < self.tolerance)
        known = loss.known.get(at.x.tobytes(), state.known)
        return QuasiState(state.gp, at, known, np.bool_(settled))

    def model(self, state: QuasiState) -> AbstractGP:
        theta, rest = self.partition(state.gp)
        return eqx.combine(unpacked_alike(state.at.x, theta), rest)

    def finished(self, entry: Numbers) -> bool:
        return entry["unsettled"] == 0


class Loss:
    """The loss as a function of the vector x of trainable parameters.

    `evaluate` maps a model and x to the loss, its gradient and by-products. A call raises TimeIsUpError if
    the evaluation would end after the deadline.
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
    """Return a plan of at least `steps` steps, with an evaluation after every `between` steps."""
    between = min(between, steps)
    return StepPlan(n_rows, 1, -(-steps // between) * between, between, between)


class Prepared(NamedTuple):
    """The rows, a timer of evaluations, the starting parameters, and the Hessian at the start."""

    rows: Data
    pace: Pace
    start: Float[np.ndarray, " P"] | None
    hessian: Float[np.ndarray, "P P"] | None


class FullBatch(AbstractQuasiNewton):
    """L-BFGS descent on the exact NLML per datum.

    For a kernel GP on n rows, an evaluation takes O(n³) time and O(n²) memory. For a feature GP with M
    features, an evaluation takes O(n M² + M³) time.

    Parameters
    ----------
    epochs : int or None
        The maximum number of steps; None = 100.
    subset_rows : int or None
        The number of rows in a random subset; None = all rows.
    spread : float or None
        The standard deviation s of a normal prior of the unconstrained parameters x around their start x₀.
        For n rows, the prior adds ‖x − x₀‖² / (2 s² n) to the NLML per datum. None = no prior.
    tolerance : float
        The run ends when the predicted gain of a step, in nats per datum, is below this number.
    evaluator : ByEvidence, ByLoss or None
        See `AbstractLearner`.
    hessian : array [P, P] or None
        The Hessian of the loss at the start. None: for a kernel GP with at least 1,000 rows, it is estimated
        from leave-one-out densities; otherwise the run starts without a Hessian.
    """

    epochs: int | None = None
    subset_rows: int | None = None
    spread: float | None = None
    tolerance: float = 1e-4
    evaluator: Evaluator | None = None
    hessian: Float[np.ndarray, "P P"] | None = None

    def __check_init__(self) -> None:
        self.check_common("subset_rows")

    def seen_rows(self, n_rows: int) -> int:
        return n_rows if self.subset_rows is None else min(n_rows, self.subset_rows)

    def plan(self, n_rows: int, n_inputs: int, evaluator: Evaluator) -> StepPlan:
        size, steps = self.seen_rows(n_rows), STEPS if self.epochs is None else self.epochs
        in_a_second = min(max(1, int(EVALUATION_PRODUCTS / size**3)), MAX_STEPS_PER_EVALUATION)
        between = STEPS_PER_PASS if evaluator.is_exact else in_a_second
        return whole_steps(size, steps, between)

    def peak_bytes(self, gp: AbstractGP, n_rows: int, n_inputs: int) -> int:
        size = self.seen_rows(n_rows)
        if gp.has_moments:
            return 2 * 8 * size * (n_inputs + 2) + 4 * 8 * cast(FeatureGP, gp).n_features ** 2
        whole = 8 * size**2 + 8 * size * (4 * min(TILE, size) + 8 * n_inputs)
        if not self._is_informed(gp, size):
            return whole
        # The search on leave-one-out densities ends before the matrix is allocated.
        return max(whole, 8 * size * n_inputs + LeaveOneOut().peak_bytes(gp, size, n_inputs))

    def rows_within(self, gp: AbstractGP, n_rows: int, n_inputs: int, seconds: float) -> int:
        if gp.has_moments or not seconds < math.inf:
            return n_rows
        rows = int(ROWS_IN_TIME * (max(seconds, 0.0) / SECONDS_OF_ROWS) ** 0.4)
        return n_rows if rows >= self.seen_rows(n_rows) else max(rows, MIN_ROWS)

    def prepare(self, gp: AbstractGP, source: MemorySource, plan: StepPlan, seed: Seed) -> Prepared:
        size = self.seen_rows(source.size)
        if size < source.size:
            rows = np.arange(source.size, dtype=np.int32)
            source = source.some(shuffled_batches(rows, size, 0, 1, seed)[0])
        start, hessian = None, self.hessian
        if hessian is None and self._is_informed(gp, size):
            near, hessian = LeaveOneOut(spread=self.spread, searches=1).scored_briefly(gp, source, seed)
            start = packed(self.partition(near)[0])
        return Prepared(source.on_host(np.arange(size)), Pace(EVALUATION * size**3), start, hessian)

    def _is_informed(self, gp: AbstractGP, n_rows: int) -> bool:
        """Return True if the run starts near the optimum of the leave-one-out density."""
        if gp.has_moments or n_rows < HESSIAN_ROWS:
            return False
        terms = dense.terms_of(cast(KernelGP, gp).kernel)
        return terms is not None and len(packed(partition(gp)[0])) <= MAX_PARAMETERS

    def init(self, gp: AbstractGP, problem: Problem, *, key: PRNGKeyArray | None = None) -> QuasiState:
        start = problem.prepared.start
        at = begin(packed(self.partition(gp)[0]) if start is None else start, problem.prepared.hessian)
        return QuasiState(gp, at, None, np.bool_(False))

    def loss(self, gp: AbstractGP, problem: Problem) -> Loss:
        """Return the NLML per datum with the penalty of the prior, as a function of parameters."""
        rows, parts = problem.prepared.rows, self.partition(gp)
        start = packed(parts[0] if problem.prior is None else self.partition(problem.prior)[0])
        pull = 0.0 if self.spread is None else 1 / (self.spread**2 * float(rows.weight.sum()))

        def evaluate(gp: AbstractGP, x: np.ndarray) -> tuple[float, np.ndarray, None]:
            found, away = nlml_and_gradient(gp, rows), x - start
            gradient = packed(found.gradient) + pull * away
            return found.nlml + 0.5 * pull * float(away @ away), gradient, None

        return Loss(evaluate, parts, problem.prepared.pace, ROUNDING)

    def refitting(self, hessian: Any = None) -> Any:
        """Return the learner with at most 5 steps, for a model that is near its optimum."""
        return dataclasses.replace(self, epochs=REFIT_STEPS, hessian=hessian)

    def optimum(self, gp: Any, prior: Any, source: MemorySource) -> Any:
        """Return the model at the optimum or at the deadline, with `prior` as centre of the prior."""
        prepared = Prepared(source.on_host(np.arange(source.size)), Pace(), None, None)
        problem = Problem(source, self.plan(source.size, source.n_inputs, ByLoss()), prepared, prior=prior)
        loss, state = self.loss(gp, problem), self.init(gp, problem)
        with contextlib.suppress(TimeIsUpError):
            for _ in range(STEPS):
                if state.settled:
                    break
                state = self.step(state, loss)
        return self.model(state)
