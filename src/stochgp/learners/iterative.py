"""The gradient of the exact marginal likelihood of all rows from a few iterative solutions, from which the next step starts."""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.data.streams import AbstractSource, Batch
from stochgp.deadline import TimeIsUpError
from stochgp.kernels.gradients import quadratic_gradient
from stochgp.learners.base import AbstractLearner, Problem
from stochgp.learners.descent import Descent, Optimizer, Schedule, cosine
from stochgp.learners.evaluators import AbstractEvaluator, Numbers, Seed
from stochgp.learners.full_batch import optimum_of_few
from stochgp.learners.step_plan import StepPlan
from stochgp.likelihoods.noise import SMALLEST_COUNT
from stochgp.models import KernelGP
from stochgp.numerics.arrays import packed, unpacked_alike
from stochgp.operators import TILE, KernelOperator
from stochgp.parameters import partition
from stochgp.results import RESULTS, Solution
from stochgp.solvers import SDD, AbstractSolver, Layout, SystemSize, solve
from stochgp.solvers.choice import room_for_rows

RATE, STEPS = 0.1, 100
PRODUCTS_IN_TIME, FEWEST_ROWS = 300, 200  # products with K if time is short, and rows if there is none
SECONDS_OF_ENTRY = 2e-9  # of K in a product, on two cores of 2023
STEP_COLUMNS = 16  # arrays [N, C] beside a solve: solutions of three steps, and float64 ones of two
SMALLEST_ANGLE = 1e-6  # between two solutions, squared, that still says something


class IterativeState(eqx.Module):
    """The model, its descent, and the solutions that the next solve starts from."""

    gp: KernelGP
    descent: Descent
    solutions: Float[Array, "N C"]  # of y and of the C − 1 probes, at the θ before the last step
    earlier: Float[Array, "N C"]  # and at the one before that
    previous: Any  # the gradient there, and θ: for the integrated loss
    loss: np.float64


