"""The base classes of solvers of A α = b, and their peak memory."""

import abc
from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from stochgp.budget import Budget
from stochgp.kernels import Product, Sum, Warped
from stochgp.operators import BLOCK, KernelOperator
from stochgp.parameters import value_of
from stochgp.sharding import default_tile

# Peak bytes exclude the training rows on the device. A test compares them with measurements.
SMALL = 3_000  # up to this many rows, a direct solve in float64 is fast
MARGIN = 1.1  # safety factor for the bytes of arrays
COMPILED_BYTES = 170_000_000  # compiled programs of a solver and its predictions
DRAWS_BYTES = 30_000_000  # compiled programs of prior draws
FEATURES = 2000  # random features of prior draws
COMPILER_BYTES = 60_000_000  # memory of the compiler for one more evaluation
HEADROOM = 0.04  # share of the memory limit that is reserved for modules and programs
TERM_BYTES = 25_000_000  # compiled programs and a tile, for each further term of the kernel
ARRAYS = 24  # arrays [P, C] of a solver without its own `peak_bytes`


class AbstractSolver(eqx.Module):
    """The base class of solvers, which solve (K + Σ) α = b for all columns of b at once.

    `tolerance_share` multiplies the tolerance of an estimator. The share is below 1 for a solver whose
    solutions predict worse than solutions of other solvers with the same residual.
    """

    tolerance_share: ClassVar[float] = 1.0

    @property
    def name(self) -> str:
        """The name in `plan_` and in error messages."""
        return type(self).__name__.lower()

    def itemsize_for(self, n_rows: int, itemsize: int, noise_ratio: float) -> int:
        """Return the bytes per number of a solve; `noise_ratio` is mean Σ / mean diag(K)."""
        return itemsize

    def peak_bytes(self, n_rows: int, n_columns: int, n_inputs: int, itemsize: int) -> int:
        """Return the peak bytes of a solve for C columns and of its predictions."""
        return solve_bytes(n_rows, n_columns, n_inputs, itemsize, n_arrays=ARRAYS)


class AbstractIterativeSolver(AbstractSolver):
    """The base class of iterative solvers, which define `init`, `step` and `value`.

    One epoch evaluates N rows of the N × N matrix A. A run takes at most `epochs` epochs. The residual is
    measured on all rows after every `check_every` epochs, and when its estimate is within the tolerance.

    `knows_residual` is True if the estimated residual is exact up to rounding. If it is False, the measured
    residual is expected to be `measured_share` times the estimated residual. After `patience` consecutive
    measurements without a smaller residual, the run ends, unless `patience` is None.
    """

    knows_residual: ClassVar[bool] = False
    measured_share: ClassVar[float] = 1.0
    patience: ClassVar[int | None] = 2
    epochs: eqx.AbstractVar[int]
    check_every: eqx.AbstractVar[int]

    def constants(self, operator: KernelOperator, *, key: PRNGKeyArray) -> PyTree:
        """Return a preconditioner or factors, computed once; their `jitter` is reported."""
        return None

    @abc.abstractmethod
    def init(
        self,
        operator: KernelOperator,
        constants: PyTree,
        b: Float[Array, "P S"],
        start: Float[Array, "P S"],
        residual: Float[Array, "P S"] | None = None,
    ) -> PyTree:
        """Return the first state, at the point `start`; `residual` is b − A start, if known."""

    def batches(self, size: int, epoch: int, seed: tuple[int, ...]) -> PyTree:
        """Return the batches of one epoch, arrays [n_steps, ...]; the default is one step."""
        return np.zeros(1, np.int32)

    @abc.abstractmethod
    def step(
        self,
        operator: KernelOperator,
        constants: PyTree,
        b: Float[Array, "P S"],
        state: PyTree,
        batch: PyTree,
    ) -> tuple[PyTree, Float[Array, " S"], Float[Array, " S"] | None]:
        """Return the next state, an estimate of ‖r‖², and an estimate of rᵀA⁻¹r or None.

        r = b − A α is the residual. The function must be pure, so that it can be compiled.
        """

    @abc.abstractmethod
    def value(self, state: PyTree) -> Float[Array, "P S"]:
        """Return the solution α of the state."""

    def adapted(
        self, operator: KernelOperator, constants: PyTree, state: PyTree, epoch: int, n_failures: int
    ) -> tuple[PyTree, PyTree]:
        """Return constants and state with the settings of `epoch` after `n_failures` divergences."""
        return constants, state

    def after_check(self, state: PyTree) -> PyTree:
        """Return the state after a measurement of the residual; by default unchanged."""
        return state


def solve_bytes(
    n_rows: int,
    n_columns: int,
    n_inputs: int,
    itemsize: int,
    *,
    n_arrays: int,
    n_wide: int = 0,
    step_rows: int = BLOCK,
    more: float = 0.0,
    compiled: int = COMPILED_BYTES,
) -> int:
    """Return the peak bytes of a solve: programs, rows, arrays [N, C] and one step.

    `n_columns` is the number C of right-hand sides. The numbers of arrays [N, C] are `n_arrays` in the dtype
    of the operator and `n_wide` in float64. A step evaluates `step_rows` rows of K at once, tile by tile.
    """
    tile, rows = min(default_tile(), n_rows), min(max(BLOCK, step_rows), n_rows)
    arrays = n_rows * (itemsize * (n_inputs + 2 + n_arrays * n_columns) + 8 * n_wide * n_columns)
    summed = 8 * rows * (int(itemsize < 8) * tile + 2 * n_columns)  # in float64
    step = 1.2 * itemsize * rows * tile + summed
    draws = DRAWS_BYTES if n_columns > 1 else 0
    return compiled + draws + int(MARGIN * (arrays + step + more))


def plannable(budget: Budget) -> int:
    """Return the free bytes minus the reserve of `HEADROOM`."""
    return max(budget.free() - int(HEADROOM * budget.limit), 0)


def n_terms(kernel: Any) -> int:
    """Return the number of terms and factors of the kernel."""
    kernel = value_of(kernel)
    if isinstance(kernel, Sum | Product):
        return n_terms(kernel.left) + n_terms(kernel.right)
    return n_terms(kernel.kernel) if isinstance(kernel, Warped) else 1


def covariance_bytes(n_rows: int, n_test: int) -> int:
    """Return the bytes of four test × test and six test × train blocks in float64."""
    return int(MARGIN * 8 * n_test * (4 * n_test + 6 * n_rows))
