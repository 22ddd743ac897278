"""Conditional densities of rows given their neighbours, with derivatives.

NumPy computes and solves the matrices of neighbourhoods, with one thread per core. JAX evaluates kernels and
noise models that have no NumPy implementation.
"""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from stochgp.compiled import in_threads
from stochgp.data.memory import MemorySource
from stochgp.data.rows import Data
from stochgp.kernels import dense
from stochgp.likelihoods.noise import SMALLEST_COUNT, ConstantNoise, noise_of_rows
from stochgp.models import AbstractGP
from stochgp.neighbours import NONE
from stochgp.numerics.arrays import filled_up
from stochgp.numerics.linalg import JITTERS, rounding_error
from stochgp.parameters import partition, slope_of

PAIRS = 1 << 18  # maximum number of matrix entries of a thread
BLOCK = 32  # number of neighbourhoods in one compiled JAX program
WIDE_BELOW = 1e-4  # use float64 if the ratio of noise variance to mean k(x, x) is lower
HALF_LOG_2PI = 0.9189385332046727

Rows3 = Float[np.ndarray, "B m D"]
Rows2 = Float[np.ndarray, "B m"]
# A kernel's term with its scaled inputs z [B, m, A], values K and derivatives f'(s) [B, m, m].
Part = tuple[dense.Term, np.ndarray, np.ndarray, np.ndarray]


class Conditional(NamedTuple):
    """The normal density of a row given its neighbours, with error z√V and variance V."""

    loss: Float[Any, "*B"]  # minus the log density, ½ log 2πV + ½z²
    z: Float[Any, "*B"]
    variance: Float[Any, "*B"]  # the variance V includes the noise


class Curvature(NamedTuple):
    """The mean loss over scored rows, its gradient, and its Fisher information.

    Derivatives are with respect to unconstrained parameters. The mean is weighted with the frequency weights.
    """

    loss: np.float64
    gradient: Float[np.ndarray, " P"]
    hessian: Float[np.ndarray, "P P"]


def unknown(P: int) -> Curvature:
    """Return the curvature of a loss that has not been evaluated."""
    return Curvature(np.float64(np.nan), np.zeros(P), np.eye(P))


def systems(
    gp: Any, rows: Data, dtype: Any, parts: list["Part"] | None = None
) -> tuple[Float[np.ndarray, "B m m"], Rows2]:
    """Return A = k(X, X) + Σ and y for each neighbourhood. Rows of weight 0 have no influence."""
    X, y, count = rows.X, rows.y, rows.weight
    there = count > 0
    A = covariances(gp, X, np.where(there, count, 1.0), dtype, parts)
    if not there.all():
        connected = there[:, :, None] & there[:, None, :]
        connected |= np.eye(X.shape[1], dtype=bool)
        A, y = np.where(connected, A, A.dtype.type(0)), np.where(there, y, 0)
    return A, y.astype(A.dtype)


def covariances(
    gp: Any, X: Rows3, count: Rows2, dtype: Any, parts: list["Part"] | None = None
) -> Float[np.ndarray, "B m m"]:
    """Return k(X, X) + diag(σ²s/ρ) for each neighbourhood, in `dtype`."""
    terms = dense.terms_of(gp.kernel) if isinstance(gp.noise, ConstantNoise) else None
    if terms is None:
        return np.concatenate(_padded(_covariances, (gp,), X.astype(dtype), count.astype(dtype)))
    A: Any = None
    centred = X - X[:, -1:]
    for term in terms:
        Z = term.scaled(centred).astype(dtype)
        K, slope = term.profile(dense.squares(Z), parts is not None)
        K *= K.dtype.type(term.variance)
        if parts is not None:
            parts.append((term, Z, K, slope))
        A = K.copy() if A is None else A + K
    diagonal = np.arange(X.shape[1])
    A[:, diagonal, diagonal] += (float(gp.noise.level) / count).astype(dtype)
    return A


