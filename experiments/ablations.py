"""Gradient descent on the dual and the primal objective with every estimator, optimiser and average of the SDD paper's ablations.

All of them solve (K + λI) α = b on pol (split 0, published hyperparameters) with K kept in memory, so that only the method differs. What
the library offers (`solvers.SDD`, `solvers.SGD`) is not used here: these loops are written to be compared, not to be fast.
"""

import abc
import functools
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int
from matplotlib.figure import Figure

from experiments import problems
from measuring.sets import hyperparameters
from stochgp import kernels, solvers
from stochgp.numerics.precision import matmul
from stochgp.operators import KernelOperator
from stochgp.priors import random_features

SET, SPLIT, MARKS = "pol", 0, 25
STRETCH = 64  # most steps of one call
CURVES = ("last", "arithmetic", "geometric")
SLOW_STEPS, QUICK = 100_000, {"steps": 50, "rows": 400}


def extent(quick: bool, slow: bool, steps: int) -> dict[str, int | None]:
    """How far a cell goes: `steps`, with --slow as many as in the paper; a few steps on a few rows with --quick."""
    return QUICK if quick else {"steps": SLOW_STEPS if slow else steps, "rows": None}


class System(eqx.Module):
    """(K + λI) α = b."""

    K: Float[Array, "N N"]
    b: Float[Array, " N"]
    noise: float
    operator: KernelOperator

    def error(self, z: Float[Array, " N"], rows: Int[Array, " B"]) -> Float[Array, " B"]:
        """(Kz + λz − b) in some rows."""
        return matmul(self.K[rows], z) + self.noise * z[rows] - self.b[rows]


class Held(NamedTuple):
    """A system with its solution and what predictions are judged by."""

    system: System
    exact: Float[np.ndarray, " N"]
    K_test: Float[np.ndarray, "M N"]
    y_test: Float[np.ndarray, " M"]

    def scores(self, alpha: Float[Array, " N"]) -> tuple[float, float, float]:
        """(‖α − α*‖²_K, ‖α − α*‖²_{K²}, test RMSE)."""
        difference = np.asarray(alpha, np.float64) - self.exact
        product = np.asarray(matmul(self.system.K, jnp.asarray(difference, jnp.float32)), np.float64)
        rmse = np.sqrt(np.mean((self.K_test @ np.asarray(alpha) - self.y_test) ** 2))
        return float(difference @ product), float(product @ product), float(rmse)


@functools.lru_cache(maxsize=1)
def load(rows: int | None = None) -> Held:
    """pol with all its rows, or with so many drawn at random; α* by Cholesky."""
    data, theta = problems.load(SET, SPLIT, rows), hyperparameters(SET, SPLIT)
    kernel = kernels.Matern32(theta["lengthscale"], theta["variance"])
    X, N = jnp.asarray(data.X), len(data.y)
    operator = KernelOperator.of(kernel, X, theta["noise_variance"], tile=N)
    exact = solvers.solve(operator, data.y[:, None], solvers.Cholesky(), key=jax.random.key(0)).value[:, 0]
    kept = operator.keeping(N).kept
    assert kept is not None
    system = System(kept, jnp.asarray(data.y), theta["noise_variance"], operator)
    K_test = kernel.matrix(jnp.asarray(data.X_test), X)
    return Held(system, np.asarray(exact, np.float64), np.asarray(K_test), data.y_test)


# Estimators of the dual gradient g = Kz + λz − b


class AbstractEstimator(eqx.Module):
    """An estimate of the gradient g of the dual objective."""

    @abc.abstractmethod
    def __call__(
        self, system: System, z: Float[Array, " N"], rows: Int[Array, " B"], seed: Int[Array, ""]
    ) -> Float[Array, " N"]:
        """An estimate of g from B rows drawn uniformly with replacement, or from the seed."""


class Coordinates(AbstractEstimator):
    """(N/B) Σ_i e_i (Kz + λz − b)_i: its noise is multiplicative, and 0 at the solution."""

    def __call__(self, system, z, rows, seed):
        return _scattered(system, rows, system.error(z, rows))


class PartCoordinates(AbstractEstimator):
    """(N/B) Σ_i e_i (Kz)_i − b + λz: only the product is sampled, and the noise is additive."""

    def __call__(self, system, z, rows, seed):
        return _scattered(system, rows, matmul(system.K[rows], z)) - system.b + system.noise * z


