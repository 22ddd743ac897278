"""Stochastic gradient descent on the primal objective."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int32, PRNGKeyArray, UInt32

from stochgp.numerics.precision import matmul
from stochgp.operators import KernelOperator
from stochgp.priors import RandomFeatures, random_features
from stochgp.solvers.base import AbstractIterativeSolver, Arranged, StepInfo, check_descent, solve_bytes

PROBES, POWERS = (
    8,
    6,
)  # random columns, and products with each, from which the largest eigenvalue of K is estimated
SHARE = 0.5  # of the largest stable step size, as the default
SMALLER = 0.3  # factor for a step size that diverged
ARRAYS = 20  # [P, C]


# Data of one step, or of many with an axis K in front: indices of rows, and the seed of the features.
SGDBatch = tuple[Int32[Any, "*K B"], UInt32[Any, "*K"]]


class SGD(AbstractIterativeSolver):
    """Stochastic gradient descent for A α = b, A = K + Σ, on the primal objective.

    The objective is ½ (b − Kα)ᵀWΣ̄(b − Kα) + (σ̄²/2) αᵀKα, WΣ̄ = σ̄²Σ⁻¹, with σ̄² the mean noise variance. It is the baseline of Lin et al.
    (2023, 2024), who have one noise variance, W = I:

        g = (N/B) Σ_{i∈I} k_i w_i (k_iᵀz − b_i) + σ̄² Σ_{j≤m} φ_j φ_jᵀ z,   z = α + ρv,   w_i = σ̄²/σ_i²
        v ← ρv − βg;   α ← α + v;   ᾱ ← rα + (1 − r)ᾱ

    with rows I drawn uniformly with replacement and m new random features φ of the kernel at every step. Its noise does not vanish at
    the solution, and its conditioning is that of K(K + Σ): prefer `SDD`. Raises TypeError for a kernel without random features.

    Parameters
    ----------
    epochs : int
        Passes over the rows at most, each measurement of the residual counted as one.
    batch_size : int
        B.
    step_size : float or None
        β (the papers give βN: 0.5 for most UCI sets, 0.1 for function samples); None = half of an estimate of the stable limit.
    momentum : float
        ρ, in [0, 1).
    averaging : float or None
        r, in (0, 1]; None = 100 / (number of steps).
    n_features : int
        m.
    clip : float or None
        Bound on the norm of a column of g/N, as a multiple of the root mean square of the column's b; None = no clipping.
    check_every : int
        Epochs between measurements of the residual of ᾱ on all rows.
    """

    patience: ClassVar[int | None] = None  # slow progress does not mean exhausted precision here
    epochs: int = 300
    batch_size: int = 512
    step_size: float | None = None
    momentum: float = 0.9
    averaging: float | None = None
    n_features: int = 100
    clip: float | None = 0.1
    check_every: int = 25

    def __check_init__(self) -> None:
        check_descent(self)
        if self.averaging is not None and not 0 < self.averaging <= 1:
            raise ValueError(f"averaging is {self.averaging}; it must lie in (0, 1]")
        if self.n_features < 1:
            raise ValueError(f"n_features is {self.n_features}; it must be at least 1")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip is {self.clip}; it must be positive, or None")

    def arrange(self, operator: KernelOperator, *, key: PRNGKeyArray) -> Arranged:
        """Set the step size; rows of K are kept as the operator allows."""
        if operator.inputs is None:
            raise ValueError("SGD needs an operator that knows its inputs; this one was reordered")
        operator = operator.keeping()
        _features(operator, self.n_features, key)  # raises for a kernel without features
        step_size = self.step_size
        if step_size is None:
            step_size = SHARE * self.stable_step_size(operator.size, *scales(operator, key=key))
        return Arranged(operator, None, jnp.asarray(step_size, operator.dtype), 0.0)

    def stable_step_size(
        self, size: int, largest: float, row: float, trace: float, noise: float, weight: float
    ) -> float:
        """The largest stable β for `scales`, from mean dynamics and noise of rows and features:

        1/β = (1 + 2ρ)/(2 + 2ρ) λ₁(ŵλ₁ + σ̄²) + (N ŵ max‖k_i‖² / 2B + σ̄² tr(K)/m) / (1 − ρ),   ŵ = max w_i.
        """
        rho = self.momentum
        mean = (1 + 2 * rho) / (2 + 2 * rho) * largest * (weight * largest + noise)
        rows = size * weight * row / (2 * min(self.batch_size, size))
        return 1 / (mean + (rows + noise * trace / self.n_features) / (1 - rho))

    def init(
        self,
        arranged: Arranged,
        b: Float[Array, "P S"],
        start: Float[Array, "P S"] | None,
        left: Float[Array, "P S"] | None = None,
    ) -> "SGDState":
        start = jnp.zeros_like(b) if start is None else start
        size = arranged.operator.size
        scale = jnp.sqrt(jnp.sum(b**2, axis=0) / size)
        return SGDState(start, jnp.zeros_like(b), start, scale, arranged.extra)

    def steps_per_epoch(self, size: int) -> int:
        return -(-size // self.batch_size)

    @property
    def steps_per_group(self) -> int:
        return 16

    def batches(self, size: int, first: int, n_steps: int, seed: tuple[int, ...]) -> SGDBatch:
        """Draw B independent rows for every step, and a seed for its features."""
        generators = [np.random.default_rng((*seed, step)) for step in range(first, first + n_steps)]
        rows = [generator.integers(0, size, self.batch_size, dtype=np.int32) for generator in generators]
        seeds = [generator.integers(0, 2**32, dtype=np.uint32) for generator in generators]
        return np.stack(rows), np.array(seeds)

    def step(
        self, arranged: Arranged, b: Float[Array, "P S"], state: "SGDState", batch: SGDBatch
    ) -> tuple["SGDState", StepInfo]:
        size, operator = arranged.operator.size, arranged.operator
        z = state.alpha + self.momentum * state.velocity
        gradient, errors = self.gradient(operator, b, z, batch)
        if self.clip is not None:
            norms = jnp.sqrt(jnp.sum(gradient**2, axis=0)) / size
            gradient = gradient * jnp.minimum(
                1, self.clip * state.scale / jnp.maximum(norms, jnp.finfo(norms.dtype).tiny)
            )
        velocity = self.momentum * state.velocity - state.step_size * gradient
        alpha = state.alpha + velocity
        r = self.averaging_for(size)
        mean = r * alpha + (1 - r) * state.mean
        noise, z_rows = operator.pick((operator.noise, z), batch[0])
        dual = errors + noise[:, None] * z_rows
        squares = (size / self.batch_size) * jnp.sum(dual**2, axis=0)
        distances = jnp.maximum(squares, size * state.scale**2)  # below ‖b‖ it is noise, no divergence
        return SGDState(alpha, velocity, mean, state.scale, state.step_size), StepInfo(squares, distances)

    def gradient(
        self, operator: KernelOperator, b: Float[Array, "P S"], z: Float[Array, "P S"], batch: SGDBatch
    ) -> tuple[Float[Array, "P S"], Float[Array, "B S"]]:
        """Return g at z and Kz − b in the batch's rows, holding B rows of K and m features."""
        (rows, seed), noise = batch, jnp.mean(operator.noise[: operator.size])
        K = operator.matrix_rows(rows)  # [B, P]
        errors = matmul(K, z) - operator.pick(b, rows)
        weighted = (noise / operator.pick(operator.noise, rows))[:, None] * errors
        features = _features(operator, self.n_features, jax.random.key(seed))
        fit = (operator.size / self.batch_size) * operator.cleared(matmul(K.T, weighted))
        return fit + noise * operator.features_times(features, z), errors

    def averaging_for(self, size: int) -> float:
        """Return r."""
        if self.averaging is not None:
            return self.averaging
        return min(1.0, 100 / (self.epochs * self.steps_per_epoch(size)))

    def value(self, state: "SGDState") -> Float[Array, "P S"]:
        return state.mean

    def at_epoch(self, arranged: Arranged, state: "SGDState", epoch: int, n_failures: int) -> "SGDState":
        return eqx.tree_at(lambda s: s.step_size, state, arranged.extra * SMALLER**n_failures)

    def peak_bytes(self, n_rows: int, n_columns: int, n_inputs: int, itemsize: int) -> int:
        """Bytes of the states, rows of K, twice, and random features of all rows in each step."""
        B = self.batch_size
        more = itemsize * n_rows * (2 * B + 3 * self.n_features)
        return solve_bytes(n_rows, n_columns, n_inputs, itemsize, n_arrays=ARRAYS, step_rows=B, more=more)


