"""A feature GP with Student-t noise: the variational bound of its evidence, and the weights of rows that raise it.

ε_i | λ_i ~ N(0, σ²s_i/λ_i), λ_i ~ Gamma(ν/2, rate ν/2), and q(f) Π q(λ_i). With E_i = E(y_i − f_i)² the best q(λ_i) has the mean

    λ̄_i = (ν + 1)/(ν + E_i/(σ²s_i)),

and the best q(f) is the posterior of Gaussian noise of variance σ²s_i/(ρ_iλ̄_i). At that q(f)

    log p(y) ≥ log N(y | 0, K + diag(σ²s_i/λ̄_i)) + Σ ρ_i [c(ν) + (ν/2)(log λ̄_i − λ̄_i + 1)],
    c(ν) = log Γ((ν+1)/2) − log Γ(ν/2) − ½ log((ν+1)/2) + ½ − (ν/2) log(1 + 1/ν),

N(…) that of ρ_i rows each. So moments whose precisions are ρ_iλ̄_i/s_i, and whose sum of logarithms has the other terms in it, have the negative bound
in the place of the negative log evidence. Source: Tipping and Lawrence (2005).
"""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from stochgp.data.streams import Batch
from stochgp.devices import ONE, Devices
from stochgp.likelihoods.student_t import half_step
from stochgp.models import FeatureGP
from stochgp.numerics.precision import matmul
from stochgp.objectives.feature import Belief, belief_of, spectrum
from stochgp.objectives.moments import Moments, add_up, sum_over_rows

ROUNDS = 4  # of weights, each of a pass over the rows


def expected_precisions(
    gp: FeatureGP, rows: Batch, belief: Belief, df: float | Float[Any, ""]
) -> tuple[Array, Array, Array]:
    """(λ̄ of each row, the features, s), in float64 where x64 is enabled."""
    wide = jax.dtypes.canonicalize_dtype(jnp.float64)
    Phi, s = gp.features(rows.X).astype(wide), gp.noise.multiplier(rows.X).astype(wide)
    weights, root, noise_variance, df = (jnp.asarray(part, wide) for part in (*belief, df))
    error = rows.y.astype(wide) - matmul(Phi, weights)
    squares = error**2 + jnp.sum(matmul(Phi, root) ** 2, axis=1)
    return (df + 1) / (df + squares / (noise_variance * s)), Phi, s


def weighted_moments(gp: FeatureGP, rows: Batch, belief: Belief, df: float | Float[Any, ""]) -> Moments:
    """The moments of rows of precision ρλ̄/s, the terms of the bound with their logarithms."""
    precisions, Phi, s = expected_precisions(gp, rows, belief, df)
    y, count = (part.astype(Phi.dtype) for part in (rows.y, rows.weight))
    weight = count * precisions / s
    weighted = Phi * weight[:, None]
    logs = jnp.log(s) - jnp.log(precisions) - 2 * slack(precisions, jnp.asarray(df, Phi.dtype))
    sums = jnp.sum(weight * y**2), jnp.sum(count), jnp.sum(count * logs)
    return Moments(matmul(weighted.T, Phi), matmul(y, weighted), *sums)


def slack(precisions: Float[Array, " N"], df: Float[Array, ""]) -> Float[Array, " N"]:
    """c(ν) + (ν/2)(log λ̄ − λ̄ + 1): what a row adds to the bound beside its Gaussian density. 0 as ν → ∞."""
    constant = half_step(df / 2) - 0.5 * jnp.log((df + 1) / 2) + 0.5 - 0.5 * df * jnp.log1p(1 / df)
    return constant + 0.5 * df * (jnp.log(precisions) - precisions + 1)


def add_up_weighted(
    gp: FeatureGP, chunks: Iterable[Batch], belief: Belief, df: float, devices: Devices = ONE
) -> Moments:
    """The weighted moments of all chunks: memory for one chunk and the sums. On several devices in order, as `add_up`."""
    return sum_over_rows(weighted_moments, gp, chunks, devices, belief, np.float64(df))


def robust_moments(
    gp: FeatureGP,
    chunks: Callable[[], Iterable[Batch]],
    df: float,
    rounds: int = ROUNDS,
    devices: Devices = ONE,
) -> Moments:
    """Moments with the weights that `rounds` steps of the bound find at the variances of `gp`, from those of Gaussian noise on.

    Each step raises the bound, or leaves it.
    """
    moments, own = add_up(gp, chunks(), devices), (float(gp.variance), float(gp.noise_variance))
    for _ in range(rounds):
        if not np.all(np.isfinite(np.asarray(moments.gram))):
            return moments
        moments = add_up_weighted(gp, chunks(), belief_of(spectrum(moments), *own), df, devices)
    return moments