def left_out(
    A: Float[np.ndarray, "B m m"], y: Rows2, more: Float[np.ndarray, "B R"], least: Float[np.ndarray, "B R"]
) -> tuple[Conditional, Rows2, Float[np.ndarray, "B m R"], Float[np.ndarray, "B R"]]:
    """Return the `Conditional` of each of the last R rows given all others, and by-products.

    With Q = A⁻¹ and u = Qy (Rasmussen and Williams 2006, equations 5.10 to 5.12), error and variance are

        e_i = u_i/Q_ii,   V_i = 1/Q_ii + more_i ≥ least_i,   h_i = Q_i/Q_ii,
        ∂V_i = h_iᵀ ∂A h_i + ∂more_i,   ∂e_i = −(u − u_i h_i)ᵀ ∂A h_i.

    The by-products are u of all rows, h, and u of the last R rows.
    """
    B, m, R = *y.shape, more.shape[1]
    scored = np.arange(R)
    right = np.zeros((B, m, R + 1), A.dtype)
    right[:, :, 0] = y
    right[:, m - R + scored, 1 + scored] = 1
    solved = _solved(A, right, R)
    u, Q = solved[:, :, 0], solved[:, :, 1:]
    variance = 1 / Q[:, m - R + scored, scored]
    V, own = np.maximum(variance + more, least), u[:, m - R :]
    z = own * variance / np.sqrt(V)
    loss = 0.5 * np.log(V) + HALF_LOG_2PI + 0.5 * np.square(z)
    return Conditional(loss, z, V), u, Q * variance[:, None, :], own


def of_last(
    A: Float[np.ndarray, "B m m"], y: Rows2, more: Float[np.ndarray, " B"], least: Float[np.ndarray, " B"]
) -> Conditional:
    """Return the `Conditional` of each last row given all others, as in `left_out`.

    In the Cholesky factor of A with the additional row [yᵀ, ∞], the last two entries of the diagonal and of
    the last row are √V and the error e/√V.
    """
    B, m = y.shape
    both = np.empty((B, m + 1, m + 1), A.dtype)  # only the lower triangle is read
    both[:, :m, :m], both[:, m, :m], both[:, m, m] = A, y, np.sqrt(np.finfo(A.dtype).max)
    try:
        L = np.linalg.cholesky(both)
    except np.linalg.LinAlgError:  # one of the matrices needs jitter
        found = left_out(A, y, more[:, None], least[:, None])[0]
        return Conditional(*(part[:, 0] for part in found))
    root = L[:, m - 1, m - 1]
    V = np.maximum(root**2 + more, least)
    z = L[:, m, m - 1] * root / np.sqrt(V)
    return Conditional(0.5 * np.log(V) + HALF_LOG_2PI + 0.5 * np.square(z), z, V)


def conditional_moments(
    gp: Any, near: Data, x: Float[np.ndarray, "B D"], wide: bool = True
) -> tuple[Float[np.ndarray, " B"], Float[np.ndarray, " B"], Float[np.ndarray, " B"]]:
    """Return mean, variance and prior variance of f at each x given its neighbours `near`.

    If `wide` is False, the noise must be large enough for float32.
    """
    last = (0, 0), (0, 1)
    X = np.concatenate([near.X, np.asarray(x, near.X.dtype)[:, None]], axis=1)
    rows = Data(X, np.pad(near.y, last), np.pad(near.weight, last, constant_values=1.0))
    A, y = systems(gp, rows, np.float64 if wide else np.float32)
    nought, noise = np.zeros((len(x), 1), A.dtype), _noise(gp, X[:, -1:], np.ones((len(x), 1)))[:, 0]
    prior = np.maximum(A[:, -1, -1] - noise, 0)
    if wide:
        found, _, h, _ = left_out(A, y, nought, nought)
        rounding = rounding_error(prior, np.sum(np.square(h[:, :-1, 0]), axis=1), np.float64)
    else:
        found, rounding = of_last(A, y, nought[:, 0], nought[:, 0]), 0.0
    z, V = (part.ravel().astype(np.float64) for part in (found.z, found.variance))
    return -z * np.sqrt(V), np.minimum(np.maximum(V - noise, rounding), prior), prior


