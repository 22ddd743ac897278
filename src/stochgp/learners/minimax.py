"""MINIMAX: the marginal likelihood as a saddle-point problem with unbiased gradients."""

import dataclasses
import math
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from stochgp.data.rows import Data
from stochgp.learners import descent as optim
from stochgp.learners.base import AbstractBatchLearner, BatchState, Problem
from stochgp.learners.descent import Descent, Optimizer, Schedule, muon
from stochgp.learners.evaluators import CHUNK_BYTES
from stochgp.learners.evidence import ByEvidence, EvidenceEvaluation, refitted
from stochgp.learners.scgd import scaled_count
from stochgp.models import FeatureGP, features_and_noise, split
from stochgp.numerics.arrays import matmul
from stochgp.numerics.linalg import inverse_factor, symmetrise
from stochgp.parameters import in_parameters


class MinimaxState(BatchState):
    """The variables θ, w, A and B of `Minimax`, their bounds, and the optimisers' states."""

    weights: Float[Array, " M"]  # w, the weights of the scaled features
    A: Float[Array, "M M"]  # the variable that replaces F
    B: Float[Array, "M M"]  # the dual variable, ‖B‖ ≤ 1
    penalty: Float[Array, ""]  # μ
    threshold: Float[Array, ""]  # μ* at the last evaluation
    ceiling: Float[Array, ""]  # upper bound of the eigenvalues of A
    start: PyTree  # the parameters at the start, which are the centre of their box
    ascent: Descent  # the optimiser's state for B


