"""Learners that maximise the density of rows given their neighbours: LeaveOneOut, Vecchia."""

import abc
import dataclasses
import math
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int, Int32, PRNGKeyArray

from stochgp.data.memory import MemorySource
from stochgp.learners.base import AbstractLearner, Problem
from stochgp.learners.evaluators import Evaluator, Numbers, Seed, StepPlan
from stochgp.models import AbstractGP
from stochgp.neighbours import NONE, SLACK, Neighbours, earlier_rows, neighbours_bytes
from stochgp.numerics.arrays import effective_number, packed, shortest_solution, unpacked_alike
from stochgp.objectives import conditionals as densities
from stochgp.objectives.conditionals import Curvature, is_small, weight_per_row
from stochgp.parameters import partition

N_NEIGHBOURS, N_CENTRES = 48, 8_192
N_SCORED, BESIDE_SCORED = 8, 56  # numbers of scored rows and other rows in a neighbourhood
MAX_STEPS, SEARCHES = 30, 2
FEW_ROWS, FEW_STEPS, MAX_TRIED, REFIT_STEPS = 4_096, 2, 5, 8
MAX_PARAMETERS = 500  # the Hessian contains the square of this number
SOME = 100  # number of rows that decide between float32 and float64
LONGEST_STEP = 1.5  # maximum change of a parameter's logarithm in one step
LEAST_RATIO = 1e-3  # minimum ratio of actual gain to predicted gain of an accepted step
FIRST_DAMPING = 0.03
LEAST_DAMPING, MOST_DAMPING = 1e-7, 1e7
TINY = 1e-30
SEARCHED_AT = 3e-3  # nats per datum: search for neighbours again if the predicted gain is lower
NEGLIGIBLE = 5e-4  # nats per datum: end the run if the predicted gain is lower
STALLED_SEARCH = 2  # number of successive gains below NEGLIGIBLE after which neighbours are searched again
STALLED = 3  # number of successive gains below NEGLIGIBLE after which the run ends
NEAR = 1e-3  # maximum predicted gain (nats per datum) of a final step without evaluation
MOST_MISSED = 0.5  # maximum relative error of the last predicted gain before the final step


class Prepared(NamedTuple):
    """The rows, and constants that all steps use."""

    order: Int32[np.ndarray, " N"]  # a random order of all rows
    group: Int[np.ndarray, " N"] | None
    centres: Int32[np.ndarray, " B"]  # the central row of each neighbourhood
    X: Float[np.ndarray, "N D"]
    start: Float[np.ndarray, " P"]  # the parameters at the start
    pull: float  # curvature of the prior's penalty per datum
    n_scored: int  # number of scored rows in a neighbourhood, which are its last rows
    size: int  # number of rows in a neighbourhood


class ConditionalState(eqx.Module):
    """The model, the neighbourhoods of rows, and the loss of the model with its derivatives."""

    gp: AbstractGP
    near: Int32[np.ndarray, "B m"]  # the rows of each neighbourhood, from the farthest to the centre
    at: Curvature  # curvature at `gp` of the loss with its prior
    damping: np.float64
    harder: np.float64  # factor of the damping after the next rejected step
    kept: np.float64  # ratio of actual gain to predicted gain of the last step
    n_searches: np.int64
    n_stalled: np.int64  # number of last steps whose gain was below NEGLIGIBLE


