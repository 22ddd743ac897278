"""The history of a run and its clock."""

import logging
import time
from collections.abc import Callable
from typing import Any

from stochgp.results import RESULTS

Report = Callable[[dict[str, float]], object]

logger = logging.getLogger("stochgp.learners")


class Log:
    """Entries as they come. Seconds include earlier parts of a resumed run, the limit is for this call."""

    def __init__(self, report: Report | None, time_limit: float | None):
        self.history: list[dict[str, float]] = []
        self.report, self.time_limit = report, time_limit
        self.begun, self.earlier, self.stopped = time.perf_counter(), 0.0, False

    def add(self, entry: dict[str, float], **more: float) -> None:
        """A report that returns True stops the run."""
        self.history.append({**entry, "seconds": self.seconds(), **more})
        logger.debug("%s", self.history[-1])
        if self.report is not None and self.report(self.history[-1]) is True:
            self.stopped = True

    def go_on_from(self, facts: dict[str, Any]) -> None:
        self.history.extend(facts["history"])
        self.earlier = facts["seconds"]
        logger.info("a run resumes after %d visits and %.1f s", len(self.history), self.earlier)

    def facts(self) -> dict[str, Any]:
        return {"history": self.history, "seconds": self.seconds()}

    def seconds(self) -> float:
        return self.earlier + time.perf_counter() - self.begun

    def result(self) -> RESULTS | None:
        """How the run ends now, if it is over."""
        return RESULTS.interrupted if self.stopped else RESULTS.time_limit if self.is_over() else None

    def is_over(self, fraction: float = 1.0) -> bool:
        late = self.time_limit is not None and time.perf_counter() - self.begun > fraction * self.time_limit
        return self.stopped or late
