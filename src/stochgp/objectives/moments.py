"""The moments of the features: the sufficient statistics of a feature GP."""

import itertools
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
from stochgp.devices import AXIS, SPREAD, WHOLE, mesh_around, on_all, on_one
from stochgp.features import on_host
from stochgp.likelihoods.noise import multipliers_of_rows
from stochgp.models import FeatureGP
from stochgp.numerics.arrays import on_device, when_ready
from stochgp.numerics.precision import matmul

CHUNK_BYTES = 16_000_000
FEW_ROWS = 1_024  # rows of a chunk, whose sums take less time than compiling them
T = TypeVar("T")


class Moments(NamedTuple):
    """Sums over rows of the features φ, with counts ρ and precisions ω = ρ/s in units of 1/σ².

    φ does not include the GP's own variance.

    Parameters
    ----------
    gram, cross, square : array [M, M], array [M], scalar array
        Σ ω φφᵀ, Σ ω y φ and Σ ω y².
    count, log_multiplier : scalar array
        Σ ρ, the number of data, and Σ ρ log s.
    """

    gram: Float[Any, "M M"]
    cross: Float[Any, " M"]
    square: Float[Any, ""]
    count: Float[Any, ""]
    log_multiplier: Float[Any, ""] | float = 0.0


def moments_of_rows(gp: FeatureGP, rows: Data) -> Moments:
    """Return the moments of a few rows, with products in float64 if x64 is enabled.

    Features have the rows' dtype. A float32 product would lose eigenvalues below 1e-7 of the largest, often the noise. O(N M²).

    Parameters
    ----------
    gp, rows : FeatureGP, Data
        The model, whose two variances are not used; inputs [N, D], targets [N] and weights ρ [N].
    """
    wide = jax.dtypes.canonicalize_dtype(jnp.float64)
    Phi = gp.features(rows.X).astype(wide)
    y, count, s = (part.astype(wide) for part in (rows.y, rows.weight, gp.noise.multiplier(rows.X)))
    precision = count / s
    weighted = Phi * precision[:, None]
    sums = jnp.sum(precision * y**2), jnp.sum(count), jnp.sum(count * jnp.log(s))
    return Moments(matmul(weighted.T, Phi), matmul(y, weighted), *sums)


def add_up(gp: FeatureGP, chunks: Iterable[Data]) -> Moments:
    """Return the moments of at least one chunk, read in order with memory for one chunk."""
    return sum_over_rows(moments_of_rows, gp, chunks)


def moments_of_source(gp: FeatureGP, source: MemorySource) -> Moments:
    """Return the moments of all rows, without compiling for few rows."""
    if source.mesh is None and source.size <= FEW_ROWS:
        return moments_on_host(gp, source.on_host(np.arange(source.size), source.dtype))
    return add_up(gp, source.blocks(chunk_rows(gp.n_features)))


def moments_on_host(gp: FeatureGP, rows: Data) -> Moments:
    """Return `moments_of_rows` of few rows, computed on the host without compiling."""
    Phi, s, at = on_host(gp.features, rows.X), multipliers_of_rows(gp.noise, rows.X), rows.wide()
    precision = at.weights / s
    weighted = Phi * precision[:, None]
    sums: Any = precision @ at.y**2, at.weights.sum(), at.weights @ np.log(s)
    return Moments(weighted.T @ Phi, at.y @ weighted, *sums)


def with_idle(moments: Moments, n_features: int) -> Moments:
    """Return the moments with `n_features` more features that are 0 on all rows."""
    gram, cross = (
        on_device(np.pad(np.asarray(part), (0, n_features))) for part in (moments.gram, moments.cross)
    )
    return moments._replace(gram=gram, cross=cross)


def total_of(parts: Iterable[T]) -> T:
    """Return the sum of moments or other trees of sums. Raises ValueError if there are none."""
    total = None
    for part in parts:
        total = part if total is None else _add(total, part)
    if total is None:
        raise ValueError("moments of no rows")
    return when_ready(total)


def sum_over_rows(of_rows: Callable[..., T], gp: Any, chunks: Iterable[Data], *more: Any) -> T:
    """Return Σ of_rows(gp, rows, *more), a tree of sums, with memory for one chunk.

    Each device of the chunks' mesh sums its own rows; the sums are added at the end.
    """
    chunks = iter(chunks)
    first = next(chunks, None)
    mesh = None if first is None else mesh_around(first.y)
    every = chunks if first is None else itertools.chain([first], chunks)
    if mesh is None:
        program = _of_few if first is not None and len(first.y) <= FEW_ROWS else _of_chunk
        return total_of(program(of_rows, gp, rows, *more) for rows in every)
    given = on_all((gp, *more), mesh)
    sums = total_of(_of_shards(of_rows, given, rows, mesh) for rows in every)
    return on_one(_over_shards(sums, mesh))


def _sums(of_rows: Callable[..., T], gp: Any, rows: Data, *more: Any) -> T:
    return of_rows(gp, rows, *more)


_of_chunk, _of_few = eqx.filter_jit(_sums), quick_jit(_sums)


@eqx.filter_jit
def _of_shards(of_rows: Callable[..., T], given: tuple[Any, ...], rows: Data, mesh: Mesh) -> T:
    """Return the sums of each device's rows, [G, …], on that device."""
    dynamic, static = eqx.partition(given, eqx.is_array)

    def own(dynamic: tuple[Any, ...], rows: Data) -> T:
        dynamic = jax.lax.pcast(dynamic, AXIS, to="varying")  # for derivatives of the device's own rows only
        gp, *more = eqx.combine(dynamic, static)
        return jax.tree.map(lambda part: part[None], of_rows(gp, rows, *more))

    return jax.shard_map(own, mesh=mesh, in_specs=(WHOLE, SPREAD), out_specs=SPREAD)(dynamic, rows)


@eqx.filter_jit
def _over_shards(sums: T, mesh: Mesh) -> T:
    """Return the sums over all shards, whole on each device."""
    total = lambda parts: jax.lax.psum(jax.tree.map(lambda part: part[0], parts), AXIS)
    return jax.shard_map(total, mesh=mesh, in_specs=SPREAD, out_specs=WHOLE)(sums)


def chunk_rows(n_features: int) -> int:
    """Rows of a chunk: [rows, M] in float32 and float64 within CHUNK_BYTES, from 256 to 8192."""
    return min(8192, max(256, CHUNK_BYTES // (12 * n_features)))


@jax.jit
def _add(a: T, b: T) -> T:
    return jax.tree.map(jnp.add, a, b)
