"""SVDGP: stochastic variational inference for decoupled Gaussian processes, linear in the number of functions of the mean."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.data.streams import Batch
from stochgp.learning.descent import Optimizer
from stochgp.learning.growing import TRIAL_RATES, AbstractGrowing, GrowingInfo, GrowingState, all_but_q, grown
from stochgp.learning.judge import AbstractJudge, ByLoss
from stochgp.learning.sampling import AbstractSampling, HeavyInAll
from stochgp.learning.schedules import Schedule, at_step, constant
from stochgp.models import SparseGP
from stochgp.objectives.decoupled import columns_to_draw
from stochgp.objectives.elbo import sites
from stochgp.variational import Decoupled
from stochgp.variational.functions import TILE, carried, check_mirror_rate, mirror_covariance


class SVDGP(AbstractGrowing):
    """Stochastic gradient ascent on the bound of a decoupled process (Cheng and Boots 2017, algorithm 1), per datum and by a batch S:

        (N/B) Σ_{i∈S} ρ_i E_q log p(y_i | f(x_i)) − ½ aᵀK_α a − ½ log|H| + ½ (P − tr H⁻¹),    H = I + LᵀK_βL.

    Everything follows the gradient: a, L, the functions, the kernel, the likelihood. The term aᵀK_α a and its gradient are estimated from
    `n_columns` of the M_α columns of K_α (`objectives.decoupled`), so that a step takes O(D (B + n_columns) M_α + B M_β² + M_β³), and memory
    for a tile of them. The model has room for M_α and M_β functions; until it is full, each step adds the first `growth` rows of its
    batch as functions with a = 0 and L_jj = √β_j of `objectives.elbo`, 1/σ for Gaussian noise: what a row seen once says of the covariance. Nothing is compiled again.

    `converged`: all planned steps were taken, and the mean loss had settled (`ByLoss`).

    Parameters
    ----------
    batch_size : int
        B.
    epochs : int or None
        Passes of N/B steps; None = as many as make 2,048 steps.
    learning_rate : float, rule of the step, or None
        γ₀ of γ_t = γ₀/(1 + `slowing` √t), times `decay`, or a rule of γ_t; None = by trials of 0.01, 0.03 and 0.1, or 0.01.
    growth : int
        N_Δ, rows of a batch that become functions, while there is room.
    n_columns : int or None
        Columns of K_α from which aᵀK_α a is estimated; None = B.
    mirror_rate : float, rule of the step, or None
        None = L follows the gradient, as in the paper. γ: B = LLᵀ takes mirror steps of iVSGPR in its place (`variational.mirror`), which find the size of
        B at once; the gradient by L needs many steps for it.
    jitter : float
        On the diagonal of K_β in mirror steps, relative to k(x, x).
    slowing : float
        Factor of √t in γ_t of a numeric `learning_rate`.
    optimizer : function
        An optax rule, as a function of its learning rate.
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
    growth: int = 128
    n_columns: int | None = None
    mirror_rate: float | Schedule | None = None
    jitter: float = 1e-6
    slowing: float = 0.1
    optimizer: Optimizer = optax.adam
    decay: Schedule = constant
    sampling: AbstractSampling = HeavyInAll()
    judge: AbstractJudge | None = ByLoss(trial_rates=TRIAL_RATES)

    def __check_init__(self) -> None:
        self.check_growing()
        if self.mirror_rate is not None:
            check_mirror_rate(self.mirror_rate)
        if self.n_columns is not None and self.n_columns < 1:
            raise ValueError(f"n_columns is {self.n_columns}; it must be at least 1, or None")

    def need_bytes(self, gp: SparseGP, n_rows: int, n_inputs: int) -> int:
        """With the columns of a tile of functions, where they are more than the rows of a batch."""
        more = max(0, (self.n_columns or 0) - min(self.batch_size, n_rows))
        return super().need_bytes(gp, n_rows, n_inputs) + 4 * 8 * more * TILE

    def partition(self, gp: SparseGP) -> tuple[SparseGP, SparseGP]:
        return all_but_q(gp, "weights", *(() if self.mirror_rate is not None else ("root",)))

    def step(
        self, state: GrowingState, batch: Batch, *, key: PRNGKeyArray
    ) -> tuple[GrowingState, GrowingInfo]:
        first = jax.tree.map(lambda part: part[: self.growth], batch)
        seen = sites(state.gp, first, *state.gp.process().moments(first.X))
        gp = grown(state.gp, batch, self.growth, jnp.sqrt(seen.precision[:, 0]))
        moving = lambda moved: moved
        if self.mirror_rate is not None:
            gp = self._mirrored(gp, batch, state, at_step(self.mirror_rate, state.descent.step))
            before: Any = gp.approximation
            moving = lambda moved: self._with_root(moved, before)
        q: Any = gp.approximation
        J = columns_to_draw(q.mean_functions.used, self.n_columns or batch.y.shape[0], key=key)
        return self.ascend(gp, batch, state, J, moving)

    def _mirrored(self, gp: SparseGP, batch: Batch, state: GrowingState, gamma: Any) -> SparseGP:
        """After the mirror step of B, of size γ."""
        q: Any = gp.approximation
        precision = sites(gp, batch, *gp.process().moments(batch.X)).precision[:, 0]
        weight = state.n_rows / batch.y.shape[0] * precision
        return _at_root(gp, mirror_covariance(q.beta, gp.kernel, q.L, batch.X, weight, gamma, self.jitter)[2])

    def _with_root(self, gp: SparseGP, before: Decoupled) -> SparseGP:
        """With what L said by the functions `before` (`mirror.carried`)."""
        q: Any = gp.approximation
        return _at_root(gp, carried(q.beta, gp.kernel, before.beta, before.L, self.jitter))


def _at_root(gp: SparseGP, L: Float[Array, "P P"]) -> SparseGP:
    """The model with this L, in the dtype that it has."""
    q: Any = gp.approximation
    return eqx.tree_at(lambda g: g.approximation.root, gp, L.astype(q.root.dtype))
