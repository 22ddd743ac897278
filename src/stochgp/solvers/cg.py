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
ENTRIES_PER_ROW = 64  # rank² per row at which the preconditioner costs about ten products with K
DAMPING = 3.0
DAMPING_BESIDE = 0.2  # neighbours capture too little of smooth directions: on kin40k 12 steps instead of 16
# [P, C], and float64 ones: five of a state before, after and at the best step, and some within a step.
ARRAYS, WIDE_ARRAYS = 6, 16
NEIGHBOUR_BYTES = 40  # per neighbour of a row, while regressions are computed and joined
FACTORS = 2.2  # arrays [rank, P] of float64 while the preconditioner is built
FACTORS_BESIDE = 2.8  # the same with neighbours
# Relative error of K p from which products are summed in float64: 1.6e-2 on kin40k, where float32 sums doubled the steps, at most 5e-4 on five other sets.
ROUNDING = 1e-3


class CG(AbstractIterativeSolver):
    """Preconditioned conjugate gradients for A α = b, A = K + Σ, one column at a time.

    A step is one product with A. The iteration

        x ← x + a p,  r ← r − a A p,  a = rᵀp / pᵀAp;   p ← P⁻¹r + c p,  c = −(P⁻¹r)ᵀAp / pᵀAp

    minimises ‖x − α‖_A, while its residual r goes up and down. The returned solution is the smoothed one (Schönauer; Weiss 1994),

        y ← y + h (x − y),  s ← s + h (r − s),  h = argmin ‖s‖,

    whose residual s only falls. If stopped early it also predicts better than x.

    The preconditioner is P = FFᵀ + (Vecchia's approximation of K − FFᵀ + D, see `Preconditioner`), with FFᵀ a partial Cholesky
    factorisation of K of rank `rank`, and D = Σ + `damping` · mean(diag(K − FFᵀ)) I. Without neighbours P = FFᵀ + D; with rank 0 it is the diagonal of A.

    Products are in the operator's dtype, other numbers in float64 with x64 enabled, as in `solve`; p is rounded to the product's dtype. Products are
    summed in float64 too if the rounding of float32 sums exceeds a thousandth of b; the entries of K are not. After every check of the residual
    that does not end the run, one step recomputes b − A x and b − A y. A column stops if its s is rounding, or its pᵀAp is not positive.

    Parameters
    ----------
    epochs : int
        Steps at most, each measurement of the residual counted as one.
    rank : int or None
        Rank of FFᵀ; None = about 8 √N, at most 1,000.
    damping : float or None
        Damping of P, as a multiple of the mean diagonal of K − FFᵀ; None = 0.2 with neighbours, else 3.
    check_every : int
        Steps between measurements of the residual.
    neighbours : int or None
        Neighbours of each row; None = 24 beyond 3,000 rows, else 0. Always 0 if the kernel has no metric to find them, or on a mesh.
    """

    tolerance_share: ClassVar[float] = (
        0.5  # on keggdirected a residual of 0.02 left 3.3 % in RMSE, one more step 0.4 %
    )
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
            raise ValueError(f"rank is {self.rank}; it must be at least 0, or None")
        if self.neighbours is not None and self.neighbours < 0:
            raise ValueError(f"neighbours is {self.neighbours}; it must be at least 0, or None")
        if self.damping is not None and not 0 <= self.damping < math.inf:
            raise ValueError(f"damping is {self.damping}; it must be finite and at least 0, or None")

    def preconditioner_size(self, n_rows: int) -> tuple[int, int]:
        """Return the preconditioner's rank and neighbours of each row for `n_rows` rows."""
        rank = min(LARGEST_RANK, math.isqrt(ENTRIES_PER_ROW * n_rows)) if self.rank is None else self.rank
        usual = NEIGHBOURS if n_rows > SMALL else 0
        return min(rank, n_rows), usual if self.neighbours is None else self.neighbours

    def constants(self, operator: KernelOperator, *, key: PRNGKeyArray) -> Preconditioner:
        """Build the preconditioner."""
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
        """Take one step, with one product; return the squared residual of the new point."""
        advance, correct = partial(_advanced, operator, constants), partial(_corrected, operator, b)
        state = jax.lax.cond(state.stale, correct, advance, state)
        return state, _sums(state.s**2), None

    def value(self, state: "CGState") -> Float[Array, "P S"]:
        return state.y.astype(state.given)

    def peak_bytes(self, n_rows: int, n_columns: int, n_inputs: int, itemsize: int) -> int:
        """Bytes of the states, and of the preconditioner while it is built."""
        R, m = self.preconditioner_size(n_rows)
        of_row = 8 * (FACTORS_BESIDE if m else FACTORS) * R + NEIGHBOUR_BYTES * m
        return solve_bytes(
            n_rows, n_columns, n_inputs, itemsize, n_arrays=ARRAYS, n_wide=WIDE_ARRAYS, more=of_row * n_rows
        )

    def after_check(self, state: "CGState") -> "CGState":
        """Mark the residuals to be corrected in the next step."""
        return eqx.tree_at(lambda s: s.stale, state, jnp.asarray(True))


class CGState(eqx.Module):
    """x, r, p, y, s as in `CG`, all float64 if x64 is enabled."""

    x: Float[Array, "P S"]
    r: Float[Array, "P S"]
    p: Float[Array, "P S"]
    y: Float[Array, "P S"]
    s: Float[Array, "P S"]
    b_squares: Float[Array, " S"]  # ‖b‖²
    stale: Bool[Array, ""]  # True if r and s are to be recomputed
    dtype: Any = eqx.field(static=True)  # dtype of the sums in products
    given: Any = eqx.field(static=True)  # dtype of the operator and the right-hand sides


@eqx.filter_jit
def product_in_float64(operator: KernelOperator, V: Float[Array, "P S"]) -> Float[Array, "P S"]:
    """Return A V for residuals, with K evaluated again and summed in float64, in V's dtype."""
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
    """Return the first rows of K V in the steps' precision, and in float64."""
    n, narrow = min(BLOCK, operator.size), V.astype(operator.dtype)
    rows = jnp.arange(n)
    return operator.rows_times(rows, narrow), operator.rows_times(rows, narrow, wide=True)


def _rounding(operator: KernelOperator, p: Float[Array, "P S"], b_squares: Float[Array, " S"]) -> float:
    """Return the root mean square rounding error of K p over that of b in the worst column; p ≈ A⁻¹b."""
    summed, exact = (np.asarray(part, np.float64) for part in _in_both(operator, p))
    of_b = np.maximum(b_squares, np.finfo(np.float32).tiny) / operator.size
    errors = np.mean(np.square(summed - exact), axis=0) / of_b
    return float(np.sqrt(errors.max())) if np.all(np.isfinite(errors)) else 0.0


def _sums(products: Float[Array, "P S"]) -> Float[Array, " S"]:
    return jnp.sum(products, axis=0)


def _ratio(
    above: Float[Array, " S"], below: Float[Array, " S"], valid: Bool[Array, " S"]
) -> Float[Array, " S"]:
    """Return above / below, 0 if it is not valid."""
    return jnp.where(valid, above / jnp.where(valid, below, 1), 0)
