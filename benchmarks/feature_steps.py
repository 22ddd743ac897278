"""`feature_steps`: microseconds per step of SCGD, MINIMAX and BSGD: 128-wide ReLU network, linear kernel.

The sides take turns in one process, each shuffling and gathering its batches. The library's side is the learner of
the paper through the library's own loop, compiled before the clock starts; `compile_seconds` stands apart. `torch` is eager PyTorch
by automatic differentiation of one scalar, on 1 or on 2 threads, whichever a short trial finds faster for the method and batch size.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from statistics import median
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from measuring import machine, store
from measuring.tables import table
from stochgp.data.memory import MemorySource
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

TRIAL_STEPS, SEED = 32, (0, 0)
PAUSE = (
    0.3  # seconds between blocks: OpenMP's workers may spin for 0.2 s after their last task, slowing the next
)
RATES = {"adam": 1e-3, "adadelta": 1.0}
OPTIMISERS = {"adam": optax.adam, "adadelta": optax.adadelta}
JUDGE = ByEvidence(refit=False, validation_fraction=0.0)


def cells(quick: bool, slow: bool) -> list[store.Cell]:
    sizes = {"n_rows": 4_096 if quick else 16_384, "n_inputs": 17, "dtype": "float32"}
    sizes |= {"blocks": 2, "epochs": 2} if quick else {"blocks": 4, "epochs": 3}
    each = product(("scgd", "minimax", "bsgd"), ("adam",) if quick else RATES, (32, 128))
    return [
        sizes | {"method": m, "optimiser": optimiser, "batch_size": batch} for m, optimiser, batch in each
    ]


def run(cell: store.Cell) -> dict[str, Any]:
    """`speedup` says how many times longer the other side's median step takes."""
    problem = make_problem(cell["n_rows"], cell["n_inputs"])
    given = problem, cell["method"], cell["optimiser"], cell["batch_size"]
    sides = {"stochgp": LibrarySide(*given), "torch": TorchSide(*given)}
    epochs = {name: side.epoch for name, side in sides.items()}
    seconds = alternate(epochs, blocks=cell["blocks"], epochs=cell["epochs"])
    figures = {name: per_step(seconds[name], side.n_steps) | side.facts() for name, side in sides.items()}
    ratio = figures["torch"]["median_us"] / figures["stochgp"]["median_us"]
    return {
        "steps_per_epoch": sides["stochgp"].n_steps,
        "sides": figures,
        "speedup": {"torch": round(ratio, 3)},
    }


def page(records: list[store.Record]) -> list[str]:
    rows = [
        [
            r["method"],
            r["optimiser"],
            r["batch_size"],
            *(r["sides"][side]["median_us"] for side in ("stochgp", "torch")),
        ]
        + [r["speedup"]["torch"]]
        for r in store.rows(records)
    ]
    return [table("method | optimiser | batch | stochgp, µs | torch, µs | times faster", rows)]


def alternate(
    sides: Mapping[str, Callable[[], object]], *, blocks: int, epochs: int
) -> dict[str, list[float]]:
    """Seconds of every timed epoch, by side.

    A block is one untimed epoch, which wakes the side's thread pool, and `epochs` timed ones. The sides take
    turns, and their order is reversed after each round, so that a slow drift of the machine falls on all of them.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for block in range(blocks):
        for name in list(sides) if block % 2 == 0 else list(sides)[::-1]:
            time.sleep(PAUSE)
            sides[name]()
            seconds[name] += [timed(sides[name]) for _ in range(epochs)]
    return seconds


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def per_step(seconds: Sequence[float], n_steps: int) -> dict[str, float | int]:
    """Microseconds a step: median, least and greatest over the epochs of `n_steps` steps each."""
    steps = sorted(1e6 * epoch / n_steps for epoch in seconds)
    least, greatest = round(steps[0], 2), round(steps[-1], 2)
    return {"median_us": round(median(steps), 2), "min_us": least, "max_us": greatest, "epochs": len(steps)}


class Problem(NamedTuple):
    """Rows X [N, D] and y [N], weights W1 [D, M], b1 [M], W2 [M, M], b2 [M] of a ReLU network; float32."""

    X: np.ndarray
    y: np.ndarray
    weights: tuple[np.ndarray, ...]
    noise_variance: float = 0.1
    noise_floor: float = 1e-4


def make_problem(n_rows: int, n_inputs: int = 17, width: int = 128, seed: int = 0) -> Problem:
    """y = sin(x·a) + 0.3 ε with x, a, ε standard normal; W ~ N(0, 2/fan-in), b ~ U(−1, 1)/√fan-in."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_rows, n_inputs), dtype=np.float32)
    y = np.sin(X @ rng.standard_normal(n_inputs, dtype=np.float32))
    y += np.float32(0.3) * rng.standard_normal(n_rows, dtype=np.float32)
    return Problem(X, y, (*_layer(rng, n_inputs, width), *_layer(rng, width, width)))


