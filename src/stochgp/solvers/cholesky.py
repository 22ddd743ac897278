"""The direct solver."""

import math
import time
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float

from stochgp.operators import KernelOperator
from stochgp.results import RESULTS, Solution
from stochgp.solvers.base import AbstractSolver

FILL_ROWS = 1024
JITTERS = (0.0, 1e-6, 1e-5, 1e-4, 1e-3)  # times the mean diagonal
MOST_REFINEMENTS = 3
# Smaller entries of K, as a share of its largest, are no more than rounding in float32. Their products would leave float32's range, where
# processors compute a hundred times slower.
NEGLIGIBLE = 1e-12
REFINED = 0.5  # a refinement that leaves more of the residual than this is the last one


class Factor(NamedTuple):
    """A + jitter·I = LLᵀ, in the memory of the host."""

    L: Float[np.ndarray, "N N"]  # lower; what is above the diagonal is anything
    jitter: float

    def solve(self, b: Float[np.ndarray, "N S"]) -> Float[np.ndarray, "N S"]:
        """A⁻¹b, in the dtype of L."""
        return scipy.linalg.cho_solve((self.L, True), b.astype(self.L.dtype), check_finite=False)

    def half(self, k: Float[np.ndarray, "N P"]) -> Float[np.ndarray, "N P"]:
        """L⁻¹k: kᵀA⁻¹k is the sum of its squares."""
        return scipy.linalg.solve_triangular(
            self.L, k.astype(self.L.dtype), lower=True, overwrite_b=True, check_finite=False
        )

    def log_determinant(self) -> float:
        """log|A|."""
        return 2 * float(np.sum(np.log(np.diagonal(self.L).astype(np.float64))))


class Cholesky(AbstractSolver):
    """α = A⁻¹b by A = LLᵀ, factorised in place: N² numbers of memory, N³/3 products.

    The factorisation is in the precision of the operator, or in that of `dtype`; the solution is refined with residuals of the operator
    until they stop falling. A matrix that has no factor in this precision is tried again with a jitter of 1e-6, 1e-5, 1e-4, 1e-3 of its
    mean diagonal; what was added is in `Solution.jitter`, and refinement works towards A itself.
    """

    dtype: str | None = None

    def __check_init__(self) -> None:
        if self.dtype not in (None, "float32", "float64"):
            raise ValueError(f"dtype is {self.dtype!r}; it must be 'float32', 'float64' or None")

    def factorise(self, operator: KernelOperator) -> Factor:
        """L. Raises ValueError where no jitter helps: the matrix holds values that are not finite."""
        dtype = np.dtype(operator.dtype if self.dtype is None else self.dtype)
        for share in JITTERS:
            factor = _factorise(operator, dtype, share)  # what a failed attempt held is free again
            if factor is not None:
                return factor
        raise ValueError("the kernel matrix cannot be factorised: are inputs or parameters not finite?")

    def solve(
        self, operator: KernelOperator, b: Any, tolerance: Any, factor: Factor | None = None
    ) -> Solution:
        """The solution with its residuals, measured with the operator's own products."""
        begun = time.perf_counter()
        factor = self.factorise(operator) if factor is None else factor
        b = np.asarray(b, np.float64)
        norms = np.maximum(np.linalg.norm(b, axis=0), np.finfo(np.float32).tiny)
        value = factor.solve(b).astype(np.float64)
        residuals = _residual(operator, b, value)
        for _ in range(MOST_REFINEMENTS):
            better = value + factor.solve(residuals)
            left = _residual(operator, b, better)
            fallen = np.linalg.norm(left) / max(np.linalg.norm(residuals), np.finfo(np.float64).tiny)
            if not fallen < 1:
                break
            value, residuals = better, left
            if fallen > REFINED:
                break
        relative = np.linalg.norm(residuals, axis=0) / norms
        converged = bool(np.all(relative <= tolerance))
        result = RESULTS.tolerance_reached if converged else RESULTS.precision_reached
        seconds = time.perf_counter() - begun
        entry = {"residual": float(relative.max()), "seconds": seconds, "jitter": factor.jitter}
        return Solution(
            jnp.asarray(value, operator.dtype), result, converged, relative, 1, 1.0, seconds, [entry], factor.jitter
        )  # fmt: skip


def _factorise(operator: KernelOperator, dtype: np.dtype, share: float) -> Factor | None:
    """L with a jitter of this share of the mean diagonal, in the memory of A; None if A + jitter·I has no factor."""
    A = _upper(operator, dtype)
    jitter = share * float(A.diagonal().mean())
    if jitter:
        A[np.diag_indices(operator.size)] += dtype.type(jitter)
    (potrf,) = scipy.linalg.get_lapack_funcs(("potrf",), (A,))
    L, info = potrf(A.T, lower=True, clean=False, overwrite_a=True)
    return Factor(L, jitter) if info == 0 and math.isfinite(L[-1, -1]) else None


def _upper(operator: KernelOperator, dtype: np.dtype) -> Float[np.ndarray, "N N"]:
    """A, of which only the part right of the diagonal blocks is filled."""
    N, T = operator.size, operator.tile
    A = np.empty((N, N), dtype)
    B = min(FILL_ROWS, N)
    wide = operator if operator.dtype == dtype else operator.astype(dtype)
    least = np.zeros((), dtype)

    def block(first: int, tile: int) -> np.ndarray:
        starts = np.asarray(first), np.asarray(tile * T)  # plain numbers would be compiled in
        return np.asarray(_block(wide, *starts, least, B))

    if dtype == np.float32:
        least = np.asarray(NEGLIGIBLE * np.abs(block(0, 0)).max(), dtype)
    for start in range(0, N, B):
        first = min(start, N - B)
        for tile in range(first // T, operator.padded // T):
            stop = min((tile + 1) * T, N)
            A[first : first + B, tile * T : stop] = block(first, tile)[:, : stop - tile * T]
    A[np.diag_indices(N)] += np.asarray(wide.noise)[:N]
    return A


@eqx.filter_jit
def _block(operator: KernelOperator, start: Any, first_column: Any, least: Any, n_rows: int) -> Array:
    """Entries of K, those below `least` as 0."""
    K = operator.kernel.between(operator.block(start, n_rows), operator.block(first_column, operator.tile))
    return jnp.where(jnp.abs(K) < least, jnp.zeros_like(K), K)


def _residual(operator: KernelOperator, b: np.ndarray, value: np.ndarray) -> np.ndarray:
    """b − Aα in float64 but for the products with K; α's rounding to the operator's dtype is accounted for."""
    rounded = operator.pad(jnp.asarray(value, operator.dtype))
    return b - np.asarray(_product(operator, rounded), np.float64)[: operator.size]


@eqx.filter_jit
def _product(operator: KernelOperator, V: Array) -> Array:
    return operator.matvec(V)