class Iterative(AbstractLearner):
    """Descent on the exact NLML per datum of all rows without a factor of A = K + σ² diag(1/ρ): no N² numbers.

        ∇nlml = (−αᵀ ∂A α + (1/S) Σ_s u_sᵀ ∂A v_s) / (2n),   A α = y,  A u_s = b_s,

    with probes b_s = v_s of random signs (Hutchinson). All systems are solved together, to the relative residual `tolerance`. θ moves little in
    a step, so each step starts from the solutions of the two steps before (Lin et al. 2024, arXiv 2405.18457): the
    combination of these that is nearest to the new solution in the norm of A; one product with A finds it. The probes are the same at every
    step, so the gradient is that of one fixed function near the NLML. With N rows and S probes its minimum is off by O(1/√(NS)).

    The "loss" of the history is the change of the NLML since the start, by the trapezoidal rule along the path; "solver_epochs" are
    those of the step, "residual" the largest relative one.

    Parameters
    ----------
    batch_size, epochs, learning_rate, optimizer, decay, evaluator
        As of `AbstractLearner`; every step takes all rows: ValueError for a batch size. Epochs are steps, None = 100; the rate None = 0.1, for Adam.
    n_probes : int
        S, systems solved beside that of y.
    solver : AbstractSolver
        Of `stochgp.solvers`; its `epochs` bound those of each step.
    tolerance : float
        ‖b − A u‖ / ‖b‖ of every system, between 0 and 1, at which a solve ends.
    keep_rows : int or None
        Rows of K that the solver keeps in memory, of N numbers each; None = as many as the estimator's memory limit allows, 0 without it.
    warm_rows : int or None
        Random rows whose exact likelihood gives the start; None = the parameters given.
    """

    batch_size: None = None
    epochs: int | None = None
    learning_rate: float | Schedule | None = None
    optimizer: Optimizer = optax.adam
    decay: Schedule = cosine
    n_probes: int = 16
    solver: AbstractSolver = SDD(epochs=20)
    tolerance: float = 0.01
    keep_rows: int | None = None
    warm_rows: int | None = None
    evaluator: AbstractEvaluator | None = None

    def __check_init__(self) -> None:
        self.check_common("n_probes", "warm_rows")
        if self.batch_size is not None:
            raise ValueError(f"batch_size is {self.batch_size}; this learner takes all rows: leave it None")
        if not 0 < self.tolerance < 1:
            raise ValueError(f"tolerance is {self.tolerance}; it must lie between 0 and 1")

    @property
    def loss_shift(self) -> float:
        """0: a change of the NLML is the same in any units."""
        return 0.0

    def plan(self, n_rows: int, n_inputs: int, evaluator: AbstractEvaluator) -> StepPlan:
        """A step is an epoch and an evaluation."""
        return StepPlan(n_rows, 1, STEPS if self.epochs is None else self.epochs, 1)

    def need_bytes(self, gp: KernelGP, n_rows: int, n_inputs: int) -> int:
        """A solve, and the solutions of three steps with what their combination takes."""
        size, layout, columns = self._sizes(n_rows, n_inputs)
        return self.solver.need_bytes(size, layout) + columns

    def within(self, gp: KernelGP, n_rows: int, n_inputs: int, free: int) -> "Iterative":
        """With the rows of K that may be kept."""
        if self.keep_rows is not None:
            return self
        size, layout, columns = self._sizes(n_rows, n_inputs)
        rows = room_for_rows(self.solver, layout, size, free - columns)
        return dataclasses.replace(self, keep_rows=rows)

    def _sizes(self, n_rows: int, n_inputs: int) -> tuple[SystemSize, Layout, int]:
        """(Of the system, of the tiles, the bytes of solutions)."""
        size = SystemSize(n_rows, n_inputs, self.n_probes, 4 * (n_inputs + 2), 4)
        columns = STEP_COLUMNS * size.itemsize * n_rows * size.n_columns
        return size, Layout(min(TILE, n_rows), self.keep_rows or 0), columns

    def rows_within(self, gp: KernelGP, n_rows: int, n_inputs: int, seconds: float) -> int:
        """As many as there is time for some steps, each of a few products with K."""
        if not seconds < math.inf:
            return n_rows
        rows = int(math.sqrt(max(seconds, 0.0) / (PRODUCTS_IN_TIME * SECONDS_OF_ENTRY)))
        return min(n_rows, max(rows, FEWEST_ROWS))

    def exactness(self, entry: Numbers) -> tuple[str, str]:
        return "estimated", f"of the likelihood of all rows, from {self.n_probes} probes that stay the same"

    def prepare(
        self, gp: KernelGP, source: AbstractSource, plan: StepPlan, seed: Seed
    ) -> tuple[Batch, Float[Array, "N S"], Float[np.ndarray, " P"]]:
        """(The rows on the device, the probes, θ at the start)."""
        rows, start = source.take(np.arange(source.size)), packed(partition(gp)[0])
        key = jax.random.wrap_key_data(jnp.asarray(seed, jnp.uint32))
        if self.warm_rows is not None:
            order = np.random.default_rng(seed).permutation(source.size)
            few = source.on_host(np.sort(order[: self.warm_rows]))
            start = optimum_of_few(gp, few, 1.0, (*seed, 1))
        return rows, jax.random.rademacher(key, (len(rows.y), self.n_probes), rows.X.dtype), start

    def init(self, gp: KernelGP, problem: Problem, *, key: PRNGKeyArray) -> IterativeState:
        (theta, rest), (rows, _, start) = partition(gp), problem.prepared
        theta, X = unpacked_alike(start, theta), rows.X
        gp = eqx.combine(theta, rest)
        descent = self.begin_descent(theta, problem, RATE)
        solutions = jnp.zeros((X.shape[0], 1 + self.n_probes), X.dtype)
        previous = (jax.tree.map(jnp.zeros_like, theta), theta)
        return IterativeState(gp, descent, solutions, solutions, previous, np.float64(0))

    def advance(
        self, state: IterativeState, problem: Problem, first_step: int, n_steps: int, seed: Seed
    ) -> tuple[IterativeState, Numbers]:
        key, epochs, numbers = jax.random.wrap_key_data(jnp.asarray(seed, jnp.uint32)), 0.0, {}
        for i in range(first_step, first_step + n_steps):
            state, numbers = self.step(
                state, problem.prepared[:2], first=i == 0, key=jax.random.fold_in(key, i)
            )
            epochs += numbers["solver_epochs"]
        return state, {**numbers, "solver_epochs": epochs}

    def step(
        self, state: IterativeState, prepared: tuple[Batch, Array], *, first: bool, key: PRNGKeyArray
    ) -> tuple[IterativeState, dict[str, float]]:
        """(State after one step, numbers of its solution and gradient)."""
        theta, rest = partition(state.gp)
        known = None if first else (state.solutions, state.earlier)
        found, gradient = self.gradient(state.gp, prepared, known=known, key=key)
        loss = state.loss if first else state.loss + _integral(theta, gradient, *reversed(state.previous))
        moved, descent = self.descend(theta, gradient, state.descent)
        numbers = {
            "loss": float(loss),
            "gradient_norm": float(optax.tree.norm(gradient)),
            "residual": float(np.max(found.residual_norms)),
            "solver_epochs": float(found.epochs) + float(known is not None),
        }
        gp, previous = eqx.combine(moved, rest), (gradient, theta)
        return IterativeState(gp, descent, found.value, state.solutions, previous, np.float64(loss)), numbers

    def gradient(
        self,
        gp: KernelGP,
        prepared: tuple[Batch, Array],
        *,
        known: tuple[Array, Array] | None,
        key: PRNGKeyArray,
    ) -> tuple[Solution, KernelGP]:
        """(Solutions, the estimated gradient of the NLML per datum by what trains); `known` are the last two steps' solutions."""
        (X, y, count), probes = rows, _ = prepared
        noise = _noise(gp, X, count)
        operator = KernelOperator.of(gp.kernel, X, noise, keep_rows=self.keep_rows or 0)
        b = jnp.concatenate([y[:, None], probes], axis=1)
        start = None if known is None else _nearest(operator, b, *known)
        found = solve(operator, b, self.solver, key=key, start=start, tolerance=self.tolerance)
        if found.result is RESULTS.interrupted:
            raise KeyboardInterrupt
        if found.result is RESULTS.time_limit:
            raise TimeIsUpError("the solve of a step did not end in time")
        return found, _gradient(gp, rows, probes, found.value)


