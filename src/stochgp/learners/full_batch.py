"""Full batch: the exact marginal likelihood of all rows, or of several sets of rows whose results are averaged."""

import dataclasses
import math
from typing import NamedTuple, cast

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float, Float64, PRNGKeyArray

from stochgp import deadline
from stochgp.data.streams import AbstractSource, Batch
from stochgp.deadline import Pace, TimeIsUpError
from stochgp.kernels.dense import TILE
from stochgp.kernels.warped import networks_held
from stochgp.learners.base import AbstractLearner, Problem
from stochgp.learners.descent import Descent, Optimizer, Schedule, constant, slowed
from stochgp.learners.evaluators import AbstractEvaluator, Numbers, Seed
from stochgp.learners.sampling import AbstractSampling, Uniform
from stochgp.learners.step_plan import StepPlan
from stochgp.models import AbstractGP, FeatureGP
from stochgp.numerics import lbfgs
from stochgp.numerics.arrays import on_device, packed, unpacked, unpacked_alike
from stochgp.numerics.lbfgs import Quasi
from stochgp.objectives import nlml_and_gradient
from stochgp.objectives.kernel import SMALL
from stochgp.parameters import in_parameters, partition

RATE = 0.1  # of optax rules
STEPS = 100
PATIENCE = 3  # steps over which the improvement is looked at
EVALUATION = 2e-11  # seconds of a first evaluation, per cube of the rows
# Rows of which a fit takes about so many seconds, on two cores of 2023: evaluations grow by their power of 2.5.
ROWS_IN_TIME, SECONDS_OF_ROWS, SHORT, FEWEST_ROWS = 3_000, 30.0, 6.0, 200
EVALUATION_PRODUCTS = 1e10  # of one evaluation, about a second
MOST_STEPS_PER_EVALUATION = 20
STEPS_PER_PASS = 5  # between evaluations that are themselves a pass over the rows


class SetFit(eqx.Module):
    """The state of the fit of one set of rows."""

    at: Quasi
    descent: Descent | None  # of an optax rule
    recent: Float[np.ndarray, " T"]  # the last values, newest last
    settled: np.bool_


class Prepared(NamedTuple):
    """The rows of every set, the parameters at the preparation, where fits of these begin, and the pace of evaluations."""

    sets: tuple[Batch, ...]
    given: Float64[np.ndarray, " P"]
    start: Quasi
    pace: Pace


class FullBatchState(eqx.Module):
    """The best points found so far, one for each set of rows."""

    gp: AbstractGP  # the structure, and what does not train
    fits: tuple[SetFit, ...]


