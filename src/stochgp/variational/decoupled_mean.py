"""Orthogonally decoupled inducing points: a mean with more points than the covariance."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float, PRNGKeyArray
from scipy.linalg import get_blas_funcs

from stochgp.data.rows import Data
from stochgp.kernels import dense
from stochgp.kernels.base import centre_of
from stochgp.numerics.arrays import matmul
from stochgp.numerics.linalg import factorised
from stochgp.variational.inducing import AbstractProcess, InducingProcess, inducing_correction

BLOCK = 2048  # rows of k(x, G) in memory at a time
JITTER = 1e-8  # of the mean of the diagonal of k(G, G)


class DecoupledMean(AbstractProcess):
    """The process q(f) with the covariance of inducing points Z and a mean from points G ⊇ Z.

    The mean is k(x, G)a: the mean of Z plus one in the orthogonal complement of its span, [k(x, Γ) − k(x, Z)k(Z, Z)⁻¹k(Z, Γ)]a_Γ (Salimbeni, Cheng, Boots and
    Deisenroth 2018, arXiv 1809.08820). Its divergence from the prior has the term ½aᵀk(G, G)a; `NormalEquations` has the optimal a under Gaussian noise.
    """

    base: InducingProcess  # the process of Z, with the covariance
    points: Float[Array, "P D"]  # G, in the units of the inputs
    weights: Float[Array, " P"]  # a
    noise: Float[Array, ""]  # σ² from leave-one-out errors: the learned σ² includes what Z does not explain

    def mean(self, X: Float[Array, "N D"]) -> Float[Array, "N L"]:
        kernel, centre = self.base.kernel, centre_of(self.points)
        across = kernel.between(kernel.prepare(X, centre), kernel.prepare(self.points, centre))
        return matmul(across, self.weights)[:, None]

    def moments(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "N L"], Float[Array, "N L"]]:
        return self.mean(X), self.base.moments(X)[1]

    def covariance_parts(
        self, X: Float[Array, "N D"]
    ) -> tuple[Float[Array, "N N"], Float[Array, "M N"], Float[Array, "L M N"]]:
        return self.base.covariance_parts(X)

    def divergence(self) -> Float[Array, ""]:
        """Return the divergence of Z alone, as in the bound on the likelihood of all rows."""
        return self.base.divergence()

    def correction(self, prior: Any, n_samples: int, *, key: PRNGKeyArray) -> Partial:
        """Return k(X, G)a + k(X, Z)(w − L⁻ᵀm): the correction of Z, weights w, for this mean."""
        kernel, points, weights = self.base.correction(prior, n_samples, key=key).args
        own = matmul(self.base.inverse.T, self.base.gaussian_mean[0])
        more = jnp.repeat(self.weights[:, None], n_samples, axis=1)
        weights = jnp.concatenate([weights - own[:, None], more])
        return Partial(inducing_correction, kernel, jnp.concatenate([points, self.points]), weights)

    def left_out(
        self, X: Float[np.ndarray, "N D"], y: Float[np.ndarray, " N"], precision: Float[np.ndarray, " N"]
    ) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        """Return the result of Z; `NormalEquations.without` has the residuals of this mean."""
        return self.base.left_out(X, y, precision)


@dataclass(frozen=True, eq=False)
class NormalEquations:
    """The equations A a = Σ_i ρ_i y_i k(G, x_i) of the mean, for any noise variance σ².

    A = σ²k(G, G) + Σ_i ρ_i k(G, x_i)k(x_i, G), in float64 on the host. With G = all rows a gives the mean of the exact posterior. Built by `NormalEquations.of`.
    """

    kernel: Any
    points: Float[np.ndarray, "P D"]  # G
    among: Float[np.ndarray, "P P"]  # k(G, G) plus 1e-8 of the mean of its diagonal
    gram: Float[np.ndarray, "P P"]  # Σ_i ρ_i k(G, x_i)k(x_i, G), on and right of its diagonal, 0 left of it
    right: Float[np.ndarray, " P"]  # Σ_i ρ_i y_i k(G, x_i)
    factor: Any = None  # of A; with a, set in solved equations
    weights: Any = None

    @classmethod
    def of(cls, kernel: Any, points: Float[np.ndarray, "P D"], chunks: Iterable[Data]) -> "NormalEquations":
        """Build the equations in one pass over the rows, O(N P²)."""
        P = len(points)
        gram, right = np.zeros((P, P)), np.zeros(P)
        (syrk,) = get_blas_funcs(("syrk",), (gram,))
        for rows in chunks:
            rows = rows.wide()
            across = dense.block(kernel, rows.X, points)
            right += across.T @ (rows.weight * rows.y)
            across *= np.sqrt(rows.weight)[:, None]
            syrk(1.0, across.T, beta=1.0, c=gram.T, lower=True, overwrite_c=True)  # adds to `gram` itself
        among = dense.block(kernel, points, points)
        among[np.diag_indices(P)] += JITTER * among.diagonal().mean()
        return cls(kernel, points, among, gram, right)

    def solved(self, noise: float) -> "NormalEquations":
        """Return the equations with the factor of A and a for this σ², O(P³)."""
        factor = factorised(lambda: self.gram + noise * self.among)
        return replace(self, factor=factor, weights=factor.rest(factor.half(self.right[:, None]))[:, 0])

    def without(
        self, X: Float[np.ndarray, "N D"], y: Float[np.ndarray, " N"], weight: Float[np.ndarray, " N"]
    ) -> Float[np.ndarray, " N"]:
        """Return leave-one-out residuals (y_i − k(x_i, G)a)/(1 − ρ_i k(x_i, G)A⁻¹k(G, x_i))."""
        found = np.empty(len(y))
        for start in range(0, len(y), BLOCK):
            part = slice(start, start + BLOCK)
            across = dense.block(self.kernel, np.asarray(X[part], np.float64), self.points)
            h = weight[part] * np.sum(np.square(self.factor.half(across.T)), axis=0)
            left = np.maximum(1 - h, np.finfo(np.float64).eps)
            found[part] = (y[part] - across @ self.weights) / left
        return found