def _layer(rng: np.random.Generator, n_inputs: int, n_outputs: int) -> tuple[np.ndarray, np.ndarray]:
    weight = rng.standard_normal((n_inputs, n_outputs), dtype=np.float32) * np.float32((2 / n_inputs) ** 0.5)
    return weight, (rng.random(n_outputs, dtype=np.float32) * 2 - 1) * np.float32(n_inputs**-0.5)


def make_learner(method: str, optimiser: str, batch_size: int) -> AbstractLearner:
    """The method as its paper has it: plain tracker with b = 0.9, μ = 1, no anchor, no refit, a constant rate."""
    common: dict[str, Any] = {
        "batch_size": batch_size, "epochs": 10**6, "learning_rate": RATES[optimiser], "optimizer": OPTIMISERS[optimiser], "decay": constant,
        "evaluator": JUDGE,
    }  # fmt: skip
    if method == "scgd":
        return SCGD(tracking=0.9, anchored=False, **common)
    if method == "minimax":
        return Minimax(anchored=False, **common)
    common["optimizer"] = of_sums(optimiser, batch_size)
    return BSGD(**common)


def of_sums(optimiser: str, batch_size: int) -> Optimizer:
    """The rule for BSGD. Its paper, like PyTorch's side, sums over the batch, so gradients are 2B times ours: AdaDelta sees the difference."""
    if optimiser == "adam":
        return optax.adam
    return lambda rate: optax.chain(optax.scale(2.0 * batch_size), OPTIMISERS[optimiser](rate))


def make_gp(problem: Problem) -> FeatureGP:
    """The problem's network and noise; the kernel has no scale of its own, as on PyTorch's side."""
    W1, b1, W2, b2 = (jnp.asarray(part) for part in problem.weights)
    network = MLP((Dense(W1, b1), Dense(W2, b2)), relu, True)
    return FeatureGP(
        Network(network), positive(problem.noise_variance, lower=problem.noise_floor), frozen(1.0)
    )


class LibrarySide:
    """A learner with its state and its rows on the device. Shuffling and gathering the batches are part of an epoch."""

    def __init__(self, problem: Problem, method: str, optimiser: str, batch_size: int):
        with jax.enable_x64(True):
            learner, source = make_learner(method, optimiser, batch_size), MemorySource(problem.X, problem.y)
            gp = make_gp(problem)
            plan = learner.plan(source.size, source.n_inputs, JUDGE)
            self.learner = learner
            self.run = Run(source, plan, learner.prepare(gp, source, plan, SEED))
            self.state = learner.init(gp, self.run, key=jax.random.key(1))
            if method == "minimax":
                self.state = inside(self.state, gp, source)
        self.step, self.projected, self.timed = 0, 0.0, 0
        first, second = timed(self.epoch), timed(self.epoch)
        self.compile_seconds = first - second

    def epoch(self) -> None:
        """⌊N/B⌋ steps, less what whole chunks leave over."""
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

    def facts(self) -> dict[str, float]:
        """Compile time; for MINIMAX also the fraction of steps that needed a decomposition."""
        facts = {"compile_seconds": round(self.compile_seconds, 2), "steps": self.n_steps}
        return facts | ({"decomposed": self.projected / self.timed} if hasattr(self.state, "A") else {})


def inside(state: Any, gp: FeatureGP, source: MemorySource) -> Any:
    """A₀ = F(θ₀) + 0.1 of its mean diagonal, ceiling 100 tr A₀: the projection begins inactive, as on PyTorch's side."""
    moments = add_up(gp, source.blocks(chunk_rows(gp.n_features)))
    F = np.asarray(moments.gram) + float(gp.noise_variance) * np.eye(gp.n_features)
    F += 0.1 * np.trace(F) / len(F) * np.eye(len(F))
    new = (jnp.asarray(F, jnp.float32), jnp.asarray(100 * np.trace(F), jnp.float32))
    return eqx.tree_at(lambda s: (s.A, s.ceiling), state, new)


class TorchSide:
    """The PyTorch rival with its resident rows, on the number of threads that a trial finds faster."""

    def __init__(self, problem: Problem, method: str, optimiser: str, batch_size: int):
        import torch

        from benchmarks import rivals_torch

        self.rival = rivals_torch.METHODS[method](problem, rivals_torch.OPTIMISERS[optimiser])
        self.X, self.y = torch.from_numpy(problem.X), torch.from_numpy(problem.y)
        self.n_steps = len(self.y) // batch_size
        generator = torch.Generator().manual_seed(0)
        self.steps = lambda n: rivals_torch.run_steps(self.rival, self.X, self.y, batch_size, n, generator)
        self.set_threads, trials = torch.set_num_threads, {}
        for threads in range(1, min(2, machine.usable_cores()) + 1):
            torch.set_num_threads(threads)
            trials[threads] = median(timed(lambda: self.steps(TRIAL_STEPS)) for _ in range(4))
        self.threads = min(trials, key=lambda threads: trials[threads])

    def epoch(self) -> None:
        self.set_threads(self.threads)
        self.steps(self.n_steps)

    def facts(self) -> dict[str, int]:
        """Threads used; for MINIMAX also the steps at which its projection would have been active."""
        violations = getattr(self.rival, "violations", None)
        return {"threads": self.threads} | ({} if violations is None else {"violations": int(violations)})
