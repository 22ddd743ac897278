"""Learners of sparse GPs that add basis functions during the run: SVDGP and iVSGPR."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve
from jaxtyping import Array, Float, Int32, PRNGKeyArray

from stochgp.data.rows import Data
from stochgp.deadline import COMPILING
from stochgp.learners.base import AbstractBatchLearner, BatchState, Problem
from stochgp.learners.descent import Descent, InverseRoot, Schedule, at_step, constant
from stochgp.learners.evaluators import CHUNK_BYTES, ByLoss, Evaluator
from stochgp.models import SparseGP
from stochgp.numerics.arrays import matmul
from stochgp.objectives.elbo import Sites, bound_parts, columns_to_draw, sites
from stochgp.parameters import cast, trainable_mask, value_of
from stochgp.variational import Decoupled
from stochgp.variational.functions import TILE, carried, gram, mirror_covariance

RATE = 0.01
SLOWING = 0.1  # factor of √t in the learning rate, as in the paper
TRIAL_RATES = (1e-2, 3e-2, 1e-1)  # the paper's smallest rate, 0.001, needs more than 2,048 steps


class AbstractGrowing(AbstractBatchLearner):
    """Base class of learners that add basis functions k(·, x) for rows x of the batches."""

    steps: ClassVar[int] = 2048
    first_seconds: ClassVar[float] = COMPILING
    batch_size: int = 1024
    decay: Schedule = constant
    evaluator: Evaluator | None = ByLoss(trial_rates=TRIAL_RATES)
    growth: int = 128
    mirror_rate: float | Schedule | None = None

    @abc.abstractmethod
    def partition(self, gp: SparseGP) -> tuple[SparseGP, SparseGP]:
        """Return the trainable part of the model and the rest."""

    def __check_init__(self) -> None:
        self.check_common("growth")
        rate = self.mirror_rate
        if rate is not None and not callable(rate) and not 0 < rate <= 1:
            raise ValueError(
                f"mirror_rate is {rate}; it must be a function, or a number above 0 and at most 1"
            )

    def peak_bytes(self, gp: SparseGP, n_rows: int, n_inputs: int) -> int:
        q: Any = gp.approximation
        B, M, P = min(self.batch_size, n_rows), q.mean_functions.capacity, q.n_inducing
        drawn = self.sampling.peak_bytes(n_rows, n_inputs, B, self.steps)
        kernels = 4 * 8 * B * min(M, TILE) + 8 * 6 * P * (B + P)
        return drawn + 3 * CHUNK_BYTES + kernels + 4 * 6 * (M * (2 * n_inputs + 1) + P * (P + 2 * n_inputs))

    def init(self, gp: SparseGP, problem: Problem, *, key: PRNGKeyArray) -> BatchState:
        """Return the initial state. Raises TypeError for a model that is not `Decoupled`."""
        if not isinstance(gp.approximation, Decoupled):
            kind = type(gp.approximation).__name__
            raise TypeError(f"{type(self).__name__} needs the approximation Decoupled, not {kind}")
        return BatchState(*self.begin(gp, self.partition(gp)[0], problem, RATE))

    def ascend(
        self,
        gp: SparseGP,
        batch: Data,
        state: BatchState,
        columns: Int32[Array, " J"] | None,
        carried: Callable[[SparseGP], SparseGP] = lambda gp: gp,
    ) -> tuple[BatchState, dict[str, Array]]:
        """Return the state after a gradient step on the bound per datum, and the step's metrics.

        `columns` selects columns of the matrix K_α; None = all. `carried` adapts q to a model whose basis
        functions and kernel have changed.
        """
        trainable, rest = self.partition(gp)

        def loss(t: SparseGP) -> tuple[Array, Array]:
            fit, of_mean, of_covariance = bound_parts(
                carried(eqx.combine(t, rest)), batch, state.n_rows, columns
            )
            return (of_mean + of_covariance - fit) / state.count, of_mean + of_covariance

        (value, divergence), gradient = jax.value_and_grad(loss, has_aux=True)(trainable)
        theta, descent = self.descend(trainable, gradient, state.descent)
        q: Any = gp.approximation
        functions = q.mean_functions.used.astype(value.dtype)
        info = {"loss": value, "divergence": divergence / state.count, "functions": functions}
        moved = carried(eqx.combine(theta, rest))
        return dataclasses.replace(state, gp=moved, descent=descent), info

    def step_size(self, descent: Descent) -> Float[Array, ""]:
        """Return γ₀ · decay / (1 + 0.1 √t), or `learning_rate(t)` if it is a function."""
        size = super().step_size(descent)
        return size if callable(self.learning_rate) else size / (1 + SLOWING * jnp.sqrt(descent.step))


def grown(gp: SparseGP, batch: Data, n: int, start: Float[Array, " n"] | None = None) -> SparseGP:
    """Return the model with basis functions at the first n rows, if the basis is not full."""
    q: Any = gp.approximation
    X = batch.X[:n]
    start = jnp.zeros(X.shape[0], q.root.dtype) if start is None else start
    return eqx.tree_at(lambda g: g.approximation, gp, q.grown(X, start))


def all_but_q(gp: SparseGP, *moved: str) -> tuple[SparseGP, SparseGP]:
    """Return the trainable part and the rest. `moved` may name "weights" and "root" to train."""
    mask = trainable_mask(gp)
    for name in {"weights", "root"} - set(moved):
        mask = eqx.tree_at(lambda g, name=name: getattr(g.approximation, name), mask, False)
    return eqx.partition(gp, mask)


class IVSGPR(AbstractGrowing):
    """Incremental variational sparse GP regression (Cheng and Boots 2016).

    The mean and the covariance of q(f) use the same basis functions k(·, α_j), which have the centres α_j.
    The parameters of q(f) are a matrix B and a vector b. With K = k(α, α), the mean has the weights
    a = (I + BK)⁻¹b. Let c be the number of all rows divided by the number of rows in a batch S. A mirror step
    of size γ is

        B ← (1−γ) B + γ c Σ_{i∈S} β_i p_i p_iᵀ,    b ← (1−γ) b + γ c Σ_{i∈S} r_i p_i,    p_i = K⁻¹k(α, x_i),

    where β_i and r_i are the precisions and linear terms that `objectives.elbo.sites` returns. Then the basis
    functions, the kernel and the likelihood take a step along the gradient of the ELBO.

    Parameters
    ----------
    batch_size, epochs, learning_rate, optimizer, decay, sampling, evaluator, growth
        See `SVDGP`.
    mirror_rate : float or function of the step
        The step size γ.
    """

    mirror_rate: float | Schedule = InverseRoot(1.0, 1.0)

    def partition(self, gp: SparseGP) -> tuple[SparseGP, SparseGP]:
        """Return the trainable part and the rest. Raises ValueError for a decoupled model."""
        q: Any = gp.approximation
        if q.covariance_functions is not None:
            raise ValueError("IVSGPR needs a model whose mean and covariance use the same basis functions")
        return all_but_q(gp)

    def step(
        self, state: BatchState, batch: Data, *, key: PRNGKeyArray
    ) -> tuple[BatchState, dict[str, Array]]:
        gp = grown(state.gp, batch, self.growth)
        scale = state.n_rows / batch.y.shape[0]
        seen = sites(gp, batch, *gp.process().moments(batch.X))
        gamma = at_step(self.mirror_rate, state.descent.step)
        q = mirror_step(gp, batch.X, seen, scale, gamma)
        gp = eqx.tree_at(lambda g: g.approximation, gp, q)
        b = linear_part(gp)
        return self.ascend(gp, batch, state, None, lambda moved: with_parts(moved, q, b))


def mirror_step(gp: SparseGP, X: Float[Array, "B D"], seen: Sites, scale: Any, gamma: Any) -> Decoupled:
    """Return q(f) after a mirror step of size γ towards the sites of the rows X."""
    given: Any = gp.approximation
    weight, linear = (scale.astype(part.dtype) * part[:, 0] for part in seen)
    K, P, L = mirror_covariance(given.mean_functions, gp.kernel, given.L, X, weight, gamma)
    gamma = jnp.asarray(gamma, K.dtype)
    b = (1 - gamma) * linear_part(gp) + gamma * matmul(P, linear.astype(K.dtype))
    return _with_mean(given, K, b, L)


def linear_part(gp: SparseGP) -> Float[Array, " P"]:
    """Return the parameter b = (I + BK)a, in float64 if x64 is enabled."""
    q: Any = gp.approximation
    wide = jax.dtypes.canonicalize_dtype(jnp.float64)
    a, L = q.a.astype(wide), q.L.astype(wide)
    K = gram(cast(q.mean_functions, wide), cast(value_of(gp.kernel), wide))
    return a + matmul(L, matmul(L.T, matmul(K, a)))


def with_parts(gp: SparseGP, before: Decoupled, b: Float[Array, " P"]) -> SparseGP:
    """Return the model with b and L adapted to its new basis functions and kernel."""
    q: Any = gp.approximation
    parts = jnp.concatenate([b[:, None], before.L.astype(b.dtype)], axis=1)
    moved = carried(q.mean_functions, gp.kernel, before.mean_functions, parts)
    K = gram(cast(q.mean_functions, b.dtype), cast(value_of(gp.kernel), b.dtype))
    return eqx.tree_at(lambda g: g.approximation, gp, _with_mean(q, K, moved[:, 0], moved[:, 1:]))


def _with_mean(
    q: Decoupled, K: Float[Array, "P P"], b: Float[Array, " P"], L: Float[Array, "P P"]
) -> Decoupled:
    """Return q(f) with this L and the weights a = (I + LLᵀK)⁻¹b."""
    H = jnp.eye(K.shape[0], dtype=K.dtype) + matmul(L.T, matmul(K, L))
    a = b - matmul(L, cho_solve((jnp.linalg.cholesky(H), True), matmul(L.T, matmul(K, b))))
    return Decoupled(q.mean_functions, a.astype(q.weights.dtype), None, L.astype(q.weights.dtype))


class SVDGP(AbstractGrowing):
    """Mini-batch ascent on the ELBO of a decoupled GP (Cheng and Boots 2017, Algorithm 1).

    M_α basis functions with weights a define the mean of q(f). M_β basis functions with a matrix L define the
    covariance of q(f). The M_α and the M_β functions have the kernel matrices K_α and K_β. H is I + LᵀK_βL. A
    batch S has B of the N rows, and row i has the weight ρ_i. A step follows the gradient of

        (N/B) Σ_{i∈S} ρ_i E_q log p(y_i | f(x_i)) − ½ aᵀK_α a − ½ log|H| + ½ (M_β − tr H⁻¹).

    Random columns of K_α give unbiased estimates of aᵀK_α a and of its gradient. For D inputs, a step takes
    O(D (B + n_columns) M_α + B M_β² + M_β³) time.

    Parameters
    ----------
    batch_size, epochs, optimizer, decay, sampling, evaluator
        See `AbstractBatchLearner`. The default number of steps is 2,048.
    learning_rate : float, function of the step, or None
        At step t, a constant rate is divided by 1 + 0.1 √t. By default, trials select 0.01, 0.03 or 0.1.
    growth : int
        The number of basis functions that each batch adds, until the basis is full.
    n_columns : int or None
        The number of random columns of K_α per step; None = `batch_size`.
    mirror_rate : float, function of the step, or None
        If `mirror_rate` is None, L follows the gradient, as in the paper. Otherwise LLᵀ takes mirror steps of
        this size, as in `IVSGPR`. Mirror steps reach the right scale of L faster than gradient steps.
    """

    n_columns: int | None = None

    def __check_init__(self) -> None:
        self.check_common("n_columns")

    def peak_bytes(self, gp: SparseGP, n_rows: int, n_inputs: int) -> int:
        more = max(0, (self.n_columns or 0) - min(self.batch_size, n_rows))
        return super().peak_bytes(gp, n_rows, n_inputs) + 4 * 8 * more * TILE

    def partition(self, gp: SparseGP) -> tuple[SparseGP, SparseGP]:
        return all_but_q(gp, "weights", *(() if self.mirror_rate is not None else ("root",)))

    def step(
        self, state: BatchState, batch: Data, *, key: PRNGKeyArray
    ) -> tuple[BatchState, dict[str, Array]]:
        first = jax.tree.map(lambda part: part[: self.growth], batch)
        seen = sites(state.gp, first, *state.gp.process().moments(first.X))
        gp = grown(state.gp, batch, self.growth, jnp.sqrt(seen.precision[:, 0]))
        q: Any = gp.approximation
        moving = lambda moved: moved
        if self.mirror_rate is not None:
            precision = sites(gp, batch, *gp.process().moments(batch.X)).precision[:, 0]
            weight = state.n_rows / batch.y.shape[0] * precision
            gamma = at_step(self.mirror_rate, state.descent.step)
            root = mirror_covariance(q.beta, gp.kernel, q.L, batch.X, weight, gamma)[2]
            gp, old = _at_root(gp, root), q.beta
            new: Any = gp.approximation
            moving = lambda moved: _at_root(
                moved, carried(moved.approximation.beta, moved.kernel, old, new.L)
            )
        J = columns_to_draw(q.mean_functions.used, self.n_columns or batch.y.shape[0], key=key)
        return self.ascend(gp, batch, state, J, moving)


def _at_root(gp: SparseGP, L: Float[Array, "P P"]) -> SparseGP:
    q: Any = gp.approximation
    return eqx.tree_at(lambda g: g.approximation.root, gp, L.astype(q.root.dtype))
