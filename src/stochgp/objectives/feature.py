"""The exact NLML of a feature GP, its gradient, held-out densities and optimal variances.

Let v be the variance, Φ the features, M their number, F = v ΦᵀΦ + σ²I, and c = Φᵀy. For n rows,

    n · 2 · nlml = (yᵀy − v cᵀF⁻¹c)/σ² + log|F| + (n − M) log σ² + n log 2π

(SCGD paper, Theorem 1). Row i may have the weight ρ_i and the noise variance σ²s_i/ρ_i. Then sums over rows
have the weights ρ_i/s_i, n is Σρ_i, and the right-hand side also contains Σρ_i log s_i.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import minimize

from stochgp.data.rows import Data
from stochgp.models import FeatureGP
from stochgp.numerics.arrays import extended, on_device
from stochgp.objectives.moments import Moments, chunk_rows, moments_of_rows
from stochgp.parameters import partition
from stochgp.results import ExactNLML

Range = tuple[float, float]
# A function of variance and noise variance that returns a value and its two derivatives.
Loss = Callable[[float, float], tuple[float, tuple[float, float]]]

# Ranges of the optimal variances, as multiples of the mean squared target.
VARIANCE_RANGE = (1e-10, 1e12)
NOISE_RANGE = (1e-12, 1e12)
STANDARD_ERRORS = 2.0
ROWS = 4096  # number of held-out rows in a block


def nlml(moments: Moments, variance: Float[Array, ""], noise_variance: Float[Array, ""]) -> Float[Array, ""]:
    """Return the NLML per datum, (yᵀK⁻¹y + log|K| + n log 2π)/(2n) with K = vΦΦᵀ + σ²I."""
    M, n = moments.gram.shape[0], moments.count
    F = variance * moments.gram + noise_variance * jnp.eye(M, dtype=moments.gram.dtype)
    L = jnp.linalg.cholesky(F)
    half = jax.scipy.linalg.solve_triangular(L, moments.cross, lower=True)
    fit = (moments.square - variance * jnp.sum(half**2)) / noise_variance
    complexity = 2 * jnp.sum(jnp.log(jnp.diagonal(L))) + (n - M) * jnp.log(noise_variance)
    complexity += moments.log_multiplier
    return (fit + complexity + n * jnp.log(2 * jnp.pi)) / (2 * n)


def nlml_of_rows(gp: FeatureGP, rows: Data) -> Float[Array, ""]:
    """Return the NLML per datum on `rows`, differentiable, with memory for one chunk of rows."""
    size = min(chunk_rows(gp.n_features), rows.X.shape[0])
    missing = -rows.X.shape[0] % size  # number of rows with weight 0 that fill the last chunk
    weight = extended(rows.weight, missing, "constant")
    filled = dataclasses.replace(extended(rows, missing), weight=weight)
    stacked = jax.tree.map(lambda a: a.reshape(-1, size, *a.shape[1:]), filled)
    part = jax.checkpoint(lambda r: moments_of_rows(gp, r))
    first, later = part(stacked.take(0)), stacked.take(slice(1, None))
    total, _ = jax.lax.scan(lambda sums, r: (jax.tree.map(jnp.add, sums, part(r)), None), first, later)
    dtype = total.gram.dtype
    return nlml(total, gp.variance.value.astype(dtype), gp.noise_variance.value.astype(dtype))


def nlml_and_gradient(gp: FeatureGP, rows: Data) -> ExactNLML:
    """Return the exact NLML per datum on `rows` and its gradient, in float64."""
    with jax.enable_x64(True):
        here = jax.tree.map(lambda part: on_device(part, np.float64), rows)
        value, gradient = _value_and_gradient(*partition(gp), here)
        return ExactNLML(float(value), gradient, 0.0)


@eqx.filter_jit
def _value_and_gradient(theta: FeatureGP, rest: FeatureGP, rows: Data) -> tuple[Array, FeatureGP]:
    return jax.value_and_grad(lambda t: nlml_of_rows(eqx.combine(t, rest), rows))(theta)


class Spectrum(NamedTuple):
    """The float64 moments in the eigenbasis of the Gram matrix ΦᵀΦ = Q diag(λ) Qᵀ."""

    eigenvalues: np.ndarray  # λ [M], at least 0
    basis: np.ndarray  # Q [M, M], an eigenvector in each column
    cross: np.ndarray  # Qᵀc [M]
    square: float  # the last three fields are those of `Moments`
    count: float
    log_multiplier: float = 0.0


def spectrum(moments: Moments) -> Spectrum:
    """Return the eigendecomposition of the moments, with eigenvalues of at least 0."""
    gram = np.asarray(moments.gram, np.float64)
    eigenvalues, basis = np.linalg.eigh(gram)
    cross = basis.T @ np.asarray(moments.cross, np.float64)
    sums = (float(part) for part in moments[2:])
    return Spectrum(np.maximum(eigenvalues, 0.0), basis, cross, *sums)


def belief_of(s: Spectrum, variance: float, noise_variance: float) -> tuple[np.ndarray, np.ndarray]:
    """Return ŵ and R: the posterior of f(x) has the mean φ(x)ᵀŵ and the variance ‖Rᵀφ(x)‖²."""
    d = variance * s.eigenvalues + noise_variance
    return s.basis @ (variance * s.cross / d), s.basis * np.sqrt(variance * noise_variance / d)


def times_square(widest: Range, s: Spectrum) -> Range:
    """Return a range, multiplied by the mean squared target unless all targets are 0."""
    square = s.square / s.count if s.square > 0 else 1.0
    return widest[0] * square, widest[1] * square


def nlml_of_spectrum(
    s: Spectrum, variance: float, noise_variance: float
) -> tuple[float, tuple[float, float]]:
    """Return the NLML per datum and its derivatives with respect to the two variances."""
    M, n = len(s.eigenvalues), s.count
    d = variance * s.eigenvalues + noise_variance
    shrunk = variance * s.cross**2 / d
    fit = max(s.square - shrunk.sum(), 0.0) / noise_variance
    complexity = np.log(d).sum() + (n - M) * np.log(noise_variance) + s.log_multiplier
    by_variance = -(s.cross**2 / d**2).sum() + (s.eigenvalues / d).sum()
    by_noise = (-fit + (shrunk / d).sum() + n - M) / noise_variance + (1 / d).sum()
    value = (fit + complexity + n * np.log(2 * np.pi)) / (2 * n)
    return float(value), (float(by_variance / (2 * n)), float(by_noise / (2 * n)))


def refit(
    s: Spectrum,
    variance: float,
    noise_variance: float,
    *,
    variance_range: Range = VARIANCE_RANGE,
    noise_range: Range = NOISE_RANGE,
) -> tuple[float, float]:
    """Return the variance and noise variance that minimise the exact NLML for fixed features."""
    loss: Loss = lambda v, s2: nlml_of_spectrum(s, v, s2)
    return minimise_variances(loss, (variance, noise_variance), (variance_range, noise_range))


def minimise_variances(
    loss: Loss, start: tuple[float, float], ranges: tuple[Range, Range]
) -> tuple[float, float]:
    """Return the variance and noise variance that minimise `loss` in the ranges."""

    def of_logs(log_values: np.ndarray) -> tuple[float, np.ndarray]:
        v, s2 = np.exp(log_values)
        value, slopes = loss(v, s2)
        return value, np.array([slopes[0] * v, slopes[1] * s2])

    bounds = np.log(np.maximum(ranges, np.finfo(np.float64).tiny))
    begin = np.clip(np.log(start), bounds[:, 0], bounds[:, 1])
    found = minimize(of_logs, begin, jac=True, method="L-BFGS-B", bounds=bounds)
    best = found.x if np.isfinite(found.fun) and found.fun <= of_logs(begin)[0] else begin
    return float(np.exp(best[0])), float(np.exp(best[1]))


class HeldOut(NamedTuple):
    """Held-out rows in the eigenbasis of the training rows' Gram matrix."""

    P: np.ndarray  # φ(x)ᵀQ [V, M]
    y: np.ndarray  # [V]
    weight: np.ndarray  # ρ [V]
    multiplier: np.ndarray  # s [V], where σ² s is the noise variance of one observation
    group: np.ndarray | None = None  # numbers of independent groups; None = all rows are independent

    def blocks(self) -> "Iterator[HeldOut]":
        """Yield blocks of at most `ROWS` rows, without groups."""
        for first in range(0, max(len(self.y), 1), ROWS):
            rows = slice(first, first + ROWS)
            yield HeldOut(self.P[rows], self.y[rows], self.weight[rows], self.multiplier[rows])


