"""The library's side of the benchmarks: the learners of the papers on a `Problem`, an epoch at a time."""

import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.problem import Problem
from stochgp.data.streams import AbstractSource, DeviceRows, HostRows
from stochgp.deadline import Pace
from stochgp.features import Network
from stochgp.learners import BSGD, SCGD, AbstractLearner, ByEvidence, Minimax, constant
from stochgp.learners import Problem as Run
from stochgp.learners.descent import Optimizer
from stochgp.learning.run import take_stretch
from stochgp.models import FeatureGP
from stochgp.networks import MLP, Dense, relu
from stochgp.objectives.moments import add_up, chunk_rows
from stochgp.parameters import frozen, positive

RATES = {"adam": 1e-3, "adadelta": 1.0}
OPTIMISERS = {"adam": optax.adam, "adadelta": optax.adadelta}
SEED = (0, 0)
JUDGE = ByEvidence(refit=False, validation_fraction=0.0)


def make_learner(method: str, optimiser: str, batch_size: int) -> AbstractLearner:
    """The method as its paper has it: plain tracker with b = 0.9, μ = 1, no anchor, no refit, a constant rate."""
    common = {
        "batch_size": batch_size,
        "epochs": 10**6,  # more than any benchmark takes
        "learning_rate": RATES[optimiser],
        "optimizer": OPTIMISERS[optimiser],
        "decay": constant,
        "evaluator": JUDGE,
    }
    if method == "scgd":
        return SCGD(tracking=0.9, anchored=False, **common)
    if method == "minimax":
        return Minimax(anchored=False, **common)
    return BSGD(**common | {"optimizer": of_sums(optimiser, batch_size)})


def of_sums(optimiser: str, batch_size: int) -> Optimizer:
    """The rule for BSGD. Its paper, like the other sides, sums over the batch, so gradients are 2B times ours: AdaDelta sees the difference."""
    if optimiser == "adam":
        return optax.adam
    return lambda rate: optax.chain(optax.scale(2.0 * batch_size), OPTIMISERS[optimiser](rate))


def make_gp(problem: Problem) -> FeatureGP:
    """The problem's network and noise; the kernel has no scale of its own, as on the other sides."""
    W1, b1, W2, b2 = (jnp.asarray(part) for part in problem.weights)
    network = MLP((Dense(W1, b1), Dense(W2, b2)), relu, True)
    noise = positive(problem.noise_variance, lower=problem.noise_floor)
    return FeatureGP(Network(network), noise, frozen(1.0))


class LibrarySide:
    """A learner with its state and its rows, on the device or on the host. Shuffling and gathering the batches are part of an epoch."""

    def __init__(
        self,
        problem: Problem,
        method: str,
        optimiser: str,
        batch_size: int,
        rows: type[DeviceRows] | type[HostRows] = DeviceRows,
    ):
        with jax.enable_x64(True):
            learner, source = make_learner(method, optimiser, batch_size), rows(problem.X, problem.y)
            gp = make_gp(problem)
            plan = learner.plan(source.size, source.n_inputs, JUDGE)
            self.learner = learner
            self.run = Run(source, plan, learner.prepare(gp, source, plan, SEED))
            self.state = learner.init(gp, self.run, key=jax.random.key(1))
            if method == "minimax":
                self.state = _inside(self.state, gp, source)
        self.step, self.projected, self.timed = 0, 0.0, 0
        first, second = self._seconds(), self._seconds()
        self.compile_seconds = first - second

    def epoch(self) -> None:
        """⌊N/B⌋ steps but for what whole chunks leave over."""
        with jax.enable_x64(True):
            self.state, n, info = take_stretch(
                self.learner, self.state, self.run, self.step, SEED, pieces=Pace()
            )
            self.step += n
            jax.block_until_ready(self.state.descent.rate)
        self.projected += info.get("decomposed", 0.0)
        self.timed += 1

    @property
    def n_steps(self) -> int:
        return self.run.plan.steps_per_evaluation

    def facts(self) -> dict:
        """Compile time; for MINIMAX also the fraction of steps that needed a decomposition."""
        facts = {"compile_seconds": round(self.compile_seconds, 2), "steps": self.n_steps}
        if hasattr(self.state, "A"):
            facts["decomposed"] = self.projected / self.timed
        return facts

    def _seconds(self) -> float:
        start = time.perf_counter()
        self.epoch()
        return time.perf_counter() - start


def _inside(state, gp: FeatureGP, source: AbstractSource):
    """A₀ = F(θ₀) + 0.1 of its mean diagonal, ceiling 100 tr A₀: the projection begins inactive, as on the other sides."""
    moments = add_up(gp, source.chunks(chunk_rows(gp.n_features)))
    F = np.asarray(moments.gram) + float(gp.noise_variance) * np.eye(gp.n_features)
    F += 0.1 * np.trace(F) / len(F) * np.eye(len(F))
    new = (jnp.asarray(F, jnp.float32), jnp.asarray(100 * np.trace(F), jnp.float32))
    return eqx.tree_at(lambda s: (s.A, s.ceiling), state, new)
