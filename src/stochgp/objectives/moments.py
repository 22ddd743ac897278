"""All that a feature GP needs to know of its data: the moments of the features."""

from collections.abc import Iterable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stochgp.data.streams import Rows
from stochgp.models import FeatureGP
from stochgp.numerics.arrays import when_ready
from stochgp.numerics.precision import matmul

CHUNK_BYTES = 16_000_000


class Moments(NamedTuple):
    """Sums over rows of count ρ and precision ω = ρ/s (in units of 1/σ²), of the features φ without the GP's own variance."""

    gram: Float[Array, "M M"]  # Σ ω φφᵀ
    cross: Float[Array, " M"]  # Σ ω y φ
    square: Float[Array, ""]  # Σ ω y²
    count: Float[Array, ""]  # Σ ρ
    log_multiplier: Float[Array, ""] | float = 0.0  # Σ ρ log s


def moments_of_rows(gp: FeatureGP, rows: Rows) -> Moments:
    """The moments of a few rows: features in the rows' dtype; their products in float64 where x64 is enabled.

    A float32 product would lose what lies below 1e-7 of the largest eigenvalue, often the noise. O(N M²).
    """
    wide = jax.dtypes.canonicalize_dtype(jnp.float64)
    Phi = gp.features(rows.X).astype(wide)
    y, count, s = (part.astype(wide) for part in (rows.y, rows.count, gp.noise.multiplier(rows.X)))
    precision = count / s
    weighted = Phi * precision[:, None]
    sums = jnp.sum(precision * y**2), jnp.sum(count), jnp.sum(count * jnp.log(s))
    return Moments(matmul(weighted.T, Phi), matmul(y, weighted), *sums)


def add_up(gp: FeatureGP, chunks: Iterable[Rows]) -> Moments:
    """The moments of all chunks, which are read one after the other: memory for one chunk and the sums. At least one chunk."""
    total = None
    for rows in chunks:
        part = _jitted(gp, rows)
        total = part if total is None else _add(total, part)
    if total is None:
        raise ValueError("moments of no rows")
    return when_ready(total)


def chunk_rows(n_features: int) -> int:
    """How many rows to take at a time: [rows, M] in float32 and float64 within CHUNK_BYTES, 256 to 8192."""
    return min(8192, max(256, CHUNK_BYTES // (12 * n_features)))


_jitted = eqx.filter_jit(moments_of_rows)


@jax.jit
def _add(a: Moments, b: Moments) -> Moments:
    return jax.tree.map(jnp.add, a, b)
