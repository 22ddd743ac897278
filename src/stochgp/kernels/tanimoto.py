"""The Tanimoto kernel for molecular fingerprints."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stochgp.kernels.base import AbstractKernel, ActiveDims, as_active_dims, as_amplitude, select
from stochgp.numerics.arrays import n_bits_shared, words_of
from stochgp.parameters import AbstractParameter, value_of

UNROLLED = 8  # coordinates per step in sums of minima


Counted = tuple[Float[Array, "N A"], Float[Array, " N"]]  # rows, and the sum of each row


class Tanimoto(AbstractKernel):
    """The Tanimoto kernel k = variance · T with T = Σ_d min(x_d, z_d) / Σ_d max(x_d, z_d).

    Sources: Ralaivola et al. (2005); Tripp et al. (2023). If rows contain only 0 and 1, T is the Jaccard
    index of two sets. For two rows of zeros, T is 1, so k(x, x) = variance for every row. Rows must contain
    counts or other non-negative numbers; the kernel does not check for negative numbers.

    Parameters
    ----------
    variance : number or parameter
        The variance k(x, x).
    packed : bool
        True if rows contain packed bits, 31 per number (`numerics.arrays`), and a last column of counts.
        `data.Fingerprints` packs counts. The kernel is faster on packed rows, but has no derivatives
        with respect to packed rows.
    active_dims : iterable of int or None
        The A columns that the kernel uses; None = all columns.
    """

    variance: AbstractParameter = eqx.field(converter=as_amplitude, default=1.0)
    packed: bool = eqx.field(static=True, default=False)
    active_dims: ActiveDims = eqx.field(static=True, converter=as_active_dims, default=None)

    def prepare(self, X: Float[Array, "N D"], centre: Float[Array, " D"]) -> Counted:
        """Return the rows and the sum of each row. `centre` is unused."""
        rows = select(X, self.active_dims)
        if self.packed:
            rows = jax.lax.stop_gradient(rows)
            n_bits = jnp.sum(jax.lax.population_count(words_of(rows[:, :-1])), axis=1, dtype=jnp.int32)
            return rows, n_bits.astype(rows.dtype) + rows[:, -1]
        return rows, jnp.sum(rows, axis=1)

    def between(
        self, rows: Counted, columns: tuple[Float[Array, "P A"], Float[Array, " P"]]
    ) -> Float[Array, "N P"]:
        (left, n_left), (right, n_right) = rows, columns
        if self.packed:
            bits = n_bits_shared(words_of(left[:, :-1]), words_of(right[:, :-1]))
            shared = bits.astype(left.dtype) + jnp.minimum(left[:, -1:], right[:, -1:].T)
        else:
            shared = _sums_of_smaller(left, right)
        joined = n_left[:, None] + n_right[None, :] - shared  # Σ_d max(x_d, z_d)
        share = jnp.where(joined > 0, shared / jnp.where(joined > 0, joined, 1), 1)  # T(0, 0) = 1
        return value_of(self.variance, left.dtype) * share

    @property
    def has_places(self) -> bool:
        """False, because T does not depend on a distance between points of few dimensions."""
        return False


def _sums_of_smaller(X: Float[Array, "N A"], Z: Float[Array, "P A"]) -> Float[Array, "N P"]:
    """Return Σ_d min(x_d, z_d) for all pairs, a few coordinates at a time to save memory."""
    missing = -X.shape[1] % UNROLLED
    left, right = (
        jnp.pad(rows, ((0, 0), (0, missing))).T.reshape(-1, UNROLLED, rows.shape[0]) for rows in (X, Z)
    )

    @jax.checkpoint
    def add(total: Array, item: tuple[Array, Array]) -> tuple[Array, None]:
        for a, b in zip(*item, strict=True):
            total = total + jnp.minimum(a[:, None], b[None, :])
        return total, None

    first, _ = add(jnp.zeros((X.shape[0], Z.shape[0]), X.dtype), (left[0], right[0]))
    return jax.lax.scan(add, first, (left[1:], right[1:]))[0]
