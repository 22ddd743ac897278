"""Learners of GPs with inducing points: SVGP uses mini-batches, SGPR and VGP use all rows."""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray

from stochgp.data.memory import MemorySource
from stochgp.data.rows import Data
from stochgp.deadline import COMPILING, Pace
from stochgp.learners.base import AbstractBatchLearner, BatchState, Problem
from stochgp.learners.descent import PowerLaw, Schedule, at_step
from stochgp.learners.evaluators import CHUNK_BYTES, ByLoss, Evaluator, Seed, StepPlan
from stochgp.learners.full_batch import PAIRS, AbstractQuasiNewton, Loss, Prepared, QuasiState, begin
from stochgp.models import SparseGP
from stochgp.numerics.arrays import on_device, packed
from stochgp.objectives import collapsed
from stochgp.objectives.elbo import Sites, bound_and_gradient, expected_log_density, gaussian_of, sites
from stochgp.parameters import cast, in_parameters, trainable_mask
from stochgp.sharding import agreed
from stochgp.variational import InducingPoints, Naturals, optimum

RATE = 0.03
TRIAL_RATES = (0.01, 0.03, 0.1)
ROUNDING = 1e-11  # relative rounding error of the collapsed bound
EVALUATION = 4e-10  # seconds of the first evaluation, divided by N M²
SITE_ROUNDING = 1e-8  # relative error of the bound after the sites have converged
SITE_EVALUATION = 4e-10  # seconds of the first evaluation, divided by L N³


class SGPR(AbstractQuasiNewton):
    """L-BFGS ascent on the collapsed lower bound per datum (SGPR or VSGPR, Titsias 2009).

    The kernel, the noise and the inducing points follow the exact gradient of the bound
    (`objectives.collapsed`). The distribution q(u) of the function values u at the inducing points is optimal
    at every step. With N rows and M inducing points, an evaluation takes O(N M² + M³) time. Evaluations use
    float64.

    Raises TypeError for a model without inducing points.

    Parameters
    ----------
    epochs : int or None
        The maximum number of steps; None = 200.
    tolerance : float
        The run ends when the predicted gain of a step, in nats per datum, is below this number.
    """

    first_seconds: ClassVar[float] = COMPILING
    epochs: int | None = None
    tolerance: float = 1e-4
    steps: ClassVar[tuple[int, int]] = (200, 5)

    def peak_bytes(self, gp: SparseGP, n_rows: int, n_inputs: int) -> int:
        M = gp.approximation.n_inducing
        moving = len(packed(self.partition(gp)[0]))
        return 8 * collapsed.CHUNK_BYTES + 8 * 20 * M**2 + 8 * 4 * PAIRS * moving

    def prepare(self, gp: SparseGP, source: MemorySource, plan: StepPlan, seed: Seed) -> Pace:
        return Pace(EVALUATION * source.size * gp.approximation.n_inducing**2)

    def init(self, gp: SparseGP, problem: Problem, *, key: PRNGKeyArray) -> QuasiState:
        refuse_other_processes(self, gp)
        M = gp.approximation.n_inducing
        start = begin(packed(self.partition(gp)[0]))
        return QuasiState(gp, start, (np.zeros((1, M)), np.eye(M)[None]), np.bool_(False))

    def model(self, state: QuasiState) -> SparseGP:
        """Return the model with the parameters θ of `state` and the optimal q(u)."""
        gp: Any = super().model(state)
        return with_gaussian(gp, *state.known)

    def partition(self, gp: SparseGP) -> tuple[SparseGP, SparseGP]:
        return without_gaussian(gp)

    def loss(self, gp: SparseGP, problem: Problem) -> Loss:
        """Return minus the collapsed bound per datum, as a function of the parameters."""

        def evaluate(gp: SparseGP, x: np.ndarray) -> tuple[float, np.ndarray, Any]:
            found = collapsed.lower_bound_and_gradient(gp, problem.source, self.partition)
            bound, gradient, gaussian = agreed(found)
            return -bound, -packed(gradient), gaussian

        return Loss(evaluate, self.partition(gp), problem.prepared, ROUNDING)


def refuse_other_processes(learner: Any, gp: SparseGP) -> None:
    """Raise TypeError for a model without inducing points."""
    if not isinstance(gp.approximation, InducingPoints):
        raise TypeError(
            f"{type(learner).__name__} needs the approximation InducingPoints, not {type(gp.approximation).__name__}"
        )


def without_gaussian(gp: SparseGP) -> tuple[SparseGP, SparseGP]:
    """Return the trainable part of the model without q(u), and the rest with q(u)."""
    gaussian = lambda g: (g.approximation.mean, g.approximation.root)
    return eqx.partition(gp, eqx.tree_at(gaussian, trainable_mask(gp), (False, False)))


