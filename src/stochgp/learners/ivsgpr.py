"""iVSGPR: stochastic mirror ascent on a coupled process whose functions grow from the rows."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.data.streams import Batch
from stochgp.learning.descent import Optimizer
from stochgp.learning.growing import TRIAL_RATES, AbstractGrowing, GrowingInfo, GrowingState, all_but_q, grown
from stochgp.learning.judge import AbstractJudge, ByLoss
from stochgp.learning.sampling import AbstractSampling, HeavyInAll
from stochgp.learning.schedules import InverseRoot, Schedule, at_step, constant
from stochgp.models import SparseGP
from stochgp.numerics.precision import matmul
from stochgp.objectives.elbo import Sites, sites
from stochgp.parameters import cast, value_of
from stochgp.variational import Decoupled
from stochgp.variational.functions import carried, check_mirror_rate, gram, mirror_covariance


class IVSGPR(AbstractGrowing):
    """Incremental variational sparse GP regression (Cheng and Boots 2016): mirror ascent on q, gradient ascent on the rest.

    In the coupled form, β = α, the inverse covariance of q is I + Ψ_α B Ψ_αᵀ, and it maps the mean to Ψ_α b, b = (I + BK)a. A mirror step of
    weight γ on a batch S, with the sites β_i, r_i of `objectives.elbo`, p_i = K⁻¹k(α, x_i) and c = N/B, mixes these with what the batch says:

        B ← (1−γ) B + γ c Σ_{i∈S} β_i p_i p_iᵀ,    b ← (1−γ) b + γ c Σ_{i∈S} r_i p_i,    a = (I + BK)⁻¹ b.

    For Gaussian noise β_i = ρ_i/σ² and r_i = ρ_i y_i/σ². It is the step of SVI, written without a basis; the proximal form of weight γ' has
    γ = γ'/(1 + γ'). B = LLᵀ stays positive semi-definite: L is the triangular factor of [√(1−γ) L, √(γcβ_i) p_i] by QR. New functions have
    a = 0 and no part in B, so q stays as it is. Then functions, kernel and likelihood follow the gradient of the bound, and b and B go with
    them: from functions α' to α they become Pb and PBPᵀ, P = K⁻¹k(α, α'), and a is (I + BK)⁻¹b again. (At fixed a, whose entries at
    functions that resemble each other are huge and alternate, the smallest move would change q beyond all bounds.) O(B M² + M³) per step.

    `converged`: all planned steps were taken, and the mean loss had settled (`ByLoss`).

    Parameters
    ----------
    batch_size : int
        B.
    epochs : int or None
        Passes of N/B steps; None = as many as make 2,048 steps.
    learning_rate : float, rule of the step, or None
        γ₀ of the gradient's γ_t = γ₀/(1 + `slowing` √t), times `decay`, or a rule of γ_t; None = by trials of 0.01, 0.03 and 0.1, or 0.01.
    mirror_rate : float or rule of the step
        γ.
    growth : int
        N_Δ, rows of a batch that become functions, while there is room.
    jitter : float
        On the diagonal of K where it is inverted, relative to k(x, x).
    slowing : float
        Factor of √t in γ_t of a numeric `learning_rate`.
    optimizer : function
        An optax rule for the gradient, as a function of its learning rate.
    decay : function
        Factor on γ_t of a numeric `learning_rate`, as a function of the fraction of the planned steps taken.
    sampling : AbstractSampling
        Which rows make a batch.
    judge : AbstractJudge or None
        How states are evaluated, and which rates are tried; None = `ByLoss()`, which tries none.
    """

    batch_size: int = 1024
    epochs: int | None = None
    learning_rate: float | Schedule | None = None
    mirror_rate: float | Schedule = InverseRoot(1.0, 1.0)
    growth: int = 128
    jitter: float = 1e-6
    slowing: float = 0.1
    optimizer: Optimizer = optax.adam
    decay: Schedule = constant
    sampling: AbstractSampling = HeavyInAll()
    judge: AbstractJudge | None = ByLoss(trial_rates=TRIAL_RATES)

    def __check_init__(self) -> None:
        self.check_growing()
        check_mirror_rate(self.mirror_rate)

    def partition(self, gp: SparseGP) -> tuple[SparseGP, SparseGP]:
        """Raises ValueError for functions of the covariance alone."""
        q: Any = gp.approximation
        if q.covariance_functions is not None:
            raise ValueError("IVSGPR learns coupled processes: the covariance has functions of its own here")
        return all_but_q(gp)

    def step(
        self, state: GrowingState, batch: Batch, *, key: PRNGKeyArray
    ) -> tuple[GrowingState, GrowingInfo]:
        gp = grown(state.gp, batch, self.growth)
        scale = state.n_rows / batch.y.shape[0]
        seen = sites(gp, batch, *gp.process().moments(batch.X))
        gamma = at_step(self.mirror_rate, state.descent.step)
        q = mirror_step(gp, batch.X, seen, scale, gamma, self.jitter)
        gp = eqx.tree_at(lambda g: g.approximation, gp, q)
        b = linear_part(gp)
        return self.ascend(gp, batch, state, None, lambda moved: with_parts(moved, q, b, self.jitter))


def mirror_step(
    gp: SparseGP, X: Float[Array, "B D"], seen: Sites, scale: Any, gamma: Any, jitter: float
) -> Decoupled:
    """q after the mirror step of weight γ towards the sites of the rows X, each `scale` c times. In float64 where it may be used."""
    given: Any = gp.approximation
    weight, linear = (scale.astype(part.dtype) * part[:, 0] for part in seen)
    K, P, L = mirror_covariance(given.mean_functions, gp.kernel, given.L, X, weight, gamma, jitter)
    gamma = jnp.asarray(gamma, K.dtype)
    b = (1 - gamma) * linear_part(gp) + gamma * matmul(P, linear.astype(K.dtype))
    return _with_mean(given, K, b, L)


def linear_part(gp: SparseGP) -> Float[Array, " P"]:
    """b = (I + BK)a. In float64 where it may be used."""
    q: Any = gp.approximation
    wide = jax.dtypes.canonicalize_dtype(jnp.float64)
    a, L = q.a.astype(wide), q.L.astype(wide)
    K = gram(cast(q.mean_functions, wide), cast(value_of(gp.kernel), wide))
    return a + matmul(L, matmul(L.T, matmul(K, a)))


def with_parts(gp: SparseGP, before: Decoupled, b: Float[Array, " P"], jitter: float) -> SparseGP:
    """The model whose functions and kernel have moved, with what b and the L of `before` say by the functions of then (`mirror.carried`)."""
    q: Any = gp.approximation
    parts = jnp.concatenate([b[:, None], before.L.astype(b.dtype)], axis=1)
    moved = carried(q.mean_functions, gp.kernel, before.mean_functions, parts, jitter)
    K = gram(cast(q.mean_functions, b.dtype), cast(value_of(gp.kernel), b.dtype))
    return eqx.tree_at(lambda g: g.approximation, gp, _with_mean(q, K, moved[:, 0], moved[:, 1:]))


def _with_mean(
    q: Decoupled, K: Float[Array, "P P"], b: Float[Array, " P"], L: Float[Array, "P P"]
) -> Decoupled:
    """q with this L and a = (I + LLᵀK)⁻¹b."""
    H = jnp.eye(K.shape[0], dtype=K.dtype) + matmul(L.T, matmul(K, L))
    a = b - matmul(L, cho_solve((jnp.linalg.cholesky(H), True), matmul(L.T, matmul(K, b))))
    return Decoupled(q.mean_functions, a.astype(q.weights.dtype), None, L.astype(q.weights.dtype))
