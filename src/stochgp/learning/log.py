"""The history of a run and its clock."""

import logging
import time
from collections.abc import Callable
from typing import Any

from stochgp import deadline
from stochgp.deadline import Pace
from stochgp.results import RESULTS

Report = Callable[[dict[str, float]], object]

FIRST_PIECE = 0.3  # seconds that the first part of a stretch takes at least, since it has to be compiled

logger = logging.getLogger("stochgp.learners")


class Log:
    """Entries as they come. Seconds include earlier parts of a resumed run, the deadline is that of this call.

    `evaluations` is the pace of evaluations, for which the stretch before them leaves time, `pieces` that of the compiled parts of a stretch.
    """

    def __init__(self, report: Report | None):
        self.history: list[dict[str, float]] = []
        self.report, self.stopped = report, False
        self.begun, self.earlier, self.allowed = time.perf_counter(), 0.0, deadline.left()
        self.evaluations, self.pieces = Pace(), Pace()
        self.pieces.expected = FIRST_PIECE

    def add(self, entry: dict[str, float], **more: float) -> None:
        """A report that returns True stops the run."""
        self.history.append({**entry, "seconds": self.seconds(), **more})
        logger.debug("%s", self.history[-1])
        if self.report is not None and self.report(self.history[-1]) is True:
            self.stopped = True

    def go_on_from(self, facts: dict[str, Any]) -> None:
        self.history.extend(facts["history"])
        self.earlier = facts["seconds"]
        logger.info("a run resumes after %d evaluations and %.1f s", len(self.history), self.earlier)

    def facts(self) -> dict[str, Any]:
        return {"history": self.history, "seconds": self.seconds()}

    def seconds(self) -> float:
        return self.earlier + time.perf_counter() - self.begun

    def result(self) -> RESULTS | None:
        """How the run ends now, if it is over."""
        return RESULTS.stopped if self.stopped else RESULTS.time_limit if self.is_over() else None

    def is_over(self, fraction: float = 1.0) -> bool:
        """Whether another piece and its evaluation would end after this fraction of the time that the run was given."""
        return self.stopped or deadline.left() < self.next_seconds(fraction)

    def next_seconds(self, fraction: float = 1.0) -> float:
        """What has to be left for another piece and its evaluation within this fraction of the time."""
        kept = 0.0 if fraction == 1.0 else (1 - fraction) * self.allowed
        return kept + self.evaluations.expected + self.pieces.expected
