"""Conditional log densities of rows given their neighbours: what leave-one-out and Vecchia likelihoods are sums of."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int

from stochgp.data.streams import AbstractSource, Rows
from stochgp.kernels.nearest import NONE
from stochgp.models import AbstractGP
from stochgp.numerics.arrays import packed
from stochgp.numerics.small_matrices import safe_cholesky
from stochgp.numerics.threads import one_blas_thread
from stochgp.parameters import partition

BLOCK = 256  # centres of one program
WIDE_BELOW = 1e-5  # noise variance over the mean diagonal of A, from which down float32 is not enough
HALF_LOG_2PI = 0.9189385332046727


class Conditional(NamedTuple):
    """Of one centre given its neighbours: l = ½ log 2πV + ½z², z = e/√V."""

    loss: Float[Array, "*B"]
    z: Float[Array, "*B"]
    variance: Float[Array, "*B"]  # V, noise included
    jitter: Float[Array, "*B"]  # added to the diagonal to factorise it


class Curvature(NamedTuple):
    """Means over the centres: L, ∇L, H = mean(½J^V J^Vᵀ + J^e J^eᵀ), Γ = mean(∇l ∇lᵀ), of the unconstrained parameters.

    `squares` is mean z², `jittered` the share of centres whose matrix was factorised with jitter.
    """

    loss: np.float64
    gradient: Float[np.ndarray, " P"]
    hessian: Float[np.ndarray, "P P"]
    scores: Float[np.ndarray, "P P"]
    squares: np.float64
    jittered: np.float64


def conditional(A: Float[Array, "m m"], y: Float[Array, " m"]) -> Conditional:
    """Of the last row, given the others: with A = LLᵀ, V = L_mm² and z is the last entry of L⁻¹y."""
    L, jitter = safe_cholesky(A)
    z = solve_triangular(L, y, lower=True)[-1]
    V = jnp.square(L[-1, -1])
    return Conditional(jnp.log(L[-1, -1]) + HALF_LOG_2PI + jnp.square(z) / 2, z, V, jitter)


def with_cotangents(
    A: Float[Array, "m m"], y: Float[Array, " m"]
) -> tuple[Conditional, Float[Array, "m m"], Float[Array, "m m"]]:
    """(`conditional`, ∂(log V)/∂A, ∂e/∂A / √V): symmetric, so that ∂l/∂A = ½(1 − z²) of the first + z of the second.

    With h = [−b; 1], b = A_c⁻¹k, and ᾱ = [A_c⁻¹y_c; 0] they are hhᵀ/V and −(ᾱhᵀ + hᾱᵀ)/2√V: two triangular solves, no inverse
    and no derivative of a factor.
    """
    L, jitter = safe_cholesky(A)
    w = solve_triangular(L, y, lower=True)
    z, root = w[-1], L[-1, -1]
    right = jnp.stack([jnp.zeros_like(w).at[-1].set(root), w.at[-1].set(0)], axis=1)
    both = solve_triangular(L, right, lower=True, trans=1)
    h, a = both[:, 0], both[:, 1]
    found = Conditional(jnp.log(root) + HALF_LOG_2PI + jnp.square(z) / 2, z, jnp.square(root), jitter)
    across = jnp.outer(a, h)
    return found, jnp.outer(h, h) / found.variance, -(across + across.T) / (2 * root)


def batch_gradient(trainable: AbstractGP, rest: AbstractGP, rows: Rows) -> tuple[Conditional, AbstractGP]:
    """(`conditional` of each centre, ∇ of their mean loss) for stacked neighbourhoods [B, m], each with its centre last."""
    B = rows.y.shape[0]
    A, pull = jax.vjp(lambda t: jax.vmap(eqx.combine(t, rest).covariance)(rows.X, rows.count), trainable)
    found, by_variance, by_error = jax.vmap(with_cotangents)(A, rows.y)
    z = found.z[:, None, None]
    (gradient,) = pull((0.5 * (1 - jnp.square(z)) * by_variance + z * by_error) / B)
    return found, gradient


def evaluate(gp: AbstractGP, source: AbstractSource, near: Int[np.ndarray, "C m"], wide: bool) -> Conditional:
    """`conditional` of each neighbourhood; its last row is the centre, −1 stands for no neighbour. In float64 where `wide`."""
    parts = _in_blocks(_conditionals, (gp,), source, near, wide)
    return Conditional(*(np.concatenate(part)[: len(near)] for part in zip(*parts, strict=True)))


def curvature(gp: AbstractGP, source: AbstractSource, near: Int[np.ndarray, "C m"], wide: bool) -> Curvature:
    """`Curvature` at the parameters of `gp`, over the centres of these neighbourhoods."""
    theta, rest = partition(gp)
    parts = _in_blocks(_sums, (theta, rest, len(packed(theta))), source, near, wide)
    return Curvature(*(sum(part) / len(near) for part in zip(*parts, strict=True)))


def is_small(gp: Any, rows: Rows) -> bool:
    """Whether the noise is so small beside the prior variance that neighbourhoods are to be factorised in float64."""
    signal = float(np.mean(np.asarray(_diagonal(gp, rows.X))))
    return float(gp.noise_variance) < WIDE_BELOW * signal


def neighbourhoods(source: AbstractSource, near: Int[np.ndarray, "... m"], wide: bool) -> Rows:
    """The rows of each neighbourhood; what stands for no neighbour has count 0, and so no influence."""
    rows = _on_host(source, near) if wide else source.take(np.maximum(near, 0))
    missing = near == NONE
    return rows._replace(count=_without(rows.count, missing)) if missing.any() else rows


def _on_host(source: AbstractSource, near: Int[np.ndarray, "... m"]) -> Rows:
    flat = source.on_host(np.maximum(near, 0).ravel())
    X, y, count = (np.reshape(part, (*near.shape, *part.shape[1:])) for part in flat)
    found: tuple[Any, ...] = (X, y, count)
    return Rows(*found)


def _in_blocks(
    program: Any, args: tuple, source: AbstractSource, near: np.ndarray, wide: bool
) -> list[tuple]:
    """The program's results for blocks of BLOCK neighbourhoods, in order; the last is filled up."""

    def of_block(start: int) -> tuple:
        part = near[start : start + BLOCK]
        there = np.arange(BLOCK) < len(part)
        part = part[np.minimum(np.arange(BLOCK), len(part) - 1)]
        found = program(*args, neighbourhoods(source, part, wide), there)
        return tuple(np.asarray(value, np.float64) for value in found)

    with one_blas_thread():
        return [of_block(start) for start in range(0, len(near), BLOCK)]


