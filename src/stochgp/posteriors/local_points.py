"""The exact posterior at single points, each given rows of its own, on one device or spread over several."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jax.sharding import PartitionSpec
from jaxtyping import Array

from stochgp.devices import AXIS, ONE, Devices
from stochgp.kernels import AbstractKernel
from stochgp.numerics.linalg import rounding_error, safe_cholesky
from stochgp.numerics.precision import matmul


class Points(NamedTuple):
    """P points Z with their neighbours' rows."""

    X: Any  # [P, k, A]
    y: Any
    noise: Any  # σ² s/ρ
    Z: Any  # [P, A]


class Predictor(NamedTuple):
    """bᵀy for f(z), y = f(X) + ε at k rows, and how far it is off.

    Parameters
    ----------
    weights, variance, jitter : array [k], float, float
        b ≈ A⁻¹k(X, z), A = k(X, X) + Σ; the variance bᵀΣb + hᵀK⁺h of f(z) − bᵀy (`LocalPosterior`); what was added to A's diagonal to factorise it.
    factor, half : array [k, k], array [k]
        L with A = LLᵀ, and L⁻¹k(X, z).
    """

    weights: Array
    variance: Array
    jitter: Array
    factor: Array
    half: Array


def at_points(kernel: AbstractKernel, block: Points, devices: Devices = ONE) -> tuple[Array, Array, Array]:
    """(mean, variance, jitter) of every point; each device computes its part of them."""
    if devices.mesh is not None:
        kernel, block = devices.replicate(kernel), devices.place(block)
    return _of_all(kernel, block, devices)


@eqx.filter_jit
def _of_all(kernel: AbstractKernel, block: Points, devices: Devices) -> tuple[Array, Array, Array]:
    dynamic, static = eqx.partition(kernel, eqx.is_array)
    own = lambda dynamic, block: jax.lax.map(
        lambda one: _at_point(eqx.combine(dynamic, static), Points(*one)), block
    )
    if devices.mesh is None:
        return own(dynamic, block)
    whole, part = PartitionSpec(), PartitionSpec(AXIS)
    return jax.shard_map(own, mesh=devices.mesh, in_specs=(whole, part), out_specs=part)(dynamic, block)


def predictor(kernel: AbstractKernel, X: Array, noise: Array, z: Array) -> Predictor:
    """At one point z [A] from the rows X [k, A], in float64. Its derivative in z takes none of k(X, X), which does not depend on z."""
    X, noise, z = (jnp.asarray(part, jnp.float64) for part in (X, noise, z))
    rows, here = kernel.prepare(X, z), kernel.prepare(z[None], z)
    K = jax.lax.stop_gradient(kernel.between(rows, rows))
    K = jax.lax.optimization_barrier(K)  # not evaluated again for Kb
    L, jitter = safe_cholesky(K + jnp.diag(noise))
    k, prior = kernel.between(rows, here)[:, 0], kernel.diag(z[None])[0]
    half = solve_triangular(L, k, lower=True)
    b = solve_triangular(L, half, lower=True, trans="T")
    rest = prior - jnp.dot(b, 2 * k - matmul(K, b))
    rounding = rounding_error(prior, jnp.sum(b**2), np.float64)
    variance = jnp.minimum(jnp.sum(noise * b**2) + jnp.maximum(rest, rounding), prior)
    return Predictor(b, variance, jitter, L, half)


def _at_point(kernel: AbstractKernel, at: Points) -> tuple[Array, Array, Array]:
    """(mean, variance, jitter) at one point."""
    found = predictor(kernel, at.X, at.noise, at.Z)
    y = solve_triangular(found.factor, jnp.asarray(at.y, jnp.float64), lower=True)
    return jnp.sum(found.half * y), found.variance, found.jitter
