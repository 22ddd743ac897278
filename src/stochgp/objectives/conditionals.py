"""Conditional log densities of rows given their neighbours, the terms of leave-one-out and Vecchia likelihoods."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float, Int

from stochgp.data.streams import AbstractSource, Batch
from stochgp.likelihoods.noise import SMALLEST_COUNT
from stochgp.models import AbstractGP
from stochgp.neighbours import NONE
from stochgp.numerics.arrays import filled_up, packed
from stochgp.numerics.linalg import safe_cholesky
from stochgp.numerics.precision import einsum
from stochgp.parameters import partition, value_of

BLOCK, SCORED_TOGETHER = 128, 512  # neighbourhoods of one program, and rows that they score, at most
WIDE_BELOW = 1e-5  # noise variance over the mean diagonal of A, from which down float32 is not enough
HALF_LOG_2PI = 0.9189385332046727


class Conditional(NamedTuple):
    """The conditional of one row given others of its neighbourhood: l = ½ log 2πV + ½z², z = e/√V."""

    loss: Float[Any, "*B"]
    z: Float[Any, "*B"]
    variance: Float[Any, "*B"]  # V, noise included
    jitter: Float[Any, "*B"]  # added to the diagonal to factorise it


class Curvature(NamedTuple):
    """Means over the scored rows, in the unconstrained parameters, w the row's ρ over the mean of all:

        L = mean wl,   ∇L,   H = mean w(½J^V J^Vᵀ + J^e J^eᵀ),   Γ = mean g gᵀ,

    g the mean of w∇l over the rows that a neighbourhood scores. `squares` is mean wz², `jittered` the share of neighbourhoods whose matrix was
    factorised with jitter. Of a joint density w is 1, and L, ∇L, H and Γ are per datum, with `repeats`, whose part of H is ½(ρ − 1) J^s J^sᵀ, J^s = ∇ log(σ² s).

    `spread` is the covariance of ∇L and `error` the standard error of L, by G = `n_cells` cells of neighbourhoods that share no rows: G/(G − 1) C⁻² Σ_cells S Sᵀ, C the
    number of neighbourhoods and S the sum over a cell of g, or of the mean of w(l − L). It includes the dependence between rows. All S sum to 0 at the minimum: they have
    G − 1 degrees of freedom.
    """

    loss: np.float64
    gradient: Float[np.ndarray, " P"]
    hessian: Float[np.ndarray, "P P"]
    scores: Float[np.ndarray, "P P"]
    squares: np.float64
    jittered: np.float64
    spread: Float[np.ndarray, "P P"]
    error: np.float64
    n_cells: np.int64


def unknown(P: int) -> Curvature:
    """Of a loss that has not been evaluated."""
    one, nan, nought = np.eye(P), np.float64(np.nan), np.float64(0)
    return Curvature(nan, np.zeros(P), one, one, np.float64(1), nought, one, nought, np.int64(0))


def blocks_of(n_scored: int) -> int:
    """Neighbourhoods of one program of `curvature`."""
    return min(BLOCK, max(1, SCORED_TOGETHER // n_scored))


def system(
    gp: Any, X: Float[Array, "m D"], y: Float[Array, " m"], count: Float[Array, " m"]
) -> tuple[Float[Array, "m m"], Float[Array, " m"]]:
    """(A = k(X, X) + Σ, y) of a neighbourhood, σ²s/ρ of each row in Σ. A row of count 0 is no neighbour: it is not connected in A, and its target is 0."""
    there = count > 0
    A = gp.covariance(X, _or_one(count))
    connected = (there[:, None] & there[None, :]) | jnp.eye(len(y), dtype=bool)
    return jnp.where(connected, A, jnp.zeros_like(A)), jnp.where(there, y, jnp.zeros_like(y))


def observed(
    gp: Any, X: Float[Array, "R D"], count: Float[Array, " R"], joint: bool
) -> tuple[Float[Array, " R"], Float[Array, " R"]]:
    """(σ²s − σ²s/ρ, σ²s) of each row: the excess of one observation over the mean of ρ, and its least variance. 0 in a joint density, of these means."""
    if joint:
        return jnp.zeros_like(count), jnp.zeros_like(count)
    one = gp.noise.variance(X, jnp.ones_like(count))
    return one - gp.noise.variance(X, _or_one(count)), one


def left_out(
    A: Float[Array, "m m"], y: Float[Array, " m"], more: Float[Array, " R"], least: Float[Array, " R"]
) -> tuple[Conditional, Float[Array, " m"], Float[Array, "R m"], Float[Array, " R"]]:
    """(`Conditional` of each of the last R rows given all others, u, h, u of these rows). With Q = A⁻¹ and u = Qy (Rasmussen and Williams 2006, equations 5.10 to 5.12)

        e_i = u_i/Q_ii,   V_i = 1/Q_ii + more_i ≥ least_i,   h_i = Q_i/Q_ii,
        ∂V_i = h_iᵀ ∂A h_i + ∂more_i,   ∂e_i = −(u − u_i h_i)ᵀ ∂A h_i:

    one factor for all of them, and no derivative of it. h_i is 1 at row i.
    """
    R, m = more.shape[0], y.shape[0]
    L, jitter = safe_cholesky(A)
    corner = solve_triangular(L[m - R :, m - R :], jnp.eye(R, dtype=A.dtype), lower=True)  # of L⁻¹
    w = solve_triangular(L, y, lower=True)[:, None]
    right = jnp.concatenate([w, jnp.concatenate([jnp.zeros((m - R, R), A.dtype), corner])], axis=1)
    solved = solve_triangular(L, right, lower=True, trans=1).T
    variance = 1 / jnp.sum(jnp.square(corner), axis=0)
    V, own = jnp.maximum(variance + more, least), solved[0, m - R :]
    z = own * variance / jnp.sqrt(V)
    loss = 0.5 * jnp.log(V) + HALF_LOG_2PI + 0.5 * jnp.square(z)
    found = Conditional(loss, z, V, jnp.broadcast_to(jitter, (R,)))
    return found, solved[0], solved[1:] * variance[:, None], own


def _of_rows(gp: Any, X: Array, y: Array, count: Array, joint: bool, n_scored: int) -> tuple:
    """`left_out` of the last rows of a neighbourhood, as constants."""
    A, y = system(gp, X, y, count)
    return jax.lax.stop_gradient(left_out(A, y, *observed(gp, X[-n_scored:], count[-n_scored:], joint)))


def _or_one(count: Float[Array, " m"]) -> Float[Array, " m"]:
    return jnp.where(count > 0, count, jnp.ones_like(count))


def repeats(gp: Any, X: Float[Array, "B D"], count: Float[Array, " B"]) -> Float[Array, " B"]:
    """½[(ρ − 1) log(2πσ² s) + log ρ]: the part of ρ equal rows in a joint density beside the conditional of one of variance σ² s/ρ."""
    log_noise, rho = _log_noise(gp, X), jnp.maximum(count, SMALLEST_COUNT)
    return 0.5 * (rho - 1) * log_noise + (rho - 1) * HALF_LOG_2PI + 0.5 * jnp.log(rho)


def weight_per_row(source: AbstractSource, scored: Int[np.ndarray, "C R"], joint: bool) -> float:
    """The divisor of the mean over scored rows: their mean ρ, as each weighs ρ; in a joint density n/N, to be per datum."""
    if joint:
        return source.count / source.size
    return source.weight_of(scored[scored != NONE]) / scored.size


def weights_of(rows: Batch, joint: bool, n_scored: int) -> Float[Array, "B R"]:
    """The weights of the scored rows: ρ; 1 in a joint density, in which `repeats` are the other ρ − 1."""
    _, rho = _scored(rows, n_scored)
    return jnp.ones_like(rho) if joint else rho


def _scored(rows: Batch, n_scored: int) -> tuple[Float[Array, "B R D"], Float[Array, "B R"]]:
    """(Inputs, ρ) of the rows that each neighbourhood scores."""
    return rows.X[:, -n_scored:], rows.weight[:, -n_scored:]


def batch_gradient(
    trainable: AbstractGP,
    rest: AbstractGP,
    rows: Batch,
    joint: bool = False,
    per_row: Any = 1.0,
    n_scored: int = 1,
) -> tuple[Conditional, AbstractGP]:
    """(`Conditional` of the last `n_scored` rows of each stacked neighbourhood [B, m], given the others of it; ∇ of their mean loss).

    The losses are multiplied by `weights_of` the rows, and divided by `per_row`, the `weight_per_row` of all of them. `joint` adds `repeats`.
    One matrix of derivatives by A is pulled back for a neighbourhood; `curvature` needs two for each row, and takes them by `forms`.
    """
    share = weights_of(rows, joint, n_scored).astype(rows.y.dtype) / jnp.asarray(per_row, rows.y.dtype)

    def parts(theta: AbstractGP) -> tuple[tuple[Array, ...], tuple[Array, Array]]:
        gp = eqx.combine(theta, rest)
        A, y = jax.vmap(lambda *part: system(gp, *part))(*rows)
        more, least = jax.vmap(lambda X, rho: observed(gp, X, rho, joint))(*_scored(rows, n_scored))
        return (A, more, _more_of_repeats(gp, rows, n_scored, joint)), (y, least)

    (A, more, repeated), pull, (y, least) = jax.vjp(parts, trainable, has_aux=True)
    found, u, H, own = jax.vmap(left_out)(A, y, more, least)
    weight = share / share.size
    by_V = 0.5 * weight * (1 - jnp.square(found.z)) / found.variance
    by_e = weight * found.z / jnp.sqrt(found.variance)
    by_A = einsum("bri,br,brj->bij", H, by_V + by_e * own, H)
    across = einsum("bi,br,brj->bij", u, by_e, H)
    (gradient,) = pull((by_A - 0.5 * (across + jnp.swapaxes(across, 1, 2)), by_V, weight))
    return found._replace(loss=(found.loss + repeated) * share), gradient


def _more_of_repeats(gp: Any, rows: Batch, n_scored: int, joint: bool) -> Float[Array, "B R"]:
    X, count = _scored(rows, n_scored)
    return jax.vmap(lambda *part: repeats(gp, *part))(X, count) if joint else jnp.zeros_like(count)


def evaluate(gp: AbstractGP, source: AbstractSource, near: Int[np.ndarray, "C m"], wide: bool) -> Conditional:
    """`Conditional` of the last row of each neighbourhood, its centre, as one observation; −1 is no neighbour. In float64 if `wide`."""
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
    n_scored: int = 1,
) -> Curvature:
    """`Curvature` at the parameters of `gp`, over the last `n_scored` rows of these neighbourhoods; `joint` as in `batch_gradient`.

    `cells` are numbers from 0 on, one for each neighbourhood; None = each by itself.
    """
    theta, rest = partition(gp)
    args = (theta, rest, len(packed(theta)), joint, n_scored)
    parts = in_blocks(_sums, args, source, near, wide, blocks_of(n_scored))
    *parts, jittered, weights, losses, gradients = zip(*parts, strict=True)
    means: Any = (sum(part) / len(near) for part in parts)
    loss, gradient, hessian, scores, squares = means
    weights, losses, gradients = (np.concatenate(part)[: len(near)] for part in (weights, losses, gradients))
    d, per_weight = weight_per_row(source, near[:, -n_scored:], joint), 1 / np.mean(weights)
    away = losses - weights * (loss * per_weight)
    sums = _sums_by_cell(np.concatenate([away[:, None], gradients], axis=1), cells) / (d * len(near))
    G = np.int64(len(sums))
    sums *= np.sqrt(G / max(G - 1, 1))
    error, spread = np.sqrt(np.sum(np.square(sums[:, 0]))), sums[:, 1:].T @ sums[:, 1:]
    squares, jittered = squares * per_weight, np.float64(sum(jittered) / len(near))
    return Curvature(loss / d, gradient / d, hessian / d, scores / d**2, squares, jittered, spread, error, G)


def _sums_by_cell(
    values: Float[np.ndarray, "C P"], cells: Int[np.ndarray, " C"] | None
) -> Float[np.ndarray, "G P"]:
    if cells is None:
        return values
    found = np.zeros((int(cells.max(initial=0)) + 1, values.shape[1]))
    np.add.at(found, cells, values)
    return found


def is_small(gp: Any, rows: Batch) -> bool:
    """Return True if the noise of some row is so small beside the prior variance that neighbourhoods need float64."""
    signal, noise = (np.asarray(part) for part in _scales(gp, rows.X, rows.weight))
    return bool(noise.min() < WIDE_BELOW * signal.mean())


def neighbourhoods(source: AbstractSource, near: Int[np.ndarray, "... m"], wide: bool) -> Batch:
    """The rows of each neighbourhood; −1, no neighbour, has count 0, and so no influence."""
    if wide:
        flat = source.on_host(np.maximum(near, 0).ravel())
        rows = Batch(*(np.reshape(part, (*near.shape, *part.shape[1:])) for part in flat))  # pyright: ignore[reportArgumentType]
    else:
        rows = source.take(np.maximum(near, 0))
    missing = near == NONE
    return rows._replace(weight=_without(rows.weight, missing)) if missing.any() else rows


def in_blocks(
    program: Any, args: tuple, source: AbstractSource, near: np.ndarray, wide: bool, size: int = BLOCK
) -> list[tuple]:
    """The program's results for blocks of so many neighbourhoods, in order; the last is filled up."""

    def of_block(start: int) -> tuple:
        part = near[start : start + size]
        there = np.arange(size) < len(part)
        found = program(*args, neighbourhoods(source, filled_up(part, size), wide), there)
        return tuple(np.asarray(value, np.float64) for value in found)

    return [of_block(start) for start in range(0, len(near), size)]


