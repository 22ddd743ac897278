"""Decoupled GPs, whose mean and covariance have different inducing functions or points."""

import typing
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jax.tree_util import Partial
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.linalg import get_blas_funcs

from stochgp.data.rows import Data
from stochgp.kernels import dense
from stochgp.kernels.base import centre_of
from stochgp.numerics.arrays import matmul
from stochgp.numerics.linalg import factorised, invert_lower
from stochgp.parameters import cast, value_of
from stochgp.priors import spread_values
from stochgp.variational.functions import InducingFunctions, no_functions
from stochgp.variational.inducing import (
    ROUNDINGS,
    InducingProcess,
    inducing_correction,
)

BLOCK = 2048  # rows of k(x, G) in memory at a time
JITTER = 1e-8  # added to the diagonal of k(G, G), relative to its mean


class Decoupled(eqx.Module):
    """The process q(f), whose mean uses inducing functions α and whose covariance uses β.

    With B = LLᵀ and H = I + LᵀK_βL, equations 7 and 8 of Cheng and Boots (2017) are:
        E f(x) = k_{x,α} a,    cov(f(x), f(z)) = k(x, z) − k_{x,β} L H⁻¹Lᵀ k_{β,z}.

    The variance is at most the variance of the prior. Arrays have a fixed size. `of` builds q(f).

    Parameters
    ----------
    mean_functions : InducingFunctions
        At most M functions α.
    weights : array [M]
        The weights a of the functions α in the mean.
    covariance_functions : InducingFunctions or None
        At most P functions β. If it is None, β is α.
    root : array [P, P]
        The matrix L, any square root of B.
    """

    mean_functions: InducingFunctions
    weights: Float[Array, " M"]
    covariance_functions: InducingFunctions | None
    root: Float[Array, "P P"]

    @classmethod
    def of(
        cls, n_mean: int, n_covariance: int | None, n_inputs: int, *, spread: bool = False, dtype: DTypeLike = jnp.float32
    ) -> "Decoupled":  # fmt: skip
        """Return the prior, for at most `n_mean` and `n_covariance` functions (None = β is α)."""
        room = lambda n: None if n is None else no_functions(n, n_inputs, spread=spread, dtype=dtype)
        P = n_mean if n_covariance is None else n_covariance
        weights, root = jnp.zeros(n_mean, dtype), jnp.zeros((P, P), dtype)
        return cls(typing.cast(Any, room(n_mean)), weights, room(n_covariance), root)

    @property
    def n_inducing(self) -> int:
        return self.root.shape[0]

    @property
    def n_latent(self) -> int:
        return 1

    @property
    def beta(self) -> InducingFunctions:
        """The covariance functions β."""
        return self.mean_functions if self.covariance_functions is None else self.covariance_functions

    @property
    def a(self) -> Float[Array, " M"]:
        """The weights a, 0 for unused entries."""
        return jnp.where(self.mean_functions.mask, self.weights, 0)

    @property
    def L(self) -> Float[Array, "P P"]:
        """The root L, with 0 in unused entries."""
        mask = self.beta.mask
        return jnp.where(mask[:, None] & mask[None, :], self.root, 0)

    def grown(self, X: Float[Array, "N D"], start: Float[Array, " N"]) -> "Decoupled":
        """Add a function with a = 0 and L_jj = `start` per row, up to the size of the arrays."""
        at = self.beta.places(X.shape[0])
        root = self.root.at[at, at].set(start.astype(self.root.dtype), mode="drop")
        beta = None if self.covariance_functions is None else self.covariance_functions.grown(X)
        return Decoupled(self.mean_functions.grown(X), self.weights, beta, root)

    def process(self, kernel: Any) -> "DecoupledProcess":
        """Return q(f) for a kernel, in O(P³ + P²D) operations."""
        kernel, wide = value_of(kernel), jax.dtypes.canonicalize_dtype(jnp.float64)
        beta, L = cast(self.beta, wide), self.L.astype(wide)
        K = beta.among(cast(kernel, wide), beta)
        H = jnp.eye(L.shape[0], dtype=wide) + matmul(L.T, matmul(K, L))
        return DecoupledProcess(kernel, self.mean_functions, self.a, self.beta, L, jnp.linalg.cholesky(H))


