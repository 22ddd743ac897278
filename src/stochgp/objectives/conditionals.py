"""Conditional log densities of rows given their neighbours: what leave-one-out and Vecchia likelihoods are sums of."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int

from stochgp.data.streams import AbstractSource, Batch
from stochgp.kernels.nearest import NONE
from stochgp.likelihoods.noise import SMALLEST_COUNT
from stochgp.models import AbstractGP
from stochgp.numerics.arrays import filled_up, packed
from stochgp.numerics.small_matrices import safe_cholesky
from stochgp.numerics.threads import one_blas_thread
from stochgp.parameters import partition, value_of

BLOCK = 256  # centres of one program
WIDE_BELOW = 1e-5  # noise variance over the mean diagonal of A, from which down float32 is not enough
HALF_LOG_2PI = 0.9189385332046727


class Conditional(NamedTuple):
    """Of one centre given its neighbours: l = ½ log 2πV + ½z², z = e/√V."""

    loss: Float[Any, "*B"]
    z: Float[Any, "*B"]
    variance: Float[Any, "*B"]  # V, noise included
    jitter: Float[Any, "*B"]  # added to the diagonal to factorise it


class Curvature(NamedTuple):
    """Means over the centres, in the unconstrained parameters, w the centre's ρ over the mean of all:

        L = mean wl,   ∇L,   H = mean w(½J^V J^Vᵀ + J^e J^eᵀ),   Γ = mean w² ∇l ∇lᵀ.

    `squares` is mean wz², `jittered` the share of centres whose matrix was factorised with jitter. Of a joint density
    w is 1, and L, ∇L and H are per datum with what `repeats` adds: ½(ρ − 1) J^s J^sᵀ to H, J^s = ∇ log(σ² s). Γ is of gradients that are per datum too.

    `spread` is the covariance of ∇L, and `error` the standard error of L, by cells of centres that share no neighbours: C⁻² Σ_cells S Sᵀ, S the
    sum of w∇l over the centres of a cell; of w(l − L) for `error`. It holds what rows that depend on one another have in common.
    """

    loss: np.float64
    gradient: Float[np.ndarray, " P"]
    hessian: Float[np.ndarray, "P P"]
    scores: Float[np.ndarray, "P P"]
    squares: np.float64
    jittered: np.float64
    spread: Float[np.ndarray, "P P"]
    error: np.float64


def conditional(A: Float[Array, "m m"], y: Float[Array, " m"]) -> Conditional:
    """Of the last row, given the others: with A = LLᵀ, V = L_mm² and z is the last entry of L⁻¹y."""
    L, jitter = safe_cholesky(A)
    z = solve_triangular(L, y, lower=True)[-1]
    V = jnp.square(L[-1, -1])
    return Conditional(jnp.log(L[-1, -1]) + HALF_LOG_2PI + jnp.square(z) / 2, z, V, jitter)


def system(
    gp: Any, X: Float[Array, "m D"], y: Float[Array, " m"], count: Float[Array, " m"], *, joint: bool
) -> tuple[Float[Array, "m m"], Float[Array, " m"]]:
    """(A = k(X, X) + Σ, y) of a neighbourhood. A row of count 0 is no neighbour: nothing in A connects it, and its target is 0.

    The centre, the last row, is one observation, of noise variance σ² s; in a joint density the mean of its ρ, of σ² s/ρ.
    """
    count = count if joint else count.at[-1].set(1)
    there = count > 0
    A = gp.covariance(X, jnp.where(there, count, jnp.ones_like(count)))
    connected = (there[:, None] & there[None, :]) | jnp.eye(len(y), dtype=bool)
    return jnp.where(connected, A, jnp.zeros_like(A)), jnp.where(there, y, jnp.zeros_like(y))


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


def repeats(gp: Any, X: Float[Array, "B D"], count: Float[Array, " B"]) -> Float[Array, " B"]:
    """½[(ρ − 1) log(2πσ² s) + log ρ]: what ρ equal rows have in a joint density beside the conditional of one of variance σ² s/ρ."""
    log_noise, rho = _log_noise(gp, X), jnp.maximum(count, SMALLEST_COUNT)
    return 0.5 * (rho - 1) * log_noise + (rho - 1) * HALF_LOG_2PI + 0.5 * jnp.log(rho)


def weight_per_row(source: AbstractSource, centres: Int[np.ndarray, " C"], joint: bool) -> float:
    """What the mean over centres is divided by: their mean ρ, as each weighs ρ; in a joint density n/N, to be per datum."""
    return source.count / source.size if joint else source.weight_of(centres) / len(centres)


def weights_of(rows: Batch, joint: bool) -> Float[Array, " B"]:
    """What the centre of each neighbourhood weighs: ρ; 1 in a joint density, where `repeats` are the other ρ − 1."""
    rho = rows.weight[:, -1]
    return jnp.ones_like(rho) if joint else rho


def batch_gradient(
    trainable: AbstractGP, rest: AbstractGP, rows: Batch, joint: bool = False, per_row: Any = 1.0
) -> tuple[Conditional, AbstractGP]:
    """(`conditional` of each centre, ∇ of their mean loss) for stacked neighbourhoods [B, m], each with its centre last.

    The losses are multiplied by `weights_of` the centres, and divided by `per_row`, the `weight_per_row` of all of them. `joint`: they have
    `repeats` added.
    """
    B = rows.y.shape[0]

    def parts(theta: AbstractGP) -> tuple[tuple[Array, Array], Array]:
        gp = eqx.combine(theta, rest)
        A, y = jax.vmap(lambda *part: system(gp, *part, joint=joint))(*rows)
        more = repeats(gp, rows.X[:, -1], rows.weight[:, -1]) if joint else jnp.zeros(B, A.dtype)
        return (A, more), y

    (A, more), pull, y = jax.vjp(parts, trainable, has_aux=True)
    found, by_variance, by_error = jax.vmap(with_cotangents)(A, y)
    z, share = found.z[:, None, None], weights_of(rows, joint).astype(A.dtype) / jnp.asarray(per_row, A.dtype)
    by_A = (0.5 * (1 - jnp.square(z)) * by_variance + z * by_error) * (share / B)[:, None, None]
    (gradient,) = pull((by_A, share / B))
    return found._replace(loss=(found.loss + more) * share), gradient


def evaluate(gp: AbstractGP, source: AbstractSource, near: Int[np.ndarray, "C m"], wide: bool) -> Conditional:
    """`conditional` of each neighbourhood; its last row is the centre, one observation, −1 stands for no neighbour. In float64 where `wide`."""
    parts = in_blocks(_conditionals, (gp,), source, near, wide)
    found: Any = (np.concatenate(part)[: len(near)] for part in zip(*parts, strict=True))
    return Conditional(*found)


def curvature(
    gp: AbstractGP,
    source: AbstractSource,
    near: Int[np.ndarray, "C m"],
    wide: bool,
    joint: bool = False,
    cells: Int[np.ndarray, " C"] | None = None,
) -> Curvature:
    """`Curvature` at the parameters of `gp`, over the centres of these neighbourhoods; `joint` as in `batch_gradient`.

    `cells` are numbers from 0 on, one for each centre; None = every centre by itself.
    """
    theta, rest = partition(gp)
    parts = in_blocks(_sums, (theta, rest, len(packed(theta)), joint), source, near, wide)
    *parts, jittered, weights, losses, gradients = zip(*parts, strict=True)
    means: Any = (sum(part) / len(near) for part in parts)
    loss, gradient, hessian, scores, squares = means
    weights, losses, gradients = (np.concatenate(part)[: len(near)] for part in (weights, losses, gradients))
    d, per_weight = weight_per_row(source, near[:, -1], joint), 1 / np.mean(weights)
    away = losses - weights * (loss * per_weight)
    sums = _sums_by_cell(np.concatenate([away[:, None], gradients], axis=1), cells) / (d * len(near))
    error, spread = np.sqrt(np.sum(np.square(sums[:, 0]))), sums[:, 1:].T @ sums[:, 1:]
    squares, jittered = squares * per_weight, np.float64(sum(jittered) / len(near))
    return Curvature(loss / d, gradient / d, hessian / d, scores / d**2, squares, jittered, spread, error)


def _sums_by_cell(
    values: Float[np.ndarray, "C P"], cells: Int[np.ndarray, " C"] | None
) -> Float[np.ndarray, "G P"]:
    if cells is None:
        return values
    found = np.zeros((int(cells.max(initial=0)) + 1, values.shape[1]))
    np.add.at(found, cells, values)
    return found


def is_small(gp: Any, rows: Batch) -> bool:
    """Whether the noise of some row is so small beside the prior variance that neighbourhoods are to be factorised in float64."""
    signal, noise = (np.asarray(part) for part in _scales(gp, rows.X, rows.weight))
    return bool(noise.min() < WIDE_BELOW * signal.mean())


def neighbourhoods(source: AbstractSource, near: Int[np.ndarray, "... m"], wide: bool) -> Batch:
    """The rows of each neighbourhood; what stands for no neighbour has count 0, and so no influence."""
    rows = _on_host(source, near) if wide else source.take(np.maximum(near, 0))
    missing = near == NONE
    return rows._replace(weight=_without(rows.weight, missing)) if missing.any() else rows


def _on_host(source: AbstractSource, near: Int[np.ndarray, "... m"]) -> Batch:
    flat = source.on_host(np.maximum(near, 0).ravel())
    X, y, count = (np.reshape(part, (*near.shape, *part.shape[1:])) for part in flat)
    found: tuple[Any, ...] = (X, y, count)
    return Batch(*found)


def in_blocks(
    program: Any, args: tuple, source: AbstractSource, near: np.ndarray, wide: bool, size: int = BLOCK
) -> list[tuple]:
    """The program's results for blocks of so many neighbourhoods, in order; the last is filled up."""

    def of_block(start: int) -> tuple:
        part = near[start : start + size]
        there = np.arange(size) < len(part)
        found = program(*args, neighbourhoods(source, filled_up(part, size), wide), there)
        return tuple(np.asarray(value, np.float64) for value in found)

    with one_blas_thread():
        return [of_block(start) for start in range(0, len(near), size)]


