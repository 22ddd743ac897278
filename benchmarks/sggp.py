"""`sggp`: microseconds per step of sgGP: batches of 16 and 128 neighbours, RBF kernel with 17 lengthscales, Adam, float32.

The sides take turns in one process (see `timing`), each gathering its batches by the same lists of neighbours, which are searched before
the clock starts. The library's side is its learner as `fit` calls it, compiled before the clock starts; `compile_seconds` stands
apart. PyTorch is eager, by automatic differentiation (`torch`) and with the cotangent of the matrix written out (`torch_by_hand`), on 1
or on 2 threads, whichever a short trial finds faster.
"""

import time
from collections.abc import Callable
from statistics import median

import jax
import numpy as np
import torch

from benchmarks.problem import Problem, make_problem
from benchmarks.rivals_sggp import SgGP
from measuring import machine, timing
from stochgp.data.streams import DeviceRows
from stochgp.kernels import resolve
from stochgp.learners import BSGD, NearestNeighbours
from stochgp.learners import Problem as Run
from stochgp.learners.step_plan import StepPlan
from stochgp.models import KernelGP

KEYS = ("batch_size",)
N_INPUTS, BATCH_SIZES, TRIAL_STEPS = 17, (16, 128), 64
STEPS = {16: 2048, 128: 256}  # of an epoch of the clock


def run(quick: bool, report: Callable[[str], object]) -> dict:
    """One row per batch size; `speedup` says how many times longer each other side's median step takes than the first side's."""
    n_rows, blocks, epochs = (2_000, 2, 2) if quick else (10_000, 6, 3)
    problem, rows = make_problem(n_rows, N_INPUTS), []
    for batch_size in BATCH_SIZES:
        report(f"batch {batch_size}")
        rows.append(_row(problem, batch_size, blocks, epochs))
    settings = {
        "n_rows": n_rows,
        "n_inputs": N_INPUTS,
        "dtype": "float32",
        "blocks": blocks,
        "epochs": epochs,
    }
    return {"settings": settings, "rows": rows}


def table(result: dict) -> tuple[list[str], list[list]]:
    """Headings and rows for people."""
    headings = ["batch", "side", "threads", "median us", "min", "max", "first side x"]
    lines = []
    for row in result["rows"]:
        for name, side in row["sides"].items():
            figures = [side["median_us"], side["min_us"], side["max_us"], row["speedup"].get(name, 1.0)]
            lines.append([row["batch_size"], name, side.get("threads", "-"), *figures])
    return headings, lines


def _row(problem: Problem, batch_size: int, blocks: int, epochs: int) -> dict:
    library = LibrarySide(problem, batch_size)
    sides = {"stochgp": library} | {
        name: TorchSide(problem, library.batches, by_hand=name == "torch_by_hand")
        for name in ("torch", "torch_by_hand")
    }
    seconds = timing.alternate(
        {name: side.epoch for name, side in sides.items()}, blocks=blocks, epochs=epochs
    )
    n_steps = library.n_steps
    figures = {name: timing.per_step(seconds[name], n_steps) | side.facts() for name, side in sides.items()}
    return {
        "batch_size": batch_size,
        "steps_per_epoch": n_steps,
        "sides": figures,
        "speedup": timing.speedups(figures),
    }


class LibrarySide:
    """The learner with its state; an epoch is one stretch."""

    def __init__(self, problem: Problem, batch_size: int):
        self.n_steps = STEPS[batch_size]
        with jax.enable_x64(True):
            source, gp = DeviceRows(problem.X, problem.y), KernelGP(resolve("rbf", N_INPUTS))
            self.learner = BSGD(batch_size, learning_rate=0.01, sampling=NearestNeighbours())
            plan = StepPlan(batch_size, 1, 10**6, self.n_steps, self.n_steps)
            short = plan._replace(total_steps=self.n_steps)  # every epoch has the same batches
            self.problem = Run(source, plan, self.learner.prepare(gp, source, short, (0,)))
            self.state = self.learner.init(gp, self.problem, key=jax.random.key(0))
        self.batches = self.learner.sampling.batches(self.problem.prepared, 0, self.n_steps, batch_size, (0,))
        first, second = self._seconds(), self._seconds()
        self.compile_seconds = first - second

    def epoch(self) -> None:
        with jax.enable_x64(True):
            self.state, _ = self.learner.advance(self.state, self.problem, 0, self.n_steps, (0,))

    def facts(self) -> dict:
        return {"compile_seconds": round(self.compile_seconds, 2)}

    def _seconds(self) -> float:
        start = time.perf_counter()
        self.epoch()
        return time.perf_counter() - start


class TorchSide:
    """The PyTorch rival on the same batches, on the number of threads that a trial finds faster."""

    def __init__(self, problem: Problem, batches: np.ndarray, *, by_hand: bool):
        self.rival = SgGP(N_INPUTS, by_hand=by_hand)
        self.X, self.y = torch.from_numpy(problem.X), torch.from_numpy(problem.y)
        self.batches = torch.from_numpy(batches.astype(np.int64))
        self.threads = self._better_threads()

    def epoch(self) -> None:
        torch.set_num_threads(self.threads)
        self._steps(len(self.batches))

    def facts(self) -> dict:
        return {"threads": self.threads}

    def _steps(self, n_steps: int) -> None:
        for rows in self.batches[:n_steps]:
            self.rival.step(self.X[rows], self.y[rows])

    def _better_threads(self) -> int:
        trials = {}
        for threads in range(1, min(2, machine.usable_cores()) + 1):
            torch.set_num_threads(threads)
            trials[threads] = median(timing.timed(lambda: self._steps(TRIAL_STEPS)) for _ in range(4))
        return min(trials, key=lambda threads: trials[threads])
