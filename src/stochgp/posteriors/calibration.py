"""One factor for all variances of a global posterior, from the training rows predicted without themselves.

With c k and c σ² in place of k and σ² every mean stays as it is and every variance is c times as large. Row i, predicted from all others, has
the error α_i/Q_ii and the variance 1/Q_ii, Q = A⁻¹, α = Qy (Rasmussen and Williams 2006, 5.10 to 5.12). So

    c = mean α_i²/Q_ii

makes the standardised errors of such predictions 1 in the mean: for exchangeable rows the same as those of a new row, whatever their law.
Q_ii comes from the factor, or from samples: with u_s = A⁻¹(f₀ₛ + ε_s) ~ N(0, Q), V_i = (S − 2)/Σ_s u_si² is unbiased for 1/Q_ii.

An α that a solver has left with the residual r = y − Aα predicts new rows worse than A⁻¹y does. At row i its mean is off by

    (K A⁻¹r)_i = r_i − σ_i²(Qr)_i,    and so its error, without row i, is    α_i/Q_ii + r_i + (1/Q_ii − σ_i²)(Qr)_i.

The first two terms are α_iV_i + r_i. The last one is left out: it is small where the noise is most of 1/Q_ii.
"""

import dataclasses
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from stochgp.numerics.arrays import on_device
from stochgp.posteriors.base import scale_of, with_level
from stochgp.posteriors.exact import ExactKernelPosterior
from stochgp.posteriors.kernel import KernelSystem, SampledKernelPosterior

ROWS = 500  # left out of a posterior with a factor
FEWEST_SAMPLES = 8


def calibrated(posterior: Any) -> tuple[Any, float]:
    """(The posterior with all variances c times as large, c); as it is, and 1, where nothing says how large c is."""
    N = len(posterior.weights)
    rows = np.arange(N)
    if isinstance(posterior, ExactKernelPosterior):  # each row takes N² operations
        rows = np.sort(np.random.default_rng(0).permutation(N)[:ROWS])
    z = left_out_errors(posterior, rows)
    if z is None:
        return posterior, 1.0
    scale = scale_of(np.square(z))
    return scaled(posterior, scale), scale


def scaled(posterior: Any, c: float) -> Any:
    """The posterior for c k and c σ²: the same mean, and c times every variance. α becomes α/c, samples' A⁻¹(f₀ + ε) are divided by √c."""
    old = posterior.system
    system = KernelSystem(
        old.kernel.times(c), old.X, old.count, with_level(old.noise, c * float(old.noise.level)), old.tile
    )
    weights = _divided(posterior.weights, c)
    more: dict[str, Any] = {"system": system, "weights": weights, "explained": posterior.explained / c}
    if isinstance(posterior, ExactKernelPosterior):
        made = dataclasses.replace(posterior, **more)
        vars(made)["factor"] = posterior.factor.times(c)
        return made
    prior = dataclasses.replace(posterior.prior, kernel=posterior.prior.kernel.times(c))
    samples = _divided(posterior.sample_weights, c**0.5)
    left = posterior.left
    if left is not None:  # the right-hand sides of samples are multiplied by √c, that of the mean stays
        left = _divided(left, np.array([1.0] + [c**-0.5] * samples.shape[1]))
    made = dataclasses.replace(posterior, **more, prior=prior, sample_weights=samples, left=left)
    vars(made)["residual"] = posterior.residual  # the same, and it takes a product with K
    return made


def left_out_errors(
    posterior: ExactKernelPosterior | SampledKernelPosterior, rows: Int[np.ndarray, " P"]
) -> Float[np.ndarray, " P"] | None:
    """z = e_i/√V_i of these rows, each predicted from all others; None where too few samples say how large V_i is."""
    alpha = np.asarray(posterior.weights, np.float64)[rows, 0]
    if isinstance(posterior, ExactKernelPosterior):
        return alpha / np.sqrt(_by_factor(posterior, rows))
    variance = left_out_variances(posterior)
    if variance is None:
        return None
    left = np.zeros(len(rows)) if posterior.residual is None else posterior.residual[rows]
    return (alpha * variance[rows] + left) / np.sqrt(variance[rows])


def left_out_variances(posterior: SampledKernelPosterior) -> Float[np.ndarray, " N"] | None:
    """V_i of every row, predicted from all others, noise included; None from fewer than 8 samples."""
    if posterior.n_samples < FEWEST_SAMPLES:
        return None
    u = np.asarray(posterior.sample_weights, np.float64)
    return (posterior.n_samples - 2) / np.sum(u**2, axis=1)


def _by_factor(posterior: ExactKernelPosterior, rows: Int[np.ndarray, " P"]) -> Float[np.ndarray, " P"]:
    """Q_ii: sums of squares of L⁻¹, of 500 columns at a time."""
    N, Q = len(posterior.system.X), np.empty(len(rows))
    for start in range(0, len(rows), ROWS):
        part = rows[start : start + ROWS]
        units = np.zeros((N, len(part)), posterior.factor.L.dtype, order="F")
        units[part, np.arange(len(part))] = 1
        half = posterior.factor.half(units)
        Q[start : start + ROWS] = np.sum(np.square(half, dtype=np.float64), axis=0)
    return Q


def _divided(values: Any, c: Any) -> Any:
    return on_device(np.asarray(values) / np.asarray(c, values.dtype), values.dtype)
