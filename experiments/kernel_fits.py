"""What the experiments on kernel learners share: models, predictions of some test rows, and differences of losses with their errors."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.problems import Problem
from measuring.sets import hyperparameters
from stochgp import kernels
from stochgp.kernels.dense import block
from stochgp.learners.conditionals import AbstractConditionals, ConditionalState
from stochgp.learning.judge import ByLoss
from stochgp.learning.standard_errors import cells_of
from stochgp.models import KernelGP
from stochgp.numerics.dense_factor import factorised
from stochgp.objectives.kernel import covariance
from stochgp.parameters import cast
from stochgp.posteriors import LocalPosterior

NEIGHBOURS, CALIBRATION_ROWS = 128, 500  # of the local predictor
BOX_ROWS = 10  # cells_of makes boxes of at least four times so many rows: 32 to 128 of them
TWO_PI = 2 * math.pi


class Predicted(NamedTuple):
    """Of observations at the test rows, in standard deviations of the training targets."""

    mean: np.ndarray
    variance: np.ndarray
    scale: float = 1.0  # of the variances, as calibrated

    def losses(self, y: np.ndarray) -> np.ndarray:
        """−log density of each row."""
        return 0.5 * (np.log(TWO_PI * self.variance) + (y - self.mean) ** 2 / self.variance)

    def times(self, c: float) -> "Predicted":
        return Predicted(self.mean, c * self.variance, c * self.scale)


class Truth(NamedTuple):
    """Test rows; `box` has the number of a box of inputs for each."""

    X: np.ndarray
    y: np.ndarray
    box: np.ndarray


def start(n_inputs: int, name: str = "matern32", lengthscale: float | None = None, noise: float = 0.1) -> Any:
    """Variance 1; lengthscales √D unless given; float32."""
    made = {"matern12": kernels.Matern12, "matern32": kernels.Matern32, "matern52": kernels.Matern52}[name]
    lengthscale = n_inputs**0.5 if lengthscale is None else lengthscale
    with jax.enable_x64(True):
        return cast(KernelGP(made(np.full(n_inputs, lengthscale)), noise), "float32")


def published(name: str, split: int) -> Any:
    """With the hyperparameters of Lin et al. (2023); None where there are none for the set."""
    try:
        theta = hyperparameters(name, split)
    except KeyError:
        return None
    with jax.enable_x64(True):
        kernel = kernels.Matern32(theta["lengthscale"], theta["variance"])
        return cast(KernelGP(kernel, theta["noise_variance"]), "float32")


def some_tests(problem: Problem, most: int | None) -> Truth:
    """At most so many random test rows."""
    kept = np.sort(np.random.default_rng(1).permutation(len(problem.y_test))[:most])
    X = problem.X_test[kept]
    return Truth(X, problem.y_test[kept], cells_of(np.asarray(X, np.float64), BOX_ROWS))


def locally(gp: Any, problem: Problem, truth: Truth, n_neighbours: int = NEIGHBOURS) -> Predicted:
    """By the nearest rows, variances scaled by left-out rows."""
    count = np.ones(len(problem.y), problem.y.dtype)
    made = LocalPosterior(gp=gp, X=problem.X, y=problem.y, weight=count, n_neighbours=n_neighbours)
    made = made.calibrated(CALIBRATION_ROWS, 0)
    mean, variance = made.mean_and_variance(truth.X)
    return Predicted(np.asarray(mean), np.asarray(variance) + made.noise_variance, made.scale)


class Dense(NamedTuple):
    """The exact posterior of a few rows in float64: A = K + σ²I = LLᵀ, α = A⁻¹y."""

    gp: Any
    X: np.ndarray
    y: np.ndarray
    factor: Any
    alpha: np.ndarray

    @property
    def noise(self) -> float:
        return float(self.gp.noise_variance)

    def predict(self, X: np.ndarray) -> Predicted:
        Z = np.asarray(X, np.float64)
        with jax.enable_x64(True):
            across = block(self.gp.kernel, self.X, Z)
            prior = np.asarray(self.gp.kernel.diag(jnp.asarray(Z)))
        left = prior - np.sum(self.factor.half(across) ** 2, axis=0)
        return Predicted(across.T @ self.alpha, np.maximum(left, 0) + self.noise)

    def inverse_diagonal(self) -> np.ndarray:
        """Q_ii, Q = A⁻¹: the sums of squares of the columns of L⁻¹."""
        return np.sum(self.factor.half(np.eye(len(self.y), order="F")) ** 2, axis=0)


def dense(gp: Any, X: np.ndarray, y: np.ndarray) -> Dense:
    X, y = np.asarray(X, np.float64), np.asarray(y, np.float64)
    with jax.enable_x64(True):
        gp = cast(gp, "float64")
        noise = np.full(len(y), float(gp.noise_variance))
        factor = factorised(lambda: covariance(gp.kernel, X, noise, "float64"))
    return Dense(gp, X, y, factor, np.asarray(factor.solve(y[:, None]))[:, 0])


def scores(predicted: Predicted, truth: Truth) -> dict[str, float]:
    errors = truth.y - predicted.mean
    inside = np.abs(errors) < 1.959964 * np.sqrt(predicted.variance)
    return {
        "rmse": float(np.sqrt(np.mean(errors**2))),
        "nlpd": float(np.mean(predicted.losses(truth.y))),
        "coverage95": float(np.mean(inside)),
        "scale": predicted.scale,
    }


def paired(one: Predicted, other: Predicted, truth: Truth) -> dict[str, float]:
    """Mean difference of the losses, the first less the second; its standard error over rows, and that by boxes of test inputs."""
    d = one.losses(truth.y) - other.losses(truth.y)
    mean, n = float(np.mean(d)), len(d)
    sums = np.bincount(truth.box, d - mean)
    return {
        "nlpd": mean,
        "error": float(np.std(d)) / n**0.5,
        "error_by_boxes": float(np.sqrt(np.sum(sums**2))) / n,
    }


class Scoring:
    """Scoring steps of a conditional learner on centres drawn once, from a θ of the caller's; what it minimises has the learner's prior."""

    def __init__(self, learner: AbstractConditionals, first: Any, source: Any, seed: int):
        from stochgp.learning.base import Problem as Run

        self.learner, self.source = learner, source
        plan = learner.plan(source.size, source.n_inputs, ByLoss())
        self.run = Run(source, plan, learner.prepare(first, source, plan, (seed,)))
        self.first, self.seed = first, seed

    def begin(self, gp: Any, near: np.ndarray | None = None) -> ConditionalState:
        """At `gp`, with its neighbours or those given."""
        import equinox as eqx

        state = self.learner.init(self.first, self.run, key=jax.random.key(0))
        near = self.near(gp) if near is None else near
        return eqx.tree_at(lambda s: (s.gp, s.near), state, (gp, near))

    def near(self, gp: Any) -> np.ndarray:
        """Neighbours of the centres by the metric of `gp`, the centre last."""
        return self.learner.around(gp, self.run.prepared)

    def step(self, state: ConditionalState) -> tuple[ConditionalState, dict[str, float]]:
        return self.learner.score(state, self.run)

    def by_batches(self, state: ConditionalState, step: int) -> ConditionalState:
        """After a pass of mini-batches, as the learner's rounds have it; neighbours stay."""
        return self.learner._by_batches(state, self.run, (self.seed, step))[0]
