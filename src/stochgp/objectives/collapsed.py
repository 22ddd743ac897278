"""The lower bound of a sparse GP at its optimal q(u), which Gaussian noise has in closed form, and an upper bound: passes over chunks of rows."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from stochgp.data.streams import AbstractPasses, AbstractSource, Rows
from stochgp.likelihoods.noise import row_variances
from stochgp.models import SparseGP
from stochgp.numerics.arrays import when_ready
from stochgp.numerics.precision import matmul
from stochgp.objectives.elbo import expected_log_density
from stochgp.parameters import cast, partition
from stochgp.variational import Naturals

CHUNK_BYTES = 16_000_000  # of k(Z, X) of one chunk
WIDE = np.float64


class Statistics(NamedTuple):
    """Sums over rows with noise variances ν_i, which count as ρ_i rows; ω = ρ/ν, w = L⁻¹k(Z, x)."""

    gram: Float[Array, "M M"]  # Σ ω w wᵀ
    cross: Float[Array, " M"]  # Σ ω y w
    square: Float[Array, ""]  # Σ ω y²
    log_noise: Float[Array, ""]  # Σ ρ log 2πν
    unexplained: Float[Array, ""]  # Σ ω (k(x, x) − ‖w‖²)
    trace: Float[Array, ""]  # Σ ρ (k(x, x) − ‖w‖²)


class Collapsed(NamedTuple):
    """The lower bound at the optimal q(v), in nats of all rows, and that q(v)."""

    bound: float
    naturals: Naturals


def lower_bound(gp: SparseGP, source: AbstractPasses) -> Collapsed:
    """log N(y | 0, Q + Σ) − Σ_i ρ_i (k_ii − Q_ii)/(2ν_i), Q = WᵀW (Titsias 2009), in float64: one pass, memory for one chunk.

    With Λ = I + Σ ω w wᵀ and b = Σ ω y w it is −½ [Σ ρ log 2πν + Σ ω y² − bᵀΛ⁻¹b + log|Λ| + Σ ω (k − ‖w‖²)], and q(v) = N(Λ⁻¹b, Λ⁻¹).
    """
    with jax.enable_x64(True):
        gp = cast(gp, WIDE)
        return _collapsed(_statistics(gp, _process(gp), source, 0.0))


def upper_bound(gp: SparseGP, source: AbstractSource) -> float:
    """−½ [n log 2π + log|Q + Σ| + yᵀ(Q + Σ + tI)⁻¹y] ≥ log p(y), t = tr(K − Q), in nats of all rows (Titsias 2014): two passes."""
    with jax.enable_x64(True):
        gp = cast(gp, WIDE)
        process = _process(gp)
        first = _statistics(gp, process, source, 0.0)
        second = _statistics(gp, process, source, float(first.trace))
        log_determinant, _ = _solved(first)
        _, explained = _solved(second)
        total = float(first.log_noise) + log_determinant + float(second.square) - explained
        return -0.5 * total


class Slope(NamedTuple):
    """The lower bound per datum, its gradient by what trains in the model apart from q(v), and the optimal q(v)."""

    bound: float
    gradient: Any
    naturals: Naturals


def lower_bound_and_gradient(
    gp: SparseGP, source: AbstractSource, split: Callable[[Any], tuple[Any, Any]] = partition
) -> Slope:
    """`lower_bound` per datum and its exact gradient by the first part of `split`: two passes, memory for one chunk.

    At its optimum q(v) has no gradient, so that of the bound is that of Σ ρ E log p(y | f) − KL with this q(v) held: the second pass sums
    its derivatives by the process, which then go through the process once.
    """
    with jax.enable_x64(True):
        gp = cast(gp, WIDE)
        found = _collapsed(_statistics(gp, _process(gp), source, 0.0))
        gp = eqx.tree_at(lambda g: g.approximation, gp, gp.approximation.at(found.naturals))  # pyright: ignore[reportAttributeAccessIssue]
        theta, rest = split(gp)
        process = _process(gp)
        by_process, by_theta = partition(process)[0], theta
        totals = jax.tree.map(jnp.zeros_like, (by_process, by_theta))
        for rows in source.chunks(_chunk_rows(gp)):
            totals = _add_slopes(process, theta, rest, rows, totals)
        gradient = _pulled(theta, rest, *totals)
        return Slope(
            found.bound / source.count, jax.tree.map(lambda g: g / source.count, gradient), found.naturals
        )


def _chunk_rows(gp: SparseGP) -> int:
    return min(8192, max(256, CHUNK_BYTES // (8 * gp.approximation.n_inducing)))


def _statistics(gp: SparseGP, process: Any, source: AbstractPasses, more: float) -> Statistics:
    """Of all rows, with ν + `more` in the place of ν."""
    total = None
    for rows in source.chunks(_chunk_rows(gp)):
        part = _of_rows(gp, process, rows, np.asarray(more, WIDE))
        total = part if total is None else _add(total, part)
    if total is None:
        raise ValueError("a bound of no rows")
    return when_ready(total)


@eqx.filter_jit
def _process(gp: SparseGP) -> Any:
    return gp.process()


@eqx.filter_jit
def _of_rows(gp: SparseGP, process: Any, rows: Rows, more: Any) -> Statistics:
    rows = cast(rows, WIDE)
    W = process.whitened(rows.X)
    nu = row_variances(gp.noise, rows.X, rows.y.dtype) + more
    omega = rows.count / nu
    left = jnp.maximum(process.kernel.diag(rows.X) - jnp.sum(W**2, axis=0), 0)
    weighted = W * omega
    return Statistics(
        gram=matmul(weighted, W.T),
        cross=matmul(weighted, rows.y),
        square=jnp.sum(omega * rows.y**2),
        log_noise=jnp.sum(rows.count * jnp.log(2 * jnp.pi * nu)),
        unexplained=jnp.sum(omega * left),
        trace=jnp.sum(rows.count * left),
    )


@jax.jit
def _add(a: Statistics, b: Statistics) -> Statistics:
    return jax.tree.map(jnp.add, a, b)


def _solved(s: Statistics) -> tuple[float, float]:
    """(log|Λ|, bᵀΛ⁻¹b), on the host."""
    L = np.linalg.cholesky(np.eye(len(s.cross)) + np.asarray(s.gram))
    half = np.linalg.solve(L, np.asarray(s.cross))
    return 2 * float(np.sum(np.log(np.diagonal(L)))), float(half @ half)


def _collapsed(s: Statistics) -> Collapsed:
    """NaN where the statistics are not finite."""
    if not all(np.all(np.isfinite(np.asarray(part))) for part in s):
        log_determinant = explained = math.nan
    else:
        log_determinant, explained = _solved(s)
    total = float(s.log_noise + s.square + s.unexplained) - explained + log_determinant
    eye = jnp.eye(s.gram.shape[0], dtype=s.gram.dtype)
    return Collapsed(-0.5 * total, Naturals((eye + s.gram)[None], s.cross[None]))


@eqx.filter_jit
def _add_slopes(process: Any, theta: Any, rest: Any, rows: Rows, totals: Any) -> Any:
    """The derivatives so far, and those of these rows' expected log densities, by the process and by the model beside it."""
    rows = cast(rows, WIDE)
    moving, still = partition(process)

    def total(moving: Any, theta: Any) -> Array:
        moments = eqx.combine(moving, still).moments(rows.X)
        return jnp.sum(expected_log_density(eqx.combine(theta, rest), rows, *moments))

    return jax.tree.map(jnp.add, totals, jax.grad(total, (0, 1))(moving, theta))


@eqx.filter_jit
def _pulled(theta: Any, rest: Any, by_process: Any, by_theta: Any) -> Any:
    """The derivatives by θ: those beside the process, those through it, and those of the divergence."""

    def through(theta: Any) -> Array:
        process = eqx.combine(theta, rest).process()
        products = jax.tree.map(lambda a, b: jnp.sum(a * b), by_process, partition(process)[0])
        return sum(jax.tree.leaves(products)) - process.divergence()

    return jax.tree.map(jnp.add, by_theta, jax.grad(through)(theta))
