"""BSGD: mini-batch gradient descent on the marginal likelihood of the batches."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.data.streams import Rows
from stochgp.learners.base import AbstractLearner, Planned
from stochgp.learners.descent import Descent, Optimizer, begin, move, slowed, step_size
from stochgp.learners.kernel_bsgd import KernelBSGD
from stochgp.learners.sampling import NearestNeighbours, Uniform
from stochgp.learners.schedules import Schedule, cosine
from stochgp.models import FeatureGP, features_and_noise, split
from stochgp.numerics.precision import matmul
from stochgp.numerics.small_matrices import safe_cholesky
from stochgp.objectives.feature import Spectrum

SMALLEST_WEIGHT = 1e-9


class BSGDState(eqx.Module):
    gp: FeatureGP
    descent: Descent


class BSGDInfo(NamedTuple):
    loss: Float[Array, ""]  # NLML per datum of the batch
    jitter: Float[Array, ""]  # added to the diagonal of K_SS + σ²I to factorise it


class BSGD(AbstractLearner):
    """Mini-batch gradient descent on y_Sᵀ Q y_S + log|K_SS + σ²I|, Q = (K_SS + σ²I)⁻¹ (algorithms of SCGD's and sgGP's baselines).

    With C = Q − Q y_S y_Sᵀ Q:  ∂Φ̃_S = 2CΦ̃_S,  ∂σ² = tr C. O(B³ + B²M) per step. The batch likelihood is a proper likelihood of B
    rows: for data drawn from the model the gradient is zero on average at the true θ. Yet its expectation over batches is not the
    gradient of all rows' likelihood; the bias shrinks with B.
    The closing refit mends the two variances, not the features. `learning_rate` is in this scaling (a sum over the batch).
    For kernel GPs, see `for_kernels`.

    `converged`: all planned steps were taken and the criterion's best value improved by less than 0.01 nats per datum over the last
    tenth of the visits.
    """

    batch_size: int = 128
    epochs: int | None = None
    learning_rate: float | Schedule | None = None
    optimizer: Optimizer = optax.adam
    decay: Schedule = cosine
    refit: bool = True
    validation_fraction: float = 0.1
    replace: bool = False

    def __check_init__(self) -> None:
        self.check_common()

    def for_kernels(self) -> KernelBSGD:
        """The learner of kernel GPs with these batches, epochs, rates and rule: neighbours, or with `replace` uniform batches.

        `refit` and `validation_fraction` have no part in it: a kernel GP has no cheap exact criterion. A `learning_rate` is there per
        datum of the batch, which matters to plain SGD, not to Adam.
        """
        sampling = Uniform(replace=True) if self.replace else NearestNeighbours()
        return KernelBSGD(
            self.batch_size, self.epochs, self.learning_rate, self.optimizer, self.decay, sampling
        )

    @property
    def batches_per_step(self) -> int:
        return 1

    @property
    def anchors(self) -> bool:
        return False

    def init(self, gp: FeatureGP, planned: Planned, *, key: PRNGKeyArray) -> BSGDState:
        trainable, _ = split(gp)
        return BSGDState(gp, begin(trainable, self.optimizer, planned.rate, planned.total_steps))

    def step(self, state: BSGDState, batch: Rows, *, key: PRNGKeyArray) -> tuple[BSGDState, BSGDInfo]:
        trainable, rest = split(state.gp)
        (Phi, s2), pull_back = jax.vjp(lambda t: features_and_noise(t, rest, batch.X), trainable)
        spread = 1 / jnp.maximum(batch.weight, SMALLEST_WEIGHT)  # a row of weight ρ has noise σ²/ρ
        K = matmul(Phi, Phi.T) + jnp.diag(s2 * spread)
        L, jitter = safe_cholesky(K)
        Q = cho_solve((L, True), jnp.eye(len(batch.y), dtype=K.dtype))
        a = matmul(Q, batch.y)
        C = Q - jnp.outer(a, a)
        (gradient,) = pull_back((2 * matmul(C, Phi), jnp.sum(jnp.diagonal(C) * spread)))
        size = step_size(state.descent, self.learning_rate, self.decay)
        theta, descent = move(trainable, gradient, state.descent, self.optimizer, size)
        loss = jnp.dot(a, batch.y) + 2 * jnp.sum(jnp.log(jnp.diagonal(L)))
        loss = 0.5 * (loss / len(batch.y) + jnp.log(2 * jnp.pi).astype(loss.dtype))
        return BSGDState(eqx.combine(theta, rest), descent), BSGDInfo(loss, jitter)

    def anchor(
        self, state: BSGDState, gp: FeatureGP, spectrum: Spectrum, variance: float, noise_variance: float
    ) -> BSGDState:
        return state

    def model(self, state: BSGDState) -> FeatureGP:
        return state.gp

    def slower(self, state: BSGDState, factor: float) -> BSGDState:
        return eqx.tree_at(lambda s: s.descent, state, slowed(state.descent, factor))

    def finished(self, info: dict[str, float]) -> bool:
        return False
