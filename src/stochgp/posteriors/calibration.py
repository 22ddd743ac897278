"""One factor for all variances of a global posterior, from the training rows predicted without themselves.

With c k and c σ² in place of k and σ² every mean stays as it is and every variance is c times as large. Row i, predicted from all others, has
the error e_i = α_i/Q_ii and the variance 1/Q_ii, Q = A⁻¹, α = Qy (Rasmussen and Williams 2006, 5.10 to 5.12). That is the variance of the mean of ρ_i
observations, with the noise σ²s_i/ρ_i; a new row is one observation, V_i = 1/Q_ii − σ²s_i/ρ_i + σ²s_i. So

    c = Σ ρ_i e_i²/V_i / Σ ρ_i

makes the standardised errors of such predictions 1 in the mean: for exchangeable rows the same as those of a new row, whatever their distribution.
Q_ii comes from the factor, or from samples: with u_s = A⁻¹(f₀ₛ + ε_s) ~ N(0, Q), (S − 2)/Σ_s u_si² is unbiased for 1/Q_ii. Where ρ_i is not 1, the noise
is taken off exactly: d_s = Σu_s − ε_s = f₀ₛ − Ku_s ~ N(0, v_i), the deviations at row i, are independent of u_si, and

    (S − 2) Σ_s d_si² / (S σ_i² Σ_s u_si²),   σ_i² = σ²s_i/ρ_i,

is unbiased for v_i/(σ_i² Q_ii) = 1/Q_ii − σ_i², the variance of f at row i given all others.

An α that a solver has left with the residual r = y − Aα predicts new rows worse than A⁻¹y does. At row i its mean is off by

    (K A⁻¹r)_i = r_i − σ_i²(Qr)_i,    and so its error, without row i, is    α_i/Q_ii + r_i + (1/Q_ii − σ_i²)(Qr)_i.

The first two terms are α_i/Q_ii + r_i. The last one is left out: it is small where the noise is most of 1/Q_ii.

Rows in groups are predicted without the whole of their group g: e_g = Q_gg⁻¹α_g with covariance Q_gg⁻¹, of which the diagonal counts, as a new row is
predicted alone. From the factor up to 3,000 rows; beyond from 2,000 random rows and their nearest rows of other groups (`LocalPosterior`).
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from stochgp.data.rows import Rows
from stochgp.likelihoods.noise import with_level
from stochgp.models import KernelGP
from stochgp.numerics.arrays import on_device
from stochgp.numerics.seeds import random_rows
from stochgp.posteriors.base import scale_of
from stochgp.posteriors.exact import COLUMNS, ExactKernelPosterior
from stochgp.posteriors.kernel import KernelSystem
from stochgp.posteriors.local import LocalPosterior
from stochgp.posteriors.sampled import SampledKernelPosterior
from stochgp.solvers.sizes import SMALL

ROWS_OF_GROUPS = 2000  # left out with their groups, of more than 3,000
# Rows by which two estimators of left-out variances are compared, and the mean logarithm that is too much: standard deviations off by a tenth cost 0.01 nats.
COMPARED_ROWS, APART = 1000, 0.2


def calibrated(posterior: Any, group: Int[np.ndarray, " N"] | None = None) -> tuple[Any, float]:
    """(The posterior with all variances c times as large, c); as it is, and 1, where nothing says how large c is.

    Rows of one `group` are left out together.
    """
    N = len(posterior.weights)
    rows = np.arange(N)
    if group is not None:
        rows, z = _without_groups(posterior, group)
        group = group[rows]
    else:
        if isinstance(posterior, ExactKernelPosterior):  # each row takes N² operations
            rows = random_rows(N, COLUMNS)
        z = posterior.errors_without(rows)
    if z is None:
        return posterior, 1.0
    scale = scale_of(np.square(z), posterior.system.weight[rows], group)
    return scaled(posterior, scale), scale


def consistent(posterior: SampledKernelPosterior) -> SampledKernelPosterior:
    """The posterior, its variances from samples alone where those of left-out rows are off by more than a fifth.

    With hardly any noise the samples' 1/Q_ii may be: what a solver leaves, and what the prior's random features leave out, is of the size of the noise then. The factor c holds
    for predictions whose variances are off as much. Variances that begin with near rows hardly are.
    """
    if posterior.n_neighbours == 0:
        return posterior
    rows, alone = random_rows(len(posterior.weights), COMPARED_ROWS, 0), posterior.left_out_variances
    if alone is None:
        return posterior
    apart = np.log(alone[rows] / posterior.left_out_variances_near(rows))
    return dataclasses.replace(posterior, n_neighbours=0) if abs(np.mean(apart)) > APART else posterior


def scaled(posterior: Any, c: float) -> Any:
    """The posterior for c k and c σ²: the same mean, and c times every variance. α becomes α/c, samples' A⁻¹(f₀ + ε) are divided by √c."""
    old = posterior.system
    system = KernelSystem(
        old.kernel.times(c), old.X, old.weight, with_level(old.noise, c * float(old.noise.level)), old.tile
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


def _without_groups(
    posterior: ExactKernelPosterior | SampledKernelPosterior, group: Int[np.ndarray, " N"]
) -> tuple[Int[np.ndarray, " P"], Float[np.ndarray, " P"] | None]:
    """(Rows, z = e_i/√V_i of each, predicted from the rows of other groups; None without targets)."""
    system, N = posterior.system, len(posterior.weights)
    if isinstance(posterior, ExactKernelPosterior) and N <= SMALL:
        alpha, rows = np.asarray(posterior.weights, np.float64)[:, 0], np.arange(N)
        e, V = np.empty(N), np.empty(N)
        for part, Q in _blocks_by_factor(posterior, group):
            B = np.linalg.inv(Q)
            e[part], V[part] = B @ alpha[part], np.diagonal(B)
        return rows, e / np.sqrt(system.variance_of_one(rows, V))
    if posterior.y is None:
        return np.arange(N), None
    gp = KernelGP(kernel=system.kernel, noise=system.noise)
    local = LocalPosterior(gp=gp, X=np.asarray(system.X), y=posterior.y, weight=system.weight)
    rows = random_rows(N, ROWS_OF_GROUPS, 0)
    every = Rows(local.X, local.y, local.weight, group)
    return rows, local.errors_of_left_out(rows, every, local.noise_variance)


def _blocks_by_factor(
    posterior: ExactKernelPosterior, group: Int[np.ndarray, " N"]
) -> Iterator[tuple[Int[np.ndarray, " g"], Float[np.ndarray, "g g"]]]:
    """(The rows of a group, Q_gg) for each: products of columns of L⁻¹, found for whole groups of about 500 rows together."""
    order, held = np.argsort(group, kind="stable"), []
    parts = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)
    for i, part in enumerate(parts):
        held.append(part)
        if sum(map(len, held)) < COLUMNS and i + 1 < len(parts):
            continue
        half, first = posterior.columns(np.concatenate(held)).astype(np.float64), 0
        for rows in held:
            own = half[:, first : first + len(rows)]
            yield rows, own.T @ own
            first += len(rows)
        held = []


def _divided(values: Any, c: Any) -> Any:
    return on_device(np.asarray(values) / np.asarray(c, values.dtype), values.dtype)