class FullBatch(AbstractLearner):
    """Descent on the exact NLML per datum.

    For n rows an evaluation of a kernel GP is by Cholesky: O(n³), n² numbers of memory. That of a feature GP is from the moments:
    O(n M² + M³), memory for one chunk of features.

    With `subset_rows` the learner fits `n_subsets` sets of that many rows, each from the same start. It then averages their unconstrained
    parameters: lengthscales and variances in the logarithm. The published Matérn hyperparameters of Lin et al. (2023) were made so.
    Uniform sets show long lengthscales, neighbourhoods short ones.

    With `spread` s the loss has the penalty ‖x − x₀‖² / (2 s² Σρ) of a normal prior of the unconstrained parameters x around their
    start: it decides only what the rows leave open, such as how far beyond the data an idle lengthscale goes.

    `converged`: every set's fit ended by `tolerance`, or where rounding allows no more.

    Parameters
    ----------
    batch_size, evaluator
        As of `AbstractLearner`; every step takes all rows of a set: ValueError for a batch size.
    epochs : int or None
        Steps at most; None = 100.
    optimizer : function or None
        Any optax rule, as a function of its learning rate; None = L-BFGS (`numerics.lbfgs`).
    learning_rate, decay : float, rule or None; function
        Of an optax rule, as of `AbstractLearner`; None = 0.1, for Adam.
    subset_rows, n_subsets : int or None; int
        Rows of a set, None, or as many as there are, = all rows; number of sets.
    sampling : AbstractSampling
        How sets are drawn: `Uniform()`, disjoint where the rows allow, or `NearestNeighbours()` of random rows.
    spread : float or None
        s, about the logarithms of variances and lengthscales; None = no prior, the maximum of the likelihood.
    warm_rows : int or None
        Rows of a random set that is fitted first if sets have more than twice as many: the others begin at its optimum, with the curvature
        that L-BFGS learned there; None = none.
    hold_networks : bool
        True: weights of networks stay and parameters alone train, such as for the exact final refit of a deep kernel.
    tolerance : float
        A fit ends if the loss, in nats per datum, changes by less than this in 3 steps, or if rounding allows no more.
    precision : "float32", "float64" or None
        Of the factor of a kernel GP; None = "float32", and "float64" for up to 1,024 rows, if σ² is below 1e-4 of the mean variance, or if
        float32 has no factor.
    """

    batch_size: int | None = None
    epochs: int | None = None
    learning_rate: float | Schedule | None = None
    optimizer: Optimizer | None = None
    decay: Schedule = constant
    subset_rows: int | None = None
    n_subsets: int = 1
    sampling: AbstractSampling = Uniform()
    spread: float | None = None
    warm_rows: int | None = None
    hold_networks: bool = False
    tolerance: float = 1e-4
    precision: str | None = None
    evaluator: AbstractEvaluator | None = None

    def __check_init__(self) -> None:
        self.check_common("subset_rows", "n_subsets", "warm_rows")
        if self.batch_size is not None:
            raise ValueError(
                f"batch_size is {self.batch_size}; a full-batch learner takes all rows of a set: see subset_rows"
            )
        if not 0 <= self.tolerance < math.inf:
            raise ValueError(f"tolerance is {self.tolerance}; it must be finite and at least 0")
        if self.precision not in (None, "float32", "float64"):
            raise ValueError(f"precision is {self.precision!r}; it must be 'float32', 'float64' or None")

    def sets(self, n_rows: int) -> tuple[int, int]:
        """(Number of sets of rows, rows of each)."""
        if self.subset_rows is None or self.subset_rows >= n_rows:
            return 1, n_rows
        return self.n_subsets, self.subset_rows

    def plan(self, n_rows: int, n_inputs: int, evaluator: AbstractEvaluator) -> StepPlan:
        """A step is an epoch; evaluations about every second."""
        count, size = self.sets(n_rows)
        steps, between = STEPS if self.epochs is None else self.epochs, STEPS_PER_PASS
        if evaluator.evaluations_are_free:
            between = min(max(1, int(EVALUATION_PRODUCTS / (count * size**3))), MOST_STEPS_PER_EVALUATION)
        between = min(between, steps)
        return StepPlan(size, 1, -(-steps // between) * between, between, between)

    def need_bytes(self, gp: AbstractGP, n_rows: int, n_inputs: int) -> int:
        """The rows of a set in float64; of a kernel GP the matrix, which its factor and its inverse replace, and rows of tiles."""
        size, itemsize = self.sets(n_rows)[1], 4 if self.precision == "float32" else 8
        if gp.has_moments:
            M = cast(FeatureGP, gp).n_features
            return 2 * 8 * size * (n_inputs + 2) + 4 * 8 * M**2
        return itemsize * size**2 + 8 * size * (4 * min(TILE, size) + 8 * n_inputs)

    def rows_within(self, gp: AbstractGP, n_rows: int, n_inputs: int, seconds: float) -> int:
        """Of a kernel GP as many as some forty evaluations have time for; where time is short so few that none are fitted first."""
        if gp.has_moments or not seconds < math.inf:
            return n_rows
        count, size = self.sets(n_rows)
        rows = int(ROWS_IN_TIME * (max(seconds, 0.0) / (count * SECONDS_OF_ROWS)) ** 0.4)
        if seconds < SHORT and self.warm_rows is not None:
            rows = min(rows, 2 * self.warm_rows)
        return n_rows if rows >= size else max(rows, FEWEST_ROWS)

    def prepare(self, gp: AbstractGP, source: AbstractSource, plan: StepPlan, seed: Seed) -> "Prepared":
        """The rows of every set, on the host in float64, and where their fits begin."""
        sets = self._sets_of_rows(gp, source, seed)
        given = packed(self.partition(gp)[0])
        start = lbfgs.begin(given)
        if self.optimizer is None and self.warm_rows is not None and len(sets[0].y) > 2 * self.warm_rows:
            chosen = np.random.default_rng((*seed, 1)).permutation(len(sets[0].y))[: self.warm_rows]
            start = self._warm(gp, Batch(*(part[np.sort(chosen)] for part in sets[0])), start)
        return Prepared(sets, given, start, Pace(EVALUATION * len(sets[0].y) ** 3))

    def _warm(self, gp: AbstractGP, rows: Batch, start: Quasi) -> Quasi:
        """The optimum of a few rows and the curvature around it, nothing known of the loss of others."""
        loss = _Loss(self, gp, rows, Pace())
        fit = SetFit(start, None, np.full(PATIENCE + 1, np.inf), np.bool_(False))
        for _ in range(STEPS):
            if not fit.settled:
                fit = self.step(fit, loss)
        empty, at = lbfgs.begin(fit.at.x), fit.at
        return Quasi(empty.x, empty.value, empty.gradient, at.steps, at.changes, at.n_pairs, empty.stuck)

    def _sets_of_rows(self, gp: AbstractGP, source: AbstractSource, seed: Seed) -> tuple[Batch, ...]:
        count, size = self.sets(source.size)
        if count > 1 and not self.hold_networks and not _only_parameters(gp):
            raise ValueError(
                f"n_subsets is {count}, but the model has weights of a network, which cannot be averaged: hold_networks or one set of rows"
            )
        if size == source.size:
            return (source.on_host(np.arange(size)),)
        prepared = self.sampling.prepare(source, size, count, seed)
        indices = self.sampling.batches(prepared, 0, count, size, seed)
        return tuple(source.on_host(rows) for rows in indices)

    def init(self, gp: AbstractGP, problem: Problem, *, key: PRNGKeyArray) -> FullBatchState:
        own, descent = packed(self.partition(gp)[0]), None
        is_given = np.array_equal(own, problem.prepared.given)
        start = problem.prepared.start if is_given else lbfgs.begin(own)  # after another learner
        if self.optimizer is not None:
            descent = self.begin_descent(on_device(start.x), problem, RATE)
        fit = SetFit(start, descent, np.full(PATIENCE + 1, np.inf), np.bool_(False))
        return FullBatchState(gp, (fit,) * len(problem.prepared.sets))

    def advance(
        self, state: FullBatchState, problem: Problem, first_step: int, n_steps: int, seed: Seed
    ) -> tuple[FullBatchState, Numbers]:
        """`n_steps` steps of every fit that has not settled. "loss" is the mean of the sets' after them."""
        fits, taken, prepared = state.fits, 0, problem.prepared
        losses = [_Loss(self, state.gp, rows, prepared.pace) for rows in prepared.sets]
        while taken < n_steps:
            try:
                pairs = zip(fits, losses, strict=True)
                fits = tuple(fit if fit.settled else self.step(fit, loss) for fit, loss in pairs)
            except TimeIsUpError:
                if taken == 0:
                    raise
                break
            taken += 1
        numbers = {
            "loss": float(np.mean([fit.at.value for fit in fits])),
            "gradient_norm": float(max(np.linalg.norm(fit.at.gradient) for fit in fits)),
            "unsettled": float(sum(not fit.settled for fit in fits)),
            "evaluations": float(sum(loss.evaluations for loss in losses)),
            "jitter": max(loss.jitter for loss in losses),
            "taken": float(taken),
        }
        return FullBatchState(state.gp, fits), numbers

    def partition(self, gp: AbstractGP) -> tuple[AbstractGP, AbstractGP]:
        """(What trains here, the rest)."""
        return eqx.partition(gp, in_parameters(gp)) if self.hold_networks else partition(gp)

    def step(self, fit: SetFit, loss: "_Loss") -> SetFit:
        """One set's fit after one step."""
        if fit.descent is None:
            at, descent = lbfgs.step(fit.at, loss, loss.rounding), None
        else:
            at = lbfgs.evaluated(fit.at, loss)
            x, descent = self.descend(on_device(at.x), on_device(at.gradient), fit.descent)
            at = lbfgs.evaluated(lbfgs.begin(np.asarray(x)), loss)
        recent = np.append(fit.recent[1:], at.value)  # inf while there are fewer than four values
        flat = bool(recent.max() - recent.min() < self.tolerance)
        return SetFit(at, descent, recent, np.bool_(flat or at.stuck))

    def model(self, state: FullBatchState) -> AbstractGP:
        """The mean of the fits."""
        theta, rest = self.partition(state.gp)
        mean = np.mean([fit.at.x for fit in state.fits], axis=0)
        return eqx.combine(unpacked_alike(mean, theta), rest)

    def slower(self, state: FullBatchState, factor: float) -> FullBatchState:
        """Only optax rules have a rate; L-BFGS never climbs."""
        slow = lambda fit: dataclasses.replace(fit, descent=slowed(fit.descent, factor))
        fits = (fit if fit.descent is None else slow(fit) for fit in state.fits)
        return FullBatchState(state.gp, tuple(fits))

    def finished(self, entry: Numbers) -> bool:
        return entry["unsettled"] == 0

    def seen_rows(self, n_rows: int) -> int:
        count, size = self.sets(n_rows)
        return min(n_rows, count * size)

    def exactness(self, entry: Numbers) -> tuple[str, str]:
        if self.subset_rows is None:
            return "exact", "of the likelihood of all rows"
        return "exact", f"of the likelihood of sets of up to {self.subset_rows} rows"


class _Loss:
    """NLML per datum of one set of rows, and the prior, as a function of the vector of what trains; counts its evaluations.

    Raises TimeIsUpError instead of an evaluation that would end after the deadline.
    """

    def __init__(self, learner: FullBatch, gp: AbstractGP, rows: Batch, pace: Pace):
        self.theta, self.rest = learner.partition(gp)
        self.start, self.rows, self.precision = packed(self.theta), rows, learner.precision
        self.hold_networks = learner.hold_networks
        self.pull = 0.0 if learner.spread is None else 1 / (learner.spread**2 * float(rows.weight.sum()))
        self.evaluations, self.jitter, self.pace = 0, 0.0, pace

    @property
    def rounding(self) -> float:
        wide = self.precision == "float64" or self.rest.has_moments
        return 1e-12 if wide or (self.precision is None and len(self.rows.y) <= SMALL) else 1e-6

    def __call__(self, x: Float[np.ndarray, " P"]) -> tuple[float, Float[np.ndarray, " P"]]:
        deadline.require(self.pace.expected)
        self.evaluations += 1
        with self.pace.piece():
            gp = eqx.combine(unpacked(x, self.theta), self.rest)
            gp = networks_held(gp) if self.hold_networks else gp
            found = nlml_and_gradient(gp, self.rows, dtype=self.precision)
        self.jitter, away = found.jitter, x - self.start
        by_theta = eqx.filter(found.gradient, in_parameters(gp)) if self.hold_networks else found.gradient
        return found.nlml + 0.5 * self.pull * float(away @ away), packed(by_theta) + self.pull * away


def _only_parameters(gp: AbstractGP) -> bool:
    """Return True if all that trains is in parameters, whose unconstrained values mean the same in every fit."""
    outside = eqx.filter(gp, in_parameters(gp), inverse=True)
    return not jax.tree.leaves(partition(outside)[0])
