"""X17 (Lin et al. 2024, figures 5 and 9): Thompson sampling of functions drawn from a Matérn-3/2 prior on [0, 1]⁸.

The kernel of the model is that of the target; targets are draws of 2,000 random features with lengthscales 0.1 to 0.5, noise variance 1e-6. Each round
a function for every point of the batch is conditioned on all observations and maximised; weights begin where the last round ended. Every method has
the same seconds of solving a round, compilation left out; random search has none. Lines hold the best value of the target itself so far, against
observations and seconds.

2,000 initial points, 6 rounds of 50 points, 3 s of solving, 3 seeds: within an hour on two cores with --jobs 2, by the processor time of a trial.
--slow adds the paper's size: 50,000 points, 30 rounds of 1,000, 10 seeds.
"""

import contextlib
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from measuring import tables
from measuring.store import Cell, Record
from stochgp import learners
from stochgp.data.rows import Rows
from stochgp.data.streams import DeviceRows
from stochgp.kernels import Matern32
from stochgp.likelihoods import constant_noise
from stochgp.likelihoods.noise import known_noise
from stochgp.models import SparseGP
from stochgp.numerics.arrays import on_device
from stochgp.parameters import frozen
from stochgp.posteriors import AbstractFunctions, KernelFunctions, KernelSystem, VariationalPosterior
from stochgp.posteriors.growing import sides, warm_start
from stochgp.posteriors.sampled import NoiseDraws
from stochgp.priors import prior_functions
from stochgp.solvers import CG, SDD, SGD, solve
from stochgp.thompson.maximise import Box, Maximiser, maximise
from stochgp.variational import InducingPoints

D, NOISE, FEATURES, TILE = 8, 1e-6, 2000, 8192
LENGTHSCALES = (0.1, 0.2, 0.3, 0.4, 0.5)
SOLVERS = {"sdd": SDD(epochs=100_000), "sgd": SGD(epochs=100_000), "cg": CG(epochs=100_000)}
METHODS = (*SOLVERS, "svgp", "random")
INDUCING, RATE, MOST_EPOCHS = 512, 0.01, 1_000
BOX = Box(np.zeros(D), np.ones(D))
REACHED = 1e-7  # a relative residual below which no method goes within its seconds


class Size(NamedTuple):
    """How large a run is."""

    initial: int
    rounds: int
    batch: int
    seconds: float
    seeds: int
    maximiser: Maximiser


SIZES = {
    "tiny": Size(60, 2, 4, 0.2, 1, Maximiser(rounds=2, candidates=64, steps=5)),
    "usual": Size(2_000, 6, 50, 3.0, 3, Maximiser(rounds=5, candidates=1_000, steps=50)),
    "paper": Size(50_000, 30, 1_000, 60.0, 10, Maximiser(rounds=30, candidates=50_000)),
}


def cells(quick: bool, slow: bool) -> list[Cell]:
    names = ["tiny"] if quick else ["usual", "paper"] if slow else ["usual"]
    lengthscales = LENGTHSCALES[2:3] if quick else LENGTHSCALES
    return [
        {"size": name, "lengthscale": lengthscale, "seed": seed, "method": method}
        for name in names
        for lengthscale in lengthscales
        for seed in range(SIZES[name].seeds)
        for method in METHODS
    ]


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    size = SIZES[cell["size"]]
    return 1.0 if cell["method"] == "random" else size.rounds * size.initial


def run(cell: Cell) -> dict:
    return _Run(cell).go()


