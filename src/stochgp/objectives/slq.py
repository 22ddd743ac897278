"""Estimates of log|A| and of the NLML of a kernel GP from products with A = K + Σ, with standard errors: for reporting.

Stochastic Lanczos quadrature (Ubaru, Chen and Saad, 2017) with a preconditioner (Wenger et al., 2022):

    log|A| = log|P| + tr log(R⁻¹A R⁻ᵀ),   P = FᵀF + D = R Rᵀ,

of which the trace is the mean of zᵀ log(·) z over vectors z of random signs, each quadratic form by a few Lanczos steps. P narrows the
spectrum: fewer steps and probes are needed, and float32 products with A suffice.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from matfree import decomp, funm, stochtrace

from stochgp.numerics.precision import matmul
from stochgp.operators import KernelOperator
from stochgp.results import Estimate
from stochgp.solvers.base import solve_bytes
from stochgp.solvers.preconditioners import partial_cholesky

PROBES, STEPS = 10, 25
LARGEST_RANK = 500
ENTRIES_PER_ROW = 16  # rank² per row
COMPILER_BYTES = 100_000_000  # left behind by compiling it


class Root(eqx.Module):
    """R⁻¹ and R⁻ᵀ for P = FᵀF + D = R Rᵀ, R = D^½ (I + V diag(c) Vᵀ)^-1: FD^(−½) = U diag(s) Vᵀ, c = 1/√(1 + s²) − 1."""

    V: Float[Array, "N R"]
    c: Float[Array, " R"]
    root: Float[Array, " N"]  # D^(−½)
    log_determinant: Float[Array, ""]  # log|P|

    @classmethod
    def of(cls, F: Float[np.ndarray, "R N"], diagonal: Float[np.ndarray, " N"]) -> "Root":
        """From the factor of a partial Cholesky factorisation and D."""
        root = 1 / np.sqrt(diagonal)
        G = F * root
        squares, U = np.linalg.eigh(G @ G.T)
        kept = squares > 1e-14 * max(float(squares.max(initial=0.0)), 1.0)
        squares, U = squares[kept], U[:, kept]
        V = (G.T @ U) / np.sqrt(squares)
        log_determinant = float(np.sum(np.log1p(squares)) - 2 * np.sum(np.log(root)))
        c = 1 / np.sqrt(1 + squares) - 1
        return cls(*(jnp.asarray(part) for part in (V, c, root, log_determinant)))

    def solve(self, v: Float[Array, " N"]) -> Float[Array, " N"]:
        """R⁻¹v."""
        return self._inner(self.root * v)

    def solve_transposed(self, v: Float[Array, " N"]) -> Float[Array, " N"]:
        """R⁻ᵀv."""
        return self.root * self._inner(v)

    def _inner(self, v: Array) -> Array:
        return v + matmul(self.V, self.c * matmul(self.V.T, v))


def log_determinant(
    operator: KernelOperator,
    *,
    key: PRNGKeyArray,
    n_probes: int = PROBES,
    n_steps: int = STEPS,
    rank: int | None = None,
) -> Estimate:
    """log|A| from n_probes · n_steps products with A, all probes at once, over which its error is; `rank` of the preconditioner: None = 4 √N, at most 500.

    Memory beside the operator's: (n_probes · n_steps + rank) · N numbers of float64. Raises ValueError for fewer than two probes.
    """
    if n_probes < 2 or n_steps < 1:
        raise ValueError(f"n_probes is {n_probes} and n_steps {n_steps}; they must be at least 2 and 1")
    N = operator.size
    rank = min(LARGEST_RANK, math.isqrt(ENTRIES_PER_ROW * N)) if rank is None else rank
    pivot_key, probe_key = jax.random.split(key)
    with jax.enable_x64(True):
        root = _root(operator, min(rank, N), pivot_key)
        forms = np.asarray(_quadratic_forms(operator, root, probe_key, n_probes, min(n_steps, N)))
    value = float(root.log_determinant) + float(forms.mean())
    return Estimate(value, float(forms.std(ddof=1)) / math.sqrt(n_probes))


def nlml_estimate(
    operator: KernelOperator,
    explained: float,
    alpha: Float[Array, "N 1"],
    *,
    key: PRNGKeyArray,
    n_probes: int = PROBES,
    n_steps: int = STEPS,
    weight: Float[np.ndarray, " N"] | None = None,
) -> Estimate:
    """The NLML per datum, as in `objectives.kernel`, from α ≈ A⁻¹y, `explained` = yᵀα and an estimated log-determinant.

    The quadratic term is 2 yᵀα − αᵀAα, which is below yᵀA⁻¹y by rᵀA⁻¹r, r = y − Aα. `weight` ρ are those of Σ = σ² diag(1/ρ); None = 1.
    """
    N = operator.size
    rho = np.ones(N) if weight is None else np.asarray(weight, np.float64)
    with jax.enable_x64(True):
        A_alpha = np.asarray(_product(operator, alpha.astype(operator.dtype)), np.float64)[:, 0]
    fit = 2 * explained - float(np.asarray(alpha, np.float64)[:, 0] @ A_alpha)
    s2 = np.asarray(operator.noise[:N], np.float64) * rho
    repeated = float(np.sum((rho - 1) * np.log(2 * np.pi * s2) + np.log(rho)))
    found = log_determinant(operator, key=key, n_probes=n_probes, n_steps=n_steps)
    twice = 2 * float(rho.sum())
    return Estimate((fit + found.value + N * math.log(2 * math.pi) + repeated) / twice, found.stderr / twice)


def estimate_bytes(n_rows: int, n_inputs: int, itemsize: int) -> int:
    """Peak bytes of `nlml_estimate`: five factors of the preconditioner, two sets of the vectors of all probes and steps, a product."""
    rank = min(LARGEST_RANK, math.isqrt(ENTRIES_PER_ROW * n_rows))
    arrays = 8 * n_rows * (5 * rank + 2 * PROBES * STEPS)
    return solve_bytes(n_rows, 1, n_inputs, itemsize, n_arrays=0, more=arrays, compiled=COMPILER_BYTES)


def _root(operator: KernelOperator, rank: int, key: PRNGKeyArray) -> Root:
    """Of P = FᵀF + Σ + mean(diag(K − FᵀF)) I."""
    noise = np.asarray(operator.noise[: operator.size], np.float64)
    if rank == 0:
        return Root.of(np.zeros((0, operator.size)), noise)
    found = partial_cholesky(operator, rank, key=key)
    return Root.of(found.F, noise + found.left.mean())


@eqx.filter_jit
def _quadratic_forms(
    operator: KernelOperator, root: Root, key: Array, n_probes: int, n_steps: int
) -> Float[Array, " S"]:
    """zᵀ log(R⁻¹A R⁻ᵀ) z of each probe."""

    def product(v: Array) -> Array:
        w = root.solve_transposed(v).astype(operator.dtype)
        Aw = operator.unpad(operator.matvec(operator.pad(w[:, None])))[:, 0]
        return root.solve(Aw.astype(v.dtype))

    form = funm.monte_carlo_funm_sym_logdet(decomp.tridiag_sym(n_steps))
    draw = stochtrace.sampler_signs(jnp.ones(operator.size), num=n_probes)
    return jax.vmap(lambda z: form(product, z))(draw(key))


@eqx.filter_jit
def _product(operator: KernelOperator, V: Array) -> Array:
    return operator.unpad(operator.matvec(operator.pad(V)))