def _solved(A: np.ndarray, right: np.ndarray, R: int) -> np.ndarray:
    """Return A⁻¹ `right`, with the smallest jitter for which the scored Q_ii are positive."""
    m, eye = A.shape[1], np.eye(A.shape[1], dtype=A.dtype)
    scored, todo, solved = np.arange(R), np.arange(len(A)), np.full_like(right, np.nan)
    for share in JITTERS[A.itemsize]:
        scale = A.diagonal(axis1=1, axis2=2)[todo].mean(axis=1) * A.dtype.type(share)
        damped = A if share == 0 else A[todo] + scale[:, None, None] * eye
        try:
            found = np.linalg.solve(damped, right[todo])
        except np.linalg.LinAlgError:  # one of the matrices is singular
            continue
        Q = found[:, m - R + scored, 1 + scored]
        works = ((Q > 0) & np.isfinite(Q)).all(axis=1)
        solved[todo[works]] = found[works]
        todo = todo[~works]
        if len(todo) == 0:
            break
    return solved


def evaluate(gp: AbstractGP, source: MemorySource, near: Int[np.ndarray, "C m"], wide: bool) -> Conditional:
    """Return the `Conditional` [C] of each neighbourhood's last row, in float64 if `wide`."""

    def of(part: Int[np.ndarray, "B m"]) -> Conditional:
        rows = neighbourhoods(source, part)
        more, least = _observed(gp, rows, 1, False)
        return of_last(*systems(gp, rows, np.float64 if wide else np.float32), more[:, 0], least[:, 0])

    parts = in_threads(of, parts_of(near))
    found: Any = (np.concatenate(part).astype(np.float64) for part in zip(*parts, strict=True))
    return Conditional(*found)


def curvature(
    gp: AbstractGP, source: MemorySource, near: Int[np.ndarray, "C m"], wide: bool,
    joint: bool = False, n_scored: int = 1,
) -> Curvature:  # fmt: skip
    """Return the `Curvature` at `gp` over the last `n_scored` rows of each neighbourhood."""
    parts = in_threads(lambda part: _sums(gp, source, part, wide, joint, n_scored), parts_of(near))
    means: Any = (sum(part) / len(near) for part in zip(*parts, strict=True))
    loss, gradient, hessian = means
    d = weight_per_row(source, near[:, -n_scored:], joint)
    return Curvature(loss / d, gradient / d, hessian / d)


def _sums(
    gp: AbstractGP, source: MemorySource, near: Int[np.ndarray, "B m"], wide: bool, joint: bool, R: int
) -> tuple:
    """Return the sums over neighbourhoods of loss, gradient and Fisher information."""
    rows = neighbourhoods(source, near)
    parts: list[Part] = []
    A, y = systems(gp, rows, np.float64 if wide else np.float32, parts)
    known, u, h, own = left_out(A, y, *_observed(gp, rows, R, joint))
    p = u[:, :, None] - own[:, None, :] * h
    by_A, across, by_more, by_noise = _slopes(gp, rows, parts, h, p, joint)
    z, V, loss = (values.astype(np.float64) for values in (known.z, known.variance, known.loss))
    rho = rows.weight[:, -R:]
    products = lambda J, w: np.tensordot(J * w[..., None], J, ([0, 1], [0, 1]))  # Σ w J Jᵀ
    weight = (np.ones_like(rho) if joint else rho) / R
    J_V, J_e = (by_A + by_more) / V[..., None], -across / np.sqrt(V)[..., None]
    gradients = (0.5 * (1 - np.square(z)))[..., None] * J_V + z[..., None] * J_e
    H = 0.5 * products(J_V, weight) + products(J_e, weight)
    if joint:
        # Add the difference between the loss of ρ equal rows and of their mean.
        least = np.maximum(rho, SMALLEST_COUNT)
        log_noise = np.log(_noise(gp, rows.X[:, -R:], np.ones_like(rho)))
        loss = loss + (least - 1) * (0.5 * log_noise + HALF_LOG_2PI) + 0.5 * np.log(least)
        gradients = gradients + 0.5 * (rho - 1)[..., None] * by_noise
        # For ρ < 1 the additional term would be negative. H omits it, so that H stays positive.
        H = H + 0.5 * products(by_noise, weight * np.maximum(rho - 1, 0))
    return np.sum(weight * loss), np.sum(gradients * weight[..., None], axis=(0, 1)), H


