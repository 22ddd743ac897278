"""Preconditioned conjugate gradients with smoothed residuals."""

import math
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from stochgp.numerics.seeds import words_of
from stochgp.operators import BLOCK, KernelOperator
from stochgp.operators.kernel import in_float64
from stochgp.solvers.base import SMALL, AbstractIterativeSolver, solve_bytes
from stochgp.solvers.preconditioners import Preconditioner, low_rank_plus_neighbours, partial_cholesky

NEIGHBOURS = 24
LARGEST_RANK = 1000
ENTRIES_PER_ROW = 64  # rank² / N; the preconditioner then costs about ten products with K
DAMPING = 3.0  # damping without neighbours
DAMPING_BESIDE = 0.2  # damping with neighbours
# Arrays [P, C] in the dtype of the operator, and in float64: three states, and parts of a step.
ARRAYS, WIDE_ARRAYS = 6, 16
NEIGHBOUR_BYTES = 40  # per row and neighbour, while the regressions are computed
FACTORS = 2.2  # arrays [rank, P] of float64 while the preconditioner is built
FACTORS_BESIDE = 2.8  # FACTORS with neighbours
# Products are summed in float64 if the relative rounding error of K p exceeds this.
ROUNDING = 1e-3


class CG(AbstractIterativeSolver):
    """Preconditioned conjugate gradients for A α = b with A = K + Σ.

    Each step needs one product with A. The iteration

        x ← x + a p,  r ← r − a A p,  a = rᵀp / pᵀAp;   p ← P⁻¹r + c p,  c = −(P⁻¹r)ᵀAp / pᵀAp

    minimises ‖x − α‖_A, but the norm of the residual r may rise. The solver returns the smoothed solution y,

        y ← y + h (x − y),  s ← s + h (r − s),  h = argmin ‖s‖  (Schönauer; Weiss 1994).

    The vector s is the residual of the solution y; the norm of s never rises.

    The preconditioner P is the sum of FᵀF and Vecchia's approximation of K − FᵀF + D (see `Preconditioner`).
    FᵀF is a partial Cholesky factorisation of K, and D = Σ + `damping` · mean(diag(K − FᵀF)) I. If rows have
    no neighbours, P is FᵀF + D for a positive rank of F, and the diagonal of A for rank 0.

    Products with A have the dtype of the operator. All other numbers are float64 if x64 is enabled. After
    each measurement of the residual, a step recomputes r and s. The iteration stops for each column of b
    whose residual s is below rounding errors.

    Parameters
    ----------
    epochs : int
        The maximum number of steps. Each measurement of the residual counts as a step.
    rank : int or None
        The rank of FᵀF. By default, it is about 8 √N for N rows, and at most 1,000.
    damping : float or None
        The factor of mean(diag(K − FᵀF)) in D. The default is 0.2 if rows have neighbours, and otherwise 3.
    check_every : int
        The number of steps between two measurements of the residual.
    neighbours : int or None
        The number of neighbours of each row. The default is 24 for more than 3,000 rows, and otherwise 0.
        On a mesh, rows have no neighbours.
    """

    tolerance_share: ClassVar[float] = 0.5  # CG predicts worse than other solvers at the same residual
    knows_residual: ClassVar[bool] = True
    epochs: int = 1000
    rank: int | None = None
    damping: float | None = None
    check_every: int = 50
    neighbours: int | None = None

    def __check_init__(self) -> None:
        if self.epochs < 1 or self.check_every < 1:
            raise ValueError("epochs and check_every must be at least 1")
        if self.rank is not None and self.rank < 0:
            raise ValueError(f"rank must be None or at least 0, but is {self.rank}")
        if self.neighbours is not None and self.neighbours < 0:
            raise ValueError(f"neighbours must be None or at least 0, but is {self.neighbours}")
        if self.damping is not None and not 0 <= self.damping < math.inf:
            raise ValueError(f"damping must be None or a finite number of at least 0, but is {self.damping}")

    def preconditioner_size(self, n_rows: int) -> tuple[int, int]:
        """Return the rank and the number of neighbours for `n_rows` rows."""
        rank = min(LARGEST_RANK, math.isqrt(ENTRIES_PER_ROW * n_rows)) if self.rank is None else self.rank
        usual = NEIGHBOURS if n_rows > SMALL else 0
        return min(rank, n_rows), usual if self.neighbours is None else self.neighbours

    def constants(self, operator: KernelOperator, *, key: PRNGKeyArray) -> Preconditioner:
        rank, m = self.preconditioner_size(operator.size)
        # The neighbour search runs on one device.
        if operator.mesh is not None or not operator.kernel.has_places:
            m = 0
        rank_key, order_key = jax.random.split(key) if m else (key, key)
        damping = self.damping if self.damping is not None else DAMPING_BESIDE if m else DAMPING
        F, added = np.zeros((0, operator.size)), 0.0
        if rank:
            F, _, left = partial_cholesky(operator, rank, key=rank_key)
            added = damping * float(left.mean())
        return low_rank_plus_neighbours(operator, F, m, words_of(order_key), added)

    def init(
        self,
        operator: KernelOperator,
        constants: Preconditioner,
        b: Float[Array, "P S"],
        start: Float[Array, "P S"],
        residual: Float[Array, "P S"] | None = None,
    ) -> "CGState":
        target, x = in_float64(b), in_float64(start)
        r = target - product_in_float64(operator, start) if residual is None else in_float64(residual)
        p = constants.solve(r)
        squares = _sums(target**2)
        rounds = b.dtype != target.dtype and _rounding(operator, p, squares) > ROUNDING
        dtype = target.dtype if rounds else b.dtype
        return CGState(x, r, p, x, r, squares, jnp.asarray(False), dtype, b.dtype)

    def step(
        self,
        operator: KernelOperator,
        constants: Preconditioner,
        b: Float[Array, "P S"],
        state: "CGState",
        batch: Any,
    ) -> tuple["CGState", Float[Array, " S"], None]:
        advance, correct = partial(_advanced, operator, constants), partial(_corrected, operator, b)
        state = jax.lax.cond(state.stale, correct, advance, state)
        return state, _sums(state.s**2), None

    def value(self, state: "CGState") -> Float[Array, "P S"]:
        return state.y.astype(state.given)

    def peak_bytes(self, n_rows: int, n_columns: int, n_inputs: int, itemsize: int) -> int:
        R, m = self.preconditioner_size(n_rows)
        of_row = 8 * (FACTORS_BESIDE if m else FACTORS) * R + NEIGHBOUR_BYTES * m
        return solve_bytes(
            n_rows, n_columns, n_inputs, itemsize, n_arrays=ARRAYS, n_wide=WIDE_ARRAYS, more=of_row * n_rows
        )

    def after_check(self, state: "CGState") -> "CGState":
        return eqx.tree_at(lambda s: s.stale, state, jnp.asarray(True))


