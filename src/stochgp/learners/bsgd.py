"""BSGD: mini-batch descent on the marginal likelihood of each batch."""

import dataclasses
import math
from typing import Any, ClassVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from stochgp.data.rows import Data
from stochgp.learners.base import AbstractBatchLearner, BatchState, Problem
from stochgp.learners.descent import NearestNeighbours, Uniform
from stochgp.learners.evaluators import CHUNK_BYTES
from stochgp.models import AbstractGP
from stochgp.numerics.arrays import matmul
from stochgp.numerics.linalg import invert_lower, safe_cholesky
from stochgp.parameters import partition, value_of

RATE = 0.01


class BSGD(AbstractBatchLearner):
    """Mini-batch gradient descent on the NLML per datum of each batch.

    Sources: SCGD paper, section 4.2; sgGP paper (Chen et al. 2020), Algorithm 1. The B rows X_S of a batch
    have targets y_S with the covariance A = k(X_S, X_S) + noise. The gradient for a parameter θ_l is

        g_l = tr[A⁻¹(I − y_S y_Sᵀ A⁻¹) ∂A/∂θ_l] / (2B).

    For D inputs, a step takes O(B³ + B²D) time; for a feature GP with M features, it takes O(B³ + B²M) time.
    The gradient is a biased estimate of the gradient on all rows; the bias decreases as B grows. Batches of
    nearest neighbours identify short lengthscales and small noise better than batches of uniformly drawn
    rows, which are far apart.

    Parameters
    ----------
    batch_size, epochs, learning_rate, optimizer, decay, evaluator
        See `AbstractBatchLearner`. With `ByLoss`, the default number of steps is 4,096.
    sampling : Uniform, NearestNeighbours or None
        The method that selects the rows of a batch. If `sampling` is None, it is `NearestNeighbours()` for
        kernels whose correlations decrease with distance, else `Uniform()`.
    signal_scale : float or None
        If `signal_scale` is a number τ, the gradient for a variance of the kernel is divided by 2τ log B
        instead of 2B. The theory of sgGP uses τ = 3.
    """

    steps: ClassVar[int] = 4096
    batch_size: int = 128
    sampling: Uniform | NearestNeighbours | None = None
    signal_scale: float | None = None

    def __check_init__(self) -> None:
        self.check_common()
        if self.signal_scale is not None and not (0 < self.signal_scale < math.inf and self.batch_size > 1):
            raise ValueError(
                f"signal_scale is {self.signal_scale} and batch_size is {self.batch_size}; signal_scale must be positive and finite, and batch_size must be at least 2"
            )

    def sampling_for(self, gp: AbstractGP) -> Any:
        if self.sampling is not None:
            return self.sampling
        kernel = None if gp.has_moments else value_of(getattr(gp, "kernel", None))
        return NearestNeighbours() if getattr(kernel, "has_places", not gp.has_moments) else Uniform()

    def peak_bytes(self, gp: AbstractGP, n_rows: int, n_inputs: int) -> int:
        B, per_epoch = min(self.batch_size, n_rows), max(1, n_rows // self.batch_size)
        n_steps = self.steps if self.epochs is None else self.epochs * per_epoch
        drawn = self.sampling_for(gp).peak_bytes(n_rows, n_inputs, B, n_steps)
        return drawn + 3 * CHUNK_BYTES + 8 * 8 * B**2

    def init(self, gp: AbstractGP, problem: Problem, *, key: PRNGKeyArray) -> BatchState:
        return BatchState(*self.begin(gp, partition(gp)[0], problem, RATE))

    def step(
        self, state: BatchState, batch: Data, *, key: PRNGKeyArray
    ) -> tuple[BatchState, dict[str, Array]]:
        """Return the state after one step, and two metrics: NLML per datum, and jitter added to A."""
        trainable, rest = partition(state.gp)
        info, gradient = batch_gradient(trainable, rest, batch, self.signal_scale)
        theta, descent = self.descend(trainable, gradient, state.descent)
        return dataclasses.replace(state, gp=eqx.combine(theta, rest), descent=descent), info


def batch_gradient(
    trainable: AbstractGP, rest: AbstractGP, batch: Data, signal_scale: float | None = None
) -> tuple[dict[str, Array], AbstractGP]:
    """Return the metrics of a step, and the gradient with respect to the trainable parameters."""
    B = batch.y.shape[0]
    covariance: Any = lambda t: cast(Any, eqx.combine(t, rest)).covariance(batch.X, batch.weight)
    A, pull_back = jax.vjp(covariance, trainable)
    L, jitter = safe_cholesky(A)
    inverse = invert_lower(L)
    Q = matmul(inverse.T, inverse)
    a = matmul(Q, batch.y)
    (gradient,) = pull_back((Q - jnp.outer(a, a)) / (2 * B))
    loss = matmul(a, batch.y) + 2 * jnp.sum(jnp.log(jnp.diagonal(L)))
    loss = 0.5 * (loss / B + jnp.log(2 * jnp.pi).astype(loss.dtype))
    if signal_scale is not None:
        is_signal = lambda path: any(getattr(part, "name", None) == "variance" for part in path)
        factor = lambda path: B / (signal_scale * math.log(max(B, 2))) if is_signal(path) else 1
        gradient = jax.tree_util.tree_map_with_path(lambda path, leaf: leaf * factor(path), gradient)
    return {"loss": loss, "jitter": jitter}, gradient
