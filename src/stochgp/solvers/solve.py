"""The loop of iterative solvers: compiled epochs of steps, with measured residuals."""

import itertools
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp import deadline
from stochgp.deadline import Pace, within
from stochgp.numerics.arrays import when_ready
from stochgp.numerics.seeds import words_of
from stochgp.operators import KernelOperator
from stochgp.results import RESULTS, Solution
from stochgp.solvers.base import AbstractIterativeSolver, AbstractSolver
from stochgp.solvers.cg import product_in_float64
from stochgp.solvers.cholesky import Cholesky

Report = Callable[[dict[str, float]], object]

GROWN = 2.5  # a run diverges if its estimated distance exceeds the smallest so far by this factor
MOST_FAILURES = 12
STALLED = 0.99  # a measured residual above this share of the previous one has not fallen
LEAST_SHARE = 0.5  # lower bound of the ratio of a measured residual to its estimate
APART = 1.1  # minimum ratio of the epochs of successive measurements that an estimate triggers


def solve(
    operator: KernelOperator,
    b: Float[Any, "N S"],
    solver: AbstractSolver,
    *,
    key: PRNGKeyArray,
    start: Float[Any, "N S"] | None = None,
    tolerance: float | Float[Any, " S"] = 0.01,
    time_limit: float | None = None,
    progress: Report | None = None,
) -> Solution:
    """Return α with A α = b for every column of b.

    Iterative solvers estimate the residual from the rows of each step. The residual is measured on all rows
    if the estimate is within the tolerance, every `check_every` epochs, and at the end. For each column, the
    result is the measured point with the lowest dual objective ½ αᵀAα − αᵀb. Raises ValueError for mismatched
    shapes and for a tolerance that is not positive.

    Parameters
    ----------
    operator : KernelOperator
        A = K + Σ, with N rows.
    b : array [N, S]
        Right-hand sides.
    solver : AbstractSolver
        An iterative or a direct solver.
    key : JAX key
        The key for random numbers of an iterative solver.
    start : array [N, S] or None
        The start of an iterative solver; None = 0. A start within the tolerance is returned.
    tolerance : float or array [S]
        The bound of ‖b − Aα‖ / ‖b‖: one number, or one per column.
    time_limit : float or None
        The time limit of an iterative solver, in seconds. After the first epoch, no epoch starts that would
        end too late. At the limit or after Ctrl-C, the best point so far is returned.
    progress : function or None
        A function that an iterative solver calls with each entry of its history.
    """
    shape = np.shape(b)
    if len(shape) != 2 or shape[0] != operator.size or shape[1] == 0:
        raise ValueError(f"b must have {operator.size} rows and at least one column, but has shape {shape}")
    if start is not None and np.shape(start) != shape:
        raise ValueError(f"start has the shape {np.shape(start)}, but the shape of b is {shape}")
    if not np.all(np.asarray(tolerance) > 0):
        raise ValueError(f"tolerance must be positive, but is {tolerance}")
    with jax.enable_x64(True), within(time_limit):
        if isinstance(solver, AbstractIterativeSolver):
            return _Run(solver, operator, b, key, start, tolerance, progress).solution()
        if isinstance(solver, Cholesky):
            return solver.solve(operator, b, tolerance)
    raise TypeError(f"solver must be an object such as stochgp.solvers.CG(), but is {solver!r}")