def _slopes(
    gp: Any, rows: Data, terms: list[Part], h: np.ndarray, p: np.ndarray, joint: bool
) -> tuple[np.ndarray, ...]:
    """Return h_iᵀ∂A h_i, p_iᵀ∂A h_i, ∂more_i and ∂log(σ² s_i) for the scored rows, [B, R, P]."""
    X, count = rows.X, np.where(rows.weight > 0, rows.weight, 1.0)
    R = h.shape[2]
    if not terms:
        parts = _padded(_form_slopes, partition(gp), X.astype(h.dtype), count.astype(h.dtype), h, p)
        own, across, more, noise = (
            np.concatenate(part).astype(np.float64) for part in zip(*parts, strict=True)
        )
        return own, across, (0 if joint else 1) * more, noise
    found = []
    for part in terms:
        found.extend(zip(*_slopes_of_term(part, h, p), strict=True))
    by_level = slope_of(gp.noise.level)
    if by_level is not None:
        each = h / count[:, :, None].astype(h.dtype)
        sums = (np.einsum("bmr,bmr->br", each, other, dtype=np.float64)[..., None] for other in (h, p))
        found.append(tuple(by_level * total for total in sums))
    own, across = (np.concatenate(part, axis=2) for part in zip(*found, strict=True))
    more, noise = np.zeros_like(own), np.zeros_like(own)
    if by_level is not None:
        noise[..., -1] = by_level / float(gp.noise.level)
        more[..., -1] = 0 if joint else by_level * (1 - 1 / count[:, -R:])
    return own, across, more, noise


def _slopes_of_term(part: Part, h: np.ndarray, p: np.ndarray) -> list[list[np.ndarray]]:
    """Return hᵀ∂K h and pᵀ∂K h [B, R, ·] for the trainable parameters of a kernel's term.

    With G = f'(s), scaled inputs z, vectors a and h, and entrywise products ×, the computation uses
    Σ_ij a_i G_ij (z_i − z_j)² h_j = Σ_i a_i z_i² (Gh)_i + Σ_j h_j z_j² (Ga)_j − 2 Σ_i a_i z_i (G(h × z))_i.
    """
    (B, m, R), (term, Z, F, G) = h.shape, part
    A, Fh = Z.shape[2], F @ h
    right = (h[:, :, :, None] * Z[:, :, None, :]).reshape(B, m, R * A)
    product = G @ np.concatenate([h, p, right], axis=2)
    Gh, Gp, GhZ = product[:, :, :R], product[:, :, R : 2 * R], product[:, :, 2 * R :].reshape(B, m, R, A)
    Z2, parts = np.square(Z), []
    for a, Ga in ((h, Gh), (p, Gp)):
        sums = np.einsum("bmr,bma->bra", a * Gh + h * Ga, Z2, dtype=np.float64, optimize=True)
        sums -= 2 * np.einsum("bmra,bma->bra", a[..., None] * GhZ, Z, dtype=np.float64, optimize=True)
        by_variance = np.einsum("bmr,bmr->br", a, Fh, dtype=np.float64)[..., None]
        parts.append(term.packed(-2 * term.variance * sums, by_variance))
    return parts