def with_gaussian(gp: Any, mean: Any, root: Any) -> SparseGP:
    """Return the model with q(v) = N(m, RRᵀ) for the whitened values v at the inducing points."""
    return eqx.tree_at(lambda g: g.approximation, gp, gp.approximation.at(mean, root))


class SVGPState(BatchState):
    """The model, the optimiser's state, and q(u) in natural parameters."""

    naturals: Naturals
    start: Any  # unconstrained kernel parameters at the start of the run; None without a prior


class SVGP(AbstractBatchLearner):
    """Mini-batch descent on −ELBO per datum, with whitened q(u) (Hensman et al. 2013, 2015).

        −ELBO = KL(q(u) ‖ p(u)) − (N/B) Σ_{i∈batch} ρ_i E_q log p(y_i | f(x_i)).

    The vector u = f(Z) contains the values of f at the inducing points Z. A batch has B of the N rows, and
    row i has the weight ρ_i. The `optimizer` moves the kernel, the points Z and the likelihood along the
    gradient. With k(Z, Z) = LLᵀ, the whitened values v = L⁻¹u have the distribution N(m, S). Natural-gradient
    steps of size γ change m and S. Let w_i = L⁻¹k(Z, x_i), and let β_i and r_i be the precisions and linear
    terms that `objectives.elbo.sites` returns. A step is

        S⁻¹ ← (1−γ) S⁻¹ + γ (I + (N/B) Σ β_i w_i w_iᵀ),    S⁻¹m ← (1−γ) S⁻¹m + γ (N/B) Σ r_i w_i.

    For M inducing points, a step takes O(B M² + M³) time. For several classes, an average over random draws
    estimates the expectation E_q.

    Parameters
    ----------
    batch_size, epochs, learning_rate, optimizer, decay, sampling, evaluator
        See `AbstractBatchLearner`. By default, trials select `learning_rate`; without trials, it is 0.03.
    natural_rate : float or function of the step
        The step size γ, above 0 and at most 1.
    steps : int
        The number of steps if `epochs` is None.
    spread : float or None
        The standard deviation of a normal prior of the kernel's unconstrained parameters around their start.
        The prior covers logarithms of variances and lengthscales, not weights of networks. None = no prior.
    """

    first_seconds: ClassVar[float] = COMPILING
    natural_rate: float | Schedule = PowerLaw(0.6, 0.3)  # as good as the best constant on six UCI sets
    evaluator: Evaluator | None = ByLoss(trial_rates=TRIAL_RATES)
    steps: int = 4096
    spread: float | None = None

    def __check_init__(self) -> None:
        self.check_common()
        gamma = self.natural_rate
        if not callable(gamma) and not 0 < gamma <= 1:
            raise ValueError(f"natural_rate is {gamma}; it must be above 0 and at most 1")
        if self.steps < 1:
            raise ValueError(f"steps is {self.steps}; it must be at least 1")

    def peak_bytes(self, gp: SparseGP, n_rows: int, n_inputs: int) -> int:
        M, L, B = gp.approximation.n_inducing, gp.approximation.n_latent, min(self.batch_size, n_rows)
        drawn = self.sampling.peak_bytes(n_rows, n_inputs, B, self.steps)
        return drawn + 3 * CHUNK_BYTES + 8 * M * (8 * M + 8 * B + 6 * L * M + 4 * L * B)

    def init(self, gp: SparseGP, problem: Problem, *, key: PRNGKeyArray) -> SVGPState:
        refuse_other_processes(self, gp)
        q: Any = gp.approximation
        begun = self.begin(gp, self.partition(gp)[0], problem, RATE)
        start = jax.tree.map(lambda leaf: on_device(np.array(leaf)), self._with_prior(gp))
        return SVGPState(*begun, Naturals.of_gaussian(q.mean, q.root), None if self.spread is None else start)

    def _with_prior(self, gp: SparseGP) -> Any:
        kernel = self.partition(gp)[0].kernel
        return eqx.filter(kernel, in_parameters(kernel))

    def partition(self, gp: SparseGP) -> tuple[SparseGP, SparseGP]:
        return without_gaussian(gp)

    def step(self, state: SVGPState, batch: Data, *, key: PRNGKeyArray) -> tuple[SVGPState, dict[str, Array]]:
        """Return the state after one step, and the metrics of the step.

        "loss" is −ELBO per datum of the batch. "divergence" is KL(q ‖ p) per datum. "jitter" is the number
        that is added to the diagonal of k(Z, Z).
        """
        trainable, rest = self.partition(state.gp)
        scale = state.n_rows / batch.y.shape[0]

        def loss(t: SparseGP) -> tuple[Array, tuple]:
            gp = eqx.combine(t, rest)
            process: Any = gp.process()
            W = process.whitened(batch.X)
            mean, variance = process.moments_of(W, process.kernel.diag(batch.X))
            total = scale * jnp.sum(expected_log_density(gp, batch, mean, variance, key))
            divergence = process.divergence()
            if self.spread is not None:
                away = optax.tree.sub(self._with_prior(gp), state.start)
                total = total - optax.tree.norm(away, squared=True) / (2 * self.spread**2)
            return (divergence - total) / state.count, (W, mean, variance, divergence, process.jitter)

        (value, seen), gradient = jax.value_and_grad(loss, has_aux=True)(trainable)
        W, mean, variance, divergence, jitter = seen
        info = {"loss": value, "divergence": divergence / state.count, "jitter": jitter}
        theta, descent = self.descend(trainable, gradient, state.descent)
        best = optimum(W, *sites(state.gp, batch, mean, variance, key), scale)
        naturals = state.naturals.towards(best, at_step(self.natural_rate, state.descent.step))
        gp = with_gaussian(eqx.combine(theta, rest), *naturals.gaussian())
        return dataclasses.replace(state, gp=gp, descent=descent, naturals=naturals), info


