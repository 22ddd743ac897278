"""The density of held-out rows under a feature GP, as a function of its two variances."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from stochgp.objectives.feature import Loss, Spectrum, nlml_of_spectrum

STANDARD_ERRORS = 2.0
ROWS = 4096  # at a time


class HeldOut(NamedTuple):
    """Held-out rows in the eigenbasis of the training moments."""

    P: np.ndarray  # φ(x)ᵀQ [V, M]
    y: np.ndarray  # [V]
    weight: np.ndarray  # ρ [V]
    multiplier: np.ndarray  # s [V]: the noise variance of an observation is σ² s, whatever ρ is
    group: np.ndarray | None = None  # whose sums are taken as independent; None = every row is one

    def blocks(self) -> "Iterator[HeldOut]":
        """The rows, `ROWS` at a time, without groups: many rows need the memory of P, and no multiple of it."""
        for first in range(0, max(len(self.y), 1), ROWS):
            rows = slice(first, first + ROWS)
            yield HeldOut(self.P[rows], self.y[rows], self.weight[rows], self.multiplier[rows])


def densities_of_spectrum(
    s: Spectrum, held_out: HeldOut, variance: float, noise_variance: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(−log N(y; m(x), var f(x) + σ²s) of each held-out row [V] as one observation, given the training rows; its derivatives by the two variances). O(VM)."""
    parts = [_densities(s, block, variance, noise_variance) for block in held_out.blocks()]
    value, by_v, by_s2 = (np.concatenate(part) for part in zip(*parts, strict=True))
    return value, by_v, by_s2


def _densities(
    s: Spectrum, held_out: HeldOut, v: float, s2: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    d, P2 = v * s.eigenvalues + s2, held_out.P**2
    residual, latent = _errors(s, held_out, v, s2)
    spread = latent + s2 * held_out.multiplier
    mean_by_v = held_out.P @ (s2 * s.cross / d**2)
    mean_by_s2 = held_out.P @ (-v * s.cross / d**2)
    spread_by_v = s2 * (P2 @ (s2 / d**2))
    spread_by_s2 = P2 @ (v * (d - s2) / d**2) + held_out.multiplier
    by_spread, by_mean = (1 / spread - residual**2 / spread**2) / 2, -residual / spread
    value = (np.log(2 * math.pi * spread) + residual**2 / spread) / 2
    by_v, by_s2 = by_spread * spread_by_v + by_mean * mean_by_v, by_spread * spread_by_s2
    return value, by_v, by_s2 + by_mean * mean_by_s2


def errors_of_spectrum(
    s: Spectrum, held_out: HeldOut, variance: float, noise_variance: float
) -> tuple[np.ndarray, np.ndarray]:
    """(y − m(x), the standard deviation of an observation there) of each held-out row [V]."""
    found = [_errors(s, block, variance, noise_variance) for block in held_out.blocks()]
    residual, latent = (np.concatenate(part) for part in zip(*found, strict=True))
    return residual, np.sqrt(latent + noise_variance * held_out.multiplier)


def _errors(s: Spectrum, held_out: HeldOut, v: float, s2: float) -> tuple[np.ndarray, np.ndarray]:
    """(y − m(x), var f(x)) of each held-out row [V]."""
    d = v * s.eigenvalues + s2
    return held_out.y - held_out.P @ (v * s.cross / d), s2 * (held_out.P**2 @ (v / d))


def nlpd_of_spectrum(
    s: Spectrum, held_out: HeldOut, variance: float, noise_variance: float
) -> tuple[float, tuple[float, float]]:
    """(The mean of the densities, its derivatives by the two variances): a row counts ρ times."""
    found = densities_of_spectrum(s, held_out, variance, noise_variance)
    value, by_v, by_s2 = (float(held_out.weight @ part / held_out.weight.sum()) for part in found)
    return value, (by_v, by_s2)


def pessimistic_nlpd(
    s: Spectrum, held_out: HeldOut, variance: float, noise_variance: float
) -> tuple[float, tuple[float, float]]:
    """(The mean of the densities and STANDARD_ERRORS standard errors more, its derivatives by the two variances).

    The error is √Σ_g (Σ_(i in g) w_i (l_i − l̄))², w_i the row's share of Σρ: a row of any weight is one observation. A model that is sure of itself has
    densities that differ much from row to row: few rows may all be good ones by chance.
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
    """(−log p(y_V | y) / count of the held-out rows V, its derivatives by the two variances), `both` of all rows together. O(M).

    By the chain rule the log evidence of all rows less that of the training rows. Rows that are well predicted one by one, but
    contradict each other, have a low joint density: they would spoil the posterior that they join.
    """
    found = nlml_of_spectrum(both, variance, noise_variance), nlml_of_spectrum(s, variance, noise_variance)
    counts = both.count, s.count
    (value, by_v, by_s2) = (
        (counts[0] * a - counts[1] * b) / (counts[0] - counts[1])
        for a, b in zip(*((nlml, *slopes) for nlml, slopes in found), strict=True)
    )
    return value, (by_v, by_s2)


def robust_nlpd(s: Spectrum, held_out: HeldOut, both: Spectrum) -> Loss:
    """The loss of few rows: the mean of `pessimistic_nlpd` and `joint_nlpd`."""

    def loss(v: float, s2: float) -> tuple[float, tuple[float, float]]:
        one, together = pessimistic_nlpd(s, held_out, v, s2), joint_nlpd(s, both, v, s2)
        by_v, by_s2 = ((a + b) / 2 for a, b in zip(one[1], together[1], strict=True))
        return (one[0] + together[0]) / 2, (by_v, by_s2)

    return loss
