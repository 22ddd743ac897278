"""The learner of sparse GPs with any likelihood on few rows: all rows, by L-BFGS."""

from typing import Any, cast

import equinox as eqx
import numpy as np
from jaxtyping import PRNGKeyArray

from stochgp.data.memory import MemorySource
from stochgp.data.rows import Data
from stochgp.deadline import Pace
from stochgp.kernels import dense
from stochgp.learners import lbfgs
from stochgp.learners.base import Problem
from stochgp.learners.evaluators import Evaluator, Seed, StepPlan
from stochgp.learners.full_batch import AbstractQuasiNewton, Loss, Prepared, QuasiState, whole_steps
from stochgp.learners.svgp import with_gaussian
from stochgp.models import SparseGP
from stochgp.numerics.arrays import packed
from stochgp.objectives import vgp
from stochgp.objectives.elbo import Sites
from stochgp.parameters import trainable_mask, value_of
from stochgp.variational import InducingPoints

STEPS, PER_EVALUATION = 100, 10
ROUNDING = 1e-8  # relative, of a bound whose sites have settled
EVALUATION = 4e-10  # seconds of a first evaluation per latent function and cubed number of rows


class VGP(AbstractQuasiNewton):
    """L-BFGS descent on −ELBO per datum with a site for each row (Opper and Archambeau 2009).

    At every step q(f) is the best Gaussian (`objectives.vgp`); the kernel and the likelihood's parameters follow the exact gradient. An evaluation takes
    O(L N³) for L latent functions. The learned model has its inducing points where they were, and its q(u) has the sites of the rows: with an
    inducing point at each row it is the best Gaussian.

    Raises TypeError for a model without inducing points.

    Parameters
    ----------
    epochs, tolerance : int or None, float
        Steps at most, None = 100; the run has converged if the quadratic of L-BFGS promises less than this in nats per datum, or at the limit of rounding.
    spread : float or None
        s of a penalty ‖x − x₀‖² / 2s² on −ELBO, a normal prior of the kernel's unconstrained parameters x around their start; None = no prior.
    """

    epochs: int | None = None
    tolerance: float = 1e-4
    spread: float | None = None

    def plan(self, n_rows: int, n_inputs: int, evaluator: Evaluator) -> StepPlan:
        """Plan one step per epoch."""
        return whole_steps(n_rows, STEPS if self.epochs is None else self.epochs, PER_EVALUATION)

    def peak_bytes(self, gp: SparseGP, n_rows: int, n_inputs: int) -> int:
        """Bytes of K, of B and its inverse for each latent function before and after a step, and of rows."""
        return 8 * n_rows**2 * (6 + 2 * gp.approximation.n_latent) + 8 * 4 * n_rows * n_inputs

    def prepare(self, gp: SparseGP, source: MemorySource, plan: StepPlan, seed: Seed) -> Prepared:
        """Return the rows, on the host in float64, and the pace of evaluations."""
        n = source.size
        pace = Pace(EVALUATION * gp.approximation.n_latent * n**3)
        return Prepared(source.on_host(np.arange(n)), pace, None, None)

    def init(self, gp: SparseGP, problem: Problem, *, key: PRNGKeyArray) -> QuasiState:
        if not isinstance(gp.approximation, InducingPoints):
            raise TypeError(f"VGP learns InducingPoints, not {type(gp.approximation).__name__}")
        rows: Data = problem.prepared.rows
        nothing = Sites(*np.zeros((2, len(rows), gp.approximation.n_latent)))
        start = lbfgs.begin(packed(self.partition(gp)[0]))
        return QuasiState(gp, start, (np.asarray(rows.X), nothing), np.bool_(False))

    def model(self, state: QuasiState) -> SparseGP:
        """Return the model with θ and q(u) of the sites, in its dtypes."""
        gp, (X, sites) = cast(SparseGP, super().model(state)), state.known
        q = cast(InducingPoints, gp.approximation)
        Z = np.asarray(value_of(q.points), np.float64)
        K = dense.block(gp.kernel, Z, Z)
        K[np.diag_indices(len(Z))] += q.jitter * np.mean(np.diagonal(K))
        return with_gaussian(gp, *vgp.gaussian_of(K, dense.block(gp.kernel, Z, X), sites))

    def partition(self, gp: SparseGP) -> tuple[SparseGP, SparseGP]:
        """Return kernel and likelihood, which move, and the rest."""
        mask = eqx.tree_at(lambda g: g.approximation, trainable_mask(gp), False)
        return eqx.partition(gp, mask)

    def loss(self, gp: SparseGP, problem: Problem) -> Loss:
        """Return minus the bound per datum and the penalty of the prior, with the sites of each point."""
        rows, parts, latest = problem.prepared.rows.wide(), self.partition(gp), None
        start = packed(parts[0] if problem.prior is None else self.partition(cast(Any, problem.prior))[0])
        pull, count = np.zeros(len(start)), float(rows.weights.sum())
        if self.spread is not None:
            pull[: len(packed(parts[0].kernel))] = 1 / self.spread**2  # a model's kernel is its first part

        def evaluate(gp: SparseGP, x: np.ndarray) -> tuple[float, np.ndarray, Any]:
            nonlocal latest
            bound, gradient, sites = vgp.bound_and_gradient(gp, rows, latest)
            if not np.isfinite(bound):
                return np.inf, np.full_like(x, np.nan), (rows.X, sites)
            latest, away = sites, x - start
            value = 0.5 * float(away @ (pull * away)) - bound
            slope = pull * away - packed(self.partition(gradient)[0])
            return value / count, slope / count, (rows.X, sites)

        return Loss(evaluate, parts, problem.prepared.pace, ROUNDING)
