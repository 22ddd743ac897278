"""Bilinear forms uᵀKh and hᵀKh, whose derivatives take products with K's slope and no derivative of its entries."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stochgp.kernels.distances import Points, squared_distances
from stochgp.numerics.precision import matmul

Profile = Callable[[Float[Array, "N N"]], Float[Array, "N N"]]
Forms = tuple[Float[Array, ""], Float[Array, ""]]


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