class _Run:
    """One optimisation, and its books."""

    def __init__(self, cell: Cell):
        self.size, self.method = SIZES[cell["size"]], cell["method"]
        target_key, noise_key, prior_key, self.key = jax.random.split(jax.random.key(cell["seed"]), 4)
        self.kernel = Matern32(np.full(D, cell["lengthscale"], np.float32), 1.0)
        self.target = prior_functions(self.kernel, D, 1, n_features=FEATURES, key=target_key)
        self.prior = prior_functions(self.kernel, D, self.size.batch, n_features=FEATURES, key=prior_key)
        self.generator = np.random.default_rng(np.asarray(jax.random.key_data(noise_key)))
        self.X = self.generator.uniform(size=(self.size.initial, D)).astype(np.float32)
        self.f = self.values(self.X)
        self.y = self.observed(self.f)
        self.weights = np.zeros((0, 1 + self.size.batch), np.float32)
        self.draws = NoiseDraws((), ())
        self.sparse: SparseGP | None = None
        self.seconds = self.compiling = 0.0

    def go(self) -> dict:
        best, seconds, residuals, counts = [float(self.f.max())], [0.0], [], [len(self.y)]
        for number in range(self.size.rounds):
            begun, self.compiling = time.perf_counter(), 0.0
            new = self.random() if self.method == "random" else self.thompson(number, residuals)
            self.seconds += time.perf_counter() - begun - self.compiling
            f = self.values(new)
            self.X, self.f = np.concatenate([self.X, new]), np.concatenate([self.f, f])
            self.y = np.concatenate([self.y, self.observed(f)])
            best.append(float(self.f.max()))
            seconds.append(self.seconds)
            counts.append(len(self.y))
        found = {"best": best, "seconds_so_far": seconds, "observations": counts, "residuals": residuals}
        return found | {"gain": best[-1] - best[0], "last": best[-1]}

    def random(self) -> np.ndarray:
        return self.generator.uniform(size=(self.size.batch, D)).astype(np.float32)

    def thompson(self, number: int, residuals: list[float]) -> np.ndarray:
        """The maxima of functions given all observations."""
        with jax.enable_x64(True):
            condition = self.inducing if self.method == "svgp" else self.conditioned
            functions = condition(number, residuals)
            observed, nearby = Rows(self.X, self.y), np.asarray(self.kernel.lengthscale.value) / 2
            points, _ = maximise(
                functions, self.size.maximiser, BOX, observed, nearby, generator=self.generator
            )
        return points.astype(np.float32)

    def conditioned(self, number: int, residuals: list[float]) -> KernelFunctions:
        """Solved for as long as a round may take, from the weights of the last round."""
        N, held = len(self.y), len(self.weights)
        system = KernelSystem(self.kernel, on_device(self.X), np.ones(N), known_noise(NOISE), TILE)
        noise_key, start_key, run_key = jax.random.split(jax.random.fold_in(self.key, number), 3)
        self.draws = NoiseDraws((*self.draws.n_rows, N - held), (*self.draws.keys, noise_key))
        operator = system.operator
        b = sides(operator, system.X, self.y, self.prior, self.draws)
        known = {"tolerance": REACHED, "key": start_key}
        start: Any = warm_start(operator, b, self.weights, **known) if held else jnp.zeros_like(b)
        solver = SOLVERS[self.method]
        settings = {"key": run_key, "start": start, "tolerance": REACHED}
        with self.not_counted():
            solve(operator, b, solver, time_limit=1e-6, **settings)
        found = solve(operator, b, solver, time_limit=self.size.seconds, **settings)
        residuals.append(float(found.residual_norms[0]))
        self.weights = np.asarray(found.value)
        return KernelFunctions(operator, self.prior, operator.pad(found.value[:, :1] - found.value[:, 1:]))

    def inducing(self, number: int, residuals: list[float]) -> AbstractFunctions:
        """SVGP at the kernel and noise of the others, trained for as long, from q(u) and the points of the last round."""
        if self.sparse is None:
            rows = self.generator.permutation(len(self.X))[:INDUCING]
            noise = constant_noise(frozen(np.float32(NOISE)))
            self.sparse = SparseGP(frozen(self.kernel), InducingPoints.of(jnp.asarray(self.X[rows])), noise)
        source = DeviceRows(self.X, self.y.astype(np.float32))
        key, draw_key = jax.random.split(jax.random.fold_in(self.key, number))
        with self.not_counted():
            learners.fit(learners.SVGP(epochs=1, learning_rate=RATE), self.sparse, source, key=key)
        learner = learners.SVGP(epochs=MOST_EPOCHS, learning_rate=RATE)
        self.sparse = learners.fit(learner, self.sparse, source, key=key, time_limit=self.size.seconds).gp
        return VariationalPosterior.of(self.sparse, D).functions(self.size.batch, key=draw_key)

    @contextlib.contextmanager
    def not_counted(self) -> Iterator[None]:
        """Around a first run, which compiles."""
        begun = time.perf_counter()
        yield
        self.compiling += time.perf_counter() - begun

    def values(self, X: np.ndarray) -> np.ndarray:
        return np.asarray(self.target(jnp.asarray(X)))[:, 0].astype(np.float64)

    def observed(self, f: np.ndarray) -> np.ndarray:
        return f + NOISE**0.5 * self.generator.normal(size=len(f))