class _Run:
    """One run of an iterative solver, with its history."""

    def __init__(
        self,
        solver: AbstractIterativeSolver,
        operator: KernelOperator,
        b: Any,
        key: PRNGKeyArray,
        start: Any,
        tolerance: float | Float[Any, " S"],
        progress: Report | None,
    ):
        self.begun = time.perf_counter()
        self.solver, self.operator, self.progress = solver, operator, progress
        self.tolerance = np.broadcast_to(np.asarray(tolerance, np.float64), np.shape(b)[1:])
        self.key, batch_key = jax.random.split(key)
        self.seed = words_of(batch_key)
        self.history: list[dict[str, float]] = []
        self.n_steps, self.epoch, self.n_failures, self.n_epochs = 0, 0, 0, 0
        self.share, self.not_before, self.lowest = solver.measured_share, 0.0, np.inf
        self.scale: Float[np.ndarray, " S"] | None = None
        self.epoch_pace, self.check_pace = Pace(), Pace()
        self.constants: Any = None
        self.b = _padded(operator, b)
        self.norms = np.maximum(np.asarray(_norms(self.b)), np.finfo(np.float32).tiny)
        self.best = jnp.zeros_like(self.b) if start is None else _padded(operator, start)
        self.left: Any = self.b if start is None else _residual(operator, self.b, self.best)
        self.residuals = np.asarray(_norms(self.left)) / self.norms
        self.objectives = _objectives(self.best, self.b, self.left)
        self.checks = []
        if start is not None:
            self.checks, self.n_epochs = [self.residuals], 1
            self._note(self.residuals, measured=True)

    def solution(self) -> Solution:
        """Run epochs until there is a result, and return the solution."""
        result = RESULTS.tolerance_reached if self._within(self.residuals) else None
        try:
            if result is None:
                self.operator = self.operator.keeping()
                self.constants = self.solver.constants(self.operator, key=self.key)
                self.state = self.solver.init(self.operator, self.constants, self.b, self.best, self.left)
                self.good, self.left = self.state, None
            while result is None:
                with self.epoch_pace.piece():
                    estimate, distance = self._epoch()
                if not distance <= GROWN * self.lowest:
                    result = self._fall_back()
                    continue
                if distance <= self.lowest:
                    self.good, self.lowest = self.state, distance
                over, is_due = self._over(), self.epoch % self.solver.check_every == 0
                if over or is_due or self._promising(estimate):
                    with self.check_pace.piece():
                        result = self._check(estimate, is_due)
                    result = result or over
        except KeyboardInterrupt:
            result = RESULTS.interrupted
        if self._within(self.residuals):
            result = RESULTS.tolerance_reached
        self.state = self.good = None
        value = _unpadded(self.operator, self.best)
        left = None if self.left is None else _unpadded(self.operator, self.left)
        jitter = float(getattr(self.constants, "jitter", 0.0))
        return Solution(
            value, result, result is RESULTS.tolerance_reached, self.residuals, self.n_steps, float(self.n_epochs),
            time.perf_counter() - self.begun, self.history, jitter, left,
        )  # fmt: skip

    def _epoch(self) -> tuple[Float[np.ndarray, " S"], float]:
        """Run one epoch. Return mean relative residuals, and the distance to the solution."""
        solver, operator = self.solver, self.operator
        at = self.epoch, self.n_failures
        self.constants, self.state = solver.adapted(operator, self.constants, self.state, *at)
        batches = solver.batches(operator.size, self.epoch, self.seed)
        self.state, *found = _take_steps(solver, operator, self.constants, self.b, self.state, batches)
        squares, energies = when_ready(found)
        self.n_steps += len(jax.tree.leaves(batches)[0])
        self.epoch, self.n_epochs = self.epoch + 1, self.n_epochs + 1
        squares = np.asarray(squares, np.float64)
        self._note(np.sqrt(squares) / self.norms, measured=False)
        return np.sqrt(squares) / self.norms, self._distance(squares, energies)

    def _distance(self, squares: Float[np.ndarray, " S"], energies: Any) -> float:
        """Return the largest √(rᵀA⁻¹r) relative to the first epoch, or relative residual."""
        if energies is None:
            self.lowest = min(self.lowest, 1.0)
            distances = squares / self.norms**2
        else:
            energies = np.asarray(energies, np.float64)
            self.scale = np.maximum(energies, np.finfo(np.float32).tiny) if self.scale is None else self.scale
            distances = energies / self.scale
        return float(np.sqrt(distances.max())) if np.all(np.isfinite(distances)) else np.inf

    def _promising(self, estimate: Float[np.ndarray, " S"]) -> bool:
        if self.solver.knows_residual:
            return self._within(estimate)
        return self.epoch >= self.not_before and self._within(self.share * estimate)

    def _check(self, estimate: Float[np.ndarray, " S"], is_due: bool) -> RESULTS | None:
        """Measure the residual, and keep better points. Return a result if the run ends."""
        value = self.solver.value(self.state)
        left = when_ready(_residual(self.operator, self.b, value))
        residuals = np.asarray(_norms(left), np.float64) / self.norms
        self.n_epochs += 1
        self._note(residuals, measured=True)
        if not np.all(np.isfinite(residuals)):
            return self._fall_back()
        objectives = _objectives(value, self.b, left)
        better = objectives <= self.objectives
        self.best = jnp.where(better, value, self.best)
        self.residuals = np.where(better, residuals, self.residuals)
        self.objectives = np.minimum(objectives, self.objectives)
        if self._within(residuals):
            self.best, self.left, self.residuals = value, left, residuals
            return RESULTS.tolerance_reached
        guesses = not self.solver.knows_residual
        if guesses:
            self.share = float(np.clip(self._worst(residuals) / self._worst(estimate), LEAST_SHARE, 1.0))
            self.not_before = APART * self.epoch + 1
        if is_due or not guesses:  # between close measurements, residuals change little
            self.checks.append(residuals)
        if self._stalled():
            return RESULTS.precision_reached
        self.state = self.solver.after_check(self.state)
        # Estimated distances have rounding errors, so a larger measured distance is no divergence.
        if not guesses:
            self.good, self.lowest = self.state, float(residuals.max())
        return None

    def _stalled(self) -> bool:
        patience = self.solver.patience
        if patience is None or len(self.checks) <= patience:
            return False
        worst = [self._worst(check) for check in self.checks[-1 - patience :]]
        return all(after > STALLED * before for before, after in itertools.pairwise(worst))

    def _fall_back(self) -> RESULTS | None:
        """Return to the state with the smallest distance, and continue with smaller steps."""
        self.n_failures, self.lowest = self.n_failures + 1, GROWN * self.lowest
        point = self.solver.value(self.good)
        point = point if jnp.all(jnp.isfinite(point)) else self.best
        self.state = self.solver.init(self.operator, self.constants, self.b, point)
        return RESULTS.diverged if self.n_failures > MOST_FAILURES else self._over()

    def _over(self) -> RESULTS | None:
        epoch = self.epoch_pace.expected
        if deadline.left() < epoch + max(epoch, self.check_pace.expected):
            return RESULTS.time_limit
        return RESULTS.steps_exhausted if self.n_epochs >= self.solver.epochs else None

    def _worst(self, residuals: np.ndarray) -> float:
        """Return the largest ratio of a residual to its tolerance; inf if one is not finite."""
        ratios = residuals / self.tolerance
        return float(ratios.max()) if np.all(np.isfinite(ratios)) else np.inf

    def _within(self, residuals: np.ndarray) -> bool:
        return self._worst(residuals) <= 1

    def _note(self, residuals: np.ndarray, *, measured: bool) -> None:
        entry = {
            "epoch": self.n_epochs,
            "step": self.n_steps,
            "residual": float(residuals.max()),
            "measured": float(measured),
            "failures": float(self.n_failures),
            "seconds": time.perf_counter() - self.begun,
        }
        self.history.append(entry)
        if self.progress is not None:
            self.progress(entry)


