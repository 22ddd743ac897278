"""`feature_steps`: microseconds per step of SCGD, MINIMAX and BSGD: 128-wide ReLU network, linear kernel.

The sides take turns in one process (see `timing`), each shuffling and gathering its batches. The library's side is the learner of
the paper through the library's own loop, compiled before the clock starts; `compile_seconds` stands apart. `torch` is eager PyTorch
by automatic differentiation of one scalar, `torch_by_hand` writes the gradient by the features out. PyTorch runs on 1 or on 2 threads, whichever a short trial
finds faster for the method and batch size.
"""

from collections.abc import Callable
from itertools import product
from statistics import median

import torch

from benchmarks import rivals_torch
from benchmarks.library import LibrarySide
from benchmarks.problem import Problem, make_problem
from measuring import machine, timing

KEYS = ("method", "optimiser", "batch_size")
N_INPUTS = 17
BATCH_SIZES = (32, 128)
TRIAL_STEPS = 32
OPTIMISERS = {
    "adam": {"torch": rivals_torch.adam, "torch_by_hand": rivals_torch.fused_adam},
    "adadelta": {"torch": rivals_torch.adadelta, "torch_by_hand": rivals_torch.adadelta},
}


def run(quick: bool, report: Callable[[str], object]) -> dict:
    """One row per method, optimiser and batch size; `report` takes a line of progress before each.

    `speedup` says how many times longer each other side's median step takes than the first side's.
    """
    n_rows, blocks, epochs = (4_096, 2, 2) if quick else (16_384, 4, 3)
    optimisers = ("adam",) if quick else tuple(OPTIMISERS)
    problem = make_problem(n_rows, N_INPUTS)
    rows = []
    for method, optimiser, batch_size in product(rivals_torch.METHODS, optimisers, BATCH_SIZES):
        report(f"{method}, {optimiser}, batch {batch_size}")
        rows.append(_row(problem, method, optimiser, batch_size, blocks, epochs))
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
    headings = ["method", "optimiser", "batch", "side", "threads", "median us", "min", "max", "first side x"]
    lines = []
    for row in result["rows"]:
        for name, side in row["sides"].items():
            figures = [side["median_us"], side["min_us"], side["max_us"], row["speedup"].get(name, 1.0)]
            lines.append(
                [row["method"], row["optimiser"], row["batch_size"], name, side.get("threads", "-"), *figures]
            )
    return headings, lines


def _row(problem: Problem, method: str, optimiser: str, batch_size: int, blocks: int, epochs: int) -> dict:
    library = LibrarySide(problem, method, optimiser, batch_size)
    sides = {"stochgp": library} | {
        name: TorchSide(problem, method, make_optimiser, name == "torch_by_hand", batch_size)
        for name, make_optimiser in OPTIMISERS[optimiser].items()
    }
    seconds = timing.alternate(
        {name: side.epoch for name, side in sides.items()}, blocks=blocks, epochs=epochs
    )
    figures = {
        name: timing.per_step(seconds[name], side.n_steps) | side.facts() for name, side in sides.items()
    }
    return {
        "method": method,
        "optimiser": optimiser,
        "batch_size": batch_size,
        "steps_per_epoch": library.n_steps,
        "sides": figures,
        "speedup": timing.speedups(figures),
    }


class TorchSide:
    """One PyTorch rival with its resident rows, on the number of threads that a trial finds faster."""

    def __init__(
        self,
        problem: Problem,
        method: str,
        make_optimiser: rivals_torch.MakeOptimiser,
        by_hand: bool,
        batch_size: int,
    ):
        self.rival = rivals_torch.METHODS[method](problem, make_optimiser, by_hand=by_hand)
        self.X, self.y = torch.from_numpy(problem.X), torch.from_numpy(problem.y)
        self.batch_size = batch_size
        self.generator = torch.Generator().manual_seed(0)
        self.threads = self._better_threads()

    def epoch(self) -> None:
        torch.set_num_threads(self.threads)
        self._steps(self.n_steps)

    @property
    def n_steps(self) -> int:
        return len(self.y) // self.batch_size

    def facts(self) -> dict:
        """Threads used; for MINIMAX also the steps at which its projection would have been active."""
        facts = {"threads": self.threads}
        if isinstance(self.rival, rivals_torch.Minimax):
            facts["violations"] = int(self.rival.violations)
        return facts

    def _steps(self, n_steps: int) -> None:
        rivals_torch.run_steps(self.rival, self.X, self.y, self.batch_size, n_steps, self.generator)

    def _better_threads(self) -> int:
        trials = {}
        for threads in range(1, min(2, machine.usable_cores()) + 1):
            torch.set_num_threads(threads)
            trials[threads] = median(timing.timed(lambda: self._steps(TRIAL_STEPS)) for _ in range(4))
        return min(trials, key=lambda threads: trials[threads])
