"""Inducing functions ψ_j, the bases of decoupled processes, in arrays that grow without new shapes; and mirror ascent on the covariance of such a process."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from stochgp.numerics.precision import matmul
from stochgp.parameters import cast, value_of

TILE = 1024  # functions whose products exist at a time: of 256 to 4,096 the fastest on two cores


class InducingFunctions(eqx.Module):
    """At most M functions ψ_j, of which the first `used` are there; the others are missing until rows are added (`grown`).

    ψ_j = k(·, z_j), so that ⟨ψ_i, ψ_j⟩ = k(z_i, z_j).
    """

    points: Float[Array, "M D"]  # z, in the units of the inputs
    used: Int[Array, ""]  # from 0 to M

    @property
    def capacity(self) -> int:
        """M."""
        return self.points.shape[0]

    @property
    def mask(self) -> Array:
        """Which of the M are there."""
        return jnp.arange(self.capacity, dtype=jnp.int32) < self.used

    def at(self, kernel: Any, X: Float[Array, "N D"]) -> Float[Array, "N M"]:
        """ψ_j(x_i) for all rows and functions, missing ones included."""
        return value_of(kernel).matrix(X, self.points)

    def among(self, kernel: Any, columns: "InducingFunctions") -> Float[Array, "M P"]:
        """⟨ψ_i, ψ_j⟩ of these functions and others."""
        return value_of(kernel).matrix(self.points, columns.points)

    def combined(self, kernel: Any, X: Float[Array, "N D"], a: Float[Array, " M"]) -> Float[Array, " N"]:
        """Σ_j a_j ψ_j(x_i): O(N M D), memory for N rows and a tile of functions, in derivatives too."""
        return self.summed(lambda some, a: matmul(some.at(kernel, X), a), a)

    def product(
        self, kernel: Any, a: Float[Array, " M"], others: "InducingFunctions", b: Float[Array, " P"]
    ) -> Float[Array, ""]:
        """Σ_ij a_i ⟨ψ_i, ψ'_j⟩ b_j, a tile of these functions and all of the others at a time."""
        return self.summed(lambda some, a: jnp.dot(a, matmul(some.among(kernel, others), b)), a)

    def summed(self, part: Callable[["InducingFunctions", Array], Array], a: Float[Array, " M"]) -> Array:
        """Σ over tiles of the functions of `part(some of them, their a)`, which is 0 where a is."""
        M = self.capacity
        if M <= TILE:
            return part(self, a)
        size = -(-M // -(-M // TILE))
        filled = lambda x: jnp.pad(x, ((0, -M % size),) + ((0, 0),) * (x.ndim - 1))
        tiles = jax.tree.map(lambda x: filled(x).reshape(-1, size, *x.shape[1:]), (self.points, a))
        count = jnp.asarray(size, jnp.int32)

        @jax.checkpoint
        def of(tile: tuple[Array, Array]) -> Array:
            points, own = tile
            return part(InducingFunctions(points, count), own)

        nothing = jnp.zeros_like(jax.eval_shape(of, jax.tree.map(lambda x: x[0], tiles)))
        return jax.lax.scan(lambda total, tile: (total + of(tile), None), nothing, tiles)[0]

    def chosen(self, indices: Int[Array, " P"]) -> "InducingFunctions":
        """Some of them."""
        return InducingFunctions(self.points[indices], jnp.asarray(indices.shape[0], jnp.int32))

    def grown(self, X: Float[Array, "N D"]) -> "InducingFunctions":
        """With the rows as further functions, up to M. The shapes stay."""
        points = self.points.at[self.places(X.shape[0])].set(X, mode="drop")
        used = jnp.minimum(self.used + X.shape[0], self.capacity).astype(jnp.int32)
        return InducingFunctions(points, used)

    def places(self, n: int) -> Int[Array, " n"]:
        """The indices of the next n functions; M and more without room."""
        return self.used + jnp.arange(n, dtype=jnp.int32)


def no_functions(capacity: int, n_inputs: int, *, dtype: DTypeLike = jnp.float32) -> InducingFunctions:
    """Room for `capacity` functions of rows with `n_inputs` inputs."""
    return InducingFunctions(jnp.zeros((capacity, n_inputs), dtype), jnp.asarray(0, jnp.int32))


def functions_at(X: Float[Array | np.ndarray, "M D"], *, dtype: DTypeLike | None = None) -> InducingFunctions:
    """All functions at the rows of X.

    Parameters
    ----------
    X, dtype : array [M, D], dtype or None
        The points, in the units of the inputs; None: the dtype of X.
    """
    X = jnp.asarray(X, dtype)
    return no_functions(X.shape[0], X.shape[1], dtype=X.dtype).grown(X)


def mirror_covariance(
    functions: InducingFunctions,
    kernel: Any,
    L: Float[Array, "P P"],
    X: Float[Array, "B D"],
    weight: Float[Array, " B"],
    gamma: Any,
    jitter: float,
) -> tuple[Float[Array, "P P"], Float[Array, "P B"], Float[Array, "P P"]]:
    """One step of mirror ascent: B = LLᵀ ← (1−γ) B + γ Σ_i w_i p_i p_iᵀ with p_i = K⁻¹k(β, x_i). Returns (K, the columns p_i, the new root L).

    I + Ψ B Ψᵀ, the inverse covariance of q in the space of functions, moves towards the part of I + Σ w_i φ_i φ_iᵀ in the span of the functions. The root,
    by QR of [√(1−γ) L, √(γ w_i) p_i], keeps B positive semi-definite. `jitter`, relative to k(x, x), is on the diagonal of K when it is inverted. In
    float64 if x64 is enabled; rows of missing functions are 0. O(P³ + B P²).
    """
    wide = jax.dtypes.canonicalize_dtype(jnp.float64)
    own, kernel = cast(functions, wide), cast(value_of(kernel), wide)
    K = gram(own, kernel)
    across = jnp.where(own.mask[:, None], own.at(kernel, X.astype(wide)).T, 0)
    projected = cho_solve((_factor(own, K, jitter), True), across)
    gamma, weight = jnp.asarray(gamma, wide), weight.astype(wide)
    columns = [jnp.sqrt(1 - gamma) * L.astype(wide), jnp.sqrt(gamma * weight)[None, :] * projected]
    return K, projected, jnp.linalg.qr(jnp.concatenate(columns, axis=1).T, mode="r").T


def carried(
    functions: InducingFunctions,
    kernel: Any,
    before: InducingFunctions,
    parts: Float[Array, "P C"],
    jitter: float,
) -> Float[Array, "P C"]:
    """K⁻¹k(β, β') parts: sums of p_i = K⁻¹k(β', x_i) of the functions β' `before`, projected on the functions β that they became.

    A mirror step projects rows in the same way, so q changes little when the functions move. `jitter` and dtype as of `mirror_covariance`.
    """
    wide = jax.dtypes.canonicalize_dtype(jnp.float64)
    own, old, kernel = cast(functions, wide), cast(before, wide), cast(value_of(kernel), wide)
    across = jnp.where(own.mask[:, None] & old.mask[None, :], own.among(kernel, old), 0)
    return cho_solve((_factor(own, gram(own, kernel), jitter), True), matmul(across, parts.astype(wide)))


def gram(functions: InducingFunctions, kernel: Any) -> Float[Array, "P P"]:
    """K of the functions, 0 for missing ones."""
    mask = functions.mask
    return jnp.where(mask[:, None] & mask[None, :], functions.among(kernel, functions), 0)


def _factor(functions: InducingFunctions, K: Float[Array, "P P"], jitter: float) -> Float[Array, "P P"]:
    """The Cholesky factor of K + jitter · diag(K), with 1 on the diagonal of missing functions."""
    return jnp.linalg.cholesky(K + jnp.diag(jnp.where(functions.mask, jitter * jnp.diagonal(K), 1)))


def check_mirror_rate(rate: Any) -> None:
    """Raise ValueError for a number that is no weight."""
    if not callable(rate) and not 0 < rate <= 1:
        raise ValueError(f"mirror_rate is {rate}; it must be above 0 and at most 1, or a rule")
