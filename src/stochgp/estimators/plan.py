"""Choices made for the user before a feature GP is fitted, each with its reason, and what the fit needs of memory."""

import dataclasses
from typing import Any, NamedTuple

from stochgp.budget import Budget, format_bytes
from stochgp.learners import AbstractLearner
from stochgp.objectives import chunk_rows
from stochgp.planning import steps as planning
from stochgp.posteriors.feature import BLOCK

MOST_HELD_OUT = 30_000  # rows: enough for a mean density; each holds its features in float64
COMPILER_BYTES = 350_000_000  # what compiling a fit has been seen to take, and a margin
SHARE_FOR_ROWS = 0.25  # of what is free: standardised rows that fit are kept on the device


class Problem(NamedTuple):
    """The sizes of a fit."""

    n_rows: int
    n_inputs: int
    n_features: int
    itemsize: int


class Layout(NamedTuple):
    """How a fit uses memory; `need` is in bytes, on top of what is in use."""

    learner: AbstractLearner
    on_device: bool
    held_out_rows: int
    need: int


def lay_out(problem: Problem, learner: AbstractLearner, budget: Budget) -> Layout:
    """The learner with its held-out rows capped, where the rows lie, and the memory that the fit needs.

    Raises ValueError, with both numbers, where that exceeds the limit.
    """
    N, D, M, itemsize = problem
    wanted = planning.held_out_rows(N, learner.validation_fraction)
    held_out = min(wanted, MOST_HELD_OUT)
    if held_out < wanted:
        learner = dataclasses.replace(learner, validation_fraction=held_out / N)
    row_bytes = itemsize * (D + 2)
    batches = 2 * planning.CHUNK_BYTES * learner.batches_per_step
    if learner.batch_size is None:
        batches = N * row_bytes  # all rows, gathered
    squares = 12 * 8 * M**2  # moments, their eigenbasis, the trackers of the learner, the posterior
    chunks = chunk_rows(M) * (20 * M + 3 * row_bytes)
    indices = 32 * N  # shuffled row numbers
    need = COMPILER_BYTES + batches + squares + chunks + indices + 40 * held_out * M
    on_device = N * row_bytes <= SHARE_FOR_ROWS * max(budget.free() - need, 0)
    need += 2 * N * row_bytes if on_device else 0
    budget.require(need, f"fitting {N} rows with {M} features")
    return Layout(learner, on_device, held_out, need)


def describe(
    problem: Problem, layout: Layout, asked: dict[str, Any], history: list[dict[str, float]], budget: Budget
) -> dict[str, Any]:
    """`plan_`: name → {choice, why}, JSON values only. `asked` are the estimator's settings, `history` that of the fit."""
    learner, held_out = layout.learner, layout.held_out_rows
    row_bytes = 4 * (problem.n_inputs + 2) * learner.batches_per_step
    n_train = problem.n_rows - held_out
    steps = planning.plan_steps(n_train, row_bytes, learner.batch_size, learner.epochs)
    rates = [entry["rate"] for entry in history if "rate" in entry]
    rate = rates[0] if rates and not callable(learner.learning_rate) else None
    given = asked["learner"]
    limit = format_bytes(budget.limit)
    chosen = {
        "learner": (type(learner).__name__, f"{given!r}" if isinstance(given, str) else "as given"),
        "batch_size": (steps.batch_size, _batch_reason(learner, steps.batch_size, asked["batch_size"])),
        "epochs": (steps.total_steps / steps.steps_per_epoch, _epochs_reason(learner)),
        "learning_rate": (rate, _rate_reason(learner)),
        "n_features": (problem.n_features, "the size of the feature map"),
        "variance": ("exact", "the posterior of the features' weights is computed exactly"),
        "held_out_rows": (
            held_out,
            "they choose rate, iterate and noise; they join the posterior at the end",
        ),
        "rows": (
            "device" if layout.on_device else "host",
            f"standardised copies on the device take at most {SHARE_FOR_ROWS:.0%} of the free memory",
        ),
        "moment_rows": (
            chunk_rows(problem.n_features),
            "rows per chunk of a pass over all data: 16 MB of features",
        ),
        "predict_rows": (
            BLOCK,
            "rows per block of a prediction: always the same, so that no row depends on others",
        ),
        "memory": (layout.need, f"bytes needed beyond those in use, within a limit of {limit}"),
    }
    return {name: {"choice": choice, "why": why} for name, (choice, why) in chosen.items()}


def _batch_reason(learner: AbstractLearner, used: int, asked: int | None) -> str:
    if learner.batch_size is None:
        return "the learner uses all rows"
    if used < learner.batch_size:
        return f"{learner.batch_size} was to be used, but there are only {used} rows to train on"
    return "as asked" if asked is not None else "the learner's own"


def _epochs_reason(learner: AbstractLearner) -> str:
    if learner.epochs is not None:
        return "as asked"
    return "chosen so that the run takes 3,000 to 80,000 steps where data allow"


def _rate_reason(learner: AbstractLearner) -> str:
    if callable(learner.learning_rate):
        return "the learner's own rule of the step"
    if learner.learning_rate is not None:
        return "as asked, or the learner's own"
    return f"the best of short trials of {', '.join(map(str, planning.RATES))}: see history_"
