"""The moments of the features: the sufficient statistics of a feature GP."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float

from stochgp.compiled import quick_jit
from stochgp.data.memory import MemorySource
from stochgp.data.rows import Data
from stochgp.features import on_host
from stochgp.likelihoods.noise import multipliers_of_rows
from stochgp.models import FeatureGP
from stochgp.numerics.arrays import matmul, when_ready
from stochgp.sharding import AXIS, SPREAD, WHOLE, mesh_around, on_all, on_one

CHUNK_BYTES = 16_000_000
FEW_ROWS = 1_024  # up to this many rows, compiling takes longer than the sums
T = TypeVar("T")


class Moments(NamedTuple):
    """Sums, over all rows, of products of the features φ and the targets y.

    A row has the weight ρ and the noise variance σ² s/ρ; ω is ρ/s. φ does not include the GP's variance.
    """

    gram: Float[Any, "M M"]  # Σ ω φφᵀ
    cross: Float[Any, " M"]  # Σ ω y φ
    square: Float[Any, ""]  # Σ ω y²
    count: Float[Any, ""]  # Σ ρ
    log_multiplier: Float[Any, ""] | float = 0.0  # Σ ρ log s


def moments_of_rows(gp: FeatureGP, rows: Data) -> Moments:
    """Return the moments of a few rows, with products in float64 if x64 is enabled.

    Products in float32 would lose eigenvalues below 1e-7 times the largest eigenvalue.
    """
    wide = jax.dtypes.canonicalize_dtype(jnp.float64)
    Phi, s = gp.features(rows.X).astype(wide), gp.noise.multiplier(rows.X).astype(wide)
    return _moments(Phi, rows.y.astype(wide), rows.weight.astype(wide), s, matmul)


def _moments(Phi: Any, y: Any, count: Any, s: Any, product: Callable[..., Any]) -> Moments:
    """Return the moments as NumPy or JAX arrays, like the arguments."""
    precision = count / s
    weighted = Phi * precision[:, None]
    sums = (precision * y**2).sum(), count.sum(), (count * Phi.__array_namespace__().log(s)).sum()
    return Moments(product(weighted.T, Phi), product(y, weighted), *sums)


def add_up(gp: FeatureGP, chunks: Iterable[Data]) -> Moments:
    """Return the moments of all chunks, with memory for one chunk."""
    return sum_over_rows(moments_of_rows, gp, chunks)


def moments_of_source(gp: FeatureGP, source: MemorySource) -> Moments:
    """Return the moments of all rows. Few rows need no compilation."""
    if source.mesh is None and source.size <= FEW_ROWS:
        return moments_on_host(gp, source.on_host(np.arange(source.size), source.dtype))
    return add_up(gp, source.blocks(chunk_rows(gp.n_features)))


def moments_on_host(gp: FeatureGP, rows: Data) -> Moments:
    """Return the moments of a few rows, computed with NumPy."""
    Phi, s, at = on_host(gp.features, rows.X), multipliers_of_rows(gp.noise, rows.X), rows.wide()
    return _moments(Phi, at.y, at.weights, s, np.matmul)


def sum_over_rows(of_rows: Callable[..., T], gp: Any, chunks: Iterable[Data], *more: Any) -> T:
    """Return the sum over chunks of of_rows(gp, chunk, *more), with memory for one chunk."""
    chunks = iter(chunks)
    first = next(chunks)
    mesh = mesh_around(first.y)
    given = (gp, *more) if mesh is None else on_all((gp, *more), mesh)
    program = _of_few if len(first.y) <= FEW_ROWS else _of_chunk
    part: Any = lambda r: (
        program(of_rows, gp, r, *more) if mesh is None else _of_shards(of_rows, given, r, mesh)
    )
    total = when_ready(functools.reduce(_add, map(part, chunks), part(first)))
    return total if mesh is None else on_one(_over_shards(total, mesh))


def _sums(of_rows: Callable[..., T], gp: Any, rows: Data, *more: Any) -> T:
    return of_rows(gp, rows, *more)


_of_chunk, _of_few = eqx.filter_jit(_sums), quick_jit(_sums)


@eqx.filter_jit
def _of_shards(of_rows: Callable[..., T], given: tuple[Any, ...], rows: Data, mesh: Mesh) -> T:
    """Return the sums over the rows of each device, stacked along a first axis."""
    dynamic, static = eqx.partition(given, eqx.is_array)

    def own(dynamic: tuple[Any, ...], rows: Data) -> T:
        dynamic = jax.lax.pcast(dynamic, AXIS, to="varying")  # derivatives depend on own rows only
        gp, *more = eqx.combine(dynamic, static)
        return jax.tree.map(lambda part: part[None], of_rows(gp, rows, *more))

    return jax.shard_map(own, mesh=mesh, in_specs=(WHOLE, SPREAD), out_specs=SPREAD)(dynamic, rows)


@eqx.filter_jit
def _over_shards(sums: T, mesh: Mesh) -> T:
    """Return the total of the stacked sums, on each device."""
    total = lambda parts: jax.lax.psum(jax.tree.map(lambda part: part[0], parts), AXIS)
    return jax.shard_map(total, mesh=mesh, in_specs=SPREAD, out_specs=WHOLE)(sums)


def chunk_rows(n_features: int) -> int:
    """Return the number of rows in a chunk, from 256 to 8192."""
    return min(8192, max(256, CHUNK_BYTES // (12 * n_features)))


@jax.jit
def _add(a: T, b: T) -> T:
    return jax.tree.map(jnp.add, a, b)
