"""Squared Euclidean distances, for one pair and for a block, and bilinear forms uᵀKh and hᵀKh of functions of them.

Derivatives of the forms take products with K's slope and no derivative of its entries.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stochgp.numerics.precision import matmul

Profile = Callable[[Float[Array, "N N"]], Float[Array, "N N"]]
Forms = tuple[Float[Array, ""], Float[Array, ""]]


class Points(NamedTuple):
    """Rows of a Euclidean space as blocks of distances need them: some coordinates apart, and the norms of the others."""

    coordinates: Float[Array, "N A"]
    norms: Float[Array, " N"]  # ‖x‖² of the coordinates
    apart: tuple[Float[Array, " N"], ...]  # differences taken one by one; contiguous columns


def points(coordinates: Float[Array, "N A"], n_apart: int = 0) -> Points:
    """The rows, the first `n_apart` coordinates apart. Others near the origin have the more accurate distances."""
    apart = tuple(coordinates[:, q] for q in range(min(n_apart, coordinates.shape[1])))
    rest = coordinates[:, n_apart:]
    return Points(rest, jnp.sum(jnp.square(rest), axis=1), apart)


def squared_distance(x: Float[Array, " D"], z: Float[Array, " D"]) -> Float[Array, ""]:
    """‖x − z‖²."""
    return jnp.sum(jnp.square(x - z))


def squared_distances(X: Points, Z: Points) -> Float[Array, "N P"]:
    """‖X_i − Z_j‖² = Σ_q (x_iq − z_jq)² + ‖X_i‖² + ‖Z_j‖² − 2 X_i·Z_j, a matrix product but for the coordinates apart.

    The three last terms cancel for close rows, to an error of eps (‖X_i‖² + ‖Z_j‖²). What remains below 4 of these counts as zero:
    repeated rows are at distance 0 exactly, so that k(x, x) is exactly the variance. Derivatives are those of the formula.
    """
    squares = jnp.zeros((X.norms.shape[0], Z.norms.shape[0]), X.norms.dtype)
    if X.coordinates.shape[1] > 0:
        norms = X.norms[:, None] + Z.norms[None, :]
        product = norms - 2 * matmul(X.coordinates, Z.coordinates.T)
        squares = above(product, norms)
    for x, z in zip(X.apart, Z.apart, strict=True):
        squares = squares + jnp.square(x[:, None] - z[None, :])
    return squares


def above(squares: Array, norms: Array) -> Array:
    """The squares, 0 where they are at most the rounding error of 4 eps norms; the derivative is 1 everywhere."""
    return _above(squares, 4 * float(jnp.finfo(squares.dtype).eps) * norms)


@jax.custom_jvp
def _above(values: Array, rounding: Array) -> Array:
    return jnp.where(values > rounding, values, jnp.zeros_like(values))


@_above.defjvp
def _above_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    return _above(*primals), tangents[0]


def forms_of(
    profile: Profile, rows: Points, Z: Float[Array, "N A"], u: Float[Array, " N"], h: Float[Array, " N"]
) -> Forms:
    """(uᵀFh, hᵀFh) with F = f(s), s the squared distances between the rows z_i. Derivatives by f and Z alone, in reverse mode only.

    With G = f'(s) and d(v)_i = z_i (Gv)_i − (G diag(v) Z)_i the derivatives by z_i are

        2(u_i d(h)_i + h_i d(u)_i)   and   4 h_i d(h)_i:

    products with G, taken once, whatever number of cotangents is pulled back. Under `vmap` over h those of u are taken once as well. `rows` are the
    same points as distances need them.
    """
    s = squared_distances(rows, rows)
    return _forms((profile, Z), *jax.lax.stop_gradient((s, u, h)))


@eqx.filter_custom_vjp
def _forms(given: tuple[Profile, Array], s: Array, u: Array, h: Array) -> Forms:
    Fh = matmul(given[0](s), h)
    return jnp.dot(u, Fh), jnp.dot(h, Fh)


@_forms.def_fwd
def _forward(
    perturbed: Any, given: tuple[Profile, Array], s: Array, u: Array, h: Array
) -> tuple[Forms, tuple[Array, Array]]:
    profile, Z = given
    F, G = jax.jvp(profile, (s,), (jnp.ones_like(s),))
    columns = jnp.concatenate([Z.T, jnp.ones_like(u)[None, :]])

    def away(v: Array) -> Array:
        """d(v), a column for each row. G stands on the right: `vmap` makes one product of all."""
        products = matmul(columns * v[None, :], G)
        return Z.T * products[-1:] - products[:-1]

    d_u, d_h, Fh = away(u), away(h), matmul(F, h)
    by_Z = 2 * (u[None, :] * d_h + h[None, :] * d_u), 4 * h[None, :] * d_h
    return (jnp.dot(u, Fh), jnp.dot(h, Fh)), by_Z


@_forms.def_bwd
def _backward(
    by_Z: tuple[Array, Array],
    cotangents: Any,
    perturbed: Any,
    given: tuple[Profile, Array],
    s: Array,
    u: Array,
    h: Array,
) -> tuple[Any, Array]:
    across, own = (0.0 if bar is None else bar for bar in cotangents)
    (by_profile,) = eqx.filter_vjp(lambda f: f(s), given[0])[1](jnp.outer(across * u + own * h, h))
    return by_profile, (across * by_Z[0] + own * by_Z[1]).T