class AbstractConditionals(AbstractLearner):
    """Base class of learners that maximise the density of targets, given neighbouring rows.

    The loss L(θ) is the weighted mean of −log p(y_i | neighbours of row i) over C rows. A step changes θ by
    −(H + λ diag H)⁻¹∇L, where H is the Fisher information (Guinness 2021). The damping λ increases if the
    loss decreases less than predicted. The search for neighbours uses the current kernel. A new search takes
    place when the predicted gain is below 0.003 nats per datum, or after half of the steps.
    """

    exact: ClassVar[bool] = True
    joint: eqx.AbstractClassVar[bool]
    n_scored: eqx.AbstractVar[int]

    epochs: int | None = None
    n_neighbours: int = N_NEIGHBOURS
    n_centres: int = N_CENTRES
    spread: float | None = 1.0
    searches: int = SEARCHES

    def __check_init__(self) -> None:
        self.check_common("n_neighbours", "n_centres", "n_scored", "searches")

    @abc.abstractmethod
    def neighbours(self, gp: AbstractGP, prepared: Prepared, k: int) -> Int32[np.ndarray, "B k"]:
        """Return the k nearest rows of each centre for the kernel of `gp`; −1 = no row."""

    def plan(self, n_rows: int, n_inputs: int, evaluator: Evaluator) -> StepPlan:
        C = min(self.n_centres, self.n_scored * n_rows)
        return StepPlan(C, 1, MAX_STEPS if self.epochs is None else self.epochs, 1, 1)

    def scored_briefly(
        self, gp: AbstractGP, source: MemorySource, seed: Seed
    ) -> tuple[Any, Float[np.ndarray, "P P"]]:
        """Take two steps on at most 4,096 rows; return the model and its Hessian."""
        plan = StepPlan(min(self.n_centres, FEW_ROWS, self.n_scored * source.size), 1, FEW_STEPS, 1, 1)
        problem = Problem(source, plan, self.prepare(gp, source, plan, seed))
        state, n_taken = self._search(self.init(gp, problem), problem), 0
        for _ in range(MAX_TRIED):
            state, numbers = self.score(state, problem)
            n_taken += int(numbers["accepted"])
            if n_taken == FEW_STEPS:
                break
        return self.model(state), state.at.hessian

    def refitting(self, hessian: Any = None) -> Any:
        """Return the learner with at most 8 steps, for a model that is near its optimum."""
        return dataclasses.replace(self, searches=1, epochs=REFIT_STEPS)

    def peak_bytes(self, gp: AbstractGP, n_rows: int, n_inputs: int) -> int:
        m, itemsize = min(self.n_neighbours + self.n_scored, n_rows), gp.noise_variance.dtype.itemsize
        C = min(self.n_centres, n_rows)  # with groups, each neighbourhood has one scored row
        block = 8 * densities.PAIRS * 2 * (12 + 2 * self.n_scored * (n_inputs + 2) / m)
        search = neighbours_bytes(kernel_of(self, gp), n_rows, n_inputs, C, m)
        return search + (itemsize * n_inputs + 12) * n_rows + 3 * 4 * C * m + int(block)

    def prepare(self, gp: AbstractGP, source: MemorySource, plan: StepPlan, seed: Seed) -> Prepared:
        kernel_of(self, gp)
        start = packed(partition(gp)[0])
        if len(start) > MAX_PARAMETERS:
            how = "use learner='bsgd' for a kernel with a network"
            raise ValueError(f"{type(self).__name__} can learn at most {MAX_PARAMETERS} parameters; {how}")
        generator, rows = np.random.default_rng(seed), np.arange(source.size, dtype=np.int32)
        order, drawn = generator.permutation(rows), generator.permutation(rows)[: plan.batch_size]
        n_scored = 1 if source.in_groups else min(self.n_scored, source.size)
        centres = drawn[: max(1, plan.batch_size // n_scored)]
        X, group = source.inputs(), source.group
        if self.joint:
            n_data = len(drawn) * weight_per_row(source, drawn[:, None], True)
        else:
            n_data = effective_number(np.asarray(source.on_host(drawn).weight))
        pull = 0.0 if self.spread is None else 1 / (self.spread**2 * n_data)
        size = min(self.n_neighbours + n_scored, len(order))
        return Prepared(order, group, centres, X, start, pull, n_scored, size)

    def init(self, gp: AbstractGP, problem: Problem, *, key: PRNGKeyArray | None = None) -> ConditionalState:
        prepared = problem.prepared
        near = np.full((len(prepared.centres), prepared.size), NONE, np.int32)
        at = densities.unknown(len(prepared.start))
        return ConditionalState(
            gp, near, at, damping=np.float64(FIRST_DAMPING), harder=np.float64(4), kept=np.float64(0),
            n_searches=np.int64(0), n_stalled=np.int64(0),
        )  # fmt: skip

    def advance(
        self, state: ConditionalState, problem: Problem, first_step: int, n_steps: int, seed: Seed
    ) -> tuple[ConditionalState, Numbers]:
        """Return the state after one step, with the loss and the predicted gain in nats per datum."""
        is_due = _gain(state.at) < SEARCHED_AT or 2 * first_step >= problem.plan.total_steps
        is_due |= state.n_stalled >= STALLED_SEARCH
        if state.n_searches == 0 or (state.n_searches < self.searches and is_due):
            state = self._search(state, problem)
        state, numbers = self.score(state, problem)
        counts = {"searches": float(state.n_searches), "stalled": float(state.n_stalled)}
        return state, numbers | counts

    def score(self, state: ConditionalState, problem: Problem) -> tuple[ConditionalState, Numbers]:
        """Take a Fisher scoring step unless it would increase the loss, and return its metrics."""
        # Before the last search, only a quarter of the neighbourhoods is scored.
        is_last = state.n_searches >= self.searches
        near = state.near if is_last else state.near[: -(-len(state.near) // 4)]
        at = state.at if np.isfinite(state.at.loss) else self._curvature(state.gp, problem, near)
        x = packed(partition(state.gp)[0])
        H = at.hessian + state.damping * np.diag(np.diagonal(at.hessian) + TINY)
        move = np.clip(-shortest_solution(H, at.gradient), -LONGEST_STEP, LONGEST_STEP)
        promised = -float(at.gradient @ move + 0.5 * move @ at.hessian @ move)
        gp = _moved(state.gp, x + move)
        new = self._curvature(gp, problem, near)
        ratio = float(at.loss - new.loss) / max(promised, TINY)
        better = bool(ratio > LEAST_RATIO)
        factor = max(1 / 3, 1 - (2 * ratio - 1) ** 3) if better else float(state.harder)
        damping = np.float64(np.clip(state.damping * factor, LEAST_DAMPING, MOST_DAMPING))
        harder = np.float64(2 if better else 2 * state.harder)
        has_fallen = better and at.loss - new.loss >= NEGLIGIBLE
        gp, at = (gp, new) if better else (state.gp, at)
        n_stalled = np.int64(0 if has_fallen else state.n_stalled + 1)
        state = dataclasses.replace(
            state, gp=gp, at=at, damping=damping, harder=harder, kept=np.float64(ratio), n_stalled=n_stalled
        )
        return state, {"loss": float(at.loss), "gain": _gain(at), "accepted": float(better)}

    def model(self, state: ConditionalState) -> AbstractGP:
        """Return the model, after a final undamped step if its predicted gain is reliable."""
        at = state.at
        if not (np.isfinite(at.loss) and abs(state.kept - 1) < MOST_MISSED):
            return state.gp
        move = -shortest_solution(at.hessian, at.gradient)
        small = -0.5 * at.gradient @ move < NEAR and np.abs(move).max(initial=0) < LONGEST_STEP
        return _moved(state.gp, packed(partition(state.gp)[0]) + move) if small else state.gp

    def slower(self, state: ConditionalState, factor: float) -> ConditionalState:
        return dataclasses.replace(state, damping=np.float64(state.damping / factor**2))

    def finished(self, entry: Numbers) -> bool:
        settled = entry["gain"] < NEGLIGIBLE or entry["stalled"] >= STALLED
        return settled and entry["searches"] >= self.searches

    def _search(self, state: ConditionalState, problem: Problem) -> ConditionalState:
        """Return the state with neighbourhoods according to the current kernel."""
        prepared = problem.prepared
        near = self.neighbours(state.gp, prepared, prepared.size - 1)
        near = np.concatenate([near[:, ::-1], prepared.centres[:, None]], axis=1)
        at, n_searches = densities.unknown(len(prepared.start)), np.int64(state.n_searches + 1)
        return dataclasses.replace(state, near=near, at=at, n_searches=n_searches, n_stalled=np.int64(0))

    def _curvature(self, gp: AbstractGP, problem: Problem, near: Int[np.ndarray, "C m"]) -> Curvature:
        """Return the loss with the penalty of the prior, and its derivatives."""
        wide = is_small(gp, problem.source.on_host(near[:SOME, -1]))
        prepared = problem.prepared
        found = densities.curvature(gp, problem.source, near, wide, self.joint, prepared.n_scored)
        centre = prepared.start if problem.prior is None else packed(partition(problem.prior)[0])
        pull, away = prepared.pull, packed(partition(gp)[0]) - centre
        return found._replace(
            loss=found.loss + 0.5 * pull * float(away @ away),
            gradient=found.gradient + pull * away,
            hessian=found.hessian + pull * np.eye(len(away)),
        )


class LeaveOneOut(AbstractConditionals):
    """Learner that maximises the density of each target, given the targets of nearby rows.

        L(θ) = −Σ_i ρ_i log p(y_i | y_c(i)) / Σ_i ρ_i

    Row i has the target y_i and the weight ρ_i. A neighbourhood consists of a random row (the centre) and the
    rows nearest to it. The set c(i) contains the rows in the same neighbourhood as row i, except row i and
    the rows of its group. Both sums are over the scored rows: each centre and the rows nearest to it. The
    true θ minimises the expected value of L, although L is not a joint density. For test rows that are far
    from all training rows, L is too optimistic.

    A run has converged if the predicted gain of a step, or the gain of each of the last three steps, is below
    0.0005 nats per datum.

    Parameters
    ----------
    epochs : int or None
        The maximum number of steps; None = 30.
    n_neighbours : int
        The number of rows per neighbourhood that are not scored.
    n_centres : int
        C, the number of scored rows in all neighbourhoods.
    n_scored : int
        The number of scored rows in a neighbourhood; always 1 if a group has several rows.
    spread : float or None
        The standard deviation of a normal prior of the unconstrained parameters; None = no prior.
    searches : int
        The maximum number of searches for neighbours.
    """

    joint: ClassVar[bool] = False

    n_neighbours: int = BESIDE_SCORED
    n_scored: int = N_SCORED

    def neighbours(self, gp: AbstractGP, prepared: Prepared, k: int) -> Int32[np.ndarray, "C k"]:
        search = Neighbours(prepared.X, kernel_of(self, gp), SLACK)
        return search.others(prepared.centres, k, prepared.group)


class Vecchia(AbstractConditionals):
    """Learner that maximises Vecchia's likelihood, which uses m earlier rows for each row.

        L(θ) = (1/n) Σ_i {−log p(y_i | y_c(i)) + ½[(ρ_i − 1) log(2πσ² s_i) + log ρ_i]}

    Source: Vecchia (1988). The order of the rows is random. The set c(i) contains m earlier rows that have a
    high correlation with row i. Row i stands for ρ_i observations with the noise variance σ² s_i. The number
    of observations is n = Σ_i ρ_i. The conditional densities define a Gaussian density of all data, and L is
    the NLML per datum under this density. L is the exact NLML if c(i) contains all earlier rows. Groups are
    ignored.

    Parameters
    ----------
    epochs, n_neighbours, n_centres, spread, searches
        See `LeaveOneOut`. m is `n_neighbours`.
    """

    joint: ClassVar[bool] = True
    n_scored: ClassVar[int] = 1

    def neighbours(self, gp: AbstractGP, prepared: Prepared, k: int) -> Int32[np.ndarray, "C k"]:
        positions = np.empty_like(prepared.order)
        positions[prepared.order] = np.arange(len(prepared.order), dtype=np.int32)
        return earlier_rows(kernel_of(self, gp), prepared.X, prepared.order, positions[prepared.centres], k)


def kernel_of(learner: AbstractConditionals, gp: Any) -> Any:
    """Return the kernel of the model. Raises ValueError for a feature GP."""
    if gp.has_moments:
        name, model = type(learner).__name__, type(gp).__name__
        raise ValueError(f"{name} needs a kernel to find neighbours, but {model} has none")
    return gp.kernel


def _gain(at: Curvature) -> float:
    """Return the predicted gain of a step in nats per datum; inf before the first evaluation."""
    if not math.isfinite(at.loss):
        return math.inf
    return float(0.5 * at.gradient @ shortest_solution(at.hessian, at.gradient))


def _moved(gp: AbstractGP, x: Float[np.ndarray, " P"]) -> AbstractGP:
    theta, rest = partition(gp)
    return eqx.combine(unpacked_alike(x, theta), rest)