class CGState(eqx.Module):
    """The vectors x, r, p, y and s of `CG`, in float64 if x64 is enabled."""

    x: Float[Array, "P S"]
    r: Float[Array, "P S"]
    p: Float[Array, "P S"]
    y: Float[Array, "P S"]
    s: Float[Array, "P S"]
    b_squares: Float[Array, " S"]  # ‖b‖²
    stale: Bool[Array, ""]  # True if the next step recomputes r and s
    dtype: Any = eqx.field(static=True)  # dtype of the sums in products
    given: Any = eqx.field(static=True)  # dtype of the operator and the right-hand sides


@eqx.filter_jit
def product_in_float64(operator: KernelOperator, V: Float[Array, "P S"]) -> Float[Array, "P S"]:
    """Return A V in the dtype of V. K is evaluated again, and sums are in float64."""
    return operator.keeping(False).matvec(V, wide=True)


def _advanced(operator: KernelOperator, preconditioner: Any, state: CGState) -> CGState:
    p = state.p.astype(state.dtype)
    in_float64 = state.dtype != state.given
    Ap = product_in_float64(operator, p) if in_float64 else operator.matvec(p)
    p, Ap = p.astype(state.x.dtype), Ap.astype(state.x.dtype)
    curvature = _sums(p * Ap)
    moving = (curvature > 0) & (_sums(state.s**2) > jnp.finfo(state.given).eps ** 2 * state.b_squares)
    a = _ratio(_sums(state.r * p), curvature, moving)
    x, r = state.x + a * p, state.r - a * Ap
    z = preconditioner.solve(r)
    p = jnp.where(moving, z - _ratio(_sums(z * Ap), curvature, moving) * p, p)
    change = r - state.s
    squares = _sums(change**2)
    h = _ratio(-_sums(state.s * change), squares, moving & (squares > 0))
    y, s = state.y + h * (x - state.y), state.s + h * change
    return CGState(x, r, p, y, s, state.b_squares, state.stale, state.dtype, state.given)


def _corrected(operator: KernelOperator, b: Float[Array, "P S"], state: CGState) -> CGState:
    S = b.shape[1]
    points = jnp.concatenate([state.x, state.y], axis=1).astype(state.dtype)
    products = product_in_float64(operator, points).astype(state.x.dtype)
    r, s = (b.astype(state.x.dtype) - part for part in (products[:, :S], products[:, S:]))
    settled = jnp.asarray(False)
    return CGState(state.x, r, state.p, state.y, s, state.b_squares, settled, state.dtype, state.given)


@eqx.filter_jit
def _in_both(operator: KernelOperator, V: Float[Array, "P S"]) -> tuple[Array, Array]:
    """Return the first rows of K V, summed in the dtype of the operator and in float64."""
    n, narrow = min(BLOCK, operator.size), V.astype(operator.dtype)
    rows = jnp.arange(n)
    return operator.rows_times(rows, narrow), operator.rows_times(rows, narrow, wide=True)


def _rounding(operator: KernelOperator, p: Float[Array, "P S"], b_squares: Float[Array, " S"]) -> float:
    """Return the largest relative rounding error of K p over all columns, for p ≈ A⁻¹b."""
    summed, exact = (np.asarray(part, np.float64) for part in _in_both(operator, p))
    of_b = np.maximum(b_squares, np.finfo(np.float32).tiny) / operator.size
    errors = np.mean(np.square(summed - exact), axis=0) / of_b
    return float(np.sqrt(errors.max())) if np.all(np.isfinite(errors)) else 0.0


def _sums(products: Float[Array, "P S"]) -> Float[Array, " S"]:
    return jnp.sum(products, axis=0)


def _ratio(
    above: Float[Array, " S"], below: Float[Array, " S"], valid: Bool[Array, " S"]
) -> Float[Array, " S"]:
    return jnp.where(valid, above / jnp.where(valid, below, 1), 0)
