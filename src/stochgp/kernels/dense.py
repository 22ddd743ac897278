"""Blocks of K, and gradients of sums over K, in host memory.

NumPy evaluates RBF and Matérn kernels, also of linearly mapped inputs, and sums of these kernels. Compiled
JAX programs evaluate other kernels, in tiles of 256 × 256 rows.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from stochgp.compiled import in_threads
from stochgp.kernels.base import AbstractKernel, Sum
from stochgp.kernels.stationary import RBF, Matern12, Matern32, Matern52
from stochgp.kernels.warped import Warped
from stochgp.networks import Dense
from stochgp.numerics.arrays import filled_up, unpacked_alike
from stochgp.numerics.linalg import NEGLIGIBLE
from stochgp.parameters import Frozen, partition, slope_of, value_of

TILE = 256  # rows of a JAX tile: intermediate values stay in a core's cache
ROWS, COLUMNS = 128, 512  # of a NumPy panel
UNIT = 4.0  # squared distances of at most UNIT · eps · norms are 0, as in `base.squared_distances`

Kernel = AbstractKernel | Frozen
Matrix = Float[np.ndarray, "N D"]
Slopes = np.ndarray | None
Panel = tuple[slice, slice, np.ndarray]
Strip = Callable[[], Iterator[Panel]]
Profile = Callable[[np.ndarray, bool], tuple[np.ndarray, np.ndarray]]  # a function of `PROFILES`


class Term(NamedTuple):
    """An RBF or Matérn kernel of the inputs xW: k = variance · f(‖(x − z) W/ℓ‖²)."""

    profile: Profile
    W: Float[np.ndarray, "D A"] | None  # None = identity
    columns: list[int] | slice  # of xW that the kernel uses
    lengthscale: Float[np.ndarray, "*A"]
    variance: float
    slopes: tuple[Slopes, Slopes]  # derivatives of log ℓ and log variance; None = fixed

    def scaled(self, X: Float[np.ndarray, "... D"]) -> Float[np.ndarray, "... A"]:
        """Return the rows divided by the lengthscales."""
        X = X if self.W is None else X @ self.W.astype(X.dtype)
        return X[..., self.columns] / self.lengthscale.astype(X.dtype)

    def packed(self, by_length: np.ndarray, by_variance: np.ndarray) -> list[np.ndarray]:
        """Convert derivatives for log ℓ and log variance to those for the trainable parameters."""
        length, variance = self.slopes
        if length is not None and length.size == 1:
            by_length = by_length.sum(axis=-1, keepdims=True)
        parts = (by_length, length), (by_variance, variance)
        return [found * slope for found, slope in parts if slope is not None]


def terms_of(kernel: Any, trains: bool = True) -> list[Term] | None:
    """Return the kernel as a sum of terms, or None for a kernel without a NumPy form."""
    trains, kernel = trains and not isinstance(kernel, Frozen), value_of(kernel)
    if isinstance(kernel, Sum):
        left, right = terms_of(kernel.left, trains), terms_of(kernel.right, trains)
        return None if left is None or right is None else left + right
    if isinstance(kernel, Warped):
        network, inner = value_of(kernel.network), terms_of(kernel.kernel, trains)
        if inner is None or not (isinstance(kernel.network, Frozen) and isinstance(network, Dense)):
            return None
        W = np.asarray(network.weight, np.float64)
        return [term._replace(W=W if term.W is None else W @ term.W) for term in inner]
    if type(kernel) not in PROFILES or any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(kernel)):
        return None
    lengthscale, variance = np.asarray(kernel.lengthscale, np.float64), float(kernel.variance)
    pairs = (kernel.lengthscale, lengthscale), (kernel.variance, variance)
    found = ((slope_of(parameter) if trains else None, value) for parameter, value in pairs)
    slopes: Any = tuple(None if slope is None else slope / value for slope, value in found)
    columns = slice(None) if kernel.active_dims is None else list(kernel.active_dims)
    return [Term(PROFILES[type(kernel)], None, columns, lengthscale, variance, slopes)]


def _rbf(s: np.ndarray, slope: bool) -> tuple[np.ndarray, np.ndarray]:
    s *= -0.5
    f = np.exp(s, out=s)
    return f, -0.5 * f if slope else f


def _matern12(s: np.ndarray, slope: bool) -> tuple[np.ndarray, np.ndarray]:
    a = np.sqrt(s, out=s)
    f = np.exp(-a)
    return f, np.divide(f, -2 * a, out=np.zeros_like(f), where=a > 0) if slope else f


def _matern32(s: np.ndarray, slope: bool) -> tuple[np.ndarray, np.ndarray]:
    s *= 3
    a = np.sqrt(s, out=s)
    e = np.exp(-a)
    a += 1
    a *= e
    return a, -1.5 * e if slope else a


def _matern52(s: np.ndarray, slope: bool) -> tuple[np.ndarray, np.ndarray]:
    s *= 5
    a = np.sqrt(s)
    e = np.exp(-a)
    a += 1
    a *= e
    s *= e
    s *= 1 / 3
    s += a
    return s, a * (-5 / 6) if slope else s


# Each function overwrites s and returns f(s) and f'(s); f' is valid only if `slope`. Matérn-1/2: f'(0) = 0.
PROFILES = {RBF: _rbf, Matern12: _matern12, Matern32: _matern32, Matern52: _matern52}


def squares(Z: Float[np.ndarray, "*B n A"]) -> Float[np.ndarray, "*B n n"]:
    """Return ‖z_i − z_j‖² for all pairs of rows near the origin, with a diagonal of 0."""
    norms = np.einsum("...ij,...ij->...i", Z, Z)
    s = Z @ np.swapaxes(Z, -1, -2)
    s *= -2
    s += norms[..., :, None]
    s += norms[..., None, :]
    np.maximum(s, 0, out=s)
    diagonal = np.arange(Z.shape[-2])
    s[..., diagonal, diagonal] = 0
    return s


def block(
    kernel: Kernel, X: Matrix, Z: Float[np.ndarray, "M D"], centre: Any = None
) -> Float[np.ndarray, "N M"]:
    """Return k(X, Z) in the dtype of X. `centre` is subtracted first; None = the mean of Z."""
    centre = np.mean(Z, axis=0, dtype=np.float64).astype(X.dtype) if centre is None else np.asarray(centre)
    K = np.empty((len(X), len(Z)), X.dtype)
    if (terms := terms_of(kernel)) is None:
        for i, x in _tiles(X):
            for j, z in _tiles(Z):
                height, width = K[i : i + TILE, j : j + TILE].shape
                K[i : i + TILE, j : j + TILE] = np.asarray(_tile(kernel, x, z, centre))[:height, :width]
        return K
    _fill(K, terms, X, Z, centre)
    return K


def _fill(
    K: np.ndarray, terms: list[Term], X: np.ndarray, Z: np.ndarray, centre: np.ndarray,
    above: bool = False, least: float = 0.0,
) -> None:  # fmt: skip
    """Write k(X, Z) into K, and 0 for values below `least`; `above` = upper triangle only."""
    for number, term in enumerate(terms):

        def write(strip: Strip, number: int = number, term: Term = term) -> None:
            for i, j, s in strip():
                f = term.profile(s, False)[0]
                f *= f.dtype.type(term.variance)
                if number:
                    f += K[i, j]
                if least and number == len(terms) - 1:
                    f[f < least] = 0
                K[i, j] = f

        in_threads(write, _strips(term, X, Z, centre, K.dtype, above))


def times(
    kernel: Kernel, X: Matrix, Z: Float[np.ndarray, "M D"], v: Float[np.ndarray, "*MC"], dtype: DTypeLike
) -> Float[np.ndarray, "*NC"]:
    """Return k(X, Z) v. Entries of k(X, Z) have `dtype`, and sums are in float64."""
    v, terms = np.asarray(v, np.float64), terms_of(kernel)
    if terms is None:
        parts = [block(kernel, X[i : i + TILE], Z).astype(np.float64) @ v for i in range(0, len(X), TILE)]
        return np.concatenate([np.zeros((0, *v.shape[1:])), *parts])
    total, centre = np.zeros((len(X), *v.shape[1:])), np.mean(Z, axis=0, dtype=np.float64)
    for term in terms:
        U, V = (term.scaled(np.asarray(rows, np.float64) - centre) for rows in (X, Z))
        u, w = np.einsum("ij,ij->i", U, U)[:, None], np.einsum("ij,ij->i", V, V)[:, None]
        left = np.hstack([-2 * U, u, np.ones_like(u)])  # left @ right.T is the squared distance
        right = np.hstack([V, np.ones_like(w), w])

        def add(i: int, term: Term = term, left: Any = left, right: Any = right) -> None:
            for j in range(0, len(right), COLUMNS):
                s = left[i : i + ROWS] @ right[j : j + COLUMNS].T
                f = term.profile(np.maximum(s, 0, out=s).astype(dtype, copy=False), False)[0]
                f = f.astype(np.float64, copy=False)
                total[i : i + ROWS] += term.variance * (f @ v[j : j + COLUMNS])

        in_threads(add, range(0, len(X), ROWS))
    return total


def upper(kernel: Kernel, X: Matrix, dtype: DTypeLike) -> Float[np.ndarray, "N N"]:
    """Return the upper triangle of k(X, X), in `dtype`.

    Entries below the diagonal may be undefined. In float32, negligible entries are 0.
    """
    N, centre, dtype = len(X), np.mean(X, axis=0), np.dtype(dtype)
    K, least = np.empty((N, N), dtype), 0.0
    if (terms := terms_of(kernel)) is not None:
        least = NEGLIGIBLE * sum(term.variance for term in terms) if dtype == np.float32 else 0.0
        _fill(K, terms, X, X, centre, above=True, least=least)
        return K
    tiles = list(_tiles(X))
    for i, x in tiles:
        for j, z in tiles[i // TILE :]:
            part = np.asarray(_tile(kernel, x, z, centre))[: N - i, : N - j]
            if dtype == np.float32:
                least = NEGLIGIBLE * float(np.abs(part).max()) if j == 0 else least
                part = np.where(np.abs(part) < least, 0, part)
            K[i : i + TILE, j : j + TILE] = part
    return K


def gradient(kernel: Kernel, X: Matrix, G: Float[np.ndarray, "N N"]) -> Any:
    """Return the gradient of Σ_ij G_ij k(x_i, x_j) for the trainable parts of `kernel`.

    G is symmetric, and only its upper triangle is read. Sums over rows are in float64.
    """
    theta, rest = partition(kernel)
    centre = np.mean(X, axis=0)
    if (terms := terms_of(kernel)) is not None:
        parts = [part for term in terms for part in _gradient(term, X, G, centre)]
        return unpacked_alike(np.concatenate([np.zeros(0), *parts]), theta)
    total = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), theta)
    tiles = list(_tiles(X))
    for i, x in tiles:
        for j, z in tiles[i // TILE :]:
            part = G[i : i + TILE, j : j + TILE]
            weights = np.zeros((TILE, TILE), X.dtype)
            doubled = 2 * np.triu(part, 1) + np.diag(np.diagonal(part)) if i == j else 2 * part
            weights[: len(part), : part.shape[1]] = doubled
            total = _add_pull(theta, rest, x, z, centre, weights, total)
    return total


def _gradient(term: Term, X: Matrix, G: Float[np.ndarray, "N N"], centre: np.ndarray) -> list[np.ndarray]:
    Z = term.scaled(np.asarray(X, np.float64) - centre)

    def sums(strip: Strip) -> tuple[float, np.ndarray]:
        total, by_length = 0.0, np.zeros(Z.shape[1])
        for i, j, s in strip():
            f, slope = term.profile(s, True)
            g = 2 * G[i, j]
            if j.start < i.stop:  # weights 1 above the diagonal, ½ on it, 0 below
                rows, columns = np.arange(i.start, i.stop)[:, None], np.arange(j.start, j.stop)[None, :]
                g = np.where(rows < columns, g, np.where(rows == columns, 0.5 * g, 0))
            slope = slope * g
            rows, columns = slope.sum(axis=1, dtype=np.float64), slope.sum(axis=0, dtype=np.float64)
            across = np.einsum("id,id->d", Z[i], slope @ Z[j].astype(slope.dtype))
            total += float(np.einsum("ij,ij->", g, f))
            by_length += rows @ np.square(Z[i]) + columns @ np.square(Z[j]) - 2 * across
        return total, by_length

    totals, by_length = zip(*in_threads(sums, _strips(term, X, X, centre, G.dtype, above=True)), strict=True)
    by_variance = np.array([term.variance * sum(totals)])
    return term.packed(-2 * term.variance * np.sum(by_length, axis=0), by_variance)


def slopes_of_term(
    term: Term, X: Matrix, Z: Float[np.ndarray, "M D"], alpha: Float[np.ndarray, " M"]
) -> Float[np.ndarray, "N A"]:
    """Return the gradient of Σ_j α_j k(x, z_j) at each row x of X, for scaled inputs."""
    centre = np.mean(Z, axis=0)
    U, V = term.scaled(X - centre), term.scaled(Z - centre)
    found = np.zeros(U.shape, X.dtype)
    for strip in _strips(term, X, Z, centre, X.dtype):
        for i, j, s in strip():
            slope = term.profile(s, True)[1] * alpha[None, j]
            found[i] += U[i] * slope.sum(axis=1)[:, None] - slope @ V[j]
    return 2 * term.variance * found


def _strips(
    term: Term, X: np.ndarray, Z: np.ndarray, centre: np.ndarray, dtype: DTypeLike, above: bool = False
) -> list[Strip]:
    """Return a function for each strip of rows, which yields the panels of the strip.

    A panel holds slices of rows and columns, and the squared scaled distances in `dtype`.
    """
    U = term.scaled(np.asarray(X, np.float64) - centre)
    V = U if Z is X else term.scaled(np.asarray(Z, np.float64) - centre)
    u, v = np.einsum("ij,ij->i", U, U), np.einsum("ij,ij->i", V, V)

    def strip(i: int) -> Iterator[Panel]:
        rows = slice(i, min(i + ROWS, len(U)))
        for j in range(i if above else 0, len(V), COLUMNS):
            columns = slice(j, min(j + COLUMNS, len(V)))
            s, norms = U[rows] @ V[columns].T, u[rows, None] + v[None, columns]
            s *= -2
            s += norms
            norms *= UNIT * np.finfo(np.float64).eps
            s[s <= norms] = 0
            yield rows, columns, s.astype(dtype, copy=False)

    return [functools.partial(strip, i) for i in range(0, len(U), ROWS)]


def diagonal(kernel: Kernel, X: Matrix) -> Float[np.ndarray, " N"]:
    """Return k(x, x) for each row x, in float64."""
    if (terms := terms_of(kernel)) is not None:
        return np.full(len(X), sum(term.variance for term in terms))
    parts = [np.asarray(_diagonal(kernel, x), np.float64) for _, x in _tiles(X)]
    return np.concatenate([np.zeros(0), *parts])[: len(X)]


def _tiles(X: Matrix) -> Any:
    """Yield the first row number of each tile, and its rows padded to TILE rows."""
    for start in range(0, len(X), TILE):
        yield start, filled_up(X[start : start + TILE], TILE)


@eqx.filter_jit
def _diagonal(kernel: Any, x: Any) -> Array:
    return value_of(kernel).diag(x)


@eqx.filter_jit
def _tile(kernel: Any, x: Any, z: Any, centre: Any) -> Array:
    plain = value_of(kernel)
    return plain.between(plain.prepare(x, centre), plain.prepare(z, centre))


@eqx.filter_jit
def _add_pull(theta: Any, rest: Any, x: Any, z: Any, centre: Any, weights: Any, total: Any) -> Any:
    by_theta = jax.grad(lambda t: jnp.sum(weights * _tile(eqx.combine(t, rest), x, z, centre)))(theta)
    return jax.tree.map(jnp.add, total, by_theta)
