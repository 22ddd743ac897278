"""Learners of decoupled processes, which add basis functions: SVDGP and iVSGPR."""

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
SLOWING = 0.1  # factor of √t, as in the paper
TRIAL_RATES = (1e-2, 3e-2, 1e-1)  # 2,048 steps at the paper's smallest rate, 0.001, are too few


class AbstractGrowing(AbstractBatchLearner):
    """A learner of `Decoupled` that adds functions at the first `growth` rows of a batch until the basis is full."""

    steps: ClassVar[int] = 2048
    first_seconds: ClassVar[float] = COMPILING
    batch_size: int = 1024
    decay: Schedule = constant
    evaluator: Evaluator | None = ByLoss(trial_rates=TRIAL_RATES)
    growth: int = 128
    mirror_rate: float | Schedule | None = None

    @abc.abstractmethod
    def partition(self, gp: SparseGP) -> tuple[SparseGP, SparseGP]:
        """Return the trainable part and the rest."""

    def __check_init__(self) -> None:
        self.check_common("growth")
        rate = self.mirror_rate
        if rate is not None and not callable(rate) and not 0 < rate <= 1:
            raise ValueError(f"mirror_rate is {rate}; it must be above 0 and at most 1, or a rule")

    def peak_bytes(self, gp: SparseGP, n_rows: int, n_inputs: int) -> int:
        """Return the bytes of batches, functions, gradients and the optimiser's state."""
        q: Any = gp.approximation
        B, M, P = min(self.batch_size, n_rows), q.mean_functions.capacity, q.n_inducing
        drawn = self.sampling.peak_bytes(n_rows, n_inputs, B, self.steps)
        kernels = 4 * 8 * B * min(M, TILE) + 8 * 6 * P * (B + P)
        return drawn + 3 * CHUNK_BYTES + kernels + 4 * 6 * (M * (2 * n_inputs + 1) + P * (P + 2 * n_inputs))

    def init(self, gp: SparseGP, problem: Problem, *, key: PRNGKeyArray) -> BatchState:
        """Return the initial state. Raises TypeError for a model whose q(f) is not `Decoupled`."""
        if not isinstance(gp.approximation, Decoupled):
            kind = type(gp.approximation).__name__
            raise TypeError(f"{type(self).__name__} learns Decoupled processes, not {kind}")
        return BatchState(*self.begin(gp, self.partition(gp)[0], problem, RATE))

    def ascend(
        self,
        gp: SparseGP,
        batch: Data,
        state: BatchState,
        columns: Int32[Array, " J"] | None,
        carried: Callable[[SparseGP], SparseGP] = lambda gp: gp,
    ) -> tuple[BatchState, dict[str, Array]]:
        """Take a gradient step on the trainable part, with the batch's bound per datum.

        `columns` selects columns of K_α, None = all. After functions and kernel have changed, `carried` returns the model with q adapted to them.
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
        """γ_t = γ₀ · decay / (1 + 0.1 √t), or the value of a rule."""
        size = super().step_size(descent)
        return size if callable(self.learning_rate) else size / (1 + SLOWING * jnp.sqrt(descent.step))


def grown(gp: SparseGP, batch: Data, n: int, start: Float[Array, " n"] | None = None) -> SparseGP:
    """Return the model with functions at the first n rows, if there is room; L_jj = `start`."""
    q: Any = gp.approximation
    X = batch.X[:n]
    start = jnp.zeros(X.shape[0], q.root.dtype) if start is None else start
    return eqx.tree_at(lambda g: g.approximation, gp, q.grown(X, start))


def all_but_q(gp: SparseGP, *moved: str) -> tuple[SparseGP, SparseGP]:
    """Return the trainable part and the rest. `moved` names "weights" (a) and "root" (L)."""
    mask = trainable_mask(gp)
    for name in {"weights", "root"} - set(moved):
        mask = eqx.tree_at(lambda g, name=name: getattr(g.approximation, name), mask, False)
    return eqx.partition(gp, mask)


class IVSGPR(AbstractGrowing):
    """Incremental variational sparse GP regression (Cheng and Boots 2016): mirror ascent on q.

    The coupled form has β = α. The inverse covariance of q is I + Ψ_α B Ψ_αᵀ, and it maps the mean to Ψ_α b, b = (I + BK)a. With the sites
    β_i, r_i of `objectives.elbo`, p_i = K⁻¹k(α, x_i) and c = N/B, a mirror step of size γ on a batch S is

        B ← (1−γ) B + γ c Σ_{i∈S} β_i p_i p_iᵀ,    b ← (1−γ) b + γ c Σ_{i∈S} r_i p_i,    a = (I + BK)⁻¹ b.

    It is the step of SVI, written without a basis. For B = LLᵀ, a QR factorisation of [√(1−γ) L, √(γcβ_i) p_i] gives L. Then functions, kernel and likelihood take a step along
    the gradient of the bound. If functions move from α' to α, b and B become Pb and PBPᵀ, P = K⁻¹k(α, α'), and a = (I + BK)⁻¹b. A step takes O(B M² + M³).

    Parameters
    ----------
    batch_size, epochs, learning_rate, optimizer, decay, sampling, evaluator, growth
        See `SVDGP`.
    mirror_rate : float or rule of the step
        The step size γ.
    """

    mirror_rate: float | Schedule = InverseRoot(1.0, 1.0)

    def partition(self, gp: SparseGP) -> tuple[SparseGP, SparseGP]:
        """Return the trainable part and the rest. Raises ValueError for decoupled functions."""
        q: Any = gp.approximation
        if q.covariance_functions is not None:
            raise ValueError("IVSGPR needs a coupled process, but the covariance has its own functions here")
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
    """Return q after a mirror step of size γ towards the sites of X, in float64 with x64."""
    given: Any = gp.approximation
    weight, linear = (scale.astype(part.dtype) * part[:, 0] for part in seen)
    K, P, L = mirror_covariance(given.mean_functions, gp.kernel, given.L, X, weight, gamma)
    gamma = jnp.asarray(gamma, K.dtype)
    b = (1 - gamma) * linear_part(gp) + gamma * matmul(P, linear.astype(K.dtype))
    return _with_mean(given, K, b, L)


def linear_part(gp: SparseGP) -> Float[Array, " P"]:
    """Return b = (I + BK)a, in float64 if x64 is enabled."""
    q: Any = gp.approximation
    wide = jax.dtypes.canonicalize_dtype(jnp.float64)
    a, L = q.a.astype(wide), q.L.astype(wide)
    K = gram(cast(q.mean_functions, wide), cast(value_of(gp.kernel), wide))
    return a + matmul(L, matmul(L.T, matmul(K, a)))


def with_parts(gp: SparseGP, before: Decoupled, b: Float[Array, " P"]) -> SparseGP:
    """Return the model after functions and kernel moved, with b and L adapted to them."""
    q: Any = gp.approximation
    parts = jnp.concatenate([b[:, None], before.L.astype(b.dtype)], axis=1)
    moved = carried(q.mean_functions, gp.kernel, before.mean_functions, parts)
    K = gram(cast(q.mean_functions, b.dtype), cast(value_of(gp.kernel), b.dtype))
    return eqx.tree_at(lambda g: g.approximation, gp, _with_mean(q, K, moved[:, 0], moved[:, 1:]))


def _with_mean(
    q: Decoupled, K: Float[Array, "P P"], b: Float[Array, " P"], L: Float[Array, "P P"]
) -> Decoupled:
    """q with this L and a = (I + LLᵀK)⁻¹b."""
    H = jnp.eye(K.shape[0], dtype=K.dtype) + matmul(L.T, matmul(K, L))
    a = b - matmul(L, cho_solve((jnp.linalg.cholesky(H), True), matmul(L.T, matmul(K, b))))
    return Decoupled(q.mean_functions, a.astype(q.weights.dtype), None, L.astype(q.weights.dtype))


class SVDGP(AbstractGrowing):
    """Stochastic gradient ascent on a decoupled bound (Cheng and Boots 2017, algorithm 1).

        (N/B) Σ_{i∈S} ρ_i E_q log p(y_i | f(x_i)) − ½ aᵀK_α a − ½ log|H| + ½ (P − tr H⁻¹),    H = I + LᵀK_βL.

    A step follows the gradient of the bound per datum on a batch S. It moves a, L, the functions, the kernel and the likelihood. `n_columns` of the M_α columns
    of K_α give estimates of aᵀK_α a and its gradient (`objectives.elbo`), so a step takes O(D (B + n_columns) M_α + B M_β² + M_β³) and memory for a tile of
    columns. The model has room for M_α and M_β functions. Until it is full, each step adds functions at the first `growth` rows of its batch, with a = 0 and
    L_jj = √β_j of `objectives.elbo` (1/σ for Gaussian noise).

    Parameters
    ----------
    batch_size, epochs, optimizer, decay, sampling, evaluator
        See `AbstractBatchLearner`; epochs None = enough for 2,048 steps.
    learning_rate : float, rule of the step, or None
        γ₀ of the rate γ_t = γ₀/(1 + 0.1 √t), times `decay`, or a rule for γ_t. None: trials choose 0.01, 0.03 or 0.1; 0.01 without trials.
    growth, n_columns : int, int or None
        N_Δ, the number of a batch's rows that become functions while there is room; the number of columns of K_α for estimates, None = B.
    mirror_rate : float, rule of the step, or None
        None: L follows the gradient, as in the paper. A number γ: B = LLᵀ takes mirror steps as in iVSGPR (`variational.functions`). These find
        the scale of B in one step; gradient steps on L need many.
    """

    n_columns: int | None = None

    def __check_init__(self) -> None:
        self.check_common("n_columns")

    def peak_bytes(self, gp: SparseGP, n_rows: int, n_inputs: int) -> int:
        """Return the bytes, which include the columns of a tile of functions."""
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
