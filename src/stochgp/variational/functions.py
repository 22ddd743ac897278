"""Inducing functions of decoupled processes, in arrays of fixed shape, and mirror steps."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from stochgp.kernels.base import select
from stochgp.kernels.stationary import RBF
from stochgp.numerics.arrays import matmul
from stochgp.parameters import cast, value_of

TILE = 1024  # functions per tile of products
COLUMNS = 16  # columns per block of products of functions with their own widths
JITTER = 1e-6  # added to the diagonal of K in mirror steps, relative to k(x, x)


class InducingFunctions(eqx.Module):
    """Up to M inducing functions ψ_j; the first `used` entries of the arrays are in use.

    If `log_scales` is None, ψ_j is k(·, z_j) for the point z_j and any kernel k. If `log_scales` is ln c, ψ_j
    has the lengthscale ℓ_d c_jd for input d; this requires an `RBF` kernel (Cheng and Boots 2016). Then

        ⟨ψ_i, ψ_j⟩ = variance · Π_d √(2 c_id c_jd / s_d) · exp(−Σ_d (z_id − z_jd)² / (ℓ_d² s_d))
        with s_d = c_id² + c_jd². If all c_jd = 1, ψ_j is k(·, z_j).
    """

    points: Float[Array, "M D"]  # points z, in the units of the inputs
    log_scales: Float[Array, "M D"] | None  # ln c; None = c is 1
    used: Int[Array, ""]  # number of functions, from 0 to M

    @property
    def capacity(self) -> int:
        """The maximum number M of functions."""
        return self.points.shape[0]

    @property
    def mask(self) -> Array:
        """A mask of the array entries that are in use."""
        return jnp.arange(self.capacity, dtype=jnp.int32) < self.used

    def at(self, kernel: Any, X: Float[Array, "N D"]) -> Float[Array, "N M"]:
        """Return ψ_j(x_i) for each row x_i of X and each of the M functions."""
        kernel = value_of(kernel)
        if self.log_scales is None:
            return kernel.matrix(X, self.points)
        rbf, centre = _as_rbf(kernel), jax.lax.stop_gradient(jnp.mean(X, axis=0))
        u, v = rbf.scaled(X - centre[None, :]), rbf.scaled(self.points - centre[None, :])
        c = jnp.exp(select(self.log_scales, rbf.active_dims))
        w = 1 / (1 + jnp.square(c))
        s = matmul(jnp.square(u), w.T) - 2 * matmul(u, (v * w).T)
        s = s + jnp.sum(jnp.square(v) * w, axis=1)[None, :]
        height = 0.5 * jnp.sum(jnp.log(2 * c * w), axis=1)
        return value_of(rbf.variance, X.dtype) * jnp.exp(height[None, :] - s)

    def among(self, kernel: Any, columns: "InducingFunctions") -> Float[Array, "M P"]:
        """Return the inner products ⟨ψ_i, ψ_j⟩ of these functions and the functions `columns`."""
        kernel = value_of(kernel)
        if self.log_scales is None or columns.log_scales is None:
            return kernel.matrix(self.points, columns.points)
        rbf, dtype = _as_rbf(kernel), self.points.dtype
        centre = jax.lax.stop_gradient(jnp.mean(columns.points, axis=0))[None, :]
        widths = lambda f: jnp.exp(select(f.log_scales, rbf.active_dims))
        scaled = lambda f: (rbf.scaled(f.points - centre), widths(f))
        return value_of(rbf.variance, dtype) * _spread_pairs(scaled(self), scaled(columns))

    def combined(self, kernel: Any, X: Float[Array, "N D"], a: Float[Array, " M"]) -> Float[Array, " N"]:
        """Return Σ_j a_j ψ_j(x_i) for each row, one tile of functions after the other."""
        return self.summed(lambda some, a: matmul(some.at(kernel, X), a), a)

    def product(
        self, kernel: Any, a: Float[Array, " M"], others: "InducingFunctions", b: Float[Array, " P"]
    ) -> Float[Array, ""]:
        """Return Σ_ij a_i ⟨ψ_i, ψ'_j⟩ b_j for the functions ψ'_j in `others`."""
        return self.summed(lambda some, a: jnp.dot(a, matmul(some.among(kernel, others), b)), a)

    def summed(self, part: Callable[["InducingFunctions", Array], Array], a: Float[Array, " M"]) -> Array:
        """Sum `part(functions, a)` over tiles of functions; `part` must return 0 if a is 0."""
        M = self.capacity
        if M <= TILE:
            return part(self, a)
        size = -(-M // -(-M // TILE))
        filled = lambda x: jnp.pad(x, ((0, -M % size),) + ((0, 0),) * (x.ndim - 1))
        tiles = jax.tree.map(
            lambda x: filled(x).reshape(-1, size, *x.shape[1:]), (self.points, self.log_scales, a)
        )
        count = jnp.asarray(size, jnp.int32)
        of = jax.checkpoint(lambda tile: part(InducingFunctions(tile[0], tile[1], count), tile[2]))
        nothing = jnp.zeros_like(jax.eval_shape(of, jax.tree.map(lambda x: x[0], tiles)))
        return jax.lax.scan(lambda total, tile: (total + of(tile), None), nothing, tiles)[0]

    def chosen(self, indices: Int[Array, " P"]) -> "InducingFunctions":
        scales = None if self.log_scales is None else self.log_scales[indices]
        return InducingFunctions(self.points[indices], scales, jnp.asarray(indices.shape[0], jnp.int32))

    def grown(self, X: Float[Array, "N D"]) -> "InducingFunctions":
        """Add a function with c = 1 at each row of X, until there are M functions."""
        points = self.points.at[self.places(X.shape[0])].set(X, mode="drop")
        used = jnp.minimum(self.used + X.shape[0], self.capacity).astype(jnp.int32)
        return InducingFunctions(points, self.log_scales, used)

    def places(self, n: int) -> Int[Array, " n"]:
        """Return the array indices of the next n functions; the arrays have no entries from M on."""
        return self.used + jnp.arange(n, dtype=jnp.int32)


def no_functions(
    capacity: int, n_inputs: int, *, spread: bool = False, dtype: DTypeLike = jnp.float32
) -> InducingFunctions:
    """Return arrays for `capacity` functions, none in use yet; `spread` adds `log_scales`."""
    shape = (capacity, n_inputs)
    scales = jnp.zeros(shape, dtype) if spread else None
    return InducingFunctions(jnp.zeros(shape, dtype), scales, jnp.asarray(0, jnp.int32))


def functions_at(
    X: Float[Array | np.ndarray, "M D"], *, spread: bool = False, dtype: DTypeLike | None = None
) -> InducingFunctions:
    """Return a function with c = 1 for each row of X; `spread` adds `log_scales`."""
    X = jnp.asarray(X, dtype)
    return no_functions(X.shape[0], X.shape[1], spread=spread, dtype=X.dtype).grown(X)


def _as_rbf(kernel: Any) -> RBF:
    if not isinstance(kernel, RBF):
        name = type(kernel).__name__
        raise ValueError(f"inducing functions with their own widths need the RBF kernel, but got {name}")
    return kernel


def _spread_pairs(rows: tuple[Array, Array], columns: tuple[Array, Array]) -> Float[Array, "M P"]:
    """Return the inner products of functions with scaled points for variance 1, in blocks."""
    (v, c), P = rows, columns[0].shape[0]
    n_blocks = -(-P // COLUMNS)
    padded = lambda x: jnp.pad(x, ((0, n_blocks * COLUMNS - P), (0, 0)), constant_values=1)
    blocks = jax.tree.map(lambda x: padded(x).reshape(n_blocks, COLUMNS, x.shape[1]), columns)

    @jax.checkpoint
    def block(of: tuple[Array, Array]) -> Array:
        w, e = (part[None, :, :] for part in of)
        squares = jnp.square(c)[:, None, :] + jnp.square(e)
        exponent = jnp.square(v[:, None, :] - w) / squares
        return jnp.exp(jnp.sum(0.5 * jnp.log(2 * c[:, None, :] * e / squares) - exponent, axis=2))

    return jnp.moveaxis(jax.lax.map(block, blocks), 0, 1).reshape(v.shape[0], n_blocks * COLUMNS)[:, :P]


def mirror_covariance(
    functions: InducingFunctions,
    kernel: Any,
    L: Float[Array, "P P"],
    X: Float[Array, "B D"],
    weight: Float[Array, " B"],
    gamma: Any,
) -> tuple[Float[Array, "P P"], Float[Array, "P B"], Float[Array, "P P"]]:
    """Move LLᵀ to (1−γ) LLᵀ + γ Σ_i w_i p_i p_iᵀ with p_i = K⁻¹k(β, x_i), a mirror step.

    Returns K, the columns p_i and the new root L, in float64 if x64 is enabled. L comes from a QR
    factorisation, so that LLᵀ stays positive semi-definite. Rows of entries that are not in use are 0.
    """
    wide = jax.dtypes.canonicalize_dtype(jnp.float64)
    own, kernel = cast(functions, wide), cast(value_of(kernel), wide)
    K = gram(own, kernel)
    across = jnp.where(own.mask[:, None], own.at(kernel, X.astype(wide)).T, 0)
    projected = cho_solve((_factor(own, K), True), across)
    gamma, weight = jnp.asarray(gamma, wide), weight.astype(wide)
    columns = [jnp.sqrt(1 - gamma) * L.astype(wide), jnp.sqrt(gamma * weight)[None, :] * projected]
    return K, projected, jnp.linalg.qr(jnp.concatenate(columns, axis=1).T, mode="r").T


def carried(
    functions: InducingFunctions,
    kernel: Any,
    before: InducingFunctions,
    parts: Float[Array, "P C"],
) -> Float[Array, "P C"]:
    """Project the columns `parts` from functions β' (`before`) to β: return K⁻¹k(β, β') parts."""
    wide = jax.dtypes.canonicalize_dtype(jnp.float64)
    own, old, kernel = cast(functions, wide), cast(before, wide), cast(value_of(kernel), wide)
    across = jnp.where(own.mask[:, None] & old.mask[None, :], own.among(kernel, old), 0)
    return cho_solve((_factor(own, gram(own, kernel)), True), matmul(across, parts.astype(wide)))


def gram(functions: InducingFunctions, kernel: Any) -> Float[Array, "P P"]:
    """Return the matrix K of inner products, with 0 for entries that are not in use."""
    mask = functions.mask
    return jnp.where(mask[:, None] & mask[None, :], functions.among(kernel, functions), 0)


def _factor(functions: InducingFunctions, K: Float[Array, "P P"]) -> Float[Array, "P P"]:
    """Return the Cholesky factor of K + JITTER · diag(K), with 1 for entries not in use."""
    return jnp.linalg.cholesky(K + jnp.diag(jnp.where(functions.mask, JITTER * jnp.diagonal(K), 1)))