class PartCoordinatesOfFit(AbstractEstimator):
    """(N/B) Σ_i e_i (Kz − b)_i + λz."""

    def __call__(self, system, z, rows, seed):
        fit = matmul(system.K[rows], z) - system.b[rows]
        return _scattered(system, rows, fit) + system.noise * z


class Features(AbstractEstimator):
    """ΦΦᵀz + λz − b with as many random features Φ, drawn anew, as there are rows in a batch: additive noise."""

    def __call__(self, system, z, rows, seed):
        X = system.operator.inputs
        assert X is not None
        draw = random_features(
            system.operator.kernel, X.shape[1], len(rows), key=jax.random.key(seed), orthogonal=False, dtype=z.dtype
        )  # fmt: skip
        Phi = draw(X)
        return matmul(Phi, matmul(Phi.T, z)) + system.noise * z - system.b


class Everything(AbstractEstimator):
    """g itself."""

    def __call__(self, system, z, rows, seed):
        return matmul(system.K, z) + system.noise * z - system.b


class Primal(AbstractEstimator):
    """K g, the gradient of ½‖b − Kα‖² + (λ/2)‖α‖²_K."""

    def __call__(self, system, z, rows, seed):
        return matmul(system.K, Everything()(system, z, rows, seed))


def _scattered(system: System, rows: Int[Array, " B"], values: Float[Array, " B"]) -> Float[Array, " N"]:
    return jnp.zeros_like(system.b).at[rows].add(values) * (system.b.shape[0] / rows.shape[0])


# Optimisers: steps are quoted as βN and multiply g/N


class AbstractOptimiser(eqx.Module):
    """A rule by which estimates of the gradient move α."""

    @abc.abstractmethod
    def init(self, alpha: Float[Array, " N"]) -> Any:
        """The state before the first step."""

    @abc.abstractmethod
    def ahead(self, alpha: Float[Array, " N"], state: Any) -> Float[Array, " N"]:
        """Where the gradient is taken."""

    @abc.abstractmethod
    def step(self, g: Float[Array, " N"], state: Any) -> tuple[Float[Array, " N"], Any]:
        """(the change of α, the next state), from g/N."""


class Nesterov(AbstractOptimiser):
    """v ← ρv − βg, α ← α + v, the gradient at α + ρv; ρ = 0 is plain descent."""

    step_size: float  # βN
    momentum: float = 0.9

    def init(self, alpha):
        return jnp.zeros_like(alpha)

    def ahead(self, alpha, state):
        return alpha + self.momentum * state

    def step(self, g, state):
        velocity = self.momentum * state - self.step_size * g
        return velocity, velocity


class Adaptive(AbstractOptimiser):
    """An optimiser of Optax as it comes."""

    step_size: float  # βN
    make: Callable[[float], optax.GradientTransformation] = eqx.field(static=True)

    def init(self, alpha):
        return self.make(self.step_size).init(alpha)

    def ahead(self, alpha, state):
        return alpha

    def step(self, g, state):
        return self.make(self.step_size).update(g, state)


# The loop


