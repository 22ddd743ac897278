"""The evidence lower bound (ELBO), Σ_i ρ_i E_q log p(y_i | f(x_i)) − KL(q ‖ p) ≤ log p(y).

A site is a Gaussian factor exp(−½ β f² + r f) that approximates the likelihood of a row. The best Gaussian
q(f) is the prior times one site for each row (Opper and Archambeau 2009). Let W be diag β and
B = I + W^½ K W^½. Then q(f) has the covariance S = K − K W^½ B⁻¹ W^½ K, the mean m = S r, and

    α = K⁻¹m = r − W m,    KL(q ‖ p) = ½ (mᵀα − Σ_i β_i S_ii + log|B|).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stochgp.compiled import quick_jit
from stochgp.data.memory import Source, padded_size
from stochgp.data.rows import Data
from stochgp.deadline import in_time
from stochgp.kernels import dense
from stochgp.models import SparseGP, process_of
from stochgp.numerics.arrays import filled_up, on_device
from stochgp.numerics.linalg import inverse_root
from stochgp.objectives.moments import sum_over_rows
from stochgp.parameters import cast, partition
from stochgp.variational import InducingProcess

CHUNK_ROWS = 2048  # number of rows in a chunk of a pass over all rows
MIN_PRECISION = 1e-8  # minimum precision of a site, times the kernel's variance
MIN_GAIN = 1e-7  # nats per datum: the search for the best sites ends after a step that gains less
MAX_STEPS, MAX_HALVINGS = 100, 6

Latent = Float[Array, "N L"]
Host = Float[np.ndarray, "N L"]
Expected = Callable[[Host, Host], tuple[float, Host, Host, Any]]


class Sites(NamedTuple):
    """Gaussian factors exp(−½ β f² + r f) that approximate the likelihood of each row."""

    precision: Float[Any, "N L"]  # β, at least 0
    linear: Float[Any, "N L"]  # the linear term r


def expected_log_density(
    gp: SparseGP, rows: Data, mean: Latent, variance: Latent, key: PRNGKeyArray | None = None
) -> Float[Array, " N"]:
    """Return ρ_i E log p(y_i | f) for f ~ N(mean, diag variance); if `key` is set, from draws."""
    if key is not None:
        return rows.weight * gp.likelihood.drawn_log_density(rows.y, mean, variance, rows.X, key=key)
    return rows.weight * gp.likelihood.expected_log_density(rows.y, mean, variance, rows.X)


def sites(gp: SparseGP, rows: Data, mean: Latent, variance: Latent, key: PRNGKeyArray | None = None) -> Sites:
    """Return the sites to which a natural-gradient step of size 1 leads (Khan and Lin 2017).

    For f ~ N(m, v), let E be ρ E_q log p(y | f). The sites are β = max(−2 ∂E/∂v, 0) and r = ∂E/∂m + β m.
    """
    total = lambda m, v: jnp.sum(expected_log_density(gp, rows, m, v, key))
    by_mean, by_variance = jax.grad(total, (0, 1))(mean, variance)
    beta = jnp.maximum(-2 * by_variance, 0)
    return Sites(beta, by_mean + beta * mean)


def elbo(gp: SparseGP, rows: Data, n_rows: Any) -> Float[Array, ""]:
    """Return an unbiased estimate of the ELBO: (N/B) Σ ρ_i E log p(y_i | f(x_i)) − KL(q ‖ p).

    Parameters
    ----------
    gp, rows : SparseGP, Data
        The model, and B uniformly drawn rows with weights ρ_i.
    n_rows : int
        N, the number of all rows.
    """
    process = gp.process()
    total = jnp.sum(expected_log_density(gp, rows, *process.moments(rows.X)))
    return n_rows / rows.y.shape[0] * total - process.divergence()


def bound_of_all(gp: SparseGP, source: Source) -> float:
    """Return the ELBO per datum on all rows, in float64.

    Raises TimeIsUpError if the deadline is near.
    """
    with jax.enable_x64(True):
        wide = cast(gp, np.float64)
        process = process_of(wide)
        chunks, count = in_time(source.blocks(CHUNK_ROWS)), on_device(source.count)
        if source.mesh is None and isinstance(process, InducingProcess):
            # Only the likelihood needs compilation.
            likelihood, total = wide.likelihood, -process.divergence_on_host()
            for rows in (rows.wide() for rows in chunks):
                total += float(_expected(likelihood, rows, *process.moments_on_host(rows.X)))
            return total / source.count
        return float(sum_over_rows(_bound, wide, chunks, process, count)) / source.count


@quick_jit
def _expected(likelihood: Any, rows: Data, mean: Any, variance: Any) -> Float[Array, ""]:
    density = likelihood.expected_log_density(rows.y, *map(jnp.asarray, (mean, variance)), rows.X)
    return jnp.sum(rows.weight * density)


def _bound(gp: SparseGP, rows: Data, process: Any, count: Array) -> Float[Array, ""]:
    """Return the expected log density of some rows, minus their share of KL(q ‖ p)."""
    rows = cast(rows, jnp.float64)
    total = jnp.sum(expected_log_density(gp, rows, *process.moments(rows.X)))
    return total - jnp.sum(rows.weight) / count * process.divergence()


def columns_to_draw(used: Int[Array, ""], n: int, *, key: PRNGKeyArray) -> Int[Array, " n"]:
    """Draw n of the m = `used` basis functions: J_i = ⌊(i + u)m/n⌋ with u ~ U(0, 1).

    Each function is drawn n/m times on average, and exactly once if n = m.
    """
    u = jax.random.uniform(key, dtype=jnp.float32)
    ratio = used.astype(jnp.float32) / n
    drawn = jnp.floor((jnp.arange(n, dtype=jnp.float32) + u) * ratio).astype(jnp.int32)
    return jnp.clip(drawn, 0, jnp.maximum(used - 1, 0))


def sampled_mean_divergence(gp: SparseGP, J: Int[Array, " n"]) -> Float[Array, ""]:
    """Return ½ (m/n) aᵀK_{α,J} a_J, an estimate of ½ aᵀK_α a from n = |J| of its m columns.

    The value and its gradients are unbiased if `columns_to_draw` draws J. The gradient with respect to a is
    (m/n) K_{α,J} a_J. The paper (Cheng and Boots 2017) omits the factor m/n.
    """
    q: Any = gp.approximation
    a, kernel = q.a, jax.tree.map(_halved, gp.kernel)
    held, held_a = jax.lax.stop_gradient((q.mean_functions.chosen(J), a[J]))
    scale = q.mean_functions.used.astype(a.dtype) / J.shape[0]
    whole = scale * q.mean_functions.product(kernel, a, held, held_a)
    return whole - 0.5 * jax.lax.stop_gradient(whole)


def bound_parts(
    gp: SparseGP, rows: Data, n_rows: Any, J: Int[Array, " n"] | None
) -> tuple[Array, Array, Array]:
    """Return estimates of Σ_i E_q log p(y_i | f(x_i)), ½ aᵀK_α a, and the rest of KL(q ‖ p).

    The estimates use the batch `rows` and the columns J of K_α; None = all columns. Estimates are unbiased if
    the batch is drawn uniformly and `columns_to_draw` draws J.
    """
    process: Any = gp.process()
    fit = jnp.sum(expected_log_density(gp, rows, *process.moments(rows.X)))
    of_mean = process.mean_divergence() if J is None else sampled_mean_divergence(gp, J)
    return n_rows / rows.y.shape[0] * fit, of_mean, process.covariance_divergence()


def _halved(leaf: Any) -> Any:
    """Return the same values with half of their derivatives."""
    return 0.5 * leaf + 0.5 * jax.lax.stop_gradient(leaf) if eqx.is_inexact_array(leaf) else leaf


def bound_and_gradient(gp: SparseGP, rows: Data, sites: Sites | None = None) -> tuple[float, Any, Sites]:
    """Return the ELBO on all rows for the best Gaussian q(f), its gradient, and the sites.

    The gradient has the structure of the model. Natural-gradient steps from `sites` (None = the prior) find
    the best sites, in O(L N³) time for L latent functions. The ELBO is NaN if k(X, X) is not finite.
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
    W: Float[np.ndarray, "M N"], sites: Sites
) -> tuple[Float[np.ndarray, "L M"], Float[np.ndarray, "L M M"]]:
    """Return m and R of q(v) = N(m, RRᵀ): (RRᵀ)⁻¹ = I + Σ β_i w_i w_iᵀ, m = RRᵀ Σ r_i w_i."""
    means, roots = [], []
    for beta, r in zip(sites.precision.T, sites.linear.T, strict=True):
        R = inverse_root(np.eye(len(W)) + (W * beta) @ W.T)
        means.append(R @ (R.T @ (W @ r)))
        roots.append(R)
    return np.stack(means), np.stack(roots)


