"""The moments of the features: the sufficient statistics of a feature GP."""

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float

from stochgp.data.rows import Data
from stochgp.devices import AXIS, ONE, Devices
from stochgp.models import FeatureGP
from stochgp.numerics.arrays import extended, on_device, when_ready
from stochgp.numerics.precision import matmul

CHUNK_BYTES = 16_000_000
T = TypeVar("T")


class Moments(NamedTuple):
    """Sums over rows of count ρ and precision ω = ρ/s (in units of 1/σ²), of the features φ without the GP's own variance.

    Parameters
    ----------
    gram, cross, square : array [M, M], array [M], scalar array
        Σ ω φφᵀ, Σ ω y φ and Σ ω y².
    count, log_multiplier : scalar array
        Σ ρ, the number of rows that they stand for, and Σ ρ log s.
    """

    gram: Float[Any, "M M"]
    cross: Float[Any, " M"]
    square: Float[Any, ""]
    count: Float[Any, ""]
    log_multiplier: Float[Any, ""] | float = 0.0


def moments_of_rows(gp: FeatureGP, rows: Data) -> Moments:
    """The moments of a few rows: features in the rows' dtype; their products in float64 where x64 is enabled.

    A float32 product would lose what lies below 1e-7 of the largest eigenvalue, often the noise. O(N M²).

    Parameters
    ----------
    gp, rows : FeatureGP, Data
        The model, whose two variances do not enter; inputs [N, D], targets [N] and weights ρ [N].
    """
    wide = jax.dtypes.canonicalize_dtype(jnp.float64)
    Phi = gp.features(rows.X).astype(wide)
    y, count, s = (part.astype(wide) for part in (rows.y, rows.weight, gp.noise.multiplier(rows.X)))
    precision = count / s
    weighted = Phi * precision[:, None]
    sums = jnp.sum(precision * y**2), jnp.sum(count), jnp.sum(count * jnp.log(s))
    return Moments(matmul(weighted.T, Phi), matmul(y, weighted), *sums)


def add_up(gp: FeatureGP, chunks: Iterable[Data], devices: Devices = ONE) -> Moments:
    """The moments of all chunks, which are read one after the other: memory for one chunk and the sums. At least one chunk.

    On several devices each chunk is cut into L virtual shards, whose sums are added in their order at the end: the same bits for any number of
    devices that divides L, in any number of processes.
    """
    return sum_over_rows(moments_of_rows, gp, chunks, devices)


def with_idle(moments: Moments, n_features: int) -> Moments:
    """The moments with so many further features that are 0 on all rows."""
    gram, cross = (
        on_device(np.pad(np.asarray(part), (0, n_features))) for part in (moments.gram, moments.cross)
    )
    return moments._replace(gram=gram, cross=cross)


def total_of(parts: Iterable[T]) -> T:
    """The sum of moments, or other trees of sums, that come one after the other. Raises ValueError where none come."""
    total = None
    for part in parts:
        total = part if total is None else _add(total, part)
    if total is None:
        raise ValueError("moments of no rows")
    return when_ready(total)


def sum_over_rows(
    of_rows: Callable[..., T], gp: Any, chunks: Iterable[Data], devices: Devices, *more: Any
) -> T:
    """Σ of_rows(gp, rows, *more), a tree of sums, over the rows of all chunks: memory for one chunk and the sums.

    On several devices as in `add_up`.
    """
    if devices.mesh is None:
        return total_of(_of_chunk(of_rows, gp, rows, *more) for rows in chunks)
    n_own = np.asarray(devices.shards // devices.count, np.int32)
    given, n_own = devices.replicate(((gp, *more), n_own))
    placed = (devices.place(_filled(rows, devices)) for rows in chunks)
    sums = total_of(_of_shards(of_rows, given, rows, n_own, devices) for rows in placed)
    shards = devices.fetch(sums)
    return jax.tree.map(lambda parts: on_device(functools.reduce(np.add, parts)), shards)


@eqx.filter_jit
def _of_chunk(of_rows: Callable[..., T], gp: Any, rows: Data, *more: Any) -> T:
    return of_rows(gp, rows, *more)


@eqx.filter_jit
def _of_shards(
    of_rows: Callable[..., T], given: tuple[Any, ...], rows: Data, n_own: Any, devices: Devices
) -> T:
    """The sums of each of the L virtual shards of a chunk, [L, …], on the device that has its rows.

    The compiler would make other code of a loop of one round, with other bits: so it does not know that `n_own` is L/G, and a shard of zeros is added.
    """
    dynamic, static = eqx.partition(given, eqx.is_array)
    each = devices.shards // devices.count

    def own(dynamic: tuple[Any, ...], rows: Data, n_own: Array) -> T:
        dynamic = jax.lax.pcast(dynamic, AXIS, to="varying")  # so that derivatives are those of the own rows
        gp, *more = eqx.combine(dynamic, static)
        parts = jax.tree.map(lambda part: part.reshape(each, -1, *part.shape[1:]), rows)
        shards = jax.tree.map(lambda part: jnp.concatenate([part, jnp.zeros_like(part[:1])]), parts)

        def add(i: Array, sums: T) -> T:
            found = of_rows(gp, jax.tree.map(lambda part: part[i], shards), *more)
            return jax.tree.map(lambda all, one: all.at[i].set(one), sums, found)

        like = jax.eval_shape(lambda: of_rows(gp, jax.tree.map(lambda part: part[0], shards), *more))
        start = jax.tree.map(lambda part: jnp.zeros((each + 1, *part.shape), part.dtype), like)
        start = jax.lax.pcast(start, AXIS, to="varying")
        return jax.tree.map(lambda part: part[:each], jax.lax.fori_loop(0, n_own, add, start))

    everywhere, spread = PartitionSpec(), PartitionSpec(AXIS)
    specs = (everywhere, spread, everywhere)
    return jax.shard_map(own, mesh=devices.mesh, in_specs=specs, out_specs=spread)(dynamic, rows, n_own)


def _filled(rows: Data, devices: Devices) -> Data:
    """With rows of weight 0 at the end, so that there are equal shards."""
    missing = devices.padded(len(rows.y)) - len(rows.y)
    return rows if missing == 0 else _with_padding(rows, missing)


@functools.partial(jax.jit, static_argnums=1)
def _with_padding(rows: Data, missing: int) -> Data:
    return extended(rows, missing, "constant")


def pass_rows(n_features: int, devices: Devices = ONE) -> int:
    """The rows of a chunk of a pass: `chunk_rows` for each virtual shard."""
    return chunk_rows(n_features) * devices.parts


def chunk_rows(n_features: int) -> int:
    """Rows of a chunk: [rows, M] in float32 and float64 within CHUNK_BYTES, 256 to 8192."""
    return min(8192, max(256, CHUNK_BYTES // (12 * n_features)))


@jax.jit
def _add(a: T, b: T) -> T:
    return jax.tree.map(jnp.add, a, b)
