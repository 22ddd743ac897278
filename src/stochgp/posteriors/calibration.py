"""Two factors of the variances of a global posterior, from the training rows predicted without themselves.

Row i, predicted from all others, has the error e_i = α_i/Q_ii and the variance 1/Q_ii, Q = A⁻¹, α = Qy (Rasmussen and Williams 2006, 5.10 to 5.12).

τ, of posteriors that have their variances from near rows, is the multiple of the information of these rows for which the mean logarithm of the variances of f at
left-out rows is right. Right are 1/Q_ii − σ_i², σ_i² = σ²s_i/ρ_i, of the factor, or of 512 near rows where there is none.

c makes the standardised errors of left-out rows 1 in the mean. With c k and c σ² in place of k and σ² every mean stays as it is and every variance is c times as
large. 1/Q_ii is the variance of the mean of ρ_i observations; a new row is one observation, V_i = 1/Q_ii − σ_i² + σ²s_i. So

    c = Σ ρ_i e_i²/V_i / Σ ρ_i:

for exchangeable rows the same as that of new rows, whatever their distribution.

An α that a solver has left with the residual r = y − Aα predicts new rows worse than A⁻¹y does. At row i its mean is off by

    (K A⁻¹r)_i = r_i − σ_i²(Qr)_i,    and so its error, without row i, is    α_i/Q_ii + r_i + (1/Q_ii − σ_i²)(Qr)_i.

The first two terms are α_i/Q_ii + r_i. The last one is left out: it is small where the noise is most of 1/Q_ii.

Rows in groups are predicted from their nearest rows of other groups (`LocalPosterior`).
"""

import dataclasses
import math
from typing import Any

import numpy as np
import scipy.optimize

from stochgp import deadline
from stochgp.deadline import TimeIsUpError
from stochgp.likelihoods.noise import with_level
from stochgp.numerics.arrays import on_device
from stochgp.numerics.clustered import scale_of
from stochgp.numerics.seeds import random_rows
from stochgp.posteriors.exact import ExactKernelPosterior
from stochgp.posteriors.kernel import NEAR, KernelSystem
from stochgp.posteriors.kernel import with_information as informed
from stochgp.posteriors.local import NEIGHBOURS
from stochgp.posteriors.sampled import SampledKernelPosterior

ROWS = 2000  # left out for c: from 256 it was off by a fifth on pol, which cost 0.04 nats
BY_FACTOR = 256  # rows of τ, of N² operations each
BY_NEAR, MANY = 64, 512  # rows of τ without a factor, and the near rows of each
LEAST, MOST = -1.0, 20.0  # log τ
CALIBRATION_SECONDS = 2.5  # that left-out rows take, compilation included


def with_information(posterior: Any) -> Any:
    """The posterior with τ; as it is if its variances are exact, or there is no time."""
    if isinstance(posterior, ExactKernelPosterior) and posterior.is_exact:
        return posterior
    try:
        with deadline.granted(CALIBRATION_SECONDS):
            return posterior.changed(information=_information(posterior))
    except TimeIsUpError:
        return posterior


def _information(posterior: Any) -> float:
    """τ; 1 if no left-out row has a variance that further rows make smaller."""
    N = len(posterior.weights)
    if N == 1:
        return 1.0
    if isinstance(posterior, ExactKernelPosterior):
        rows = random_rows(N, BY_FACTOR, 0)
        right = posterior.left_out_by_factor(rows) - posterior.system.row_noise[rows]
    else:
        rows = random_rows(N, BY_NEAR, 0)
        right = posterior.near.left_out(rows, MANY)[1]
    _, W, prior = posterior.near.left_out(rows, NEAR)
    known = (right > 0) & (right < W)
    near: Any = right[known], W[known], prior[known]
    off = lambda log_tau: float(np.mean(np.log(informed(near, math.exp(log_tau)) / near[0])))
    if not known.any() or off(MOST) >= 0:
        return 1.0
    found: Any = scipy.optimize.brentq(off, LEAST, MOST)
    return math.exp(found)


def calibrated(posterior: Any, group: Any = None) -> tuple[Any, float]:
    """(The posterior with all variances c times as large, c); as it is, and 1, if it has no targets or one row.

    Rows of one `group` are left out together.
    """
    N, y = len(posterior.weights), posterior.y
    if y is None or N == 1:
        return posterior, 1.0
    rows = random_rows(N, ROWS, 0)
    if group is None:
        e, V = posterior.left_out(rows)
    else:
        mean, variance, _ = posterior.near.left_out(rows, NEIGHBOURS, group)
        e, V = y[rows] - mean, variance + posterior.near.noise_of_one(rows)
        group = group[rows]
    scale = scale_of(np.square(e) / V, posterior.system.weight[rows], group)
    return scaled(posterior, scale), scale


def scaled(posterior: Any, c: float) -> Any:
    """The posterior for c k and c σ²: the same mean, and c times every variance. α becomes α/c, samples' A⁻¹(f₀ + ε) are divided by √c."""
    old = posterior.system
    noise = with_level(old.noise, c * float(old.noise.level))
    system = KernelSystem(old.kernel.times(c), old.X, old.weight, noise, old.tile)
    weights = _divided(posterior.weights, c)
    more: dict[str, Any] = {"system": system, "weights": weights, "explained": posterior.explained / c}
    if isinstance(posterior, SampledKernelPosterior):  # right-hand sides of samples are multiplied by √c
        if posterior.left is not None:
            more["left"] = _divided(posterior.left, np.array([1.0] + [c**-0.5] * posterior.n_samples))
        if posterior.prior is not None:
            more["prior"] = dataclasses.replace(posterior.prior, kernel=posterior.prior.kernel.times(c))
            more["sample_weights"] = _divided(posterior.sample_weights, c**0.5)
    made = dataclasses.replace(posterior, **more)
    near = made.near
    if "tree" in vars(posterior.near):
        vars(near)["tree"] = posterior.near.tree
    if isinstance(posterior, ExactKernelPosterior):
        vars(made)["factor"] = posterior.factor.times(c)
    else:
        vars(made)["residual"] = posterior.residual  # the same, and it takes a product with K
    return made


def _divided(values: Any, c: Any) -> Any:
    found = np.asarray(values) / np.asarray(c, values.dtype)
    return found if isinstance(values, np.ndarray) else on_device(found, values.dtype)