class Plan(NamedTuple):
    """How a curve is run: averages are geometric with r, and arithmetic from step `tail` on."""

    steps: int
    batch: int
    averaging: float
    tail: int
    seed: int = 0

    @staticmethod
    def of(steps: int, batch: int) -> "Plan":
        """The paper's: r = 100 / steps, and the arithmetic average of the last 30 %."""
        return Plan(steps, batch, 100 / max(steps, 100), steps * 7 // 10)


class Point(NamedTuple):
    """Where a run is; `arithmetic` is the mean of the steps after `tail`, α itself before."""

    alpha: Float[Array, " N"]
    optimiser: Any
    arithmetic: Float[Array, " N"]
    geometric: Float[Array, " N"]
    step: Int[Array, ""]


def descend(held: Held, estimator: AbstractEstimator, optimiser: AbstractOptimiser, plan: Plan) -> dict:
    """{curve: [[step, ‖·‖²_K, ‖·‖²_{K²}, RMSE], …]} of the three averages, and the seconds that the steps took.

    A run that is no longer finite ends.
    """
    zero = jnp.zeros_like(held.system.b)
    point = Point(zero, optimiser.init(zero), zero, zero, jnp.zeros((), jnp.int32))
    curves, seconds, done = {name: [] for name in CURVES}, 0.0, 0
    generator = np.random.default_rng(plan.seed)

    def advance(point: Point, n: int) -> Point:
        rows = generator.integers(0, len(zero), (STRETCH, plan.batch), dtype=np.int32)
        seeds = generator.integers(0, 2**31, STRETCH, dtype=np.int32)
        stretch = (held.system, estimator, optimiser, plan, point, rows, seeds, np.int32(n))
        return jax.block_until_ready(_stretch(*stretch))

    point = advance(point, 0)  # compiles
    for mark in marks(plan.steps):
        begun = time.perf_counter()
        while done < mark:
            n = min(STRETCH, mark - done)
            point, done = advance(point, n), done + n
        seconds += time.perf_counter() - begun
        if not bool(jnp.all(jnp.isfinite(point.alpha))):
            break
        for name, alpha in zip(CURVES, (point.alpha, point.arithmetic, point.geometric), strict=True):
            curves[name].append([mark, *held.scores(alpha)])
    return {
        "curves": curves,
        "finite": done == plan.steps,
        "seconds_of_steps": round(seconds, 2),
        "steps": done,
    }


def marks(steps: int) -> list[int]:
    """Steps at which a curve has points: powers of one factor."""
    return sorted({max(1, round(steps ** (i / MARKS))) for i in range(1, MARKS + 1)})


@eqx.filter_jit
def _stretch(
    system: System,
    estimator: AbstractEstimator,
    optimiser: AbstractOptimiser,
    plan: Plan,
    point: Point,
    rows: Int[Array, "K B"],
    seeds: Int[Array, " K"],
    n_steps: Int[Array, ""],
) -> Point:
    """The point after a step on each of the first `n_steps` batches: one program for stretches of any length."""
    N = system.b.shape[0]

    def step(k: Array, point: Point) -> Point:
        z = optimiser.ahead(point.alpha, point.optimiser)
        change, state = optimiser.step(estimator(system, z, rows[k], seeds[k]) / N, point.optimiser)
        alpha, t = point.alpha + change, point.step + 1
        n_averaged = jnp.maximum(t - plan.tail, 1).astype(alpha.dtype)
        arithmetic = point.arithmetic + (alpha - point.arithmetic) / n_averaged
        geometric = plan.averaging * alpha + (1 - plan.averaging) * point.geometric
        return Point(alpha, state, arithmetic, geometric, t)

    return jax.lax.fori_loop(0, n_steps, step, point)


# Pages and figures


def ends(records: list, label: Callable[[dict], str], curves: tuple[str, ...] = CURVES) -> list[list]:
    """Rows for a table: label, curve, steps, seconds, the three scores at the end."""
    rows = []
    for record in records:
        results = record["results"]
        for name in curves:
            curve = results["curves"][name]
            end = [f"{v:.4g}" if v is not None else "n/a" for v in curve[-1][1:]] if curve else ["n/a"] * 3
            state = results["steps"] if results["finite"] else f"not finite at {results['steps']}"
            rows.append([label(record["settings"]), name, state, results["seconds_of_steps"], *end])
    return rows


HEADINGS = ["run", "iterate", "steps", "seconds", "‖α − α*‖²_K", "‖α − α*‖²_{K²}", "test RMSE"]


def draw(panels: Any, curve: list, label: str, **style: Any) -> None:
    """One curve on three panels: the two norms and the RMSE."""
    if not curve:
        return
    step, *scores = zip(*curve, strict=True)
    for panel, values, name in zip(panels, scores, HEADINGS[-3:], strict=True):
        panel.loglog(
            step, [math.nan if v is None else v for v in values], label=label, linewidth=1.0, **style
        )
        panel.set_xlabel("steps")
        panel.set_title(name, fontsize=9)


def draw_geometric(records: list, label: Callable[[dict], str]) -> Figure:
    """The geometric averages of all runs."""
    drawing = Figure(figsize=(12, 4), layout="constrained")
    panels = drawing.subplots(1, 3)
    for record in records:
        draw(panels, record["results"]["curves"]["geometric"], label(record["settings"]))
    panels[2].legend(fontsize=7)
    return drawing