@eqx.filter_jit
def _take_steps(
    solver: AbstractIterativeSolver,
    operator: KernelOperator,
    constants: Any,
    b: Array,
    state: Any,
    batches: Any,
) -> tuple[Any, Array, Array | None]:
    """Run all steps. Return the last state, and the means of the estimates."""

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        state, *estimates = solver.step(operator, constants, b, state, batch)
        return state, estimates

    state, estimates = jax.lax.scan(step, state, batches)
    squares, energies = jax.tree.map(lambda values: jnp.mean(values, axis=0), estimates)
    return state, squares, energies


@eqx.filter_jit
def _padded(operator: KernelOperator, V: Any) -> Array:
    return operator.pad(jnp.asarray(V, operator.dtype))


@eqx.filter_jit
def _unpadded(operator: KernelOperator, V: Array) -> Array:
    return operator.unpad(V)


@eqx.filter_jit
def _residual(operator: KernelOperator, b: Array, value: Array) -> Array:
    return b - product_in_float64(operator, value)


@jax.jit
def _objective_sums(value: Array, b: Array, left: Array) -> Float[Array, " S"]:
    wide = jax.dtypes.canonicalize_dtype(jnp.float64)
    return -0.5 * jnp.sum(value.astype(wide) * (b.astype(wide) + left.astype(wide)), axis=0)


def _objectives(value: Array, b: Array, left: Array) -> Float[np.ndarray, " S"]:
    """Return ½ αᵀAα − αᵀb of each column from α, b and r = b − Aα; inf if not finite."""
    found = np.asarray(_objective_sums(value, b, left), np.float64)
    return np.where(np.isfinite(found), found, np.inf)


@jax.jit
def _norms(V: Float[Array, "P S"]) -> Float[Array, " S"]:
    return jnp.sqrt(jnp.sum(jnp.square(V.astype(jax.dtypes.canonicalize_dtype(jnp.float64))), axis=0))
