"""The context of one call of `fit`: its limits, keys, decisions and measurements."""

import contextlib
import os
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from jax.sharding import Mesh

from stochgp import deadline
from stochgp.budget import Budget, format_bytes
from stochgp.choosing import Decisions, choice
from stochgp.compiled import require_jax
from stochgp.numerics.seeds import as_key, fold_in, key_of, seed_of, split, words_of
from stochgp.results import RESULTS
from stochgp.sharding import is_writer, together
from stochgp.storage.checkpoint import key_of_run
from stochgp.storage.writing import check_can_write
from stochgp.warning import ProgressBar, progress_bar

STARTING_BYTES = 130_000_000  # needed by the first programs of every fit
PLANNED = "planned"
ENDS = (RESULTS.interrupted, RESULTS.time_limit, RESULTS.stopped)  # in order of precedence
OPTIONAL_SECONDS = 5.0  # minimum remaining seconds for an optional comparison
T = TypeVar("T")


@contextlib.contextmanager
def restored_on_error(estimator: Any) -> Iterator[None]:
    """Restore the attributes of the estimator if the block raises an error."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


class FitContext:
    """Limits, decisions and measurements of one call of `fit`.

    `fit` creates the context and passes it only to functions in `families` and `pools`.

    Attributes
    ----------
    budget : Budget
        The memory limit of the process during the call.
    mesh : Mesh or None
        The devices that share the work (`sharding.mesh_of`); None means one device.
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
        """Open the context of one call. If the block raises, restore the estimator's attributes."""
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
        """Return a 32-bit seed that depends only on this name and on `random_state`."""
        return int(words_of(fold_in(self._key, zlib.crc32(name.encode())))[-1])

    @property
    def sample_seed(self) -> int:
        """Return the seed for sampling rows of files and for choosing held-out rows."""
        return seed_of(split(self.learn_key, 6)[5])[0]

    def record(self, name: str, value: Any, why: str) -> None:
        """Add a decision to `plan_`."""
        self.plan_[name] = choice(value, why)

    def refusal(self, reason: str | None = None, need_bytes: int = 0) -> str | None:
        """Return why to skip an optional step: `reason`, time or memory (None: do not skip)."""
        if reason is None and deadline.left() < OPTIONAL_SECONDS:
            reason = f"the remaining time is too short: at least {OPTIONAL_SECONDS:g} s are needed"
        if reason is None and need_bytes > self.budget.free():
            reason = f"the free memory is too small: {format_bytes(need_bytes)} are needed"
        return reason

    def checkpoint_of(self, part: str) -> str | None:
        """Return the checkpoint path for a part of the fit."""
        return None if self.checkpoint is None else f"{os.fspath(self.checkpoint)}.{part}"

    def of_member(self, name: str) -> dict[str, Any]:
        """Return `fit` arguments for a pool member: the checkpoint path and the callback."""
        return {"checkpoint": self.checkpoint_of(name), "callback": self.callback}

    @property
    def ended(self) -> str:
        """The reason for an early end of the fit, or "planned"."""
        return self.plan_["ended"]["choice"] if "ended" in self.plan_ else PLANNED

    @property
    def is_interrupted(self) -> bool:
        """True if Ctrl-C has ended a part of the fit."""
        return self.ended == RESULTS.interrupted.name

    @contextlib.contextmanager
    def interruptible(self, stage: str) -> Iterator[None]:
        """Catch and record the first Ctrl-C of a fit in this block. A second Ctrl-C is raised."""
        try:
            yield
        except KeyboardInterrupt:
            if self.is_interrupted:
                raise
            self.end(RESULTS.interrupted, f"Ctrl-C ended {stage}; members fitted earlier are kept")

    def finish(self, compute: Callable[[], T]) -> T:
        """Call `compute`. After a first Ctrl-C, call it with a deadline that has passed."""
        if not self.is_interrupted:
            try:
                return compute()
            except KeyboardInterrupt:
                self.end(RESULTS.interrupted, "Ctrl-C ended the fit")
        with deadline.within(0.0):
            return compute()

    def end(self, result: RESULTS, why: str) -> None:
        """Record an early end. An interrupt has precedence over a time limit and a callback."""
        before = self.plan_.get("ended")
        names = [end.name for end in ENDS]
        if before is None or names.index(result.name) < names.index(before["choice"]):
            self.record("ended", result.name, why)
        elif why not in before["why"]:
            self.record("ended", before["choice"], f"{before['why']}; {why}")

    def leave_out(self, name: str, why: str) -> None:
        """Record that a pool member was dropped because its fit failed."""
        entry = choice({}, "members whose fit failed")
        self.plan_.setdefault("unfitted_members", entry)["choice"][name] = why
