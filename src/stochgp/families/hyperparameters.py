"""Kernel GPs of few rows: a mixture over their uncertain hyperparameters θ.

With the learner's normal prior, of standard deviation 1 for unconstrained numbers, the penalised negative log likelihood of Σρ rows is
l(θ) = L(θ) − gᵀ(θ − θ̂) + ½‖θ − θ̂‖², g = ∇L(θ̂), up to a constant: θ̂ minimises it. Let H = F + I, F the Fisher information of L. Then
    θ_s = θ̂ + H^(−½)ξ_s,   w_s ∝ exp(−l(θ_s) + ½‖ξ_s‖²),   ξ_s ~ N(0, I) in antithetic pairs,

w_s at most their 90 % quantile. As H ≥ I, a direction without information moves by 1. θ contains the kernel's trainable parameters and the noise level.

Targets are standardised by their own mean and variance. A new target of n + 1 equally distributed ones has on average (n + 1)/(n − 1) times the squared
distance from that mean, in units of that variance. All variances are therefore multiplied by that factor, unless the noise was given.
"""

import contextlib
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Float

from stochgp.context import FitContext
from stochgp.data.rows import Data
from stochgp.kernels import dense
from stochgp.models import KernelGP
from stochgp.numerics.arrays import packed, unpacked_alike
from stochgp.objectives.kernel import nlml_and_gradient
from stochgp.parameters import Frozen, cast, in_parameters, value_of
from stochgp.posteriors import ExactKernelPosterior, MixturePosterior
from stochgp.posteriors.exact import exact_at

FEWEST_ROWS, MOST_PARAMETERS, DRAWS = 3, 64, 32
# Rows up to which θ is drawn, and up to which it is drawn with fewer than FEW_ROWS rows per parameter: 300 rows of 20 inputs had 92.8 % in their 95 %
# intervals without draws. 350 rows of 10 inputs (diabetes) gained 0.005 nats for five times the seconds.
MOST_ROWS, MOST_ROWS_OF_MANY, FEW_ROWS = 200, 400, 20
QUANTILE, LEAST_SHARE = 0.9, 1e-3  # of weights, cut above it; of the mean, dropped below it
STEP = 1e-5  # of finite differences of unconstrained parameters


class Theta(NamedTuple):
    """The trainable parameters of a kernel and of its noise level as a vector, and the rest."""

    theta: Any
    rest: Any

    @classmethod
    def of(cls, gp: KernelGP) -> "Theta":
        parts = cast((gp.kernel, gp.noise.level), np.float64)
        return cls(*eqx.partition(parts, in_parameters(parts)))

    @property
    def x(self) -> Float[np.ndarray, " P"]:
        return packed(self.theta)

    def at(self, x: Float[np.ndarray, " P"]) -> tuple[Any, float]:
        """Return the kernel and the noise level for these numbers."""
        kernel, level = eqx.combine(unpacked_alike(x, self.theta), self.rest)
        return value_of(kernel), float(level)


def integrated(posterior: Any, gp: KernelGP, grouped: bool, context: FitContext) -> Any:
    """Return the mixture around the θ̂ of `gp`, or the posterior; record the decision."""
    reason, need = None, 0
    if not isinstance(posterior, ExactKernelPosterior) or grouped:
        reason = "others are drawn of an exact posterior, without groups"
    elif len(posterior.weights) > MOST_ROWS_OF_MANY:
        reason = f"others are drawn of up to {MOST_ROWS_OF_MANY} rows"
    else:
        n_rows, n = len(posterior.weights), float(posterior.system.weight.sum())
        x = (theta := Theta.of(gp)).x
        need = 8 * n_rows**2 * (DRAWS + len(x))
        most_rows = MOST_ROWS_OF_MANY if n_rows < FEW_ROWS * len(x) else MOST_ROWS
        if min(n_rows, n) < FEWEST_ROWS or n_rows > most_rows or not 0 < len(x) <= MOST_PARAMETERS:
            rows = f"{FEWEST_ROWS} to {MOST_ROWS} rows, up to {MOST_ROWS_OF_MANY} if they are fewer than {FEW_ROWS} for each number"
            reason = f"others are drawn of {rows}, and of up to {MOST_PARAMETERS} numbers"
    if refusal := context.refusal(reason, need):
        context.record("hyperparameters", 1, f"the learned values: {refusal}")
        return posterior
    found = _mixture(posterior, gp, theta)
    if found is posterior:
        why = "the learned values: hardly any other has a factor, or the kernel has no variance"
        context.record("hyperparameters", 1, why)
    else:
        why = f"draws predict together, {n:g} rows leave {len(x)} numbers uncertain"
        context.record("hyperparameters", len(found.parts), why)
    return found