def densities_of_spectrum(s: Spectrum, held_out: HeldOut, v: float, s2: float) -> np.ndarray:
    """Return −log p(y) of each held-out row and two derivatives (∂variance, ∂noise), [3, V]."""
    d, parts = v * s.eigenvalues + s2, []
    for block in held_out.blocks():
        P, P2, multiplier = block.P, block.P**2, block.multiplier
        residual, variance = block.y - P @ (v * s.cross / d), s2 * (P2 @ (v / d)) + s2 * multiplier
        by_variance, by_mean = (1 / variance - residual**2 / variance**2) / 2, -residual / variance
        value = (np.log(2 * math.pi * variance) + residual**2 / variance) / 2
        by_v = by_variance * s2 * (P2 @ (s2 / d**2)) + by_mean * (P @ (s2 * s.cross / d**2))
        by_s2 = by_variance * (P2 @ (v * (d - s2) / d**2) + multiplier)
        parts.append([value, by_v, by_s2 - by_mean * (P @ (v * s.cross / d**2))])
    return np.concatenate(parts, axis=1)


def errors_of_spectrum(s: Spectrum, held_out: HeldOut, v: float, s2: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the error y − mean(x) and its standard deviation for each held-out row, [V]."""
    d = v * s.eigenvalues + s2
    latent = np.concatenate([block.P**2 @ (v / d) for block in held_out.blocks()])
    return held_out.y - held_out.P @ (v * s.cross / d), np.sqrt(s2 * (latent + held_out.multiplier))


def nlpd_of_spectrum(
    s: Spectrum, held_out: HeldOut, variance: float, noise_variance: float
) -> tuple[float, tuple[float, float]]:
    """Return the weighted NLPD of the held-out rows and derivatives for the two variances."""
    found = densities_of_spectrum(s, held_out, variance, noise_variance)
    value, by_v, by_s2 = (float(held_out.weight @ part / held_out.weight.sum()) for part in found)
    return value, (by_v, by_s2)


def pessimistic_nlpd(
    s: Spectrum, held_out: HeldOut, variance: float, noise_variance: float
) -> tuple[float, tuple[float, float]]:
    """Return the NLPD of the held-out rows plus two standard errors, and its derivatives.

    Let l_i be −log p of row i, l̄ the NLPD, and w_i the share of row i in the sum of weights. The standard
    error is √Σ_g (Σ_{i∈g} w_i (l_i − l̄))², a sum over groups g. An overconfident model has a large error.
    """
    found = densities_of_spectrum(s, held_out, variance, noise_variance)
    share = held_out.weight / held_out.weight.sum()
    mean, *slopes = (float(share @ part) for part in found)
    of_groups = lambda part: part if held_out.group is None else np.bincount(held_out.group, part)
    sums, *moved = (of_groups(share * (part - m)) for part, m in zip(found, (mean, *slopes), strict=True))
    error = math.sqrt(float(sums @ sums))
    by = [float(sums @ part) / error if error > 0 else 0.0 for part in moved]
    value = mean + STANDARD_ERRORS * error
    return value, (slopes[0] + STANDARD_ERRORS * by[0], slopes[1] + STANDARD_ERRORS * by[1])


def joint_nlpd(
    s: Spectrum, both: Spectrum, variance: float, noise_variance: float
) -> tuple[float, tuple[float, float]]:
    """Return minus the joint log density of the held-out rows per datum, and its derivatives.

    `s` is the spectrum of the training rows, and `both` is the spectrum of training and held-out rows. The
    density is evidence(`both`)/evidence(`s`). Rows that contradict each other have a low joint density.
    """
    every, train = (part.count * _row(nlml_of_spectrum(part, variance, noise_variance)) for part in (both, s))
    value, by_v, by_s2 = (every - train) / (both.count - s.count)
    return float(value), (float(by_v), float(by_s2))


def _row(found: tuple[float, tuple[float, float]]) -> np.ndarray:
    return np.array([found[0], *found[1]])


def robust_nlpd(s: Spectrum, held_out: HeldOut, both: Spectrum) -> Loss:
    """Return the mean of `pessimistic_nlpd` and `joint_nlpd`, a robust loss for few rows."""

    def loss(v: float, s2: float) -> tuple[float, tuple[float, float]]:
        both_kinds = pessimistic_nlpd(s, held_out, v, s2), joint_nlpd(s, both, v, s2)
        value, by_v, by_s2 = np.mean([_row(found) for found in both_kinds], axis=0)
        return float(value), (float(by_v), float(by_s2))

    return loss
