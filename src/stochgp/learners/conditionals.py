"""What leave-one-out and Vecchia share: hyperparameters from conditional densities of rows given few neighbours."""

import abc
import dataclasses
import math
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, Int, Int32, PRNGKeyArray

from stochgp.data.streams import AbstractSource, Batch
from stochgp.learners import descent as optim
from stochgp.learners.base import AbstractLearner, Problem
from stochgp.learners.descent import Descent, Optimizer, Schedule, cosine, slowed
from stochgp.learners.evaluators import AbstractEvaluator, Numbers, Seed
from stochgp.learners.sampling import host_inputs
from stochgp.learners.standard_errors import StandardErrors, cells_of, godambe
from stochgp.learners.step_plan import StepPlan
from stochgp.models import AbstractGP
from stochgp.neighbours import NONE, neighbours_bytes, shared
from stochgp.numerics.arrays import effective_number, packed, shortest_solution, unpacked, unpacked_alike
from stochgp.objectives import conditionals as densities
from stochgp.objectives.conditionals import Curvature, is_small, weight_per_row
from stochgp.parameters import partition

N_NEIGHBOURS, N_CENTRES = 48, 16_384
BATCH, STACKED = 128, 8  # scored rows of a batch, batches on the device together
RATE = 0.1  # of Adam, on logarithms
ROUNDS = 12
MOST_PASSES = 16  # of a round, which has as many as centres are fewer than N_CENTRES
SEARCHES = 5  # rounds of mini-batches, each with a search; the neighbours then stay
SCORINGS = 4  # steps of a trial that begins near its optimum
# Scored rows of trials, and neighbourhoods of them, the larger of both; steps at most on all from where one ends.
TRIAL_ROWS, TRIAL_NEIGHBOURHOODS, CLOSINGS = 4096, 1024, 8
MOST_SCORED = 50  # parameters: with more there are only mini-batches
SOME = 100  # rows that show the prior variance
LONGEST_STEP = 1.5  # of a logarithm
LEAST_RATIO = 1e-3  # of a step's gain to what the quadratic promises
FIRST_DAMPING = 1.0  # from 0.01 on three real sets refused the first two to four steps
LEAST_DAMPING, MOST_DAMPING = 1e-7, 1e7
TINY = 1e-30
CONVERGED = 0.01  # T²/P: a tenth of a standard error of θ̂ from the optimum
NEGLIGIBLE = 1e-4  # nats a datum that scoring still promises; 5e-4 lost 0.011 nats on protein and kin40k
NEAR = 1e-3  # nats a datum that a last step, which no pass follows, may promise
MOST_MISSED = 0.5  # share of its promise that the step before it may have missed
SETTLED = 0.05  # share of the neighbours that a search changed, below which they stay


class Prepared(NamedTuple):
    """The rows as the steps use them, and the first θ."""

    order: Int32[np.ndarray, " N"]  # random, of all rows
    group: Int[np.ndarray, " N"] | None
    centres: Int32[np.ndarray, " B"]  # of neighbourhoods
    X: Float[np.ndarray, "N D"]
    start: Float[np.ndarray, " P"]
    cells: Int[np.ndarray, " B"]
    n_data: float  # that the mean over the scored rows is worth beside a prior
    n_scored: int  # rows that a neighbourhood scores, the last ones


class ConditionalState(eqx.Module):
    """The model, the neighbours of its centres, and the loss with its curvature there."""

    gp: AbstractGP
    near: Int32[np.ndarray, "B m"]  # neighbours of each centre, the nearest last, and then the centre
    descent: Descent  # of the mini-batches
    at: Curvature  # of the loss with its prior, at `gp`: known once neighbours stay
    damping: np.float64
    harder: np.float64  # what the next refused step multiplies the damping by
    changed: np.float64  # share of the neighbours that the last search changed
    kept: np.float64  # the gain of the last scoring step over what was promised