@eqx.filter_jit
def _conditionals(gp: Any, rows: Batch, there: Any) -> tuple[Array, ...]:
    return jax.vmap(lambda *part: conditional(*system(gp, *part, joint=False)))(*rows)


@eqx.filter_jit
def _sums(theta: Any, rest: Any, width: int, joint: bool, rows: Batch, there: Any) -> tuple[Array, ...]:
    """Sums over the centres that are there, of what `Curvature` has; then the weight, the loss and the gradient of each."""
    dtype = rows.y.dtype

    def one(X: Array, y: Array, count: Array) -> tuple[Conditional, Array, Array]:
        A, pull, y = jax.vjp(
            lambda t: system(eqx.combine(t, rest), X, y, count, joint=joint), theta, has_aux=True
        )
        found, by_variance, by_error = with_cotangents(A, y)
        J = [_flat(pull(cotangent)[0], width, dtype) for cotangent in (by_variance, by_error)]
        return found, J[0], J[1]

    found, *J = jax.vmap(one)(*rows)
    there = jnp.asarray(there, jnp.float64)
    weight = there * weights_of(rows, joint).astype(jnp.float64)
    J_V, J_e, z = (values.astype(jnp.float64) for values in (*J, found.z))
    loss, gradients = found.loss, (0.5 * (1 - jnp.square(z)))[:, None] * J_V + z[:, None] * J_e
    H = 0.5 * (J_V * weight[:, None]).T @ J_V + (J_e * weight[:, None]).T @ J_e
    if joint:
        loss = loss + repeats(eqx.combine(theta, rest), rows.X[:, -1], rows.weight[:, -1])
        J_s, extra = _of_repeats(theta, rest, width, rows)
        gradients = gradients + 0.5 * extra[:, None] * J_s
        # A row that stands for less than one has less curvature than that of its conditional; H keeps it, to stay positive.
        H = H + 0.5 * (J_s * (weight * jnp.maximum(extra, 0))[:, None]).T @ J_s
    gradients = gradients * weight[:, None]
    total = lambda values: jnp.sum(weight * values.astype(jnp.float64))
    return (
        total(loss), jnp.sum(gradients, axis=0), H, gradients.T @ gradients, total(jnp.square(z)),
        jnp.sum(jnp.where(found.jitter > 0, there, 0)), weight, weight * loss.astype(jnp.float64), gradients,
    )  # fmt: skip