class _Optimum:
    """The Gaussian q(f) for given sites, its ELBO, and the sites of the next step."""

    def __init__(self, K: np.ndarray, sites: Sites, expected: Expected):
        self.sites, parts = sites, []
        self.inverses = []  # L⁻¹ for each latent function, where B = LLᵀ
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
    """Return a function that computes the expected log density and its derivatives."""
    n, size = len(rows), padded_size(len(rows))
    theta, rest = partition(likelihood)
    X, y = filled_up(rows.X, size), filled_up(rows.y, size)
    weight = filled_up(rows.weights.astype(np.float64), size, 0.0)

    def expected(mean: Host, variance: Host) -> tuple[float, Host, Host, Any]:
        moments = filled_up(mean, size), filled_up(variance, size)
        value, (by_likelihood, *by_moments) = _drawn(theta, *moments, rest, X, y, weight)
        by_mean, by_variance = (np.asarray(part)[:n] for part in by_moments)
        return float(value), by_mean, by_variance, by_likelihood

    return expected


@quick_jit
def _drawn(theta: Any, mean: Array, variance: Array, rest: Any, X: Array, y: Array, weight: Array) -> Any:
    def total(theta: Any, mean: Array, variance: Array) -> Array:
        key = jax.random.key(0)  # every evaluation uses the same draws
        density = eqx.combine(theta, rest).drawn_log_density(y, mean, variance, X, key=key)
        return jnp.sum(weight * density)

    return jax.value_and_grad(total, (0, 1, 2))(theta, *map(jnp.asarray, (mean, variance)))
