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
from stochgp.numerics.dense_factor import rounding_error
from stochgp.numerics.precision import matmul
from stochgp.numerics.small_matrices import safe_cholesky


class Points(NamedTuple):
    """P points Z with their neighbours' rows."""

    X: Any  # [P, k, A]
    y: Any
    noise: Any  # σ² s/ρ
    Z: Any  # [P, A]


def at_points(kernel: AbstractKernel, block: Points, devices: Devices = ONE) -> tuple[Array, Array, Array]:
    """By every device its part of the points."""
    if devices.mesh is None:
        return _on_one(kernel, block)
    return _on_all(devices.replicate(kernel), devices.place(block), devices)


@eqx.filter_jit
def _on_one(kernel: AbstractKernel, block: Points) -> tuple[Array, Array, Array]:
    return jax.lax.map(lambda one: _at_point(kernel, Points(*one)), block)


@eqx.filter_jit
def _on_all(kernel: AbstractKernel, block: Points, devices: Devices) -> tuple[Array, Array, Array]:
    dynamic, static = eqx.partition(kernel, eqx.is_array)
    own = lambda dynamic, block: jax.lax.map(
        lambda one: _at_point(eqx.combine(dynamic, static), Points(*one)), block
    )
    everywhere, spread = PartitionSpec(), PartitionSpec(AXIS)
    return jax.shard_map(own, mesh=devices.mesh, in_specs=(everywhere, spread), out_specs=spread)(
        dynamic, block
    )


def _at_point(kernel: AbstractKernel, at: Points) -> tuple[Array, Array, Array]:
    """(mean, variance, jitter) at one point: at.Z [A], its neighbours at.X [k, A]."""
    X, y, noise, z = (jnp.asarray(part, jnp.float64) for part in at)
    rows, here = kernel.prepare(X, z), kernel.prepare(z[None], z)
    K = jax.lax.optimization_barrier(kernel.between(rows, rows))  # not evaluated again for Kb
    L, jitter = safe_cholesky(K + jnp.diag(noise))
    k, prior = kernel.between(rows, here)[:, 0], kernel.diag(z[None])[0]
    half = solve_triangular(L, jnp.stack([k, y], axis=1), lower=True)
    b = solve_triangular(L, half[:, 0], lower=True, trans="T")
    rest = prior - jnp.dot(b, 2 * k - matmul(K, b))
    rounding = rounding_error(prior, jnp.sum(b**2), np.float64)
    variance = jnp.minimum(jnp.sum(noise * b**2) + jnp.maximum(rest, rounding), prior)
    return jnp.sum(half[:, 0] * half[:, 1]), variance, jitter
