"""The ELBO at the best Gaussian q(f) that has a site for each row, on the host in float64.

A site is a factor exp(−½ β f² + r f) (`objectives.elbo.Sites`), so that q(f_l) ∝ N(f_l | 0, K) Π_i exp(−½ β_il f_il² + r_il f_il), which
includes the best Gaussian (Opper and Archambeau 2009). With W = diag β and B = I + W^½ K W^½, for each latent function

    S = K − K W^½ B⁻¹ W^½ K,    m = S r,    α = K⁻¹m = r − W m,    KL(q ‖ p) = ½ (mᵀα − Σ_i β_i S_ii + log|B|).

At the best sites the ELBO has the derivative ½ (ααᵀ − W^½ B⁻¹ W^½) with respect to K.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float

from stochgp.compiled import quick_jit
from stochgp.data.memory import padded_size
from stochgp.data.rows import Data
from stochgp.kernels import dense
from stochgp.models import SparseGP
from stochgp.numerics.arrays import filled_up
from stochgp.numerics.linalg import inverse_root
from stochgp.objectives.elbo import Sites
from stochgp.parameters import partition

MIN_PRECISION = 1e-8  # of a site, times the kernel's variance: S_ii = (1 − B⁻¹_ii)/β_i
MIN_GAIN = 1e-7  # nats per datum: a smaller step of the sites is the last
MAX_STEPS, MAX_HALVINGS = 100, 6

Host = Float[np.ndarray, "N L"]
Expected = Callable[[Host, Host], tuple[float, Host, Host, Any]]


def bound_and_gradient(gp: SparseGP, rows: Data, sites: Sites | None = None) -> tuple[float, Any, Sites]:
    """Return the ELBO in nats over all rows at the best sites, its gradient as a model, and the sites.

    They are found by natural-gradient steps from `sites`, None = the prior. A step leads to β = −2 ∂E/∂v and r = ∂E/∂m + β m with E = Σ ρ E_q log p(y | f) (Khan and Lin 2017); it is halved while the ELBO falls.
    O(L N³) for L latent functions, with memory for 6 N² numbers. The ELBO is NaN if k(X, X) is not finite.
    """
    K = dense.block(gp.kernel, rows.X, rows.X)
    expected = _expectations(gp.likelihood, rows)
    least = MIN_PRECISION / max(float(np.max(np.diagonal(K))), np.finfo(np.float64).tiny)
    sites = Sites(*np.zeros((2, len(rows), gp.likelihood.n_latent))) if sites is None else sites
    if not np.isfinite(K).all():
        return np.nan, None, sites
    at = _Optimum(K, _at_least(sites, least), expected)
    for _ in range(MAX_STEPS):
        target, step = _at_least(at.target, least), 1.0
        for _ in range(MAX_HALVINGS):
            mixed = Sites(*((1 - step) * old + step * new for old, new in zip(at.sites, target, strict=True)))
            new = _Optimum(K, mixed, expected)
            if new.bound > at.bound:
                break
            step /= 2
        else:
            break
        gain, at = new.bound - at.bound, new
        if gain < MIN_GAIN * float(rows.weights.sum()):
            break
    by_kernel = dense.gradient(gp.kernel, rows.X, at.by_covariance())
    gradient = jax.tree.map(lambda leaf: None, partition(gp)[0])
    where = lambda g: (g.kernel, g.likelihood)
    found = by_kernel, jax.tree.map(np.asarray, at.by_likelihood)
    return at.bound, eqx.tree_at(where, gradient, found, is_leaf=lambda x: x is None), at.sites


def gaussian_of(
    K: Float[np.ndarray, "M M"], across: Float[np.ndarray, "M N"], sites: Sites
) -> tuple[Float[np.ndarray, "L M"], Float[np.ndarray, "L M M"]]:
    """Return m and R of q(v) = N(m, RRᵀ) with these sites, u = L v, LLᵀ = K: S⁻¹ = I + Σ β w wᵀ, S⁻¹m = Σ r w, w = L⁻¹k(Z, x)."""
    W = scipy.linalg.solve_triangular(np.linalg.cholesky(K), across, lower=True)
    means, roots = [], []
    for beta, r in zip(sites.precision.T, sites.linear.T, strict=True):
        R = inverse_root(np.eye(len(K)) + (W * beta) @ W.T)
        means.append(R @ (R.T @ (W @ r)))
        roots.append(R)
    return np.stack(means), np.stack(roots)


class _Optimum:
    """q(f) with these sites, its ELBO, and the sites of the next step."""

    def __init__(self, K: np.ndarray, sites: Sites, expected: Expected):
        self.sites, parts = sites, []
        self.inverses = []  # L⁻¹ of B = LLᵀ
        (trtri,) = scipy.linalg.get_lapack_funcs(("trtri",), (K,))
        for beta, r in zip(sites.precision.T, sites.linear.T, strict=True):
            root = np.sqrt(beta)
            B = np.eye(len(K)) + K * (root[:, None] * root)
            inverse, _ = trtri(np.linalg.cholesky(B), lower=1)
            half = inverse @ (root * (K @ r))
            mean = K @ (r - root * (inverse.T @ half))
            variance = (1 - np.einsum("ij,ij->j", inverse, inverse)) / beta
            log_determinant = -2 * float(np.log(np.diagonal(inverse)).sum())
            divergence = 0.5 * (mean @ (r - beta * mean) - beta @ variance + log_determinant)
            self.inverses.append(inverse)
            parts.append((mean, variance, divergence))
        means, variances, divergences = zip(*parts, strict=True)
        self.mean, variance = np.stack(means, axis=1), np.stack(variances, axis=1)
        value, by_mean, by_variance, self.by_likelihood = expected(self.mean, variance)
        self.bound = value - sum(divergences)
        precision = np.maximum(-2 * by_variance, 0)
        self.target = Sites(precision, by_mean + precision * self.mean)

    def by_covariance(self) -> Float[np.ndarray, "N N"]:
        """Return the derivative of the ELBO with respect to K."""
        total = np.zeros_like(self.inverses[0])
        for mean, beta, r, inverse in zip(
            self.mean.T, self.sites.precision.T, self.sites.linear.T, self.inverses, strict=True
        ):
            alpha, scaled = r - beta * mean, inverse * np.sqrt(beta)
            total += 0.5 * (np.outer(alpha, alpha) - scaled.T @ scaled)
        return total


def _at_least(sites: Sites, least: float) -> Sites:
    return Sites(np.maximum(sites.precision, least), sites.linear)


def _expectations(likelihood: Any, rows: Data) -> Expected:
    """Return the function of mean and variance [N, L] that returns E and its derivatives by m, v and the likelihood's parameters."""
    n, size = len(rows), padded_size(len(rows))
    theta, rest = partition(likelihood)
    X, y = filled_up(rows.X, size), filled_up(rows.y, size)
    weight = filled_up(rows.weights.astype(np.float64), size, 0.0)

    def expected(mean: Host, variance: Host) -> tuple[float, Host, Host, Any]:
        moments = filled_up(mean, size), filled_up(variance, size)
        value, (by_likelihood, *by_moments) = _expected(theta, *moments, rest, X, y, weight)
        by_mean, by_variance = (np.asarray(part)[:n] for part in by_moments)
        return float(value), by_mean, by_variance, by_likelihood

    return expected


@quick_jit
def _expected(theta: Any, mean: Array, variance: Array, rest: Any, X: Array, y: Array, weight: Array) -> Any:
    def total(theta: Any, mean: Array, variance: Array) -> Array:
        key = jax.random.key(0)  # the same draws in every evaluation
        density = eqx.combine(theta, rest).drawn_log_density(y, mean, variance, X, key=key)
        return jnp.sum(weight * density)

    return jax.value_and_grad(total, (0, 1, 2))(theta, *map(jnp.asarray, (mean, variance)))
