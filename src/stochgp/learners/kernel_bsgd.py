"""sgGP: mini-batch gradient descent on the marginal likelihood of a kernel GP."""

import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.data.streams import AbstractSource, Rows
from stochgp.learners.descent import Descent, Optimizer, begin, move, slowed, start_rate, step_size
from stochgp.learners.kernel_base import AbstractKernelLearner, KernelPlan, KernelProblem, Seed
from stochgp.learners.sampling import AbstractSampling, NearestNeighbours
from stochgp.learners.schedules import Schedule, cosine
from stochgp.models import KernelGP
from stochgp.numerics.precision import matmul
from stochgp.numerics.small_matrices import invert_lower, safe_cholesky
from stochgp.numerics.threads import one_blas_thread
from stochgp.parameters import partition
from stochgp.planning.steps import CHUNK_BYTES

RATE = 0.01
STEPS = 4096
FEWEST_VISITS, SHORTEST_STRETCH, LONGEST_STRETCH = 40, 64, 4096


class KernelBSGDState(eqx.Module):
    gp: KernelGP
    descent: Descent


class KernelBSGDInfo(NamedTuple):
    loss: Float[Array, ""]  # NLML per datum of the batch
    jitter: Float[Array, ""]  # added to the diagonal of K_ξ + σ²I to factorise it


