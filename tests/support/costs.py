"""What the tests cost: the programs that were compiled, and the slowest files, of all workers together."""

import os
from collections import Counter

import jax
import pytest

SHOWN = 20  # files
COMPILED = "/jax/core/compile/backend_compile_duration"  # also where the cache of the folder gave the program
FOUND = "/jax/compilation_cache/cache_hits"


def processor_seconds() -> float:
    """Of this process and of those that it started and has seen end: a busy machine changes it little."""
    return sum(os.times()[:4])


class Costs:
    """A plugin of pytest; workers hand what they counted to the process that started them."""

    def __init__(self):
        self.seconds: Counter[str] = Counter()  # of the processor, by file
        self.counted: Counter[str] = Counter()  # events of JAX
        self.compiling = 0.0  # seconds
        jax.monitoring.register_event_listener(self._event)
        jax.monitoring.register_event_duration_secs_listener(self._duration)

    def _event(self, event, **kwargs):
        if event == FOUND:
            self.counted[event] += 1

    def _duration(self, event, seconds, **kwargs):
        if event == COMPILED:
            self.counted[event] += 1
            self.compiling += seconds

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        before = processor_seconds()
        found = yield
        self.seconds[item.nodeid.partition("::")[0]] += processor_seconds() - before
        return found

    def pytest_sessionfinish(self, session):
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["costs"] = [dict(self.seconds), dict(self.counted), self.compiling]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node, error):
        seconds, counted, compiling = getattr(node, "workeroutput", {}).get("costs", ({}, {}, 0.0))
        self.seconds.update(seconds)
        self.counted.update(counted)
        self.compiling += compiling

    def pytest_terminal_summary(self, terminalreporter):
        programs = self.counted[COMPILED] - self.counted[FOUND]
        terminalreporter.section(f"{sum(self.seconds.values()):.0f} s of processor time in tests")
        terminalreporter.write_line(
            f"{programs} programs compiled, {self.counted[FOUND]} found in the folder of compiled programs: {self.compiling:.0f} s"
        )
        for file, seconds in self.seconds.most_common(SHOWN):
            terminalreporter.write_line(f"{seconds:8.1f} s  {file}")
