"""The direct solver with a Cholesky factorisation."""

import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from stochgp.kernels import dense
from stochgp.numerics.arrays import on_device
from stochgp.numerics.linalg import Factor, factorised
from stochgp.operators import KernelOperator
from stochgp.results import RESULTS, Solution
from stochgp.solvers.base import SMALL, AbstractSolver, solve_bytes

FILL_ROWS = 1024
MOST_REFINEMENTS = 3
EXACT = 1e-10  # relative residual that needs no refinement
REFINED = 0.5  # refinement ends if more than this share of the residual remains
MOST_ROUNDING = 0.02  # largest rounding error as a share of the noise variance; float64 is used above it
COMPILED_BYTES = 100_000_000  # compiled programs of products and predictions
ARRAYS, WIDE_ARRAYS = 4, 7  # arrays [N, C] during refinement: in the dtype of the operator, and in float64


class Cholesky(AbstractSolver):
    """The direct solver of A α = b, which computes the Cholesky factor L of A = LLᵀ in place.

    For N rows, the factor needs N² numbers in the dtype of the operator. A solution with a relative residual
    above 1e-10 is refined up to three times. A factorisation that fails is repeated with more jitter on the
    diagonal of A. `Solution.jitter` is the number that was added to the diagonal.
    """

    def factorise(self, operator: KernelOperator) -> Factor:
        """Return L. Raises ValueError for rows on several devices and for non-finite values."""
        if operator.mesh is not None:
            raise ValueError(
                f"Cholesky needs one device, but the rows are on {operator.mesh.size} devices; use CG or SDD"
            )
        X, noise = np.asarray(operator.inputs), np.asarray(operator.noise)[: operator.size]
        return factorised(lambda: upper(operator.kernel, X, noise))

    def solve(self, operator: KernelOperator, b: Any, tolerance: Any) -> Solution:
        product = lambda x: np.asarray(_product(operator, x.astype(operator.dtype)), np.float64)
        return refined(self.factorise(operator), b, product, tolerance, operator.dtype)

    def itemsize_for(self, n_rows: int, itemsize: int, noise_ratio: float) -> int:
        """Return 8 bytes for up to 3,000 rows or little noise, otherwise `itemsize`."""
        rounding = float(np.finfo(np.float32).eps) * n_rows**0.5
        return 8 if n_rows <= SMALL or rounding > MOST_ROUNDING * noise_ratio else itemsize

    def peak_bytes(self, n_rows: int, n_columns: int, n_inputs: int, itemsize: int) -> int:
        return itemsize * n_rows**2 + solve_bytes(
            n_rows, n_columns, n_inputs, itemsize,
            n_arrays=ARRAYS, n_wide=WIDE_ARRAYS, step_rows=FILL_ROWS, compiled=COMPILED_BYTES,
        )  # fmt: skip


def refined(
    factor: Factor, b: Any, product: Callable[[np.ndarray], np.ndarray], tolerance: Any, dtype: Any
) -> Solution:
    """Solve with the factor, and refine with residuals b − `product`(α)."""
    begun, b = time.perf_counter(), np.asarray(b, np.float64)
    norms = np.maximum(np.linalg.norm(b, axis=0), np.finfo(np.float32).tiny)
    value = factor.solve(b).astype(np.float64)
    residuals = b - product(value)
    for _ in range(MOST_REFINEMENTS if np.any(np.linalg.norm(residuals, axis=0) > EXACT * norms) else 0):
        better = value + factor.solve(residuals)
        left = b - product(better)
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
    residuals = on_device(residuals, dtype)
    return Solution(value, result, converged, relative, 1, 1.0, seconds, [entry], factor.jitter, residuals)


def upper(
    kernel: Any, X: Float[np.ndarray, "N D"], noise: Float[np.ndarray, " N"]
) -> Float[np.ndarray, "N N"]:
    """Return the upper triangle of A = K + diag(noise), in the dtype of X."""
    A = dense.upper(kernel, X, X.dtype)
    A[np.diag_indices(len(X))] += noise.astype(X.dtype)
    return A


@eqx.filter_jit
def _product(operator: KernelOperator, V: Array) -> Array:
    return operator.unpad(operator.matvec(operator.pad(jnp.asarray(V))))
