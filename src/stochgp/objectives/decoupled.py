"""The bound of a decoupled process from a batch of rows and some columns of K_α: linear in the number of functions of the mean."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from stochgp.data.streams import Batch
from stochgp.models import SparseGP
from stochgp.objectives.elbo import expected_log_density


class Parts(NamedTuple):
    """The bound is the first less the others."""

    fit: Float[Array, ""]  # of Σ_n E_q log p(y_n | f(x_n))
    of_mean: Float[Array, ""]  # of ½ aᵀK_α a
    of_covariance: Float[Array, ""]  # the rest of KL(q ‖ p)


def columns_to_draw(used: Int[Array, ""], n: int, *, key: PRNGKeyArray) -> Int[Array, " n"]:
    """J: n of the m = `used` functions, spread evenly with a random start: J_i = ⌊(i + u)m/n⌋, u ~ U(0, 1).

    Each function is drawn n/m times on average; with n = m all are, once.
    """
    u = jax.random.uniform(key, dtype=jnp.float32)
    ratio = used.astype(jnp.float32) / n
    drawn = jnp.floor((jnp.arange(n, dtype=jnp.float32) + u) * ratio).astype(jnp.int32)
    return jnp.clip(drawn, 0, jnp.maximum(used - 1, 0))


def sampled_mean_divergence(gp: SparseGP, J: Int[Array, " n"]) -> Float[Array, ""]:
    """An estimate of ½ aᵀK_α a from n = |J| of its m columns, in O(M n D): ½ (m/n) aᵀK_{α,J} a_J.

    Its gradient is (m/n) K_{α,J} a_J by a (the paper's, with the factor that it does not print), (m/n) a_i Σ_{j∈J} a_j ∂k(α_i, α_j) by α_i, and
    half of (m/n) aᵀ(∂K_{α,J}) a_J by the kernel's parameters: unbiased for all of them, if J is drawn by `columns_to_draw`.
    """
    q: Any = gp.approximation
    a, kernel = q.a, jax.tree.map(_halved, gp.kernel)
    held, held_a = jax.lax.stop_gradient((q.mean_functions.chosen(J), a[J]))
    scale = q.mean_functions.used.astype(a.dtype) / J.shape[0]
    whole = scale * q.mean_functions.product(kernel, a, held, held_a)
    return whole - 0.5 * jax.lax.stop_gradient(whole)


def bound_parts(gp: SparseGP, rows: Batch, n_rows: Any, J: Int[Array, " n"] | None) -> Parts:
    """Estimates of the bound's parts from B of `n_rows` rows, and of ½ aᵀK_α a from the columns J (None: all of them).

    The bound's gradient is unbiased if the batch is uniform and J is of `columns_to_draw`.
    """
    process: Any = gp.process()
    fit = jnp.sum(expected_log_density(gp, rows, *process.moments(rows.X)))
    of_mean = process.mean_divergence() if J is None else sampled_mean_divergence(gp, J)
    return Parts(n_rows / rows.y.shape[0] * fit, of_mean, process.covariance_divergence())


def _halved(leaf: Any) -> Any:
    """The same numbers, with half of the derivative."""
    return 0.5 * leaf + 0.5 * jax.lax.stop_gradient(leaf) if eqx.is_inexact_array(leaf) else leaf