class DecoupledProcess(eqx.Module):
    """The process q(f) of `Decoupled` at fixed kernel parameters; C is the factor of H = CCᵀ."""

    kernel: Any  # k, not frozen
    alpha: InducingFunctions  # functions α of the mean
    a: Float[Array, " M"]  # weights of α, 0 for unused entries
    beta: InducingFunctions  # functions β of the covariance
    L: Float[Array, "P P"]  # root of B = LLᵀ, 0 for unused entries; in float64 if x64 is enabled
    C: Float[Array, "P P"]  # Cholesky factor of H, in the dtype of L

    def explained(self, X: Float[Array, "N D"]) -> Float[Array, "P N"]:
        """Return E = C⁻¹Lᵀk_{β,X}; the explained covariance is EᵀE."""
        across = self.beta.at(self.kernel, X).astype(self.L.dtype)
        return solve_triangular(self.C, matmul(across, self.L).T, lower=True)

    def moments(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "N 1"], Float[Array, "N 1"]]:
        """Return means and variances; variances are at least 4 eps times the prior variance."""
        prior = self.kernel.diag(X)
        explained = jnp.sum(jnp.square(self.explained(X)), axis=0).astype(prior.dtype)
        least = ROUNDINGS * float(jnp.finfo(prior.dtype).eps) * jax.lax.stop_gradient(prior)
        return self.mean(X), jnp.maximum(prior - explained, least)[:, None]

    def mean(self, X: Float[Array, "N D"]) -> Float[Array, "N 1"]:
        """Return the mean in O(N M D) operations."""
        return self.alpha.combined(self.kernel, X, self.a)[:, None]

    def covariance_parts(
        self, X: Float[Array, "N D"]
    ) -> tuple[Float[Array, "N N"], Float[Array, "P N"], Float[Array, "1 1 N"]]:
        K = self.kernel.matrix(X, X)
        return K, self.explained(X).astype(K.dtype), jnp.zeros((1, 1, X.shape[0]), K.dtype)

    def divergence(self) -> Float[Array, ""]:
        """Return the divergence KL(q ‖ prior) in O(M²D + P³) operations (equation 9)."""
        return self.mean_divergence() + self.covariance_divergence()

    def mean_divergence(self) -> Float[Array, ""]:
        """Return ½ aᵀK_α a."""
        columns = lambda some, a: self.alpha.product(self.kernel, self.a, some, a)
        return 0.5 * self.alpha.summed(columns, self.a)

    def covariance_divergence(self) -> Float[Array, ""]:
        """Return ½ log|H| − ½ (P − tr H⁻¹)."""
        trace = self.C.shape[0] - jnp.sum(jnp.square(invert_lower(self.C)))
        return (jnp.sum(jnp.log(jnp.diagonal(self.C))) - 0.5 * trace).astype(self.a.dtype)

    def correction(self, prior: Any, n_samples: int, *, key: PRNGKeyArray) -> Partial:
        """Return functions that turn `prior` samples into samples of q (Wilson et al. 2020)."""
        beta, widths = self.beta, self.beta.log_scales
        values = prior(beta.points) if widths is None else spread_values(prior, beta.points, widths)
        eps = jax.random.normal(key, (self.L.shape[0], n_samples), jnp.float32).astype(self.L.dtype)
        seen = matmul(self.L.T, values.astype(self.L.dtype)) + eps
        half = solve_triangular(self.C, seen, lower=True)
        weights = matmul(self.L, solve_triangular(self.C.T, half, lower=False))
        return Partial(_correction, self.kernel, self.alpha, self.a, beta, weights)


def _correction(
    kernel: Any,
    alpha: InducingFunctions,
    a: Float[Array, " M"],
    beta: InducingFunctions,
    weights: Float[Array, "P S"],
    X: Float[Array, "N D"],
) -> Float[Array, "N S"]:
    """Return k_{X,α} a − k_{X,β} weights."""
    kernel, alpha, a, beta, weights = cast((kernel, alpha, a, beta, weights), X.dtype)
    return alpha.combined(kernel, X, a)[:, None] - matmul(beta.at(kernel, X), weights)


