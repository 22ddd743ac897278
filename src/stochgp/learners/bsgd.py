"""BSGD: mini-batch gradient descent on the marginal likelihood of the batches; with neighbours as batches, sgGP."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.data.streams import Batch
from stochgp.learning.base import Problem
from stochgp.learning.descent import Descent, Optimizer, begin, move, start_rate, step_size
from stochgp.learning.judge import AbstractJudge, Numbers
from stochgp.learning.sampling import AbstractSampling, NearestNeighbours, Uniform, row_bytes
from stochgp.learning.schedules import Schedule, cosine
from stochgp.learning.step_plan import CHUNK_BYTES, StepPlan
from stochgp.learning.steps import AbstractBatchLearner
from stochgp.models import AbstractGP
from stochgp.numerics.linalg import invert_lower, safe_cholesky
from stochgp.numerics.precision import matmul
from stochgp.parameters import partition, value_of

RATE = 0.01
STEPS = 4096


class BSGDState(eqx.Module):
    """What a step carries on: the model and its descent."""

    gp: AbstractGP
    descent: Descent


class BSGDInfo(NamedTuple):
    """What a step says."""

    loss: Float[Array, ""]  # NLML per datum of the batch
    jitter: Float[Array, ""]  # added to the diagonal of A_S to factorise it


class BSGD(AbstractBatchLearner):
    """Mini-batch gradient descent on the NLML per datum of the batches (SCGD paper, 4.2; sgGP: Chen et al. 2020, algorithm 1).

    With A = k(X_S, X_S) + Σ_S of the B rows of a batch, the gradient by a parameter θ_l is

        g_l = tr[A⁻¹(I − y_S y_Sᵀ A⁻¹) ∂A/∂θ_l] / (2 s_l),   s_l = B;  with `signal_scale` τ, s_l = τ log B for the kernel's variances.

    O(B³ + B²D) per step, for feature GPs O(B³ + B²M). The batch likelihood is a proper likelihood of B rows: for data drawn from the model
    the gradient is zero on average at the true θ. Its expectation over batches is not the gradient of all rows' likelihood; the bias shrinks
    with B. A feature GP's closing refit mends its two variances, not the features.

    Batches of nearest neighbours show short lengthscales and small noise. Rows drawn uniformly are too far apart for that. On five UCI sets
    batches of 128 neighbours predicted better than the paper's 16, by much on some. 4,000 steps did as well as more.

    `converged`: see the judges, `ByEvidence` and `ByLoss`.

    Parameters
    ----------
    batch_size : int
        B; all rows where there are fewer. sgGP's paper has 16.
    epochs : int or None
        Passes of N/B steps; None = as many as suit the judge: 4,096 steps by loss.
    learning_rate : float, rule of the step, or None
        On the unconstrained parameters; None = by short trials where the judge has rates to try, else 0.01. `PowerLaw(α₁, 1.0)` with `optax.sgd` is the
        α₁/k of sgGP's paper.
    optimizer : function
        An optax rule, as a function of its learning rate.
    decay : function
        Factor on a numeric rate, as a function of the fraction of the planned steps taken: a cosine to 0.
    sampling : AbstractSampling or None
        Which rows make a batch; None = `Uniform()` for feature GPs and for kernels that have no places by which nearest rows are found, else
        `NearestNeighbours()`.
    signal_scale : float or None
        τ; None = s_l = B throughout. The theory of sgGP and its recovery of parameters take τ = 3.
    judge : AbstractJudge or None
        How states are evaluated; None = `ByEvidence()` for feature GPs, `ByLoss()` for others.
    """

    batch_size: int = 128
    epochs: int | None = None
    learning_rate: float | Schedule | None = None
    optimizer: Optimizer = optax.adam
    decay: Schedule = cosine
    sampling: AbstractSampling | None = None
    signal_scale: float | None = None
    judge: AbstractJudge | None = None

    def __check_init__(self) -> None:
        self.check_common()
        if self.signal_scale is not None and not (0 < self.signal_scale < math.inf and self.batch_size > 1):
            raise ValueError(
                f"signal_scale is {self.signal_scale} for batches of {self.batch_size}; it must be positive and finite, the batch above 1"
            )

    def sampling_for(self, gp: AbstractGP) -> AbstractSampling:
        """The sampling given, or the one that suits the model."""
        if self.sampling is not None:
            return self.sampling
        kernel = None if gp.has_moments else value_of(getattr(gp, "kernel", None))
        return NearestNeighbours() if getattr(kernel, "has_places", not gp.has_moments) else Uniform()

    def plan(self, n_rows: int, n_inputs: int, judge: AbstractJudge) -> StepPlan:
        return judge.plan_steps(n_rows, row_bytes(n_inputs), self.batch_size, self.epochs, STEPS)

    def need_bytes(self, gp: AbstractGP, n_rows: int, n_inputs: int) -> int:
        """Neighbours, batches, and matrices of a batch."""
        B, per_epoch = min(self.batch_size, n_rows), max(1, n_rows // self.batch_size)
        n_steps = STEPS if self.epochs is None else self.epochs * per_epoch
        drawn = self.sampling_for(gp).need_bytes(n_rows, n_inputs, B, n_steps)
        return drawn + 3 * CHUNK_BYTES + 8 * 8 * B**2

    def init(self, gp: AbstractGP, problem: Problem, *, key: PRNGKeyArray) -> BSGDState:
        rate = start_rate(self.learning_rate, RATE if problem.rate is None else problem.rate)
        return BSGDState(gp, begin(partition(gp)[0], self.optimizer, rate, problem.plan.total_steps))

    @property
    def unread(self) -> dict[str, Any]:
        return {"batch_size": 2, "judge": None, "sampling": None}

    def exactness(self, entry: Numbers) -> tuple[str, str]:
        return "biased", "of the likelihood of each batch: rows of different batches count as unrelated"

    def step(self, state: BSGDState, batch: Batch, *, key: PRNGKeyArray) -> tuple[BSGDState, BSGDInfo]:
        trainable, rest = partition(state.gp)
        info, gradient = batch_gradient(trainable, rest, batch, self.signal_scale)
        size = step_size(state.descent, self.learning_rate, self.decay)
        theta, descent = move(trainable, gradient, state.descent, self.optimizer, size)
        return BSGDState(eqx.combine(theta, rest), descent), info


def batch_gradient(
    trainable: AbstractGP, rest: AbstractGP, batch: Batch, signal_scale: float | None = None
) -> tuple[BSGDInfo, AbstractGP]:
    """(NLML per datum of the batch, g): the gradient by automatic differentiation of A only, its cotangent written out."""
    B = batch.y.shape[0]
    A, pull_back = jax.vjp(lambda t: _covariance(eqx.combine(t, rest), batch), trainable)
    L, jitter = safe_cholesky(A)
    inverse = invert_lower(L)
    Q = matmul(inverse.T, inverse)
    a = matmul(Q, batch.y)
    (gradient,) = pull_back((Q - jnp.outer(a, a)) / (2 * B))
    loss = matmul(a, batch.y) + 2 * jnp.sum(jnp.log(jnp.diagonal(L)))
    loss = 0.5 * (loss / B + jnp.log(2 * jnp.pi).astype(loss.dtype))
    if signal_scale is not None:
        gradient = _scale_signal(gradient, B / (signal_scale * math.log(max(B, 2))))
    return BSGDInfo(loss, jitter), gradient


def _covariance(gp: Any, batch: Batch) -> Float[Array, "B B"]:
    """A of the batch, of a model that has `covariance`, as both of `models` have."""
    return gp.covariance(batch.X, batch.weight)


def _scale_signal(gradient: AbstractGP, factor: float) -> AbstractGP:
    """The gradient with the entries of every kernel's `variance` multiplied by `factor`."""

    def scale(path: tuple, leaf: Array) -> Array:
        is_signal = any(getattr(part, "name", None) == "variance" for part in path)
        return leaf * factor if is_signal else leaf

    return jax.tree_util.tree_map_with_path(scale, gradient)
