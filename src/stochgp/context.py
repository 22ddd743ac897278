"""One call of `fit`: its limits, seeds, decisions and measurements."""

import contextlib
import os
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import jax

from stochgp import deadline
from stochgp.budget import Budget
from stochgp.choosing import Decisions, choice
from stochgp.compiled import kept_on_disk
from stochgp.numerics.seeds import words_of
from stochgp.results import RESULTS
from stochgp.storage.checkpoint import key_of_run
from stochgp.storage.writing import check_can_write


@contextlib.contextmanager
def restored_on_error(estimator: Any) -> Iterator[None]:
    """Restore the attributes of the estimator if the block raises: after a failed fit the earlier model still predicts."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        vars(estimator).clear()
        vars(estimator).update(before)
        raise


class FitContext:
    """What one call of `fit` may use, and what it has decided and measured so far.

    It is made once in `fit` and passed to functions of families and pools, and to nothing below them.

    Attributes
    ----------
    budget : Budget
        The memory limit of the process during the call.
    plan_ : Decisions
        Decisions that a user could have made differently, each with its reason.
    report : dict
        Measured numbers, which become `fit_report_`.
    """

    def __init__(self, estimator: Any, checkpoint: Any = None, callback: Callable | None = None):
        self.budget = Budget.of(estimator.memory_limit)
        self.plan_ = Decisions()
        self.report: dict[str, Any] = {}
        self.checkpoint, self.callback = checkpoint, callback
        self._key = key_of_run(checkpoint, estimator.random_state)

    @classmethod
    @contextlib.contextmanager
    def open(cls, estimator: Any, checkpoint: Any, callback: Callable | None) -> "Iterator[FitContext]":
        """The context of one call. If the block raises, the estimator has the attributes that it had before."""
        if checkpoint is not None:
            check_can_write(checkpoint)
        begun = time.perf_counter()
        with restored_on_error(estimator), deadline.within(estimator.time_limit), kept_on_disk():
            yield cls(estimator, checkpoint, callback)
        estimator.fit_seconds_ = time.perf_counter() - begun

    def seed(self, name: str) -> int:
        """A seed of 32 bits for this name, from the user's `random_state` alone."""
        key = jax.random.fold_in(self._key, zlib.crc32(name.encode()))
        return int(words_of(key)[-1])

    @property
    def seconds_left(self) -> float:
        """Seconds until the time limit; infinite without one."""
        return deadline.left()

    def record(self, name: str, value: Any, why: str) -> None:
        """Add a decision to `plan_`."""
        self.plan_[name] = choice(value, why)

    def of_member(self, name: str) -> dict[str, Any]:
        """Arguments of `fit` for a member of a pool: its checkpoint beside that of the call, and the callback."""
        path = None if self.checkpoint is None else f"{os.fspath(self.checkpoint)}.{name}"
        return {"checkpoint": path, "callback": self.callback}

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C has ended a part of the call."""
        return self.plan_.get("ended", {}).get("choice") == RESULTS.interrupted.name

    @contextlib.contextmanager
    def interruptible(self, stage: str) -> Iterator[None]:
        """End the block at the first Ctrl-C of the call, which is recorded. Raise a second one."""
        try:
            yield
        except KeyboardInterrupt:
            if self.is_interrupted:
                raise
            self.end(RESULTS.interrupted, f"Ctrl-C ended {stage}; members fitted by then are kept")

    def end(self, result: RESULTS, why: str) -> None:
        """Record what ended the call early."""
        self.record("ended", result.name, why)

    def leave_out(self, name: str, why: str) -> None:
        """Record a member without a usable fit."""
        entry = choice({}, "members without a fit to compare")
        self.plan_.setdefault("unfitted_members", entry)["choice"][name] = why
