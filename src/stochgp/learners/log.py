"""The history of a run and its clock."""

import time
from collections.abc import Callable
from typing import Any

Report = Callable[[dict[str, float]], object]


class Log:
    """Entries as they come. Seconds include earlier parts of a resumed run, the limit is for this call."""

    def __init__(self, report: Report | None, time_limit: float | None):
        self.history: list[dict[str, float]] = []
        self.report, self.time_limit = report, time_limit
        self.begun, self.earlier = time.perf_counter(), 0.0

    def add(self, entry: dict[str, float], **more: float) -> None:
        self.history.append({**entry, "seconds": self.seconds(), **more})
        if self.report is not None:
            self.report(self.history[-1])

    def go_on_from(self, facts: dict[str, Any]) -> None:
        self.history.extend(facts["history"])
        self.earlier = facts["seconds"]

    def facts(self) -> dict[str, Any]:
        return {"history": self.history, "seconds": self.seconds()}

    def seconds(self) -> float:
        return self.earlier + time.perf_counter() - self.begun

    def is_over(self, fraction: float = 1.0) -> bool:
        return self.time_limit is not None and time.perf_counter() - self.begun > fraction * self.time_limit
