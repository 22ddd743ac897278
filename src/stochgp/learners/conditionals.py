"""Leave-one-out and Vecchia likelihoods: conditional densities given few neighbours."""

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
N_SCORED, BESIDE_SCORED = 8, 56  # rows scored in a neighbourhood, and its other rows
MAX_STEPS, SEARCHES = 30, 2
FEW_ROWS, FEW_STEPS, MAX_TRIED, REFIT_STEPS = 4_096, 2, 5, 8
MAX_PARAMETERS = 500  # H has the square of their number
SOME = 100  # rows from which the prior variance is estimated
LONGEST_STEP = 1.5  # on the logarithm of a parameter
LEAST_RATIO = 1e-3  # of a step's gain to the gain that the quadratic promises
FIRST_DAMPING = 0.03
LEAST_DAMPING, MOST_DAMPING = 1e-7, 1e7
TINY = 1e-30
SEARCHED_AT = 3e-3  # promised gain of a step in nats per datum, below which neighbours are searched again
NEGLIGIBLE = 5e-4  # promised gain of a step in nats per datum, below which learning ends
STALLED_SEARCH = 2  # steps in a row that gain less than that, after which neighbours are searched again
STALLED = 3  # the same, after which learning ends
NEAR = 1e-3  # largest promised gain in nats per datum of a final step without evaluation
MOST_MISSED = 0.5  # largest relative error of the promised gain of the step before it


class Prepared(NamedTuple):
    """The rows as arrays for the steps, and θ."""

    order: Int32[np.ndarray, " N"]  # random, of all rows
    group: Int[np.ndarray, " N"] | None
    centres: Int32[np.ndarray, " B"]  # of neighbourhoods
    X: Float[np.ndarray, "N D"]
    start: Float[np.ndarray, " P"]  # of the parameters
    pull: float  # of the prior, 1/(s² n): n = (Σρ)²/Σρ², or C Σρ/N for a joint density
    n_scored: int  # scored rows of a neighbourhood, its last ones; 1 if groups have several rows
    size: int  # of a neighbourhood


class ConditionalState(eqx.Module):
    """The model, the neighbours of the centres, and the loss and its curvature at the model."""

    gp: AbstractGP
    near: Int32[np.ndarray, "B m"]  # neighbours of each centre, the nearest last, followed by the centre
    at: Curvature  # of the loss with its prior, at `gp`
    damping: np.float64
    harder: np.float64  # the factor of the damping after the next refused step
    kept: np.float64  # ratio of the last step's gain to its promised gain
    n_searches: np.int64
    n_stalled: np.int64  # the last steps in a row by which the loss fell by less than NEGLIGIBLE