class VGP(AbstractQuasiNewton):
    """L-BFGS descent on −ELBO per datum; every evaluation finds the best Gaussian q(f).

    Source: Opper and Archambeau (2009). The parameters of the kernel and the likelihood follow the exact
    gradient of the ELBO (`objectives.elbo`). With N rows and L latent functions, an evaluation of the ELBO
    takes O(L N³) time. The inducing points stay fixed. The learned q(u) follows from the Gaussian
    approximation of each row's likelihood.

    Raises TypeError for a model without inducing points.

    Parameters
    ----------
    epochs : int or None
        The maximum number of steps; None = 100.
    tolerance : float
        The run ends when the predicted gain of a step, in nats per datum, is below this number.
    spread : float or None
        The standard deviation of a normal prior of the kernel's unconstrained parameters; None = no prior.
    """

    epochs: int | None = None
    tolerance: float = 1e-4
    spread: float | None = None
    steps: ClassVar[tuple[int, int]] = (100, 10)

    def peak_bytes(self, gp: SparseGP, n_rows: int, n_inputs: int) -> int:
        return 8 * n_rows**2 * (6 + 2 * gp.approximation.n_latent) + 8 * 4 * n_rows * n_inputs

    def prepare(self, gp: SparseGP, source: MemorySource, plan: StepPlan, seed: Seed) -> Prepared:
        n = source.size
        pace = Pace(SITE_EVALUATION * gp.approximation.n_latent * n**3)
        return Prepared(source.on_host(np.arange(n)), pace, None, None)

    def init(self, gp: SparseGP, problem: Problem, *, key: PRNGKeyArray) -> QuasiState:
        refuse_other_processes(self, gp)
        rows: Data = problem.prepared.rows
        nothing = Sites(*np.zeros((2, len(rows), gp.approximation.n_latent)))
        start = begin(packed(self.partition(gp)[0]))
        return QuasiState(gp, start, (np.asarray(rows.X), nothing), np.bool_(False))

    def model(self, state: QuasiState) -> SparseGP:
        """Return the model with the parameters θ of `state` and the q(u) of its sites."""
        gp: Any = super().model(state)
        wide, (X, sites) = cast(gp, np.float64), state.known
        process = wide.approximation.process_on_host(wide.kernel)
        return with_gaussian(gp, *gaussian_of(process.whitened_on_host(X)[0], sites))

    def partition(self, gp: SparseGP) -> tuple[SparseGP, SparseGP]:
        mask = eqx.tree_at(lambda g: g.approximation, trainable_mask(gp), False)
        return eqx.partition(gp, mask)

    def loss(self, gp: SparseGP, problem: Problem) -> Loss:
        """Return −ELBO per datum with the penalty of the prior, as a function of the parameters."""
        rows, parts, latest = problem.prepared.rows.wide(), self.partition(gp), None
        prior: Any = problem.prior
        start = packed(parts[0] if prior is None else self.partition(prior)[0])
        pull, count = np.zeros(len(start)), float(rows.weights.sum())
        if self.spread is not None:
            pull[: len(packed(parts[0].kernel))] = 1 / self.spread**2  # kernel parameters come first

        def evaluate(gp: SparseGP, x: np.ndarray) -> tuple[float, np.ndarray, Any]:
            nonlocal latest
            bound, gradient, latest = bound_and_gradient(gp, rows, latest)
            if not np.isfinite(bound):
                return np.inf, np.full_like(x, np.nan), (rows.X, latest)
            away = x - start
            value = 0.5 * float(away @ (pull * away)) - bound
            slope = pull * away - packed(self.partition(gradient)[0])
            return value / count, slope / count, (rows.X, latest)

        return Loss(evaluate, parts, problem.prepared.pace, SITE_ROUNDING)