def _of_repeats(theta: Any, rest: Any, width: int, rows: Batch) -> tuple[Array, Array]:
    """(∇ log(σ² s) [B, P], ρ − 1 [B]) of the centres, in float64."""

    def slope(x: Array) -> Array:
        by_theta = jax.grad(lambda t: _log_noise(eqx.combine(t, rest), x[None])[0])(theta)
        return _flat(by_theta, width, rows.y.dtype)

    return jax.vmap(slope)(rows.X[:, -1]).astype(jnp.float64), rows.weight[:, -1].astype(jnp.float64) - 1


def _log_noise(gp: Any, X: Float[Array, "B D"]) -> Float[Array, " B"]:
    """log σ² s(x): of a row of count 1."""
    return jnp.log(gp.noise.variance(X, jnp.ones(X.shape[0], X.dtype)))


def _flat(tree: Any, width: int, dtype: Any) -> Array:
    leaves = [jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)]
    return jnp.concatenate(leaves).astype(dtype) if leaves else jnp.zeros(width, dtype)


@eqx.filter_jit
def _scales(gp: Any, X: Any, count: Any) -> tuple[Array, Array]:
    """(k(x, x), σ² s/ρ) of each row."""
    return value_of(gp.kernel).diag(X), gp.noise.variance(X, count)


@jax.jit
def _without(count: Any, missing: Any) -> Array:
    return jnp.where(missing, 0, count)
