"""Inducing points, whitened: one set of points for mean and covariance."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.features.nystrom import kmeans_landmarks
from stochgp.numerics.arrays import on_device
from stochgp.numerics.precision import matmul
from stochgp.numerics.seeds import words_of
from stochgp.numerics.small_matrices import safe_inverse_factor, transposed_times, whiten
from stochgp.parameters import value_of
from stochgp.variational.base import AbstractApproximation, AbstractProcess, Naturals

ROUNDINGS = 4.0  # in eps k(x, x): what is unexplained of a variance at least
KMEANS_ROWS = 5_000  # of which clusters are made


class InducingPoints(AbstractApproximation):
    """q(f) = ∫ p(f | u) q(u) du with u = f(Z) + N(0, εI), u = L v, LLᵀ = k(Z, Z) + εI, q(v) = N(m, RRᵀ).

    Titsias (2009); Hensman et al. (2013, 2015), whitened: the prior of v is N(0, I) whatever the kernel is. ε is part of the model, so that bounds
    stay bounds and q(f) is the same in every precision. Where L still does not exist, more is added (`safe_cholesky`). Build it with `of`.

    Parameters
    ----------
    points : array [M, D] or frozen array
        Z, in the units of the inputs.
    mean : array [L, M]
        m of each latent function, without unit, as v is.
    root : array [L, M, M] or [L, M]
        R, lower triangular (what is above its diagonal is not read), or the diagonal of a diagonal one; a square root of the covariance of v.
    jitter : float
        ε over the mean of the diagonal of k(Z, Z), without unit.
    """

    points: Any
    mean: Float[Array, "L M"]
    root: Float[Array, "L M M"] | Float[Array, "L M"]
    jitter: float = eqx.field(static=True)

    @classmethod
    def of(
        cls, points: Any, *, n_latent: int = 1, diagonal: bool = False, jitter: float | None = None
    ) -> "InducingPoints":
        """At the points Z [M, D], an array or a frozen one; q(u) is the prior.

        `jitter` None = 4 M eps of the points' dtype, above the rounding error of the factor.
        """
        Z = value_of(points)
        if Z.ndim != 2 or Z.shape[0] == 0:
            shape = tuple(Z.shape)
            raise ValueError(f"inducing points are rows [M, D] with M at least 1, but got shape {shape}")
        mean = np.zeros((n_latent, Z.shape[0]), Z.dtype)
        root = np.ones_like(mean) if diagonal else np.tile(np.eye(Z.shape[0]), (n_latent, 1, 1))
        relative = 4 * Z.shape[0] * float(jnp.finfo(Z.dtype).eps) if jitter is None else float(jitter)
        return cls(points, on_device(mean), on_device(root.astype(Z.dtype)), relative)

    @property
    def n_inducing(self) -> int:
        return self.mean.shape[1]

    @property
    def n_latent(self) -> int:
        return self.mean.shape[0]

    @property
    def is_diagonal(self) -> bool:
        return self.root.ndim == 2

    def at(self, naturals: Naturals) -> "InducingPoints":
        """The same points with the q(v) of these natural parameters."""
        mean, root = naturals.gaussian()
        dtype = self.mean.dtype
        return InducingPoints(self.points, mean.astype(dtype), root.astype(dtype), self.jitter)

    def process(self, kernel: Any) -> "InducingProcess":
        kernel, Z = value_of(kernel), value_of(self.points)
        columns = kernel.prepare(Z, centre_of(Z))
        Kzz, epsilon = self.among(kernel)
        inverse, more = safe_inverse_factor(Kzz)
        root = self.root if self.is_diagonal else jnp.tril(self.root)
        return InducingProcess(kernel, Z, columns, Kzz, inverse, epsilon + more, self.mean, root)

    def among(self, kernel: Any) -> tuple[Float[Array, "M M"], Float[Array, ""]]:
        """(k(Z, Z) + εI, ε)."""
        kernel, Z = value_of(kernel), value_of(self.points)
        columns = kernel.prepare(Z, centre_of(Z))
        Kzz = kernel.between(columns, columns)
        epsilon = self.jitter * jnp.mean(jnp.diagonal(Kzz))
        return Kzz + epsilon * jnp.eye(Z.shape[0], dtype=Z.dtype), epsilon

    def across(self, kernel: Any, X: Float[Array, "N D"]) -> Float[Array, "M N"]:
        """k(Z, X)."""
        kernel, Z = value_of(kernel), value_of(self.points)
        return kernel.between(kernel.prepare(Z, centre_of(Z)), kernel.prepare(X, centre_of(Z)))


class InducingProcess(AbstractProcess):
    """q(f) of inducing points. With w(x) = L⁻¹k(Z, x):

        mean(x) = w·m,    cov(x, z) = k(x, z) − w(x)·w(z) + (Rᵀw(x))·(Rᵀw(z)).

    k(x, x) − ‖w‖² is never below 4 eps k(x, x), so no variance is negative.

    Parameters
    ----------
    kernel : kernel
        k, not frozen.
    points : array [M, D]
        Z, in the units of the inputs.
    columns : any
        The points as the kernel's `prepare` returns them, around their mean.
    among : array [M, M]
        k(Z, Z) + εI, without what `safe_cholesky` added: derivatives of `whitened` go through it.
    inverse : array [M, M]
        L⁻¹, lower triangular.
    jitter : array []
        ε, and what `safe_cholesky` added to it: a variance.
    gaussian_mean : array [L, M]
        m of q(v).
    gaussian_root : array [L, M, M] or [L, M]
        R of q(v), lower triangular, or the diagonal of a diagonal one.
    """

    kernel: Any
    points: Float[Array, "M D"]
    columns: Any
    among: Float[Array, "M M"]
    inverse: Float[Array, "M M"]
    jitter: Float[Array, ""]
    gaussian_mean: Float[Array, "L M"]
    gaussian_root: Float[Array, "L M M"] | Float[Array, "L M"]

    def whitened(self, X: Float[Array, "N D"]) -> Float[Array, "M N"]:
        """W = L⁻¹k(Z, X)."""
        Kzx = self.kernel.between(self.columns, self._prepared(X))
        return whiten(self.inverse, self.among, Kzx)

    def moments(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "N L"], Float[Array, "N L"]]:
        return self.moments_of(self.whitened(X), self.kernel.diag(X))

    def moments_of(
        self, W: Float[Array, "M N"], prior: Float[Array, " N"]
    ) -> tuple[Float[Array, "N L"], Float[Array, "N L"]]:
        """`moments` of rows whose w and k(x, x) are known."""
        variance = _unexplained(W, prior)[:, None] + jnp.sum(self._open(W) ** 2, axis=1).T
        return matmul(W.T, self.gaussian_mean.T), variance

    def mean(self, X: Float[Array, "N D"]) -> Float[Array, "N L"]:
        return matmul(self.whitened(X).T, self.gaussian_mean.T)

    def left_out(
        self, X: Float[Array, "N D"], y: Float[Array, " N"], precision: Float[Array, " N"]
    ) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
        """(Mean, variance) of the first f at each of these rows given all others, where q(u) is the optimum of rows with Gaussian noise that has these among them.

        Of a row with w, k(x, x) and the `precision` β = ρ/σ² let s = ‖Rᵀw‖² and h = βs, which is below 1. Without it the precision of v is that of q(v) less
        βwwᵀ, so that

            mean = (w·m − hy)/(1 − h),    variance = k(x, x) − ‖w‖² + s/(1 − h).
        """
        W = self.whitened(X)
        s, unexplained = jnp.sum(self._open(W)[0] ** 2, axis=0), _unexplained(W, self.kernel.diag(X))
        left = jnp.maximum(1 - precision * s, ROUNDINGS * float(jnp.finfo(W.dtype).eps))
        mean = matmul(W.T, self.gaussian_mean[0])
        return y - (y - mean) / left, unexplained + s / left

    def covariance_parts(
        self, X: Float[Array, "N D"]
    ) -> tuple[Float[Array, "N N"], Float[Array, "M N"], Float[Array, "L M N"]]:
        rows, W = self._prepared(X), self.whitened(X)
        return self.kernel.between(rows, rows), W, self._open(W)

    def divergence(self) -> Float[Array, ""]:
        """½ Σ_l (‖m‖² + ‖R‖² − M − 2 Σ_i log |R_ii|)."""
        R = self.gaussian_root
        diagonal = R if R.ndim == 2 else jnp.diagonal(R, axis1=1, axis2=2)
        squares = jnp.sum(self.gaussian_mean**2) + jnp.sum(R**2)
        return 0.5 * (squares - diagonal.size) - jnp.sum(jnp.log(jnp.abs(diagonal)))

    def correction(self, prior: Any, n_samples: int, *, key: PRNGKeyArray) -> "InducingCorrection":
        """k(x, Z) L⁻ᵀ(v_s − L⁻¹(f₀ₛ(Z) + √ε ξ_s)), v_s ~ q(v), ξ_s ~ N(0, I) (Wilson et al. 2020, equation 13)."""
        own, rest = jax.random.split(key)
        shape, R = (self.inverse.shape[0], n_samples), self.gaussian_root[0]
        z, xi = (jax.random.normal(k, shape, jnp.float32).astype(R.dtype) for k in (own, rest))
        v = self.gaussian_mean[0][:, None] + (R[:, None] * z if R.ndim == 1 else matmul(R, z))
        u0 = prior(self.points).astype(R.dtype) + jnp.sqrt(self.jitter) * xi
        weights = matmul(self.inverse.T, v - matmul(self.inverse, u0))
        return InducingCorrection(self.kernel, self.points, weights)

    def _prepared(self, X: Float[Array, "N D"]) -> Any:
        return self.kernel.prepare(X, centre_of(self.points))

    def _open(self, W: Float[Array, "M N"]) -> Float[Array, "L M N"]:
        """Rᵀw of every latent function: what q leaves open of u."""
        R = self.gaussian_root
        return R[:, :, None] * W if R.ndim == 2 else transposed_times(R, W)


def _unexplained(W: Float[Array, "M N"], prior: Float[Array, " N"]) -> Float[Array, " N"]:
    """k(x, x) − ‖w‖² of each row, at least 4 eps k(x, x)."""
    least = ROUNDINGS * float(jnp.finfo(W.dtype).eps) * jax.lax.stop_gradient(prior)
    return jnp.maximum(prior - jnp.sum(W**2, axis=0), least)


class InducingCorrection(eqx.Module):
    """X [N, D] ↦ k(X, Z) weights.

    Parameters
    ----------
    kernel : kernel
        k, of any kind; it may be frozen.
    points : array [M, D]
        Z, in the units of the inputs.
    weights : array [M, S]
        L⁻ᵀ(v_s − L⁻¹(f₀ₛ(Z) + √ε ξ_s)), a column for each draw.
    """

    kernel: Any
    points: Float[Array, "M D"]
    weights: Float[Array, "M S"]

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N S"]:
        wide = X.astype(self.weights.dtype)
        Kxz = value_of(self.kernel).matrix(wide, self.points.astype(wide.dtype))
        return matmul(Kxz, self.weights).astype(X.dtype)


def centre_of(Z: Float[Array, "M D"]) -> Float[Array, " D"]:
    """Of the points: what distances are computed around. No derivative goes through it."""
    return jax.lax.stop_gradient(jnp.mean(Z, axis=0))


def choose_points(
    X: Float[np.ndarray, "N D"], n_points: int, how: str, *, key: PRNGKeyArray
) -> Float[Array, "M D"]:
    """`n_points` inducing points for the rows X: centres of clusters of them, or random rows.

    Where there are fewer rows than points, all of them, and some again. Raises ValueError for another name in `how`.

    Parameters
    ----------
    X : array [N, D]
        The rows.
    n_points : int
        M.
    how : "kmeans" or "data"
        "kmeans": centres of clusters of up to 5,000 random rows (M rows, where M is more). "data": random rows.
    key : PRNG key
        Of the random order of the rows and of the centres at which k-means begins.
    """
    if how not in ("kmeans", "data"):
        raise ValueError(f"inducing points are chosen by 'kmeans' or from 'data', not by {how!r}")
    order = np.random.default_rng(words_of(key)).permutation(len(X))
    if how == "data" or n_points >= len(X):
        return on_device(X[np.resize(order, n_points)])
    some = on_device(X[order[: max(KMEANS_ROWS, n_points)]])
    return kmeans_landmarks(some, n_points, key=key)
