"""Runs the cells of an experiment that have no result yet, in worker processes of one core each (all cores where its ONE_CORE is False)."""

import contextlib
import importlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from measuring import store
from measuring.places import ROOT
from measuring.store import Cell, Record

ONE_THREAD = {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}
WAIT, ALL_CORES = 0.5, -1


class Options(NamedTuple):
    """`seconds`: start no cell after so many; `grace`: then wait so many for cells in flight before they are dropped."""

    jobs: int = 1
    seconds: float | None = None
    grace: float = 60.0
    command: str = ""
    commit: str | None = None


class Outcome(NamedTuple):
    """How many cells were finished, failed, and left (dropped, waiting for others or not begun)."""

    finished: int
    failed: int
    left: int


def run(
    name: str, cells: list[Cell], path: Path, options: Options, report: Callable[[str], object]
) -> Outcome:
    """Runs `cells` of experiment `name` that `path` does not hold, longest first, and appends a line for each."""
    return _Run(name, cells, path, options, report).go()


class _Run:
    """The queue of one call. Its fields change under `lock` only."""

    def __init__(self, name: str, cells: list[Cell], path: Path, options: Options, report):
        self.name, self.path, self.options, self.report = name, path, options, report
        self.experiment = importlib.import_module(f"experiments.{name}")
        self.records = store.read(path)
        done = {store.key(record["settings"]) for record in self.records}
        waiting = [cell for cell in cells if store.key(cell) not in done]
        self.waiting = sorted(waiting, key=self.experiment.cost, reverse=True)
        self.lock = threading.Condition()
        self.running = self.finished = self.failed = 0
        self.begun = time.monotonic()
        self.stopping = False
        self.workers: list[_Worker] = []

    def go(self) -> Outcome:
        n = min(self.options.jobs, len(self.waiting))
        self.report(f"{self.name}: {len(self.waiting)} cells to run, {len(self.records)} done, {n} workers")
        total = len(self.waiting)
        cores = _cores() if getattr(self.experiment, "ONE_CORE", True) else [ALL_CORES]
        self.workers = [_Worker(self.name, cores[i % len(cores)]) for i in range(n)]
        threads = [threading.Thread(target=self._serve, args=(w,), daemon=True) for w in self.workers]
        for thread in threads:
            thread.start()
        try:
            self._wait(threads)
        except KeyboardInterrupt:
            self.report(f"{self.name}: interrupted, cells in flight are dropped")
        finally:
            self.stopping = True
            for worker in self.workers:
                worker.stop()
            for thread in threads:
                thread.join()  # killed workers answer nothing
            for worker in self.workers:
                worker.close()
        return Outcome(self.finished, self.failed, total - self.finished - self.failed)

    def _wait(self, threads: list[threading.Thread]) -> None:
        limit = self.options.seconds
        while any(thread.is_alive() for thread in threads):
            time.sleep(WAIT)
            if limit is not None and time.monotonic() - self.begun > limit + self.options.grace:
                self.report(f"{self.name}: out of time, cells in flight are dropped")
                return

    def _serve(self, worker: "_Worker") -> None:
        while (taken := self._take()) is not None:
            cell, extra = taken
            self.report(f"begin {json.dumps(cell | extra)}")
            begun = time.perf_counter()
            answer = worker.ask(cell | extra)
            self._settle(cell, extra, answer, time.perf_counter() - begun)

    def _take(self) -> tuple[Cell, dict] | None:
        """The first waiting cell that needs no result still to come, with the settings that come from other results."""
        with self.lock:
            while not self.stopping and self.waiting and not self._late():
                for i, cell in enumerate(self.waiting):
                    extra = self.experiment.depends(cell, self.records)
                    if extra is not None:
                        self.running += 1
                        return self.waiting.pop(i), extra
                if self.running == 0:
                    self.report(
                        f"{self.name}: {len(self.waiting)} cells wait for cells that are not to be run"
                    )
                    return None
                self.lock.wait(WAIT)
            return None

    def _late(self) -> bool:
        limit = self.options.seconds
        return limit is not None and time.monotonic() - self.begun > limit

    def _settle(self, cell: Cell, extra: dict, answer: dict | None, seconds: float) -> None:
        with self.lock:
            self.running -= 1
            if self.stopping and answer is None:
                return
            if answer is None or "error" in answer:
                self.failed += 1
                self.report(
                    f"FAILED {json.dumps(cell)}: {'the worker died' if answer is None else answer['error']}"
                )
            else:
                record = self._record(cell, extra, answer, seconds)
                store.append(self.path, record)
                self.records.append(record)
                self.finished += 1
                self.report(f"{seconds:7.1f} s {json.dumps(cell | extra)} {_short(answer['results'])}")
            self.lock.notify_all()

    def _record(self, cell: Cell, extra: dict, answer: dict, seconds: float) -> Record:
        where = (
            answer["where"]
            if self.options.commit is None
            else answer["where"] | {"commit": self.options.commit}
        )
        return {
            "experiment": self.name,
            "settings": cell,
            "from_others": extra,
            "results": answer["results"],
            "seconds": round(seconds, 3),
            "command": self.options.command,
            "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            **where,
        }


class _Worker:
    """A process that runs cells one after the other; a new one replaces one that died."""

    def __init__(self, name: str, core: int):
        self.name, self.core, self.stopped = name, core, False
        self.process = self._start()

    def ask(self, cell: Cell) -> dict | None:
        """{"results", "where"} or {"error"}; None where the process died."""
        if self.process.poll() is not None and not self.stopped:
            self.close()
            self.process = self._start()
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(cell) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
            if line:
                return json.loads(line)
            self.process.wait()  # it has closed its answers: it is ending
            return None
        except (OSError, ValueError):
            return None

    def stop(self) -> None:
        self.stopped = True
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Closes the pipes of a process that has ended."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _start(self) -> subprocess.Popen:
        paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
        limits = {"JAX_PLATFORMS": "cpu"} if self.core == ALL_CORES else ONE_THREAD
        variables = os.environ | limits | {"PYTHONPATH": os.pathsep.join(p for p in paths if p)}
        return subprocess.Popen(
            [sys.executable, "-m", "experiments.worker", self.name, str(self.core)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=variables,
        )


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [ALL_CORES]


def _short(results: dict[str, Any]) -> str:
    """The numbers of a result in one line."""
    scalars = {k: v for k, v in results.items() if isinstance(v, int | float | str)}
    return " ".join(f"{k}={v:.5g}" if isinstance(v, float) else f"{k}={v}" for k, v in scalars.items())
