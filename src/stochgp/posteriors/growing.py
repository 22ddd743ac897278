"""A posterior of a kernel GP takes in new rows: the solve begins where the one before ended.

With n new rows the system is A' = [[A, B'ᵀ], [B', C]], and the right-hand sides are those of before with n more rows. The old rows keep their
weights α. The new rows get, block by block,

    δ = C⁻¹(b_new − B'α),

the exact minimiser of the dual objective ½ αᵀA'α − αᵀb over the rows of the block. So the start is never worse than zeros there, and the
residual of the last block is 0 at the start: new rows are not overlooked because they are few.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.numerics.arrays import on_device
from stochgp.numerics.dense_factor import Factor
from stochgp.operators import AbstractOperator
from stochgp.posteriors.kernel import KernelSystem, NoiseDraws, SampledKernelPosterior
from stochgp.priors import PriorFunctions

BLOCK = 1024  # new rows that are solved for at once
DAMPING = 8.0  # of a block, times the rounding error of products


class NewRows(NamedTuple):
    """Rows as a posterior sees them, standardised where the model is: X in its dtype; row i counts as `count[i]` rows."""

    X: Float[np.ndarray, "n D"]
    y: Float[np.ndarray, " n"]
    count: Float[np.ndarray, " n"]


def joined(system: KernelSystem, new: NewRows) -> KernelSystem:
    """The system of the rows so far and, after them, the new ones."""
    X = np.concatenate([np.asarray(system.X), np.asarray(new.X, system.X.dtype)])
    count = np.concatenate([system.count, new.count])
    return KernelSystem(system.kernel, on_device(X), count, system.noise, system.tile)


def grown_draws(posterior: SampledKernelPosterior, n_new: int, *, key: PRNGKeyArray) -> NoiseDraws:
    """The draws of ε so far, and new ones for `n_new` more rows."""
    held = posterior.draws or NoiseDraws((), ())
    return NoiseDraws((*held.n_rows, n_new), (*held.keys, key))


def sides(
    operator: AbstractOperator,
    X: Float[Array, "N D"],
    y: Float[np.ndarray, " N"],
    prior: PriorFunctions | None,
    draws: NoiseDraws,
) -> Float[Array, "N C"]:
    """[y | f₀(X) + ε], the right-hand sides of the mean and of pathwise samples; ε of each part of the rows is `draws`' own."""
    b = on_device(y[:, None], operator.dtype)
    return (
        b
        if prior is None
        else jnp.concatenate([b, _of_samples(operator, prior, X, draws.keys, draws.n_rows)], axis=1)
    )


def warm_start(
    operator: AbstractOperator, b: Float[Any, "N C"], weights: Float[Any, "O C"]
) -> Float[Array, "N C"]:
    """The weights so far, and those of the new rows that the module's text gives, by blocks of `BLOCK` rows."""
    n_old, N = len(weights), operator.size
    V = operator.pad(jnp.concatenate([jnp.asarray(weights), jnp.zeros((N - n_old, b.shape[1]), b.dtype)]))
    for first in range(n_old, N, BLOCK):
        n_rows = min(BLOCK, N - first)
        error, block = _errors(operator, b, V, np.asarray(first), n_rows)
        wide = np.array(block, np.float64)
        rounding = float(jnp.finfo(operator.dtype).eps) * N**0.5
        wide[np.diag_indices(n_rows)] += DAMPING * rounding * wide.diagonal().mean()
        delta = scipy.linalg.solve(wide, np.asarray(error, np.float64), assume_a="pos", overwrite_a=True)
        V = _put(V, on_device(delta, operator.dtype), np.asarray(first))
    return operator.unpad(V)


def extended(factor: Factor, system: KernelSystem, n_old: int) -> Factor | None:
    """The factor of the joined system from that of its first `n_old` rows, with the same jitter; None where rounding allows none.

    [[L, 0], [Wᵀ, M]] with W = L⁻¹B'ᵀ and MMᵀ = C − WᵀW: n N² products instead of N³/3, and the memory of both factors.
    """
    operator, dtype = system.operator, factor.L.dtype
    operator = operator if operator.dtype == dtype else operator.astype(dtype)
    N, L = operator.size, np.zeros((operator.size, operator.size), dtype)
    L[:n_old, :n_old] = factor.L
    for first in range(n_old, N, BLOCK):
        last = min(first + BLOCK, N)
        across = np.asarray(_rows_of(operator, np.asarray(first), last - first), dtype)[:, :last]
        W = Factor(L[:first, :first], 0.0).half(across[:, :first].T.copy())
        C = across[:, first:].astype(np.float64) - (W.T @ W).astype(np.float64)
        C[np.diag_indices(last - first)] += system.row_noise[first:last] + factor.jitter
        try:
            L[first:last, first:last] = np.linalg.cholesky(C)
        except np.linalg.LinAlgError:
            return None
        L[first:last, :first] = W.T
    return Factor(L, factor.jitter)


@eqx.filter_jit
def _of_samples(
    operator: AbstractOperator,
    prior: PriorFunctions,
    X: Array,
    keys: tuple[PRNGKeyArray, ...],
    n_rows: tuple[int, ...],
) -> Float[Array, "N S"]:
    """What `sample_targets` gives for rows of one part, for rows of several."""
    parts = [
        jax.random.normal(key, (n, prior.n_samples), operator.dtype)
        for n, key in zip(n_rows, keys, strict=True)
    ]
    return prior(X) + jnp.sqrt(operator.noise[: operator.size])[:, None] * jnp.concatenate(parts)


@eqx.filter_jit
def _errors(
    operator: AbstractOperator, b: Array, V: Array, first: Any, n_rows: int
) -> tuple[Float[Array, "n C"], Float[Array, "n n"]]:
    """(b − A V of these rows, A between them)."""
    take = lambda values: jax.lax.dynamic_slice_in_dim(values, first, n_rows)
    rows, noise = operator.block(first, n_rows), take(operator.noise)
    error = take(b) - operator.times(rows, V) - noise[:, None] * take(V)
    return error, operator.kernel.between(rows, rows) + jnp.diag(noise)


@eqx.filter_jit
def _put(V: Array, delta: Array, first: Any) -> Array:
    return jax.lax.dynamic_update_slice_in_dim(V, delta, first, 0)


@eqx.filter_jit
def _rows_of(operator: AbstractOperator, first: Any, n_rows: int) -> Float[Array, "n N"]:
    rows = operator.block(first, n_rows)
    return operator.kernel.between(rows, operator.block(0, operator.size))