class AbstractConditionals(AbstractLearner):
    """Descent on L(θ), the mean over C rows of −log p(y_i | y_c(i)), each with its weight ρ_i.

    A neighbourhood is a centre, drawn at random, and the rows that the leaf finds for it. It scores `n_scored` of them, the centre and those nearest to it, each given
    all others: one factor serves all (`left_out`). With `joint` n L is −log of a density of all y: L is then per datum, and a row of count ρ counts as ρ rows.

    A step is a pass over the neighbourhoods; a round has one pass over 16,384 scored rows, or more over fewer. The first `searches` rounds are mini-batches for the optimiser,
    with a search of neighbours before each in the metric learned so far, until a search changes fewer than a twentieth of them. From then on a pass is a
    scoring step (Guinness 2021) on all, with H = mean[½J^V J^Vᵀ + J^e J^eᵀ] of `Curvature`, damped if the loss does not fall as H promises. Kernels with more than 50
    parameters, such as networks, have mini-batches only.
    """

    joint: eqx.AbstractClassVar[bool]
    n_scored: eqx.AbstractVar[int]

    batch_size: None = None
    epochs: int | None = None
    learning_rate: float | Schedule | None = None
    optimizer: Optimizer = optax.adam
    decay: Schedule = cosine
    n_neighbours: int = N_NEIGHBOURS
    n_centres: int = N_CENTRES
    spread: float | None = 1.0
    searches: int = SEARCHES
    evaluator: AbstractEvaluator | None = None

    def __check_init__(self) -> None:
        self.check_common()
        if self.batch_size is not None:
            how = "a step of this learner is a pass over its centres: leave it None"
            raise ValueError(f"batch_size is {self.batch_size}; {how}")
        for name, least in (("n_neighbours", 1), ("n_centres", 1), ("n_scored", 1), ("searches", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or value != int(value) or value < least:
                raise ValueError(f"{name} is {value}; it must be a whole number of at least {least}")

    @abc.abstractmethod
    def neighbours(self, gp: AbstractGP, prepared: Prepared, k: int) -> Int32[np.ndarray, "B k"]:
        """k rows beside each centre, by the metric of `gp`, the nearest first; −1 for none."""

    def around(self, gp: AbstractGP, prepared: Prepared) -> Int32[np.ndarray, "B m"]:
        """The rows of each neighbourhood by the metric of `gp`: the nearest last, and then the centre."""
        near = self.neighbours(gp, prepared, self._size_of(prepared) - 1)
        return np.concatenate([near[:, ::-1], prepared.centres[:, None]], axis=1)

    def _size_of(self, prepared: Prepared) -> int:
        return min(self.n_neighbours + prepared.n_scored, len(prepared.order))

    def plan(self, n_rows: int, n_inputs: int, evaluator: AbstractEvaluator) -> StepPlan:
        """An evaluation after each round."""
        C, per_round = self._scored_rows(n_rows), self.passes_per_round(n_rows)
        passes = ROUNDS * per_round if self.epochs is None else self.epochs
        return StepPlan(C, 1, passes, min(per_round, passes), 1)

    def near_optimum(self, n_rows: int) -> Self:
        """The same for a trial that starts near the optimum: of 4,096 rows, or 1,024 neighbourhoods, one round of mini-batches and at most 4 scoring steps."""
        most = max(TRIAL_ROWS, TRIAL_NEIGHBOURHOODS * self.n_scored)
        trial = dataclasses.replace(self, n_centres=min(self.n_centres, most), searches=1)
        return dataclasses.replace(trial, epochs=trial.passes_per_round(n_rows) + SCORINGS)

    def closing(self) -> Self:
        """The same for a start where a trial ended: scoring steps alone."""
        return dataclasses.replace(self, searches=0, epochs=CLOSINGS)

    def passes_per_round(self, n_rows: int) -> int:
        """Passes of a round."""
        return min(max(1, round(N_CENTRES / self._scored_rows(n_rows))), MOST_PASSES)

    def _scored_rows(self, n_rows: int) -> int:
        """C, at most as many as there are if each row is the centre of a neighbourhood."""
        return min(self.n_centres, self.n_scored * n_rows)

    def n_scored_of(self, source: AbstractSource) -> int:
        """One if groups have several rows: those of a group are left out together."""
        return 1 if source.in_groups else min(self.n_scored, source.size)

    def need_bytes(self, gp: AbstractGP, n_rows: int, n_inputs: int) -> int:
        """The rows and their orders, trees, lists of neighbours, and a block of neighbourhoods."""
        m, itemsize = min(self.n_neighbours + self.n_scored, n_rows), gp.noise_variance.dtype.itemsize
        C = min(self._scored_rows(n_rows), n_rows)  # those of groups score one row each
        sizes = (
            (densities.BLOCK, min(self.n_neighbours + 1, n_rows)),
            (densities.blocks_of(self.n_scored), m),
        )
        block = max(8 * n * (12 * size * size + 3 * size * (n_inputs + 2)) for n, size in sizes)
        near = 3 * 4 * C * m
        search = neighbours_bytes(kernel_of(self, gp), n_rows, n_inputs, C, m)
        return search + (itemsize * n_inputs + 12) * n_rows + near + 2 * block

    def prepare(self, gp: AbstractGP, source: AbstractSource, plan: StepPlan, seed: Seed) -> Prepared:
        """An order of the rows, the centres, drawn without replacement, and the rows that are searched."""
        kernel_of(self, gp)
        generator, rows = np.random.default_rng(seed), np.arange(source.size, dtype=np.int32)
        order, drawn = generator.permutation(rows), generator.permutation(rows)[: plan.batch_size]
        n_scored = self.n_scored_of(source)
        centres = drawn[: max(1, plan.batch_size // n_scored)]  # all rows at most
        X, group = host_inputs(source), source.group
        cells = cells_of(X[centres], self.n_neighbours, None if group is None else group[centres])
        if self.joint:
            n_data = len(drawn) * weight_per_row(source, drawn[:, None], True)
        else:
            n_data = effective_number(np.asarray(source.on_host(drawn).weight))
        return Prepared(order, group, centres, X, packed(partition(gp)[0]), cells, n_data, n_scored)

    def init(self, gp: AbstractGP, problem: Problem, *, key: PRNGKeyArray) -> ConditionalState:
        C, m = len(problem.prepared.centres), self._size_of(problem.prepared)
        steps = C // _batch(problem) * min(problem.plan.total_steps, self._searched(problem))
        rate = optim.start_rate(self.learning_rate, RATE if problem.rate is None else problem.rate)
        descent = optim.begin(partition(gp)[0], self.optimizer, rate, steps)
        near, numbers = np.full((C, m), NONE, np.int32), (np.float64(x) for x in (FIRST_DAMPING, 2, 1, 0))
        return ConditionalState(gp, near, descent, densities.unknown(len(problem.prepared.start)), *numbers)

    def advance(
        self, state: ConditionalState, problem: Problem, first_step: int, n_steps: int, seed: Seed
    ) -> tuple[ConditionalState, Numbers]:
        """Takes steps. "loss" is L, with its prior when scored; "distance" T²/P, "gain" the nats per datum that a scoring step still promises."""
        numbers: list[Numbers] = []
        for step in range(first_step, first_step + n_steps):
            searched = self._searched(problem)
            begins = step % problem.plan.steps_per_evaluation == 0 and step <= searched
            if begins and state.changed > SETTLED:
                state = self._search(state, problem)
            if step < searched:
                state, found = self._by_batches(state, problem, (*seed, step))
            else:
                state, found = self.score(state, problem)
            numbers.append(found)
        means = {name: float(np.mean([found[name] for found in numbers])) for name in numbers[0]}
        return state, {**means, "changed": float(state.changed)}

    def score(self, state: ConditionalState, problem: Problem) -> tuple[ConditionalState, Numbers]:
        """(State after one damped scoring step on all centres, where it led): the same θ where the loss did not fall enough."""
        known = np.isfinite(state.at.loss)
        at = state.at if known else self._curvature(state.gp, problem, state.near)
        x = packed(partition(state.gp)[0])
        H = at.hessian + state.damping * np.diag(np.diagonal(at.hessian) + TINY)
        move = np.clip(-shortest_solution(H, at.gradient), -LONGEST_STEP, LONGEST_STEP)
        promised = -float(at.gradient @ move + 0.5 * move @ at.hessian @ move)
        gp = _moved(state.gp, x + move)
        new = self._curvature(gp, problem, state.near)
        ratio = float(at.loss - new.loss) / max(promised, TINY)
        better = bool(ratio > LEAST_RATIO)
        factor = max(1 / 3, 1 - (2 * ratio - 1) ** 3) if better else float(state.harder)
        damping = np.float64(np.clip(state.damping * factor, LEAST_DAMPING, MOST_DAMPING))
        harder = np.float64(2 if better else 2 * state.harder)
        gp, at = (gp, new) if better else (state.gp, at)
        fields = {"at": at, "damping": damping, "harder": harder, "kept": np.float64(ratio)}
        return dataclasses.replace(state, gp=gp, **fields), self._numbers_of(at, problem, better)

    def model(self, state: ConditionalState) -> AbstractGP:
        """θ − H⁻¹∇L if little is left to gain and the last step gained what was promised, else θ.

        With many rows the optimum can be two standard errors away for a gain of 10⁻⁴ nats: one more step leads there, as near as L is a quadratic.
        """
        made, _ = self._moves(state)
        return _moved(state.gp, packed(partition(state.gp)[0]) + made) if made.any() else state.gp

    def _moves(self, state: ConditionalState) -> tuple[Float[np.ndarray, " P"], Float[np.ndarray, " P"]]:
        """−H⁻¹∇L as (what the model has moved by, though no pass has evaluated it; what is left undone): one of them is 0."""
        at, nothing = state.at, np.zeros_like(state.at.gradient)
        if not np.isfinite(at.loss):
            return nothing, nothing
        move = -shortest_solution(at.hessian, at.gradient)
        small = -0.5 * at.gradient @ move < NEAR and np.abs(move).max(initial=0) < LONGEST_STEP
        is_made = small and abs(state.kept - 1) < MOST_MISSED
        return (move, nothing) if is_made else (nothing, move)

    def slower(self, state: ConditionalState, factor: float) -> ConditionalState:
        """Mini-batches at a smaller rate, scoring by more damping."""
        damping = np.float64(state.damping / factor**2)
        return dataclasses.replace(state, descent=slowed(state.descent, factor), damping=damping)

    def finished(self, entry: Numbers) -> bool:
        return entry["distance"] < CONVERGED or entry["gain"] < NEGLIGIBLE

    def standard_errors(self, state: ConditionalState) -> StandardErrors | None:
        """√(e² + δ²), once all centres were scored: e of `godambe`, by cells of centres, and δ the move that another scoring step would make, 0 where the model has made it."""
        if not np.isfinite(state.at.loss):
            return None
        errors = np.hypot(godambe(state.at.hessian, state.at.spread), self._moves(state)[1])
        named = unpacked(errors, partition(state.gp)[0])
        return StandardErrors(named, float(state.at.error), int(state.at.n_cells) - 1)

    def exactness(self, entry: Numbers) -> tuple[str, str]:
        what = f"of the mean of {self.n_centres} conditional densities at most"
        if math.isfinite(entry.get("distance", math.inf)):
            return "exact", what
        return "unbiased", f"{what}, from mini-batches"

    def _searched(self, problem: Problem) -> int:
        """Passes by mini-batches."""
        few = len(problem.prepared.start) <= MOST_SCORED
        return self.searches * problem.plan.steps_per_evaluation if few else problem.plan.total_steps

    def _search(self, state: ConditionalState, problem: Problem) -> ConditionalState:
        """With the neighbours in the metric learned so far."""
        near = self.around(state.gp, problem.prepared)
        changed = np.float64(1 - shared(near[:, :-1], state.near[:, :-1]))
        return dataclasses.replace(state, near=near, changed=changed)

    def _by_batches(
        self, state: ConditionalState, problem: Problem, seed: Seed
    ) -> tuple[ConditionalState, Numbers]:
        """A shuffled pass over the centres."""
        C, B, gp = len(state.near), _batch(problem), state.gp
        order = np.random.default_rng(seed).permutation(C)[: C // B * B].reshape(-1, B)
        wide = is_small(gp, problem.source.take(state.near[:SOME, -1]))
        n_scored = problem.prepared.n_scored
        per_row = np.float32(weight_per_row(problem.source, state.near[:, -n_scored:], self.joint))
        (theta, rest), descent, losses = partition(gp), state.descent, []
        rate = self.learning_rate if callable(self.learning_rate) else None  # a numeric rate is in the state
        rules = rate, self.decay, self.optimizer, self.joint, n_scored
        for part in np.array_split(order, max(1, len(order) // STACKED)):
            rows = densities.neighbourhoods(problem.source, state.near[part], wide)
            theta, descent, found = _descend(rules, theta, rest, descent, rows, per_row)
            losses.append(np.mean(np.asarray(found), axis=0))
        loss, squares, jittered = np.mean(losses, axis=0)
        state = dataclasses.replace(state, gp=eqx.combine(theta, rest), descent=descent)
        return state, _numbers(float(loss), float(squares), float(jittered))

    def _curvature(self, gp: AbstractGP, problem: Problem, near: Int[np.ndarray, "C m"]) -> Curvature:
        """With the prior ‖x − x₀‖²/(2 s² n)."""
        wide = is_small(gp, problem.source.take(near[:SOME, -1]))
        prepared = problem.prepared
        others = self.joint, prepared.cells, prepared.n_scored
        found = densities.curvature(gp, problem.source, near, wide, *others)
        pull, away = self._pull(problem), packed(partition(gp)[0]) - prepared.start
        return found._replace(
            loss=found.loss + 0.5 * pull * float(away @ away),
            gradient=found.gradient + pull * away,
            hessian=found.hessian + pull * np.eye(len(away)),
        )

    def _pull(self, problem: Problem) -> float:
        """1/(s² n), n the data that the mean over the centres is worth: (Σρ)²/Σρ², C for equal weights; of a joint density C n/N."""
        return 0.0 if self.spread is None else 1 / (self.spread**2 * problem.prepared.n_data)

    def _numbers_of(self, at: Curvature, problem: Problem, better: bool) -> Numbers:
        C, g = len(problem.prepared.centres), at.gradient
        prior = self._pull(problem) * (C / problem.prepared.n_data)
        scores = at.scores + prior * np.eye(len(g))  # the prior counts as data
        distance = float(C * g @ shortest_solution(scores, g) / max(len(g), 1))
        gain = float(0.5 * g @ shortest_solution(at.hessian, g))
        return _numbers(float(at.loss), float(at.squares), float(at.jittered), distance, gain, float(better))


def kernel_of(learner: AbstractConditionals, gp: Any) -> Any:
    """That of the model, which finds the neighbours. Raises ValueError for a model without one."""
    if gp.has_moments:
        name, model = type(learner).__name__, type(gp).__name__
        raise ValueError(f"{name} finds neighbours by a kernel, and {model} has none")
    return gp.kernel


def _batch(problem: Problem) -> int:
    """Neighbourhoods of a mini-batch."""
    return min(max(1, BATCH // problem.prepared.n_scored), len(problem.prepared.centres))


def _moved(gp: AbstractGP, x: Float[np.ndarray, " P"]) -> AbstractGP:
    theta, rest = partition(gp)
    return eqx.combine(unpacked_alike(x, theta), rest)


def _numbers(
    loss: float,
    squares: float,
    jittered: float,
    distance: float = math.inf,
    gain: float = math.inf,
    accepted: float = 1.0,
) -> Numbers:
    """Of a pass, for the history; by mini-batches neither distance nor gain are known."""
    return {
        "loss": loss, "squares": squares, "jittered": jittered, "distance": distance, "gain": gain, "accepted": accepted
    }  # fmt: skip


@eqx.filter_jit
def _descend(
    rules: tuple, theta: Any, rest: Any, descent: Descent, batches: Batch, per_row: Any
) -> tuple[Any, Descent, Any]:
    """(θ and its optimiser after a step on each batch, mean loss, z² and share with jitter of each)."""
    rate, decay, optimizer, joint, n_scored = rules

    def body(carry: Any, batch: Batch) -> tuple[Any, Any]:
        theta, descent = carry
        found, gradient = densities.batch_gradient(theta, rest, batch, joint, per_row, n_scored)
        size = optim.step_size(descent, rate, decay)
        share = densities.weights_of(batch, joint, n_scored) / per_row
        seen = (found.loss, share * jnp.square(found.z), found.jitter > 0)
        numbers = jnp.stack([jnp.mean(part.astype(jnp.float64)) for part in seen])
        return optim.move(theta, gradient, descent, optimizer, size), numbers

    (theta, descent), numbers = jax.lax.scan(body, (theta, descent), batches)
    return theta, descent, numbers
