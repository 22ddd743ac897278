"""The evidence lower bound, Σ ρ_i E_q log p(y_i | f(x_i)) − KL(q ‖ p) ≤ log p(y)."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stochgp.compiled import quick_jit
from stochgp.data.memory import Source
from stochgp.data.rows import Data
from stochgp.deadline import in_time
from stochgp.models import SparseGP, process_of
from stochgp.numerics.arrays import on_device
from stochgp.objectives.moments import sum_over_rows
from stochgp.parameters import cast
from stochgp.variational import InducingProcess

CHUNK_ROWS = 2048  # in one chunk of a pass over all rows

Latent = Float[Array, "N L"]


class Sites(NamedTuple):
    """A Gaussian factor exp(−½ β f² + r f) per row and latent function, for natural gradients."""

    precision: Float[Any, "N L"]  # β, at least 0
    linear: Float[Any, "N L"]  # r


def expected_log_density(
    gp: SparseGP, rows: Data, mean: Latent, variance: Latent, key: PRNGKeyArray | None = None
) -> Float[Array, " N"]:
    """Return ρ_i E log p(y_i | f), f ~ N(mean, diag variance); with a key from fresh draws."""
    if key is not None:
        return rows.weight * gp.likelihood.drawn_log_density(rows.y, mean, variance, rows.X, key=key)
    return rows.weight * gp.likelihood.expected_log_density(rows.y, mean, variance, rows.X)


def sites(gp: SparseGP, rows: Data, mean: Latent, variance: Latent, key: PRNGKeyArray | None = None) -> Sites:
    """Return β = max(−2 ∂_v E, 0) and r = ∂_m E + β m with E = ρ E_q log p(y | f).

    Khan and Lin (2017). A natural-gradient step of size 1 from any q leads to the prior times these factors, which for a Gaussian do not depend on q.
    """
    total = lambda m, v: jnp.sum(expected_log_density(gp, rows, m, v, key))
    by_mean, by_variance = jax.grad(total, (0, 1))(mean, variance)
    beta = jnp.maximum(-2 * by_variance, 0)
    return Sites(beta, by_mean + beta * mean)


def elbo(gp: SparseGP, rows: Data, n_rows: Any) -> Float[Array, ""]:
    """Return (N/B) Σ_i ρ_i E log p(y_i | f(x_i)) − KL, an unbiased estimate of the bound.

    The B rows are drawn uniformly from N rows.

    Parameters
    ----------
    gp, rows, n_rows : SparseGP, Data, number
        The model at θ, with its q(f); the B rows; N, which counts rows and not their weights.
    """
    process = gp.process()
    total = jnp.sum(expected_log_density(gp, rows, *process.moments(rows.X)))
    return n_rows / rows.y.shape[0] * total - process.divergence()


def bound_of_all(gp: SparseGP, source: Source) -> float:
    """Return the bound of all rows per datum, in float64: one pass, memory for one chunk.

    Raises TimeIsUpError before a chunk that would end after the deadline.
    """
    with jax.enable_x64(True):
        wide = cast(gp, np.float64)
        process = process_of(wide)
        chunks, count = in_time(source.blocks(CHUNK_ROWS)), on_device(source.count)
        if source.mesh is None and isinstance(process, InducingProcess):
            # The program does not depend on kernel and inducing points.
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
    """Return the sum over rows, less the rows' share of KL(q ‖ p)."""
    rows = cast(rows, jnp.float64)
    total = jnp.sum(expected_log_density(gp, rows, *process.moments(rows.X)))
    return total - jnp.sum(rows.weight) / count * process.divergence()


def columns_to_draw(used: Int[Array, ""], n: int, *, key: PRNGKeyArray) -> Int[Array, " n"]:
    """Draw n of the m = `used` functions: J_i = ⌊(i + u)m/n⌋, u ~ U(0, 1).

    Each function is drawn n/m times on average; with n = m each is drawn once.
    """
    u = jax.random.uniform(key, dtype=jnp.float32)
    ratio = used.astype(jnp.float32) / n
    drawn = jnp.floor((jnp.arange(n, dtype=jnp.float32) + u) * ratio).astype(jnp.int32)
    return jnp.clip(drawn, 0, jnp.maximum(used - 1, 0))


def sampled_mean_divergence(gp: SparseGP, J: Int[Array, " n"]) -> Float[Array, ""]:
    """Estimate ½ aᵀK_α a from n = |J| of its m columns, in O(M n D): ½ (m/n) aᵀK_{α,J} a_J.

    The gradient is (m/n) K_{α,J} a_J with respect to a (as in the paper, with the omitted factor), (m/n) a_i Σ_{j∈J} a_j ∂k(α_i, α_j) for α_i, and half of
    (m/n) aᵀ(∂K_{α,J}) a_J for the kernel's parameters. All are unbiased if J is drawn by `columns_to_draw`.
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
    """Estimate Σ_n E_q log p(y_n | f(x_n)), ½ aᵀK_α a and the other part of KL(q ‖ p).

    The estimates use B of `n_rows` rows and the columns J (None: all). The gradient of the first less the others is unbiased if the batch is
    uniform and J is from `columns_to_draw`.
    """
    process: Any = gp.process()
    fit = jnp.sum(expected_log_density(gp, rows, *process.moments(rows.X)))
    of_mean = process.mean_divergence() if J is None else sampled_mean_divergence(gp, J)
    return n_rows / rows.y.shape[0] * fit, of_mean, process.covariance_divergence()


def _halved(leaf: Any) -> Any:
    """Return the same numbers with half of the derivative."""
    return 0.5 * leaf + 0.5 * jax.lax.stop_gradient(leaf) if eqx.is_inexact_array(leaf) else leaf