@eqx.filter_jit
def _conditionals(gp: Any, rows: Rows, there: Any) -> tuple[Array, ...]:
    return jax.vmap(lambda X, y, count: conditional(gp.covariance(X, count), y))(*rows)


@eqx.filter_jit
def _sums(theta: Any, rest: Any, width: int, rows: Rows, there: Any) -> tuple[Array, ...]:
    """Sums over the centres that are there, of what `Curvature` has."""
    dtype = rows.y.dtype

    def one(X: Array, y: Array, count: Array) -> tuple[Conditional, Array, Array]:
        A, pull = jax.vjp(lambda t: eqx.combine(t, rest).covariance(X, count), theta)
        found, by_variance, by_error = with_cotangents(A, y)
        J = [_flat(pull(cotangent)[0], width, dtype) for cotangent in (by_variance, by_error)]
        return found, J[0], J[1]

    found, J_V, J_e = jax.vmap(one)(*rows)
    weight = jnp.asarray(there, jnp.float64)
    J_V, J_e, z = (values.astype(jnp.float64) for values in (J_V, J_e, found.z))
    gradients = (0.5 * (1 - jnp.square(z)) * weight)[:, None] * J_V + (z * weight)[:, None] * J_e
    H = 0.5 * (J_V * weight[:, None]).T @ J_V + (J_e * weight[:, None]).T @ J_e
    total = lambda values: jnp.sum(weight * values.astype(jnp.float64))
    return (
        total(found.loss), jnp.sum(gradients, axis=0), H, gradients.T @ gradients, total(jnp.square(z)), total(found.jitter > 0)
    )  # fmt: skip


def _flat(tree: Any, width: int, dtype: Any) -> Array:
    leaves = [jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)]
    return jnp.concatenate(leaves).astype(dtype) if leaves else jnp.zeros(width, dtype)


@eqx.filter_jit
def _diagonal(gp: Any, X: Any) -> Array:
    return gp.kernel.diag(X)


@jax.jit
def _without(count: Any, missing: Any) -> Array:
    return jnp.where(missing, 0, count)