def page(records: list[Record]) -> list[str]:
    """For every lengthscale the gain over the initial points, and how much less than stochastic dual descent the others gained."""
    parts = []
    for size in dict.fromkeys(record["settings"]["size"] for record in records):
        rows = []
        for lengthscale in LENGTHSCALES:
            gains = _gains(records, size, lengthscale)
            if gains:
                rows.append([lengthscale, *(_told(gains, method) for method in METHODS)])
        headings = ["lengthscale", *METHODS]
        text = f"Size `{size}`: the gain over the best initial point, means over seeds; in brackets the paired difference of SDD's gain, ± its standard error."
        parts += [text, tables.table(headings, rows)]
    return parts


def figure(records: list[Record]) -> Figure:
    drawing = Figure(figsize=(15, 6), layout="constrained")
    panels = drawing.subplots(2, len(LENGTHSCALES), squeeze=False)
    for i, lengthscale in enumerate(LENGTHSCALES):
        for j, method in enumerate(METHODS):
            found = [
                r["results"] for r in records if _is(r, records[0]["settings"]["size"], lengthscale, method)
            ]
            if not found:
                continue
            best = np.mean([r["best"] for r in found], axis=0)
            panels[0][i].plot(found[0]["observations"], best, color=f"C{j}", label=method)
            panels[1][i].plot(np.mean([r["seconds_so_far"] for r in found], axis=0), best, color=f"C{j}")
        panels[0][i].set(title=f"lengthscale {lengthscale}", xlabel="observations", ylabel="best value")
        panels[1][i].set(xlabel="seconds", ylabel="best value")
    panels[0][0].legend()
    return drawing


def _is(record: Record, size: str, lengthscale: float, method: str) -> bool:
    s = record["settings"]
    return (s["size"], s["lengthscale"], s["method"]) == (size, lengthscale, method)


def _gains(records: list[Record], size: str, lengthscale: float) -> dict[str, dict[int, float]]:
    """Method → seed → gain."""
    found: dict[str, dict[int, float]] = {}
    for method in METHODS:
        of = {
            r["settings"]["seed"]: r["results"]["gain"] for r in records if _is(r, size, lengthscale, method)
        }
        if of:
            found[method] = of
    return found


def _told(gains: dict[str, dict[int, float]], method: str) -> str:
    if method not in gains:
        return "–"
    mean = np.mean(list(gains[method].values()))
    both = sorted(gains[method].keys() & gains.get("sdd", {}).keys())
    if method == "sdd" or not both:
        return f"{mean:.3f}"
    differences = np.array([gains["sdd"][seed] - gains[method][seed] for seed in both])
    error = differences.std(ddof=1) / len(both) ** 0.5 if len(both) > 1 else np.nan
    return f"{mean:.3f} ({differences.mean():+.3f} ± {error:.3f})"