class SGDState(eqx.Module):
    """α, v, ᾱ, the root mean square of b, and β."""

    alpha: Float[Array, "P S"]
    velocity: Float[Array, "P S"]
    mean: Float[Array, "P S"]
    scale: Float[Array, " S"]
    step_size: Float[Array, ""]


def scales(operator: KernelOperator, *, key: PRNGKeyArray) -> tuple[float, ...]:
    """Return λ₁ of K, max ‖k_i‖² (both estimated), tr(K), σ̄² and max w_i for the step size.

    The estimates use products with random signs V: (K V)_i² is ‖k_i‖² on average, and further powers of K grow as λ₁, which is a few per cent too low.
    """
    V = jax.random.rademacher(key, (operator.size, PROBES), operator.dtype)
    largest, rows, trace = _powers(operator, operator.pad(V))
    noise = operator.noise[: operator.size]
    mean = float(jnp.mean(noise))
    return float(largest), float(rows), float(trace), mean, mean / float(jnp.min(noise))


@eqx.filter_jit
def _powers(
    operator: KernelOperator, V: Float[Array, "P C"]
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    def multiply(V: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
        KV = operator.matvec(V) - operator.noise[:, None] * V
        norms = jnp.sqrt(jnp.sum(KV**2, axis=0))
        return KV / norms, (jnp.max(norms), jnp.max(jnp.mean(KV**2, axis=1)))

    _, (growth, rows) = jax.lax.scan(multiply, V, None, length=POWERS)
    noise = operator.noise[: operator.size]
    return growth[-1], rows[0], jnp.sum(operator.diagonal() - noise)


def _features(operator: KernelOperator, n_features: int, key: PRNGKeyArray) -> RandomFeatures:
    """Return random features of the operator's kernel at its inputs."""
    if operator.inputs is None:
        raise ValueError("features need an operator that knows its inputs")
    n_inputs = operator.inputs.shape[1]
    return random_features(
        operator.kernel, n_inputs, n_features, key=key, orthogonal=False, dtype=operator.dtype
    )
