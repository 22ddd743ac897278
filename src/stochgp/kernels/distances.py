"""Squared Euclidean distances of all pairs of two sets of rows."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stochgp.numerics.precision import matmul


class Points(NamedTuple):
    """Rows prepared for blocks of distances: separate coordinates, others, and their norms."""

    coordinates: Float[Array, "N A"]
    norms: Float[Array, " N"]  # ‖x‖² of the coordinates
    apart: tuple[Float[Array, " N"], ...]  # differences taken coordinate by coordinate; contiguous columns


def points(coordinates: Float[Array, "N A"], n_apart: int = 0) -> Points:
    """Prepare rows with `n_apart` separate coordinates. Centred rows are more accurate."""
    apart = tuple(coordinates[:, q] for q in range(min(n_apart, coordinates.shape[1])))
    rest = coordinates[:, n_apart:]
    return Points(rest, jnp.sum(jnp.square(rest), axis=1), apart)


def squared_distances(X: Points, Z: Points) -> Float[Array, "N P"]:
    """Return ‖X_i − Z_j‖² by a matrix product, but the separate coordinates q directly.

    It is Σ_q (x_iq − z_jq)² + ‖X_i‖² + ‖Z_j‖² − 2 X_i·Z_j. The last three terms cancel for close rows, to an error of eps (‖X_i‖² + ‖Z_j‖²).
    Results below 4 of these are set to zero, so that repeated rows have distance 0 and k(x, x) the exact variance. Derivatives follow the formula.
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
    """Return the squares, 0 if within the rounding error 4 eps norms; the derivative is 1."""
    return _above(squares, 4 * float(jnp.finfo(squares.dtype).eps) * norms)


@jax.custom_jvp
def _above(values: Array, rounding: Array) -> Array:
    return jnp.where(values > rounding, values, jnp.zeros_like(values))


@_above.defjvp
def _above_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    return _above(*primals), tangents[0]
