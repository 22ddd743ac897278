"""SCGD: stochastic compositional gradient descent on the marginal likelihood."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.data.rows import Data
from stochgp.learners.base import AbstractBatchLearner, BatchState, Problem
from stochgp.learners.descent import Optimizer, Schedule, at_step, muon
from stochgp.learners.evaluators import CHUNK_BYTES
from stochgp.learners.evidence import ByEvidence, EvidenceEvaluation, refitted
from stochgp.models import FeatureGP, features_and_noise, split
from stochgp.numerics.arrays import matmul, on_device
from stochgp.numerics.linalg import inverse_factor


class SCGDState(BatchState):
    """The parameters θ, the weights w, and the tracker F̃ with its factor."""

    weights: Float[Array, " M"]  # w, the weights of the scaled features
    F: Float[Array, "M M"]  # the tracker F̃, an estimate of F = Φ̃ᵀΦ̃ + σ²I
    factor: Float[Array, "M M"]  # L⁻¹, where F̃ = LLᵀ


class SCGD(AbstractBatchLearner):
    """Stochastic compositional gradient descent on the marginal likelihood.

    Source: SCGD paper, Algorithm 2. The objective is ℓ(θ) = yᵀK⁻¹y + log|K|. A batch S has B of the n rows.
    The matrix Φ̃_S [B, M] contains the M scaled features of the rows, and w contains the weights of the
    features. With F̂ = (n/B)Φ̃_SᵀΦ̃_S + σ²I, one step is

        F̃ ← (1 − b)F̃ + bF̂
        G = (n/B) Σ_{i∈S} ∇[(φ̃ᵢᵀw − yᵢ)²/σ² + φ̃ᵢᵀPφ̃ᵢ] + ∇[‖w‖² + (n − M) log σ² + σ² tr P]
        θ ← θ − a G.

    The gradient treats P = F̃⁻¹ as constant. The last line of the step applies to `optax.sgd`; other
    optimizers replace this line.

    If row i has the weight ρ_i and the noise variance σ²s_i/ρ_i, the terms of row i have the factor ρ_i/s_i.
    The objective then also contains Σ_i ρ_i log s_i. The parameters of the relative noise variances s_i are
    trained together with the features.

    Parameters
    ----------
    batch_size, epochs, learning_rate, optimizer, decay, sampling, evaluator
        See `AbstractBatchLearner`. `learning_rate` is the step size a in the formula above.
    tracking : float or function of the step
        The averaging rate b, between 0 and 1. If b = 0, only evaluations change F̃. The bias of the gradient
        tends to 0 only as b → 0.
    anchored : bool
        An extension of the paper. If True, every evaluation sets F̃ and w to their exact values for all rows.
        The evaluation also sets `variance` and `noise_variance` to their optimum unless `evaluator.refit` is
        False. With `tracking=0`, the steps between evaluations minimise an upper bound of ℓ. The gradient of
        this bound is unbiased at any batch size.
    """

    batch_size: int = 512
    tracking: float | Schedule = 0.0
    optimizer: Optimizer = muon
    anchored: bool = True
    evaluator: ByEvidence = ByEvidence()

    def __check_init__(self) -> None:
        self.check_common()
        if not callable(self.tracking) and not 0 <= self.tracking <= 1:
            raise ValueError(f"tracking is {self.tracking}; it must be between 0 and 1")
        if not self.tracks and not self.anchored:
            raise ValueError("tracking=0 requires anchored=True, because F̃ would never change otherwise")

    @property
    def tracks(self) -> bool:
        return callable(self.tracking) or self.tracking > 0

    def peak_bytes(self, gp: FeatureGP, n_rows: int, n_inputs: int) -> int:
        return 2 * CHUNK_BYTES + 4 * 8 * gp.n_features**2 + self.sampling.peak_bytes(n_rows, n_inputs, 1, 1)

    def init(self, gp: FeatureGP, problem: Problem, *, key: PRNGKeyArray) -> SCGDState:
        M, dtype = gp.n_features, gp.noise_variance.dtype
        s2 = np.asarray(gp.noise_variance)
        eye, zeros = np.eye(M, dtype=dtype), on_device(np.zeros(M, dtype))
        begun = self.begin(gp, (self._split(gp)[0], zeros), problem, dtype=dtype)
        return SCGDState(*begun, zeros, F=on_device(eye * s2), factor=on_device(eye / np.sqrt(s2)))

    def step(self, state: SCGDState, batch: Data, *, key: PRNGKeyArray) -> tuple[SCGDState, dict[str, Array]]:
        """Return the state after one step, and the metrics of the step.

        "loss" estimates ℓ/(2n) without constants and without log|F/σ²|. "factor_failed" is 1 if the Cholesky
        factorisation of F̃ failed and the step used the previous factor.
        """
        trainable, rest = self._split(state.gp)
        (Phi, s2, s), pull_back = jax.vjp(lambda t: features_and_noise(t, rest, batch.X), trainable)
        counts = scaled_count(batch, state.n_rows)
        weights = counts / s
        F, factor, failed = state.F, state.factor, jnp.zeros((), Phi.dtype)
        if self.tracks:
            b = jnp.asarray(at_step(self.tracking, state.descent.step), Phi.dtype)
            moments = matmul(Phi.T, Phi * weights[:, None]) + s2 * jnp.eye(Phi.shape[1], dtype=Phi.dtype)
            F = (1 - b) * state.F + b * moments  # F̂ = (n/B) Σ ωφφᵀ + σ²I
            factor = inverse_factor(F)
            works = jnp.isfinite(factor[-1, -1])
            factor, failed = jnp.where(works, factor, state.factor), jnp.where(works, failed, failed + 1)
        w = state.weights

        residual = matmul(Phi, w) - batch.y  # [B]
        smoothed = matmul(matmul(Phi, factor.T), factor)  # φᵀF̃⁻¹ for each row, [B, M]
        by_Phi = 2 * weights[:, None] * (jnp.outer(residual, w) / s2 + smoothed)
        squares = jnp.sum(weights * residual**2)
        trace = jnp.sum(factor**2)
        by_noise = (state.count - w.shape[0] - squares / s2) / s2 + trace
        zeta = residual**2 / s2 + jnp.sum(smoothed * Phi, axis=1)
        by_s = counts / s - weights / s * zeta
        (by_theta,) = pull_back((by_Phi, by_noise, by_s))
        by_w = 2 * (matmul(weights * residual, Phi) / s2 + w)

        (theta, w_next), descent = self.descend((trainable, w), (by_theta, by_w), state.descent)
        levels = state.count * jnp.log(s2) + jnp.sum(counts * jnp.log(s))
        loss = (squares / s2 + jnp.sum(w**2) + levels) / (2 * state.count)
        gp = eqx.combine(theta, rest)
        new = dataclasses.replace(state, gp=gp, descent=descent, weights=w_next, F=F, factor=factor)
        return new, {"loss": loss, "factor_failed": failed}

    def after_evaluation(self, state: SCGDState, evaluation: EvidenceEvaluation) -> SCGDState:
        """Return the state with refitted variances and exact F̃ and w if `anchored` is True."""
        if not self.anchored:
            return state
        dtype, (variance, noise_variance) = state.weights.dtype, evaluation.fitted
        d = variance * evaluation.spectrum.eigenvalues + noise_variance
        Q, c = evaluation.spectrum.basis, variance**0.5 * evaluation.spectrum.cross
        exact = Q @ (c / d), (Q * d) @ Q.T, (Q / d**0.5).T  # any R with RᵀR = F⁻¹ is a factor
        weights, F, factor = (on_device(part, dtype) for part in exact)
        return dataclasses.replace(state, gp=refitted(evaluation), weights=weights, F=F, factor=factor)

    def _split(self, gp: FeatureGP) -> tuple[FeatureGP, FeatureGP]:
        return split(gp, hold_variances=self.anchored and self.evaluator.refit)


def scaled_count(batch: Data, n_rows: Array) -> Array:
    """Return (n/B) ρ, the weight of a batch's rows in the estimate of a sum over all n rows."""
    return (n_rows / batch.y.shape[0]) * batch.weight