def _observed(gp: Any, rows: Data, R: int, joint: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return σ²s − σ²s/ρ and σ²s for the scored rows, [B, R]; 0 for a joint density."""
    X, count = rows.X[:, -R:], rows.weight[:, -R:]
    if joint:
        return np.zeros_like(count), np.zeros_like(count)
    one = _noise(gp, X, np.ones_like(count))
    return one - one / np.where(count > 0, count, 1.0), one


def _noise(gp: Any, X: Rows3, count: Rows2) -> Rows2:
    """Return the noise variance σ² s/ρ for each row."""
    return noise_of_rows(gp.noise, X.reshape(-1, X.shape[-1]), count.ravel()).reshape(count.shape)


def weight_per_row(source: MemorySource, scored: Int[np.ndarray, "C R"], joint: bool) -> float:
    """Return the mean weight ρ of the scored rows, or of all rows for a joint density."""
    if joint:
        return source.count / source.size
    return float(source.weights()[scored[scored != NONE]].sum()) / scored.size


def is_small(gp: Any, rows: Data, below: float = WIDE_BELOW) -> bool:
    """Return True if parameters are float64, or if the noise is too small for float32.

    The noise is too small if σ²s/ρ of some row is less than `below` times the mean of k(x, x).
    """
    if gp.noise_variance.dtype == np.float64:
        return True
    rows = rows.wide()
    noise = _noise(gp, rows.X[None], np.maximum(rows.weight, SMALLEST_COUNT)[None])
    return bool(noise.min() < below * dense.diagonal(gp.kernel, rows.X).mean())


def neighbourhoods(source: MemorySource, near: Int[np.ndarray, "B m"]) -> Data:
    """Return the rows of each neighbourhood. An index of −1 becomes a row of weight 0."""
    flat = source.on_host(np.maximum(near, 0).ravel())
    rows = jax.tree.map(lambda part: part.reshape(*near.shape, *part.shape[1:]), flat)
    return dataclasses.replace(rows, weight=np.where(near == NONE, 0.0, rows.weight))


def parts_of(near: Int[np.ndarray, "C m"]) -> list[Int[np.ndarray, "B m"]]:
    """Split the neighbourhoods into parts for the threads."""
    size = max(1, PAIRS // near.shape[1] ** 2)
    return [near[i : i + size] for i in range(0, len(near), size)]


def _padded(program: Any, args: tuple, *rows: np.ndarray) -> list[Any]:
    """Return the results of `program` for blocks of neighbourhoods. The last block is padded."""

    def of_block(start: int) -> Any:
        parts = [part[start : start + BLOCK] for part in rows]
        found = program(*args, *(filled_up(part, BLOCK) for part in parts))
        return jax.tree.map(lambda values: np.asarray(values)[: len(parts[0])], found)

    with jax.enable_x64(True):
        return [of_block(start) for start in range(0, len(rows[0]), BLOCK)]


@eqx.filter_jit
def _covariances(gp: Any, X: Array, count: Array) -> Float[Array, "B m m"]:
    return jax.vmap(gp.covariance)(X, count)


@eqx.filter_jit
def _form_slopes(theta: Any, rest: Any, X: Array, count: Array, h: Array, p: Array) -> tuple[Array, ...]:
    vector, tree = ravel_pytree(theta)

    def one(X: Array, count: Array, h: Array, p: Array) -> tuple[Array, ...]:
        own = X[-h.shape[1] :]

        def forms(v: Array) -> tuple[Array, ...]:
            gp = eqx.combine(tree(v), rest)
            Ah, each = gp.covariance(X, count) @ h, gp.noise.variance(own, jnp.ones(len(own), X.dtype))
            more = each - gp.noise.variance(own, count[-len(own) :])
            return jnp.sum(h * Ah, axis=0), jnp.sum(p * Ah, axis=0), more, jnp.log(each)

        return jax.jacrev(forms)(vector)

    return jax.vmap(one)(X, count, h, p)