def _mixture(posterior: ExactKernelPosterior, gp: KernelGP, theta: Theta) -> Any:
    """Return the mixture over θ_s; the posterior if hardly any θ_s has a factor."""
    n, x = float(posterior.system.weight.sum()), theta.x
    xi = np.random.default_rng(0).normal(size=(DRAWS // 2, len(x)))
    xi = np.concatenate([xi, -xi])
    values, vectors = np.linalg.eigh(information(posterior, theta) + np.eye(len(x)))
    away = xi @ (vectors / np.sqrt(values) @ vectors.T)  # the symmetric root: signs of vectors do not matter
    c = 1.0 if isinstance(gp.noise.level, Frozen) else (n + 1) / (n - 1)
    parts = [_scaled(posterior, *theta.at(x + step), c) for step in away]
    # The likelihood without c is the likelihood of these parts plus (c − 1)/2 times their explained sum.
    loss = [np.nan if part is None else n * part.nlml() + (c - 1) / 2 * part.explained for part in parts]
    loss = loss + (np.square(away) - np.square(xi)).sum(axis=1) / 2 - away @ slope(posterior, gp)
    loss = np.where(np.isfinite(loss), loss, np.inf)
    least = np.quantile(loss, 1 - QUANTILE, method="higher")
    if least == np.inf:
        return posterior
    share = np.exp(least - np.maximum(loss, least))
    kept = np.flatnonzero(share > LEAST_SHARE * share.mean())
    shares = share[kept] / share[kept].sum()
    return MixturePosterior(posterior, tuple(part for s in kept if (part := parts[s]) is not None), shares)


def slope(posterior: ExactKernelPosterior, gp: KernelGP) -> Float[np.ndarray, " P"]:
    """Return ∇L of the posterior's rows at the θ of `gp`."""
    system = posterior.system
    rows = Data(*map(np.asarray, (system.X, posterior.y, system.weight)))
    by = nlml_and_gradient(cast(gp, np.float64), rows).gradient
    mask = in_parameters((gp.kernel, gp.noise.level))
    return packed(eqx.filter((by.kernel, by.noise.level), mask)) * float(system.weight.sum())


def information(posterior: ExactKernelPosterior, theta: Theta) -> Float[np.ndarray, "P P"]:
    """Return F_ij = ½ tr(A⁻¹ ∂_iA A⁻¹ ∂_jA) + ½ Σ(ρ − 1) ∂_i log σ² ∂_j log σ²."""
    system, x = posterior.system, theta.x
    X, noise, level = np.asarray(system.X, np.float64), system.row_noise, theta.at(x)[1]
    upper = lambda kernel: np.triu(dense.upper(kernel, X, np.float64))
    K, half = upper(system.kernel), posterior.factor.half
    W, by_level = np.empty((len(x), len(X) ** 2)), np.empty(len(x))
    for j, step in enumerate(STEP * np.eye(len(x))):
        kernel, other = theta.at(x + step)
        by_level[j] = (other / level - 1) / STEP
        D = (upper(kernel) - K) / STEP
        D = D + np.triu(D, 1).T + np.diag(noise * by_level[j])
        W[j] = half(half(D).T.copy()).ravel()
    repeated = float(np.sum(system.weight - 1))
    return (W @ W.T + repeated * np.outer(by_level, by_level)) / 2


def _scaled(
    posterior: ExactKernelPosterior, kernel: Any, level: float, c: float
) -> ExactKernelPosterior | None:
    """Return the posterior for c k and c σ²; None if A has no factor."""
    with contextlib.suppress(ValueError):
        return exact_at(posterior, kernel.times(c), c * level)