class KernelBSGD(AbstractKernelLearner):
    """Mini-batch gradient descent on the NLML per datum of the batches (sgGP; Chen et al. 2020, algorithm 1). O(m³ + m²D) per step.

    With K = k(X_ξ, X_ξ) + σ²I of the m rows of a batch, the gradient by a parameter θ_l is

        g_l = tr[K⁻¹(I − y_ξ y_ξᵀ K⁻¹) ∂K/∂θ_l] / (2 s_l),   s_l = m;  with `signal_scale` τ, s_l = τ log m for the kernel's variances.

    Its expectation over batches is not the gradient of all rows' likelihood; the bias shrinks with m. Nearest neighbours show short
    lengthscales and small noise in batches in which rows drawn uniformly are too far apart to. On five UCI sets batches of 128
    neighbours predicted better than the paper's 16, by much on some, and 4,000 steps as well as more. Steps are in the parameters'
    unconstrained arrays.

    batch_size     m; all rows where there are fewer. The paper's is 16
    epochs         of N/m steps, rounded to whole stretches of them; None = 4,096 steps
    learning_rate  None = 0.01, for Adam; `PowerLaw(α₁, 1.0)` with `optax.sgd` is the paper's α₁/k
    decay          factor on a numeric rate: a cosine to 0
    sampling       `NearestNeighbours()`, `Uniform()` or `Uniform(replace=True)`
    signal_scale   τ, None = s_l = m throughout; the paper's theory and its recovery of parameters take it (τ = 3)

    `converged`: see `fit_kernel`.
    """

    batch_size: int = 128
    epochs: int | None = None
    learning_rate: float | Schedule | None = None
    optimizer: Optimizer = optax.adam
    decay: Schedule = cosine
    sampling: AbstractSampling = NearestNeighbours()
    signal_scale: float | None = None

    def __check_init__(self) -> None:
        self.check_common()
        if self.signal_scale is not None and not (0 < self.signal_scale < math.inf and self.batch_size > 1):
            raise ValueError(
                f"signal_scale is {self.signal_scale} for batches of {self.batch_size}; it must be positive and finite, the batch above 1"
            )

    def plan(self, n_rows: int) -> KernelPlan:
        """Stretches of 64 to 4,096 steps, a power of two so that they can be halved; at least 40 of them where steps allow."""
        per_epoch = max(1, n_rows // self.batch_size)
        steps = STEPS if self.epochs is None else self.epochs * per_epoch
        if steps < SHORTEST_STRETCH:
            return KernelPlan(per_epoch, steps, steps)
        longest = max(LONGEST_STRETCH // max(1, self.batch_size // 16) ** 2, SHORTEST_STRETCH)
        stretch = min(max(_power_of_two(steps // FEWEST_VISITS), SHORTEST_STRETCH), _power_of_two(longest))
        return KernelPlan(per_epoch, round(steps / stretch) * stretch, stretch)

    def need_bytes(self, n_rows: int, n_inputs: int) -> int:
        """Neighbours, batches, and matrices of a batch."""
        m = min(self.batch_size, n_rows)
        drawn = self.sampling.need_bytes(n_rows, n_inputs, m, self.plan(n_rows).total_steps)
        return drawn + 3 * CHUNK_BYTES + 8 * 8 * m**2

    def prepare(self, gp: KernelGP, source: AbstractSource, plan: KernelPlan, seed: Seed) -> Any:
        return self.sampling.prepare(source, min(self.batch_size, source.size), plan.total_steps, seed)

    def init(self, gp: KernelGP, problem: KernelProblem, *, key: PRNGKeyArray) -> KernelBSGDState:
        rate = start_rate(self.learning_rate, RATE)
        return KernelBSGDState(gp, begin(partition(gp)[0], self.optimizer, rate, problem.plan.total_steps))

    def advance(
        self, state: KernelBSGDState, problem: KernelProblem, first_step: int, n_steps: int, seed: Seed
    ) -> tuple[KernelBSGDState, dict[str, float]]:
        """In chunks of at most 16 MB of batches on the device."""
        source, m = problem.source, min(self.batch_size, problem.source.size)
        chunk, infos = n_steps, []
        while chunk % 2 == 0 and chunk * m * (source.n_inputs + 2) * 4 > CHUNK_BYTES:
            chunk //= 2
        with one_blas_thread():
            for step in range(first_step, first_step + n_steps, chunk):
                indices = self.sampling.batches(problem.prepared, step, chunk, m, seed)
                state, info = _take_steps(self, state, source.take(indices))
                infos.append(info)
            means = jax.tree.map(lambda *values: float(np.mean(values)), *infos)
        return state, means._asdict()

    def step(self, state: KernelBSGDState, batch: Rows) -> tuple[KernelBSGDState, KernelBSGDInfo]:
        """(State after one step on `batch`, what it saw). Pure; fit for jit and scan."""
        trainable, rest = partition(state.gp)
        info, gradient = batch_gradient(trainable, rest, batch, self.signal_scale)
        size = step_size(state.descent, self.learning_rate, self.decay)
        theta, descent = move(trainable, gradient, state.descent, self.optimizer, size)
        return KernelBSGDState(eqx.combine(theta, rest), descent), info

    def model(self, state: KernelBSGDState) -> KernelGP:
        return state.gp

    def slower(self, state: KernelBSGDState, factor: float) -> KernelBSGDState:
        return eqx.tree_at(lambda s: s.descent, state, slowed(state.descent, factor))

    def finished(self, entry: dict[str, float]) -> bool:
        return False


def batch_gradient(
    trainable: KernelGP, rest: KernelGP, batch: Rows, signal_scale: float | None = None
) -> tuple[KernelBSGDInfo, KernelGP]:
    """(NLML per datum of the batch, g): the gradient by automatic differentiation of K only, its cotangent written out."""
    m = batch.y.shape[0]
    K, pull_back = jax.vjp(lambda t: eqx.combine(t, rest).covariance(batch.X, batch.weight), trainable)
    L, jitter = safe_cholesky(K)
    inverse = invert_lower(L)
    Q = matmul(inverse.T, inverse)
    a = matmul(Q, batch.y)
    (gradient,) = pull_back((Q - jnp.outer(a, a)) / (2 * m))
    loss = jnp.dot(a, batch.y) + 2 * jnp.sum(jnp.log(jnp.diagonal(L)))
    loss = 0.5 * (loss / m + jnp.log(2 * jnp.pi).astype(loss.dtype))
    if signal_scale is not None:
        gradient = _scale_signal(gradient, m / (signal_scale * math.log(max(m, 2))))
    return KernelBSGDInfo(loss, jitter), gradient


def _scale_signal(gradient: KernelGP, factor: float) -> KernelGP:
    """The gradient with the entries of every kernel's `variance` multiplied by `factor`."""

    def scale(path: tuple, leaf: Array) -> Array:
        is_signal = any(getattr(part, "name", None) == "variance" for part in path)
        return leaf * factor if is_signal else leaf

    return jax.tree_util.tree_map_with_path(scale, gradient)


@eqx.filter_jit
def _take_steps(
    learner: KernelBSGD, state: KernelBSGDState, batches: Rows
) -> tuple[KernelBSGDState, KernelBSGDInfo]:
    """(State after a step on each of a stack of batches, means of what the steps saw)."""
    dynamic, static = eqx.partition(state, eqx.is_array)

    def body(carry: KernelBSGDState, batch: Rows) -> tuple[KernelBSGDState, KernelBSGDInfo]:
        new, info = learner.step(eqx.combine(carry, static), batch)
        return eqx.filter(new, eqx.is_array), info

    dynamic, infos = jax.lax.scan(body, dynamic, batches)
    return eqx.combine(dynamic, static), jax.tree.map(jnp.mean, infos)


def _power_of_two(n: int) -> int:
    """The largest one that is at most max(n, 1)."""
    return 1 << (max(n, 1).bit_length() - 1)