@eqx.filter_jit
def _conditionals(gp: Any, rows: Batch, there: Any) -> tuple[Array, ...]:
    found = jax.vmap(lambda X, y, count: _of_rows(gp, X, y, count, False, 1)[0])(*rows)
    return tuple(value[:, 0] for value in found)


@eqx.filter_jit
def _sums(
    theta: Any, rest: Any, width: int, joint: bool, n_scored: int, rows: Batch, there: Any
) -> tuple[Array, ...]:
    """Sums of the parts of `Curvature` over the neighbourhoods that are there, of means over their scored rows; then weight, loss and gradient of each."""
    gp, dtype = eqx.combine(theta, rest), rows.y.dtype

    def one(X: Array, y: Array, count: Array) -> tuple[Conditional, Array, Array]:
        known, u, h, own = _of_rows(gp, X, y, count, joint, n_scored)

        def slopes(h: Array, x: Array, rho: Array, V: Array, own: Array) -> tuple[Array, Array]:
            """(∇ log V, ∇e/√V), by the derivatives of (uᵀAh, hᵀAh, `more`): u and h are 0 where rows are not there."""

            def forms(t: Any) -> tuple[Array, ...]:
                gp = eqx.combine(t, rest)
                return *gp.forms(X, _or_one(count), u, h), observed(gp, x[None], rho[None], joint)[0][0]

            _, pull = jax.vjp(forms, theta)
            by_V, by_e, zero = 1 / V, 1 / jnp.sqrt(V), jnp.zeros_like(V)
            J_V = _flat(pull((zero, by_V, by_V))[0], width, dtype)
            return J_V, _flat(pull((-by_e, by_e * own, zero))[0], width, dtype)

        return known, *jax.vmap(slopes)(h, X[-n_scored:], count[-n_scored:], known.variance, own)

    found, *J = jax.vmap(one)(*rows)
    there = jnp.asarray(there, jnp.float64)
    weight = there[:, None] * weights_of(rows, joint, n_scored).astype(jnp.float64) / n_scored
    J_V, J_e, z = (values.astype(jnp.float64) for values in (*J, found.z))
    loss, gradients = found.loss, (0.5 * (1 - jnp.square(z)))[..., None] * J_V + z[..., None] * J_e
    H = 0.5 * _weighted_products(J_V, weight) + _weighted_products(J_e, weight)
    if joint:
        loss = loss + _more_of_repeats(gp, rows, n_scored, joint)
        J_s, extra = _of_repeats(theta, rest, width, rows, n_scored)
        gradients = gradients + 0.5 * extra[..., None] * J_s
        # A row that stands for less than one has less curvature than that of its conditional; H keeps it, to stay positive.
        H = H + 0.5 * _weighted_products(J_s, weight * jnp.maximum(extra, 0))
    gradients = jnp.sum(gradients * weight[..., None], axis=1)
    total = lambda values: jnp.sum(weight * values.astype(jnp.float64))
    return (
        total(loss), jnp.sum(gradients, axis=0), H, gradients.T @ gradients, total(jnp.square(z)),
        jnp.sum(jnp.where(found.jitter[:, 0] > 0, there, 0)), jnp.sum(weight, axis=1),
        jnp.sum(weight * loss.astype(jnp.float64), axis=1), gradients,
    )  # fmt: skip


def _weighted_products(J: Float[Array, "B R P"], weight: Float[Array, "B R"]) -> Float[Array, "P P"]:
    """Σ w J Jᵀ."""
    J = J.reshape(-1, J.shape[2])
    return (J * weight.reshape(-1, 1)).T @ J


def _of_repeats(theta: Any, rest: Any, width: int, rows: Batch, n_scored: int) -> tuple[Array, Array]:
    """(∇ log(σ² s) [B, R, P], ρ − 1 [B, R]) of the scored rows, in float64."""

    def slope(x: Array) -> Array:
        by_theta = jax.grad(lambda t: _log_noise(eqx.combine(t, rest), x[None])[0])(theta)
        return _flat(by_theta, width, rows.y.dtype)

    X, rho = _scored(rows, n_scored)
    return jax.vmap(jax.vmap(slope))(X).astype(jnp.float64), rho.astype(jnp.float64) - 1


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
