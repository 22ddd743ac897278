"""The context of one call of `fit`: its limits, keys, decisions and measurements."""

import contextlib
import os
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
from jax.sharding import Mesh
from jaxtyping import Int

from stochgp import deadline
from stochgp.budget import Budget, format_bytes
from stochgp.choosing import Decisions, choice
from stochgp.compiled import require_jax
from stochgp.numerics.seeds import as_key, fold_in, key_of, random_rows, seed_of, split, words_of
from stochgp.results import RESULTS
from stochgp.sharding import is_writer, together
from stochgp.storage.checkpoint import key_of_run
from stochgp.storage.trees import check_can_write
from stochgp.warning import ProgressBar, progress_bar

STARTING_BYTES = 130_000_000  # of the first programs that any fit compiles, before its own need is known
PLANNED = "planned"
ENDS = (RESULTS.interrupted, RESULTS.time_limit, RESULTS.stopped)  # the first of several is recorded
OPTIONAL_SECONDS = 5.0  # remaining seconds of a time limit with which a comparison may begin
T = TypeVar("T")


@contextlib.contextmanager
def restored_on_error(estimator: Any) -> Iterator[None]:
    """Restore the attributes of the estimator if the block raises, so that it still predicts."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


class FitContext:
    """The limits of one call of `fit`, and its decisions and measurements so far.

    `fit` creates it and passes it to functions of families and pools only.

    Attributes
    ----------
    budget : Budget
        The memory limit of the process during the call.
    mesh : Mesh or None
        Devices that share the work (`sharding.mesh_of`).
    plan_ : Decisions
        Decisions that a user could have made differently, each with its reason.
    report : dict
        Measured numbers, which become `fit_report_`.
    learn_key, solve_key, start_key : JAX keys
        Keys for learning, for the posterior's samples and for the starting values.
    """

    def __init__(
        self,
        estimator: Any,
        checkpoint: Any = None,
        callback: Callable | None = None,
        mesh: Mesh | None = None,
        bar: ProgressBar | None = None,
    ):
        self.budget = Budget.of(estimator.memory_limit)
        self.budget.require(STARTING_BYTES, "the start of a fit")
        self.plan_ = Decisions()
        self.report: dict[str, Any] = {}
        self.checkpoint, self.callback, self.mesh = checkpoint, callback, mesh
        self.verbose = estimator.verbose if is_writer() else 0
        self.bar = ProgressBar(0) if bar is None or not is_writer() else bar
        seed = estimator.random_state
        if checkpoint is None or not is_writer():
            self._key = as_key(seed)
        else:
            self._key = key_of_run(checkpoint, seed)
        self.learn_key, self.solve_key, self.start_key = map(key_of, split(self._key, 3))

    @classmethod
    @contextlib.contextmanager
    def open(
        cls,
        estimator: Any,
        checkpoint: Any = None,
        callback: Callable | None = None,
        mesh: Mesh | None = None,
    ) -> "Iterator[FitContext]":
        """Open the context of one call. If the block raises, restore the estimator's attributes.

        Raises ValueError or OSError if the checkpoint cannot be written, and MemoryLimitError without memory to begin.
        """
        if checkpoint is not None:
            check_can_write(checkpoint)
        require_jax()
        begun = time.perf_counter()
        limit = estimator.time_limit
        with (
            restored_on_error(estimator),
            together(mesh),
            deadline.within(limit),
            progress_bar(estimator.verbose) as bar,
        ):
            yield cls(estimator, checkpoint, callback, mesh, bar)
        estimator.fit_seconds_ = time.perf_counter() - begun

    def seed(self, name: str) -> int:
        """Return a seed of 32 bits for this name, from the user's `random_state` alone."""
        return int(words_of(fold_in(self._key, zlib.crc32(name.encode())))[-1])

    @property
    def sample_seed(self) -> int:
        """Return the seed of a sample of rows in files, and of held-out rows."""
        return seed_of(split(self.learn_key, 6)[5])[0]

    def some_rows(self, n_rows: int, n_all: int) -> Int[np.ndarray, " n"]:
        """Return sorted indices of random rows, for a fit without time for all rows."""
        return random_rows(n_all, n_rows, seed_of(split(self.learn_key, 5)[4])).astype(np.int32)

    def record(self, name: str, value: Any, why: str) -> None:
        """Add a decision to `plan_`."""
        self.plan_[name] = choice(value, why)

    def refusal(self, reason: str | None = None, need_bytes: int = 0) -> str | None:
        """Return the reason to skip an optional step (`reason`, time, memory), or None."""
        if reason is None and deadline.left() < OPTIONAL_SECONDS:
            reason = f"there was no time: it needs {OPTIONAL_SECONDS:g} s"
        if reason is None and need_bytes > self.budget.free():
            reason = f"there was no memory: it needs {format_bytes(need_bytes)}"
        return reason

    def checkpoint_of(self, part: str) -> str | None:
        """Return the path of the checkpoint of a part of the call."""
        return None if self.checkpoint is None else f"{os.fspath(self.checkpoint)}.{part}"

    def of_member(self, name: str) -> dict[str, Any]:
        """Return `fit` arguments for a pool member: its checkpoint and the callback."""
        return {"checkpoint": self.checkpoint_of(name), "callback": self.callback}

    @property
    def ended(self) -> str:
        """The recorded early end of the call, or "planned"."""
        return self.plan_["ended"]["choice"] if "ended" in self.plan_ else PLANNED

    @property
    def is_interrupted(self) -> bool:
        """True if Ctrl-C has ended a part of the call."""
        return self.ended == RESULTS.interrupted.name

    @contextlib.contextmanager
    def interruptible(self, stage: str) -> Iterator[None]:
        """End the block at the first Ctrl-C of the call and record it. Raise a second one."""
        try:
            yield
        except KeyboardInterrupt:
            if self.is_interrupted:
                raise
            self.end(RESULTS.interrupted, f"Ctrl-C ended {stage}; members that were already fitted are kept")

    def finish(self, compute: Callable[[], T]) -> T:
        """Compute a necessary part; after Ctrl-C as fast as possible. Raise a second Ctrl-C."""
        if not self.is_interrupted:
            try:
                return compute()
            except KeyboardInterrupt:
                self.end(RESULTS.interrupted, "Ctrl-C ended the fit")
        with deadline.within(0.0):
            return compute()

    def end(self, result: RESULTS, why: str) -> None:
        """Record an early end: interrupts take precedence, then the time limit; add other reasons."""
        before = self.plan_.get("ended")
        names = [end.name for end in ENDS]
        if before is None or names.index(result.name) < names.index(before["choice"]):
            self.record("ended", result.name, why)
        elif why not in before["why"]:
            self.record("ended", before["choice"], f"{before['why']}; {why}")

    def leave_out(self, name: str, why: str) -> None:
        """Record a member without a usable fit."""
        entry = choice({}, "members without a usable fit")
        self.plan_.setdefault("unfitted_members", entry)["choice"][name] = why