class DecoupledMean(InducingProcess):
    """The process q(f) whose covariance uses inducing points Z and whose mean uses points G.

    The mean is k(x, G)a, and G includes Z (Salimbeni, Cheng, Boots and Deisenroth 2018, arXiv 1809.08820).
    For Gaussian noise, `NormalEquations` computes the optimal weights a and leave-one-out residuals.
    The methods `divergence` and `left_out` use only Z.
    """

    mean_points: Float[Array, "P D"]  # points G, in the units of the inputs
    mean_weights: Float[Array, " P"]  # weights a
    noise: Float[Array, ""]  # noise variance σ² according to leave-one-out errors

    def mean(self, X: Float[Array, "N D"]) -> Float[Array, "N L"]:
        kernel, centre = self.kernel, centre_of(self.mean_points)
        across = kernel.between(kernel.prepare(X, centre), kernel.prepare(self.mean_points, centre))
        return matmul(across, self.mean_weights)[:, None]

    def moments(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "N L"], Float[Array, "N L"]]:
        return self.mean(X), super().moments(X)[1]

    def moments_on_host(
        self, X: Float[np.ndarray, "N D"]
    ) -> tuple[Float[np.ndarray, "N L"], Float[np.ndarray, "N L"]]:
        across = dense.block(self.kernel, X, np.asarray(self.mean_points))
        return (across @ np.asarray(self.mean_weights))[:, None], super().moments_on_host(X)[1]

    def correction(self, prior: Any, n_samples: int, *, key: PRNGKeyArray) -> Partial:
        """Return the functions to add to `prior` samples, with the mean k(x, G)a."""
        kernel, points, weights = super().correction(prior, n_samples, key=key).args
        own = matmul(self.inverse.T, self.gaussian_mean[0])
        more = jnp.repeat(self.mean_weights[:, None], n_samples, axis=1)
        weights = jnp.concatenate([weights - own[:, None], more])
        return Partial(inducing_correction, kernel, jnp.concatenate([points, self.mean_points]), weights)


@dataclass(frozen=True, eq=False)
class NormalEquations:
    """The equations A a = Σ_i ρ_i y_i k(G, x_i) for the mean k(x, G)a of `DecoupledMean`.

    The matrix is A = σ²k(G, G) + Σ_i ρ_i k(G, x_i)k(x_i, G), where ρ_i are row weights. All arrays are
    float64 on the host. If G contains all rows, the mean equals the mean of the exact posterior. Build the
    equations with `NormalEquations.of`.
    """

    kernel: Any
    points: Float[np.ndarray, "P D"]  # points G
    among: Float[np.ndarray, "P P"]  # k(G, G) with jitter
    gram: Float[np.ndarray, "P P"]  # upper triangle of Σ_i ρ_i k(G, x_i)k(x_i, G)
    right: Float[np.ndarray, " P"]  # Σ_i ρ_i y_i k(G, x_i)
    factor: Any = None  # Cholesky factor of A; `solved` sets it and the weights a
    weights: Any = None

    @classmethod
    def of(cls, kernel: Any, points: Float[np.ndarray, "P D"], chunks: Iterable[Data]) -> "NormalEquations":
        """Build the equations in one pass over the rows, in O(N P²) operations."""
        P = len(points)
        gram, right = np.zeros((P, P)), np.zeros(P)
        (syrk,) = get_blas_funcs(("syrk",), (gram,))
        for rows in chunks:
            rows = rows.wide()
            across = dense.block(kernel, rows.X, points)
            right += across.T @ (rows.weight * rows.y)
            across *= np.sqrt(rows.weight)[:, None]
            syrk(1.0, across.T, beta=1.0, c=gram.T, lower=True, overwrite_c=True)  # changes `gram` in place
        among = dense.block(kernel, points, points)
        among[np.diag_indices(P)] += JITTER * among.diagonal().mean()
        return cls(kernel, points, among, gram, right)

    def solved(self, noise: float) -> "NormalEquations":
        """Solve the equations for the noise variance σ² = `noise`, in O(P³) operations."""
        factor = factorised(lambda: self.gram + noise * self.among)
        return replace(self, factor=factor, weights=factor.rest(factor.half(self.right[:, None]))[:, 0])

    def without(
        self, X: Float[np.ndarray, "N D"], y: Float[np.ndarray, " N"], weight: Float[np.ndarray, " N"]
    ) -> Float[np.ndarray, " N"]:
        """Return the leave-one-out residuals of rows with inputs X, targets y and weights."""
        found = np.empty(len(y))
        for start in range(0, len(y), BLOCK):
            part = slice(start, start + BLOCK)
            across = dense.block(self.kernel, np.asarray(X[part], np.float64), self.points)
            h = weight[part] * np.sum(np.square(self.factor.half(across.T)), axis=0)
            left = np.maximum(1 - h, np.finfo(np.float64).eps)
            found[part] = (y[part] - across @ self.weights) / left
        return found
