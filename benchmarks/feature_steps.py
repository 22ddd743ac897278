"""`feature_steps`: microseconds per step of SCGD, MINIMAX and BSGD, compared with PyTorch.

Both libraries run in turns in one process, with a 128-wide ReLU network and a linear kernel. Each shuffles
and gathers its batches. This library runs the learner of the paper, compiled before the timing;
`compile_seconds` are reported separately. `torch` is eager PyTorch on 1 or 2 threads, whichever is faster.
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
PAUSE = 0.3  # seconds between blocks, because threads of OpenMP may stay busy for 0.2 s
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
    """Time one cell; `speedup` is the ratio of the median step times."""
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
    """Return the seconds of every timed epoch, for each library.

    A block is one untimed epoch and `epochs` timed ones. The libraries take turns, and their order is
    reversed after each round, so that slow drifts of the machine affect both.
    """
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for block in range(blocks):
        for name in list(sides) if block % 2 == 0 else list(sides)[::-1]:
            time.sleep(PAUSE)
            sides[name]()
            seconds[name] += [timed(sides[name]) for _ in range(epochs)]
    return seconds


def timed(call: Callable[[], object]) -> float:
    """Return the seconds of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def per_step(seconds: Sequence[float], n_steps: int) -> dict[str, float | int]:
    """Return median, minimum and maximum of the microseconds per step over epochs."""
    steps = sorted(1e6 * epoch / n_steps for epoch in seconds)
    least, greatest = round(steps[0], 2), round(steps[-1], 2)
    return {"median_us": round(median(steps), 2), "min_us": least, "max_us": greatest, "epochs": len(steps)}


class Problem(NamedTuple):
    """Rows X [N, D] and y [N], and float32 weights of a ReLU network with two layers."""

    X: np.ndarray
    y: np.ndarray
    weights: tuple[np.ndarray, ...]
    noise_variance: float = 0.1
    noise_floor: float = 1e-4


def make_problem(n_rows: int, n_inputs: int = 17, width: int = 128, seed: int = 0) -> Problem:
    """Draw y = sin(x·a) + 0.3 ε with normal x, a and ε, and weights of a network."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_rows, n_inputs), dtype=np.float32)
    y = np.sin(X @ rng.standard_normal(n_inputs, dtype=np.float32))
    y += np.float32(0.3) * rng.standard_normal(n_rows, dtype=np.float32)
    return Problem(X, y, (*_layer(rng, n_inputs, width), *_layer(rng, width, width)))


def _layer(rng: np.random.Generator, n_inputs: int, n_outputs: int) -> tuple[np.ndarray, np.ndarray]:
    weight = rng.standard_normal((n_inputs, n_outputs), dtype=np.float32) * np.float32((2 / n_inputs) ** 0.5)
    return weight, (rng.random(n_outputs, dtype=np.float32) * 2 - 1) * np.float32(n_inputs**-0.5)


def make_learner(method: str, optimiser: str, batch_size: int) -> AbstractLearner:
    """Return the method of its paper: b = 0.9, μ = 1, no anchor, no refit, constant rate."""
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
    """Return an optimiser for BSGD with gradients of sums over the batch, as in its paper."""
    if optimiser == "adam":
        return optax.adam
    return lambda rate: optax.chain(optax.scale(2.0 * batch_size), OPTIMISERS[optimiser](rate))


def make_gp(problem: Problem) -> FeatureGP:
    """Return a GP with the network and the noise of the problem."""
    W1, b1, W2, b2 = (jnp.asarray(part) for part in problem.weights)
    network = MLP((Dense(W1, b1), Dense(W2, b2)), relu, True)
    return FeatureGP(
        Network(network), positive(problem.noise_variance, lower=problem.noise_floor), frozen(1.0)
    )


class LibrarySide:
    """A learner with its state and its rows on the device. Epochs include shuffling."""

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
        """Run an epoch of about ⌊N/B⌋ steps, in whole chunks."""
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
        """Return compile time, and for MINIMAX the fraction of steps with a decomposition."""
        facts = {"compile_seconds": round(self.compile_seconds, 2), "steps": self.n_steps}
        return facts | ({"decomposed": self.projected / self.timed} if hasattr(self.state, "A") else {})


def inside(state: Any, gp: FeatureGP, source: MemorySource) -> Any:
    """Return a start inside the bounds: A₀ = F(θ₀) + 0.1 of its mean diagonal."""
    moments = add_up(gp, source.blocks(chunk_rows(gp.n_features)))
    F = np.asarray(moments.gram) + float(gp.noise_variance) * np.eye(gp.n_features)
    F += 0.1 * np.trace(F) / len(F) * np.eye(len(F))
    new = (jnp.asarray(F, jnp.float32), jnp.asarray(100 * np.trace(F), jnp.float32))
    return eqx.tree_at(lambda s: (s.A, s.ceiling), state, new)


class TorchSide:
    """The PyTorch version, on the number of threads that is faster in a trial."""

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
        """Return threads, and for MINIMAX the number of steps that needed a projection."""
        violations = getattr(self.rival, "violations", None)
        return {"threads": self.threads} | ({} if violations is None else {"violations": int(violations)})