class AbstractConditionals(AbstractLearner):
    """Damped Fisher scoring on L(θ), the ρ-weighted mean of −log p(y_i | y_c(i)) over C rows.

    A neighbourhood is a random centre and the rows that the subclass finds for it. With `joint`, n L is −log of a density of all y. A step moves θ by
    −(H + λ diag H)⁻¹∇L, with H from `Curvature` (Guinness 2021). λ increases if the loss decreases less than H predicts. Neighbours are nearest according
    to the starting kernel. They are searched again when the predicted gain is below 0.003 nats, or after half of the steps.
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
        """Return k rows beside each centre in the metric of `gp`, the nearest first; −1 for none."""

    def plan(self, n_rows: int, n_inputs: int, evaluator: Evaluator) -> StepPlan:
        """Plan an evaluation after each step; `advance` takes one step per call."""
        C = min(self.n_centres, self.n_scored * n_rows)
        return StepPlan(C, 1, MAX_STEPS if self.epochs is None else self.epochs, 1, 1)

    def scored_briefly(
        self, gp: AbstractGP, source: MemorySource, seed: Seed
    ) -> tuple[AbstractGP, Float[np.ndarray, "P P"]]:
        """Return the model after 2 scoring steps on up to 4,096 rows, and H, to start a descent."""
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
        """Return the learner for a start near the optimum: at most 8 steps."""
        return dataclasses.replace(self, searches=1, epochs=REFIT_STEPS)

    def peak_bytes(self, gp: AbstractGP, n_rows: int, n_inputs: int) -> int:
        """Return the bytes of rows, orders, trees, neighbours and matrices of two threads."""
        m, itemsize = min(self.n_neighbours + self.n_scored, n_rows), gp.noise_variance.dtype.itemsize
        C = min(self.n_centres, n_rows)  # neighbourhoods of groups score one row each
        block = 8 * densities.PAIRS * 2 * (12 + 2 * self.n_scored * (n_inputs + 2) / m)
        search = neighbours_bytes(kernel_of(self, gp), n_rows, n_inputs, C, m)
        return search + (itemsize * n_inputs + 12) * n_rows + 3 * 4 * C * m + int(block)

    def prepare(self, gp: AbstractGP, source: MemorySource, plan: StepPlan, seed: Seed) -> Prepared:
        """Draw an order of the rows and the centres, and prepare the search."""
        kernel_of(self, gp)
        start = packed(partition(gp)[0])
        if len(start) > MAX_PARAMETERS:
            how = "use learner='bsgd' for a kernel with a network"
            raise ValueError(f"{type(self).__name__} learns at most {MAX_PARAMETERS} parameters: {how}")
        generator, rows = np.random.default_rng(seed), np.arange(source.size, dtype=np.int32)
        order, drawn = generator.permutation(rows), generator.permutation(rows)[: plan.batch_size]
        n_scored = 1 if source.in_groups else min(self.n_scored, source.size)
        centres = drawn[: max(1, plan.batch_size // n_scored)]  # at most all rows
        X, group = source.inputs(), source.group
        if self.joint:
            n_data = len(drawn) * weight_per_row(source, drawn[:, None], True)
        else:
            n_data = effective_number(np.asarray(source.on_host(drawn).weight))
        pull = 0.0 if self.spread is None else 1 / (self.spread**2 * n_data)
        size = min(self.n_neighbours + n_scored, len(order))
        return Prepared(order, group, centres, X, start, pull, n_scored, size)

    def init(self, gp: AbstractGP, problem: Problem, *, key: PRNGKeyArray | None = None) -> ConditionalState:
        """Return the initial state. No random numbers are drawn."""
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
        """Take one step. "loss" is L with its prior, "gain" the predicted gain in nats per datum."""
        is_due = _gain(state.at) < SEARCHED_AT or 2 * first_step >= problem.plan.total_steps
        is_due |= state.n_stalled >= STALLED_SEARCH
        if state.n_searches == 0 or (state.n_searches < self.searches and is_due):
            state = self._search(state, problem)
        state, numbers = self.score(state, problem)
        counts = {"searches": float(state.n_searches), "stalled": float(state.n_stalled)}
        return state, numbers | counts

    def score(self, state: ConditionalState, problem: Problem) -> tuple[ConditionalState, Numbers]:
        """Return the state after a damped scoring step, and its numbers. The loss never increases."""
        # After the last search all neighbourhoods are scored, before it a quarter of them.
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
        """Return θ, or θ − H⁻¹∇L if its predicted gain is small and the prediction was good."""
        at = state.at
        if not (np.isfinite(at.loss) and abs(state.kept - 1) < MOST_MISSED):
            return state.gp
        move = -shortest_solution(at.hessian, at.gradient)
        small = -0.5 * at.gradient @ move < NEAR and np.abs(move).max(initial=0) < LONGEST_STEP
        return _moved(state.gp, packed(partition(state.gp)[0]) + move) if small else state.gp

    def slower(self, state: ConditionalState, factor: float) -> ConditionalState:
        """Return the state with more damping."""
        return dataclasses.replace(state, damping=np.float64(state.damping / factor**2))

    def finished(self, entry: Numbers) -> bool:
        settled = entry["gain"] < NEGLIGIBLE or entry["stalled"] >= STALLED
        return settled and entry["searches"] >= self.searches

    def _search(self, state: ConditionalState, problem: Problem) -> ConditionalState:
        """Search neighbours in the current metric: the nearest last, followed by the centre."""
        prepared = problem.prepared
        near = self.neighbours(state.gp, prepared, prepared.size - 1)
        near = np.concatenate([near[:, ::-1], prepared.centres[:, None]], axis=1)
        at, n_searches = densities.unknown(len(prepared.start)), np.int64(state.n_searches + 1)
        return dataclasses.replace(state, near=near, at=at, n_searches=n_searches, n_stalled=np.int64(0))

    def _curvature(self, gp: AbstractGP, problem: Problem, near: Int[np.ndarray, "C m"]) -> Curvature:
        """Return the curvature with the prior ‖x − x₀‖²/(2 s² n)."""
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
    """Learner of the leave-one-out density, in which nearby rows predict each row.

        L(θ) = −Σρ_i log p(y_i | y_c(i)) / Σρ_i,   c(i) = the other rows of a neighbourhood of row i, without its group

    A neighbourhood is a random centre and its m nearest rows. The learner scores R rows of it: the centre and the R − 1 rows nearest to it. Each scored row is
    predicted from all other rows of the neighbourhood, with one Cholesky factor for all R.

    L is not a joint density, but the true θ minimises its expectation for any c(i). A row of weight ρ counts as one observation of variance v_i + σ² s_i,
    with weight ρ in L; as a neighbour it has the noise variance σ² s/ρ. Without groups, L is too optimistic if test rows are farther from the training rows
    than training rows are from each other (repeated measurements, later days).

    The run has converged if, on the last neighbours, the predicted gain or each of the last three gains is below 0.0005 nats per row.

    Parameters
    ----------
    epochs : int or None
        The largest number of scoring steps; None = 30.
    n_neighbours, n_centres, n_scored : int
        m + 1 − R, the number of unscored rows of a neighbourhood; C, the number of scored rows (at most all), from C/R neighbourhoods whose centres are drawn
        once without replacement; R, always 1 if a group has several rows.
    spread : float or None
        s of the prior ‖x − x₀‖²/(2 s² n) of the unconstrained parameters x around their start x₀, n = (Σρ)²/Σρ² of the centres; None = no prior.
    searches : int
        The number of searches for neighbours: one at the start, another each time the predicted gain is below 0.003 nats per row.
    """

    joint: ClassVar[bool] = False

    n_neighbours: int = BESIDE_SCORED
    n_scored: int = N_SCORED

    def neighbours(self, gp: AbstractGP, prepared: Prepared, k: int) -> Int32[np.ndarray, "C k"]:
        search = Neighbours(prepared.X, kernel_of(self, gp), SLACK)
        return search.others(prepared.centres, k, prepared.group)


class Vecchia(AbstractConditionals):
    """The likelihood of Vecchia (1988): rows in random order, given nearest earlier rows.

        L(θ) = (1/n) Σ_i {−log p(y_i | y_c(i)) + ½[(ρ_i − 1) log(2πσ² s_i) + log ρ_i]},   c(i) = m earlier rows of high correlation with row i

    L is the NLML per datum of a proper Gaussian density of all n = Σρ_i data, exact with m = N − 1; C of the N rows estimate it without bias. Early
    rows have distant neighbours, so long distances count more than in `LeaveOneOut`. Groups are ignored.

    Parameters
    ----------
    epochs, n_neighbours, n_centres, spread, searches
        See `LeaveOneOut`, but the n of the prior is C Σρ/N, the sum over all N rows.
    """

    joint: ClassVar[bool] = True
    n_scored: ClassVar[int] = 1

    def neighbours(self, gp: AbstractGP, prepared: Prepared, k: int) -> Int32[np.ndarray, "C k"]:
        positions = np.empty_like(prepared.order)
        positions[prepared.order] = np.arange(len(prepared.order), dtype=np.int32)
        return earlier_rows(kernel_of(self, gp), prepared.X, prepared.order, positions[prepared.centres], k)


def kernel_of(learner: AbstractConditionals, gp: Any) -> Any:
    """Return the kernel that finds the neighbours. Raises ValueError if the model has none."""
    if gp.has_moments:
        name, model = type(learner).__name__, type(gp).__name__
        raise ValueError(f"{name} needs a kernel to find neighbours, but {model} has none")
    return gp.kernel


def _gain(at: Curvature) -> float:
    """Return the nats per datum that a step promises; inf if L is not known."""
    if not math.isfinite(at.loss):
        return math.inf
    return float(0.5 * at.gradient @ shortest_solution(at.hessian, at.gradient))


def _moved(gp: AbstractGP, x: Float[np.ndarray, " P"]) -> AbstractGP:
    theta, rest = partition(gp)
    return eqx.combine(unpacked_alike(x, theta), rest)
