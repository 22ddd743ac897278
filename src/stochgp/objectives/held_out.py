"""The density of held-out rows under a feature GP, as a function of its two variances."""

import math
from typing import NamedTuple

import numpy as np

from stochgp.objectives.feature import NOISE_RANGE, VARIANCE_RANGE, Range, Spectrum, minimise_variances


class HeldOut(NamedTuple):
    """Held-out rows seen from the eigenbasis of the training moments."""

    P: np.ndarray  # φ(x)ᵀQ [V, M]
    y: np.ndarray  # [V]
    count: np.ndarray  # ρ [V]
    precision: np.ndarray  # ρ/s [V]: the noise variance of a row is σ² / precision


def nlpd_of_spectrum(
    s: Spectrum, held_out: HeldOut, variance: float, noise_variance: float
) -> tuple[float, tuple[float, float]]:
    """(mean −log N(y; m(x), var f(x) + σ²s/ρ), its derivatives by the two variances): a row counts ρ times, noise included. O(VM)."""
    v, s2 = variance, noise_variance
    d = v * s.eigenvalues + s2
    P2 = held_out.P**2
    residual = held_out.y - held_out.P @ (v * s.cross / d)
    spread = s2 * (P2 @ (v / d)) + s2 / held_out.precision
    total = held_out.count.sum()
    mean_by_v = held_out.P @ (s2 * s.cross / d**2)
    mean_by_s2 = held_out.P @ (-v * s.cross / d**2)
    spread_by_v = s2 * (P2 @ (s2 / d**2))
    spread_by_s2 = P2 @ (v * (d - s2) / d**2) + 1 / held_out.precision
    by_spread = held_out.count * (1 / spread - residual**2 / spread**2) / 2
    by_mean = -held_out.count * residual / spread
    value = held_out.count @ (np.log(2 * math.pi * spread) + residual**2 / spread) / (2 * total)
    by_v = (by_spread @ spread_by_v + by_mean @ mean_by_v) / total
    by_s2 = (by_spread @ spread_by_s2 + by_mean @ mean_by_s2) / total
    return float(value), (float(by_v), float(by_s2))


def refit_held_out(
    s: Spectrum,
    held_out: HeldOut,
    variance: float,
    noise_variance: float,
    *,
    variance_range: Range = VARIANCE_RANGE,
    noise_range: Range = NOISE_RANGE,
) -> tuple[float, float]:
    """The two variances that minimise the NLPD of the held-out rows under the posterior of the training rows: (variance, noise_variance).

    Features that fit the training rows too closely make the exact NLML believe in too little noise; the held-out rows do not. Ranges as
    in `refit`.
    """

    return minimise_variances(
        lambda v, s2: nlpd_of_spectrum(s, held_out, v, s2),
        (variance, noise_variance),
        (variance_range, noise_range),
    )
