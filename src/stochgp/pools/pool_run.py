"""One call of `fit` of a pool: its arguments beside the data, and what ended it early."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from jaxtyping import PRNGKeyArray

from stochgp.choosing import choice
from stochgp.estimators.report import PLANNED
from stochgp.numerics.seeds import seed_of, split
from stochgp.results import RESULTS


class Given(NamedTuple):
    """What one `fit` was given beside its data."""

    key: PRNGKeyArray
    checkpoint: Any
    callback: Any
    entries: dict[str, Any]  # of `plan_`: what ended the fit early, and members without a fit

    def of(self, name: str) -> dict[str, Any]:
        """For the member of this name."""
        path = None if self.checkpoint is None else f"{os.fspath(self.checkpoint)}.{name}"
        return {"checkpoint": path, "callback": self.callback}

    def seeds(self, n: int) -> list[int]:
        """The first is that of the division, the others are those of the members."""
        return [seed_of(words)[0] for words in split(self.key, n)]

    @property
    def is_interrupted(self) -> bool:
        return self.entries.get("ended", {}).get("choice") == RESULTS.interrupted.name

    @contextlib.contextmanager
    def interruptible(self, stage: str) -> Iterator[None]:
        """End the block at the first Ctrl-C of the fit, which is recorded. Raise a second one."""
        try:
            yield
        except KeyboardInterrupt:
            if self.is_interrupted:
                raise
            self.end(RESULTS.interrupted, f"Ctrl-C ended {stage}; members fitted by then are kept")

    def end(self, result: RESULTS, why: str) -> None:
        """Record what ended the fit before its time."""
        self.entries["ended"] = choice(result.name, why)

    def leave_out(self, name: str, why: str) -> None:
        """Record a member without a fit to compare."""
        entry = choice({}, "members without a fit to compare")
        self.entries.setdefault("unfitted_members", entry)["choice"][name] = why

    def with_steps(self, members: dict[str, Any]) -> dict[str, Any]:
        """The members but for those that a limit ended before their first step, unless all were."""
        ended = {name: member.plan_["ended"] for name, member in members.items() if member.n_iter_ == 0}
        idle = [name for name, entry in ended.items() if entry["choice"] != PLANNED]
        if len(idle) == len(members):
            return members
        for name in idle:
            self.leave_out(name, f"it has taken no step: {ended[name]['why']}")
        return {name: member for name, member in members.items() if name not in idle}