class Minimax(AbstractBatchLearner):
    """Projected gradient descent-ascent on a saddle-point form of the marginal likelihood.

    Source: SCGD paper, Algorithm 1. Row i of the n rows has the target yᵢ and M scaled features φ̃ᵢ, and w
    are the weights of the features. The matrix A replaces F = Σ_i φ̃ᵢφ̃ᵢᵀ + σ²I. The matrix B is a dual
    variable. With Frobenius norms, the objective is

        Ψ(θ, w, A, B) = g(θ, w) + log|A| + μ⟨B, A − F(θ)⟩/‖A‖,
        g(θ, w) = Σ_i (φ̃ᵢᵀw − yᵢ)²/σ² + ‖w‖² + (n − M) log σ².

    The variables θ, w and A follow gradient descent on one batch. The variable B follows gradient ascent on
    an independent batch. A projection keeps ‖B‖ ≤ 1 and the eigenvalues of A between σ² and an upper bound.

    Parameters
    ----------
    batch_size, epochs, learning_rate, optimizer, decay, sampling, evaluator
        See `AbstractBatchLearner`. Each step uses two batches. Descent and ascent use the same optimizer.
    ascent_rate : float, function of the step, or None
        The learning rate of B; None = `learning_rate`.
    penalty : float or None
        The penalty μ. If `penalty` is None, μ is set to μ* = ‖F‖‖F⁻¹‖ at the start and, if `anchored`, at
        every evaluation. The penalty is locally exact only for μ ≥ μ*. With a smaller μ, such as 1 in the
        papers, log|F| has a weight of at most μ/μ* in the objective. The history contains μ/μ* as
        `penalty_share`.
    box : float
        Network weights and w stay between −box and box. Positive parameters change at most by a factor `box`.
    ceiling : float
        The upper bound of the eigenvalues of A, as a multiple of tr F at the start.
    anchored : bool
        An extension of the paper. If True, every evaluation sets A, w and B to exact values for all rows.
    """

    n_streams: ClassVar[int] = 2  # one batch for descent and one for ascent
    ascent_rate: float | Schedule | None = None
    penalty: float | None = None
    box: float = 1e4
    ceiling: float = 100.0
    optimizer: Optimizer = muon
    anchored: bool = True
    evaluator: ByEvidence = ByEvidence()

    def __check_init__(self) -> None:
        self.check_common()
        for name, least in (("penalty", 0), ("ceiling", 0), ("box", 1)):
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ValueError(f"{name} is {value}; it must be at least {least}")

    def peak_bytes(self, gp: FeatureGP, n_rows: int, n_inputs: int) -> int:
        drawn = self.sampling.peak_bytes(n_rows, n_inputs, 1, 1)
        return 4 * CHUNK_BYTES + 4 * 8 * gp.n_features**2 + 2 * drawn

    def init(self, gp: FeatureGP, problem: Problem, *, key: PRNGKeyArray) -> MinimaxState:
        dtype = gp.noise_variance.dtype
        M, (trainable, _) = gp.n_features, self._split(gp)
        zeros, A = jnp.zeros(M, dtype), jnp.eye(M, dtype=dtype) * gp.noise_variance.value
        penalty, threshold = (jnp.asarray(M if v is None else v, dtype) for v in (self.penalty, None))
        rate, total = optim.start_rate(self.learning_rate, problem.rate), problem.plan.total_steps
        start = eqx.filter(trainable, in_parameters(trainable))
        ascent = optim.begin(A, self.optimizer, optim.start_rate(self.ascent_rate, rate), total)
        begun = self.begin(gp, (trainable, zeros, A), problem, dtype=dtype)
        bounds = penalty, threshold, jnp.asarray(np.inf, dtype)
        return MinimaxState(*begun, zeros, A, jnp.zeros_like(A), *bounds, start, ascent)

    def step(
        self, state: MinimaxState, batch: Data, *, key: PRNGKeyArray
    ) -> tuple[MinimaxState, dict[str, Array]]:
        """Return the state after one step, and the metrics of the step.

        `batch` stacks two batches. "loss" estimates g/(2n), with n log σ² instead of (n − M) log σ².
        """
        first, second = (batch.take(i) for i in range(2))
        trainable, rest = self._split(state.gp)
        (Phi, s2, s), pull_back = jax.vjp(lambda t: features_and_noise(t, rest, first.X), trainable)
        counts = scaled_count(first, state.n_rows)
        weighted = counts / s
        residual = matmul(Phi, state.weights) - first.y
        norm, M = jnp.linalg.norm(state.A), state.weights.shape[0]
        pull = matmul(Phi, state.B) * (state.penalty / norm)  # μφᵀB/‖A‖ for each row

        by_Phi = 2 * weighted[:, None] * (jnp.outer(residual, state.weights) / s2 - pull)
        squares = jnp.sum(weighted * residual**2)
        trace_B = jnp.trace(state.B) * state.penalty / norm
        by_noise = (state.count - M - squares / s2) / s2 - trace_B
        by_s = weighted - weighted / s * (residual**2 / s2 - jnp.sum(pull * Phi, axis=1))
        (by_theta,) = pull_back((by_Phi, by_noise, by_s))
        by_w = 2 * (matmul(weighted * residual, Phi) / s2 + state.weights)
        B_F = jnp.sum(weighted[:, None] * pull * Phi) + s2 * trace_B  # μ⟨B, F̂⟩/‖A‖
        slope = (jnp.sum(state.B * state.A) * state.penalty / norm - B_F) / norm**2
        factor = inverse_factor(state.A)
        by_A = matmul(factor.T, factor) + state.B * (state.penalty / norm) - slope * state.A

        point, slopes = (trainable, state.weights, state.A), (by_theta, by_w, by_A)
        moved, descent = self.descend(point, slopes, state.descent)
        theta, w = self._in_box(moved[0], state.start), jnp.clip(moved[1], -self.box, self.box)
        gp = eqx.combine(theta, rest)
        A = project_spectrum(symmetrise(moved[2]), gp.noise_variance.value, state.ceiling)
        B, ascent = self._ascend(state, gp, A, second)
        levels = state.count * jnp.log(s2) + jnp.sum(counts * jnp.log(s))
        loss = (squares / s2 + jnp.sum(state.weights**2) + levels) / (2 * state.count)
        found = {"gp": gp, "weights": w, "A": A, "B": B, "descent": descent, "ascent": ascent}
        share = state.penalty / state.threshold
        numbers = {"loss": loss, "penalty_share": share}
        return dataclasses.replace(state, **found), numbers

    def after_evaluation(self, state: MinimaxState, evaluation: EvidenceEvaluation) -> MinimaxState:
        """Return the state with new μ* and bounds, and with exact A, B and w if `anchored`."""
        dtype, Q, s = state.weights.dtype, evaluation.spectrum.basis, evaluation.spectrum
        own = float(state.gp.variance), float(state.gp.noise_variance)
        variance, noise_variance = evaluation.fitted if self.anchored else own
        d = variance * s.eigenvalues + noise_variance
        threshold, first = np.linalg.norm(d) * np.linalg.norm(1 / d), not np.isfinite(float(state.ceiling))
        ceiling = self.ceiling * d.sum() if first else state.ceiling
        penalty = threshold if self.penalty is None and (first or self.anchored) else float(state.penalty)
        mu, least, most = (jnp.asarray(part, dtype) for part in (penalty, threshold, ceiling))
        state = dataclasses.replace(state, penalty=mu, threshold=least, ceiling=most)
        if not self.anchored:
            return state
        dual = -np.linalg.norm(d) / (d * max(penalty, 1e-30))
        dual = dual / max(1.0, float(np.linalg.norm(dual)))
        exact = Q @ (variance**0.5 * s.cross / d), (Q * d) @ Q.T, (Q * dual) @ Q.T
        weights, A, B = (jnp.asarray(part, dtype) for part in exact)
        return dataclasses.replace(state, gp=refitted(evaluation), weights=weights, A=A, B=B)

    def _split(self, gp: FeatureGP) -> tuple[FeatureGP, FeatureGP]:
        return split(gp, hold_variances=self.anchored and self.evaluator.refit)

    def _ascend(self, state: MinimaxState, gp: FeatureGP, A: Array, batch: Data) -> tuple[Array, Descent]:
        """Return B after a projected ascent step on `batch`, and the optimiser's state for B."""
        Phi, s2 = gp.scaled_features(batch.X), gp.noise_variance.value
        weighted = Phi * (scaled_count(batch, state.n_rows) / gp.noise.multiplier(batch.X))[:, None]
        F = matmul(Phi.T, weighted) + s2 * jnp.eye(A.shape[0], dtype=A.dtype)
        downhill = (F - A) * (state.penalty / jnp.linalg.norm(A))
        rule = self.learning_rate if self.ascent_rate is None else self.ascent_rate
        size = optim.step_size(state.ascent, rule, self.decay)
        B, ascent = optim.move(state.B, downhill, state.ascent, self.optimizer, size)
        B = symmetrise(B)
        return B / jnp.maximum(1.0, jnp.linalg.norm(B)).astype(B.dtype), ascent

    def _in_box(self, theta: FeatureGP, start: PyTree) -> FeatureGP:
        inside, outside = eqx.partition(theta, in_parameters(theta))
        reach = math.log(self.box)
        inside = jax.tree.map(lambda p, s: jnp.clip(p, s - reach, s + reach), inside, start)
        return eqx.combine(inside, jax.tree.map(lambda p: jnp.clip(p, -self.box, self.box), outside))


def project_spectrum(
    A: Float[Array, "M M"], floor: Float[Array, ""], ceiling: Float[Array, ""]
) -> Float[Array, "M M"]:
    """Clip the eigenvalues of A to [floor, ceiling]."""
    eye = jnp.eye(A.shape[0], dtype=A.dtype)

    def has_factor(S: Array) -> Array:
        return jnp.isfinite(jnp.linalg.cholesky(S)[-1, -1])

    def clip(S: Array) -> Array:
        values, basis = jnp.linalg.eigh(S)
        return symmetrise(matmul(basis * jnp.clip(values, floor, ceiling)[None], basis.T))

    low_enough = jax.lax.cond(
        jnp.linalg.norm(A) <= ceiling, lambda S: jnp.array(True), lambda S: has_factor(ceiling * eye - S), A
    )
    inside = low_enough & has_factor(A - floor * eye)
    return jax.lax.cond(inside, lambda S: S, clip, A)