@eqx.filter_jit
def _noise(gp: KernelGP, X: Array, count: Array) -> Float[Array, " N"]:
    return gp.noise.variance(X, count)


def _gradient(gp: KernelGP, rows: Batch, probes: Array, solutions: Array) -> KernelGP:
    alpha, u = solutions[:, :1], solutions[:, 1:]
    count = jnp.maximum(rows.weight, SMALLEST_COUNT)
    twice = 2 * jnp.sum(count)
    U = jnp.concatenate([-alpha, u / probes.shape[1]], axis=1) / twice
    V = jnp.concatenate([alpha, probes], axis=1)
    by_kernel = quadratic_gradient(gp.kernel, rows.X, U, V)
    theta, rest = partition(gp.noise)
    noise, pull = jax.vjp(lambda t: eqx.combine(t, rest).variance(rows.X, rows.weight), theta)
    (by_noise,) = pull(jnp.sum(U * V, axis=1) + (count - 1) / (twice * noise))
    where = lambda g: (g.kernel, g.noise)
    return eqx.tree_at(where, partition(gp)[0], (by_kernel, by_noise), is_leaf=lambda x: x is None)


@eqx.filter_jit
def _nearest(operator: KernelOperator, b: Array, newer: Array, older: Array) -> Float[Array, "N C"]:
    """argmin ‖W c − A⁻¹b‖_A, column by column, W = [newer, newer − older]: c = (WᵀAW)⁻¹ Wᵀb."""
    W = jnp.stack([newer, newer - older], axis=2)  # [N, C, 2]
    flat = W.reshape(W.shape[0], -1)
    AW = operator.unpad(operator.matvec(operator.pad(flat))).reshape(W.shape)
    wide = jax.dtypes.canonicalize_dtype(jnp.float64)
    W, AW = W.astype(wide), AW.astype(wide)
    G = jnp.einsum("nci,ncj->cij", W, AW)
    right = jnp.einsum("nci,nc->ci", W, b.astype(wide))
    scale = jnp.sqrt(jnp.maximum(jnp.einsum("cii->ci", G), jnp.finfo(wide).tiny))
    G, right = G / (scale[:, :, None] * scale[:, None, :]), right / scale
    c = jnp.linalg.solve(G + SMALLEST_ANGLE * jnp.eye(2), right[:, :, None])[:, :, 0] / scale
    return jnp.einsum("nci,ci->nc", W, c).astype(b.dtype)


def _integral(theta: KernelGP, gradient: KernelGP, theta0: KernelGP, gradient0: KernelGP) -> float:
    """∫ g·dθ from θ₀ to θ by the trapezoidal rule."""
    part = lambda t, g, t0, g0: jnp.sum((t - t0) * (g + g0)) / 2
    return float(sum(jax.tree.leaves(jax.tree.map(part, theta, gradient, theta0, gradient0))))
