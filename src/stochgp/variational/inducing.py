"""Variational approximations q(f) with whitened inducing points."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.features.base import kmeans_landmarks
from stochgp.kernels import dense
from stochgp.kernels.base import centre_of
from stochgp.numerics.arrays import einsum, matmul, on_device
from stochgp.numerics.linalg import (
    factorised,
    invert_lower,
    one_by_one,
    safe_inverse_factor,
    whiten,
)
from stochgp.numerics.seeds import words_of
from stochgp.parameters import value_of

ROUNDINGS = 4.0  # minimum of k(x, x) − ‖w‖², in units of eps k(x, x)
KMEANS_ROWS = 5_000  # number of rows for k-means


class Naturals(eqx.Module):
    """For each latent function, the natural parameters Λ = S⁻¹ and h = S⁻¹m of q(v) = N(m, S).

    Λ and h are float64 if x64 is enabled, because Λ would lose small eigenvalues in float32.
    """

    precision: Float[Array, "L M M"]  # Λ
    linear: Float[Array, "L M"]  # h

    @classmethod
    def of_gaussian(cls, mean: Float[Any, "L M"], root: Float[Any, "L M M"]) -> "Naturals":
        """Return the natural parameters of N(m, RRᵀ), computed on the host."""
        wide = jax.dtypes.canonicalize_dtype(jnp.float64)
        inverse = np.linalg.inv(np.tril(np.asarray(root, np.float64)))
        precision = np.swapaxes(inverse, 1, 2) @ inverse
        linear = np.einsum("lij,lj->li", precision, np.asarray(mean, np.float64))
        return cls(on_device(precision, wide), on_device(linear, wide))

    def towards(self, other: "Naturals", step: Float[Array, ""] | float) -> "Naturals":
        """Return (1 − step) self + step other; a natural-gradient step if other is the `optimum`."""
        gamma = jnp.asarray(step, self.linear.dtype)
        mix = lambda mine, theirs: (1 - gamma) * mine + gamma * theirs
        return Naturals(mix(self.precision, other.precision), mix(self.linear, other.linear))

    def gaussian(self) -> tuple[Float[Array, "L M"], Float[Array, "L M M"]]:
        """Return m and the lower triangular R with S = RRᵀ."""

        def root_of(precision: Array) -> Array:
            L = jnp.linalg.cholesky(precision[::-1, ::-1])  # cannot fail: Λ ⪰ I in float64
            return invert_lower(L)[::-1, ::-1].T

        R = one_by_one(root_of, self.precision)
        return einsum("lij,lkj,lk->li", R, R, self.linear), R


def optimum(
    W: Float[Array, "M N"],
    precision: Float[Array, "N L"],
    linear: Float[Array, "N L"],
    scale: Float[Array, ""] | float = 1.0,
) -> Naturals:
    """Return the optimal q: Λ = I + c Σ_i β_i w_i w_iᵀ and h = c Σ_i r_i w_i.

    β is `precision`, r is `linear`, c is `scale`, and w_i are columns of W (`InducingProcess.whitened`).
    """
    wide = jax.dtypes.canonicalize_dtype(jnp.float64)
    W, beta, r = W.astype(wide), scale * precision.astype(wide), scale * linear.astype(wide)
    eye = jnp.eye(W.shape[0], dtype=wide)
    return Naturals(eye + jax.vmap(lambda b: matmul(W * b, W.T), in_axes=1)(beta), matmul(r.T, W.T))


class InducingPoints(eqx.Module):
    """The approximation q(f) = ∫ p(f | u) q(u) du with whitened inducing points Z.

    The inducing values are u = f(Z) + N(0, εI) = L v with LLᵀ = k(Z, Z) + εI. The prior of v is N(0, I), and
    q(v) = N(m, RRᵀ) (Titsias 2009; Hensman et al. 2013, 2015). ε is part of the model. `of` builds q(f).

    Parameters
    ----------
    points : array [M, D] or frozen array
        The inducing points Z in the units of the inputs.
    mean : array [L, M]
        The mean m of v for each latent function.
    root : array [L, M, M]
        The lower triangular square root R of the covariance of v for each latent function.
    jitter : float
        ε divided by the mean of the diagonal of k(Z, Z).
    """

    points: Any
    mean: Float[Array, "L M"]
    root: Float[Array, "L M M"]
    jitter: float = eqx.field(static=True)

    @classmethod
    def of(cls, points: Any, *, n_latent: int = 1, jitter: float | None = None) -> "InducingPoints":
        """Return the prior at points Z [M, D], an array or a frozen array; jitter None = 4 M eps."""
        Z = value_of(points)
        if Z.ndim != 2 or (M := Z.shape[0]) == 0:
            raise ValueError(
                f"inducing points must have the shape [M, D] with M ≥ 1, but have the shape {tuple(Z.shape)}"
            )
        mean, root = np.zeros((n_latent, M)), np.tile(np.eye(M), (n_latent, 1, 1))
        relative = 4 * M * float(jnp.finfo(Z.dtype).eps) if jitter is None else float(jitter)
        return cls(points, on_device(mean, Z.dtype), on_device(root, Z.dtype), relative)

    @property
    def n_inducing(self) -> int:
        return self.mean.shape[1]

    @property
    def n_latent(self) -> int:
        return self.mean.shape[0]

    def at(self, mean: Float[Any, "L M"], root: Float[Any, "L M M"]) -> "InducingPoints":
        """Return the same points with new q(v) = N(m, RRᵀ)."""
        if isinstance(mean, np.ndarray):
            mean, root = on_device(mean, self.mean.dtype), on_device(root, self.mean.dtype)
        mean, root = (part.astype(self.mean.dtype) for part in (mean, root))
        return InducingPoints(self.points, mean, root, self.jitter)

    def among(self, kernel: Any) -> tuple[Float[Array, "M M"], Float[Array, ""]]:
        """Return k(Z, Z) + εI and ε."""
        Z = value_of(self.points)
        Kzz = value_of(kernel).matrix(Z, Z)
        epsilon = self.jitter * jnp.mean(jnp.diagonal(Kzz))
        return Kzz + epsilon * jnp.eye(len(Kzz), dtype=Kzz.dtype), epsilon

    def process(self, kernel: Any) -> "InducingProcess":
        """Return q(f) for a kernel."""
        Kzz, epsilon = self.among(kernel)
        inverse, more = safe_inverse_factor(Kzz)
        q = self.mean, jnp.tril(self.root)
        return InducingProcess(value_of(kernel), value_of(self.points), Kzz, inverse, epsilon + more, *q)

    def process_on_host(self, kernel: Any) -> "InducingProcess":
        """Return q(f) in float64, with NumPy if possible; NaN if k(Z, Z) cannot be factorised."""
        kernel, Z = value_of(kernel), np.asarray(value_of(self.points))
        K = dense.block(kernel, Z, Z)
        epsilon = self.jitter * np.mean(np.diagonal(K))
        K[np.diag_indices(len(K))] += epsilon
        try:
            factor = factorised(K.copy)
            inverse, more = factor.half(np.eye(len(K))), factor.jitter
        except ValueError:
            inverse, more = np.full_like(K, np.nan), np.nan
        mean, root = np.asarray(self.mean), np.tril(np.asarray(self.root))
        parts = Z, K, inverse, np.asarray(epsilon + more), mean, root
        return InducingProcess(kernel, *(on_device(part, Z.dtype) for part in parts))


class InducingProcess(eqx.Module):
    """The process with mean w(x)·m and covariance k(x, z) − w(x)·w(z) + (Rᵀw(x))·(Rᵀw(z)).

    w(x) is L⁻¹k(Z, x). Variances are positive, because 4 k(x, x) times the machine precision is a lower limit
    of k(x, x) − ‖w(x)‖².
    """

    kernel: Any  # k, not frozen
    points: Float[Array, "M D"]  # Z
    # k(Z, Z) + εI without further jitter. Gradients of `whitened` use it.
    among: Float[Array, "M M"]
    inverse: Float[Array, "M M"]  # L⁻¹, lower triangular
    jitter: Float[Array, ""]  # ε plus further jitter of the Cholesky factorisation, a variance
    gaussian_mean: Float[Array, "L M"]  # m of q(v)
    gaussian_root: Float[Array, "L M M"]  # R of q(v)

    def across(self, X: Float[Array, "N D"]) -> Float[Array, "M N"]:
        return self.kernel.matrix(X, self.points).T

    def whitened(self, X: Float[Array, "N D"]) -> Float[Array, "M N"]:
        """Return W = L⁻¹k(Z, X)."""
        return whiten(self.inverse, self.among, self.across(X))

    def moments(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "N L"], Float[Array, "N L"]]:
        """Return mean and variance of each latent function at each row."""
        return self.moments_of(self.whitened(X), self.kernel.diag(X))

    def moments_of(
        self, W: Float[Array, "M N"], prior: Float[Array, " N"]
    ) -> tuple[Float[Array, "N L"], Float[Array, "N L"]]:
        """Return `moments` from the columns w of W and the prior variances k(x, x)."""
        least = ROUNDINGS * float(jnp.finfo(W.dtype).eps) * jax.lax.stop_gradient(prior)
        unexplained = jnp.maximum(prior - jnp.sum(W**2, axis=0), least)
        variance = unexplained[:, None] + jnp.sum(self._open(W) ** 2, axis=1).T
        return matmul(W.T, self.gaussian_mean.T), variance

    def moments_on_host(
        self, X: Float[np.ndarray, "N D"]
    ) -> tuple[Float[np.ndarray, "N L"], Float[np.ndarray, "N L"]]:
        """Return `moments`, computed with NumPy if the kernel supports it."""
        W, unexplained = self.whitened_on_host(X)
        spread = [np.sum(np.square(R.T @ W), axis=0) for R in np.asarray(self.gaussian_root)]
        return W.T @ np.asarray(self.gaussian_mean).T, unexplained[:, None] + np.stack(spread, axis=1)

    def whitened_on_host(
        self, X: Float[np.ndarray, "N D"]
    ) -> tuple[Float[np.ndarray, "M N"], Float[np.ndarray, " N"]]:
        """Return `whitened` and k(x, x) − ‖w‖²."""
        W = np.asarray(self.inverse) @ dense.block(self.kernel, X, np.asarray(self.points)).T
        prior = dense.diagonal(self.kernel, X)
        least = ROUNDINGS * np.finfo(W.dtype).eps * prior
        return W, np.maximum(prior - np.sum(np.square(W), axis=0), least)

    def divergence_on_host(self) -> float:
        return float(_divergence(np.asarray(self.gaussian_mean), np.asarray(self.gaussian_root)))

    def mean(self, X: Float[Array, "N D"]) -> Float[Array, "N L"]:
        return matmul(self.whitened(X).T, self.gaussian_mean.T)

    def left_out(
        self, X: Float[np.ndarray, "N D"], y: Float[np.ndarray, " N"], precision: Float[np.ndarray, " N"]
    ) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        """Return leave-one-out mean and variance of the first latent function at training rows.

        q(u) must be the optimum for Gaussian noise. With the `precision` β = ρ/σ² of a row, s = ‖Rᵀw‖² and
        h = βs, the moments without the row are

            mean = (w·m − hy)/(1 − h),    variance = k(x, x) − ‖w‖² + s/(1 − h).
        """
        W, unexplained = self.whitened_on_host(X)
        s = np.sum(np.square(np.asarray(self.gaussian_root)[0].T @ W), axis=0)
        left = np.maximum(1 - precision * s, ROUNDINGS * np.finfo(W.dtype).eps)
        return y - (y - np.asarray(self.gaussian_mean)[0] @ W) / left, unexplained + s / left

    def covariance_parts(
        self, X: Float[Array, "N D"]
    ) -> tuple[Float[Array, "N N"], Float[Array, "M N"], Float[Array, "L M N"]]:
        """Return K, W and V; latent function l has the covariance K − WᵀW + V_lᵀV_l."""
        rows, W = self._prepared(X), self.whitened(X)
        return self.kernel.between(rows, rows), W, self._open(W)

    def divergence(self) -> Float[Array, ""]:
        """Return KL(q(v) ‖ N(0, I)), summed over the latent functions."""
        return _divergence(self.gaussian_mean, self.gaussian_root)

    def correction(self, prior: Any, n_samples: int, *, key: PRNGKeyArray) -> Partial:
        """Return functions that turn `prior` samples into samples of q (Wilson et al. 2020)."""
        own, rest = jax.random.split(key)
        shape, R = (self.inverse.shape[0], n_samples), self.gaussian_root[0]
        z, xi = (jax.random.normal(k, shape, jnp.float32).astype(R.dtype) for k in (own, rest))
        v = self.gaussian_mean[0][:, None] + matmul(R, z)
        u0 = prior(self.points).astype(R.dtype) + jnp.sqrt(self.jitter) * xi
        weights = matmul(self.inverse.T, v - matmul(self.inverse, u0))
        return Partial(inducing_correction, self.kernel, self.points, weights)

    def _prepared(self, X: Float[Array, "N D"]) -> Any:
        return self.kernel.prepare(X, centre_of(self.points))

    def _open(self, W: Float[Array, "M N"]) -> Float[Array, "L M N"]:
        """Return Rᵀw for every latent function."""
        return einsum("lij,in->ljn", self.gaussian_root, W)


def _divergence(m: Float[Any, "L M"], R: Float[Any, "L M M"]) -> Float[Any, ""]:
    """Return KL(N(m, RRᵀ) ‖ N(0, I)), for NumPy or JAX arrays."""
    xp = m.__array_namespace__()
    diagonal = xp.diagonal(R, axis1=1, axis2=2)
    squares = xp.sum(m**2) + xp.sum(R**2)
    return 0.5 * (squares - diagonal.size) - xp.sum(xp.log(xp.abs(diagonal)))


def inducing_correction(
    kernel: Any, points: Float[Array, "M D"], weights: Float[Array, "M S"], X: Float[Array, "N D"]
) -> Float[Array, "N S"]:
    """Return k(X, Z) weights, computed in the dtype of the weights."""
    wide = X.astype(weights.dtype)
    return matmul(value_of(kernel).matrix(wide, points.astype(wide.dtype)), weights).astype(X.dtype)


def choose_points(X: Float[np.ndarray, "N D"], n_points: int, *, key: PRNGKeyArray) -> Float[Array, "M D"]:
    """Return k-means centres of random rows; if N ≤ `n_points`, repeat the rows instead."""
    order = np.random.default_rng(words_of(key)).permutation(len(X))
    if n_points >= len(X):
        return on_device(X[np.resize(order, n_points)])
    some = on_device(X[order[: max(KMEANS_ROWS, n_points)]])
    return kmeans_landmarks(some, n_points, key=key)
