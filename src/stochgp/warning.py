"""Warnings, and progress lines on stderr."""

import contextlib
import sys
import time
import warnings
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

AUTO = "auto"
SECONDS_BETWEEN_UPDATES, SECONDS_BETWEEN_LINES, SECONDS_OF_SHORT_FITS = 0.1, 5.0, 3.0
_SILENT: ContextVar[bool] = ContextVar("silent", default=False)  # separate in each thread
_BAR: ContextVar["ProgressBar | None"] = ContextVar("bar", default=None)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Suppress `warn` inside the context, also in threads started in the context."""
    token = _SILENT.set(True)
    try:
        yield
    finally:
        _SILENT.reset(token)


def warn(text: str, category: type[Warning] = UserWarning, stacklevel: int = 1) -> None:
    """Call `warnings.warn` at the caller's line, except inside `silent`.

    Fits inside another fit use `silent`, because warning filters would affect the whole process.
    """
    if not _SILENT.get():
        warnings.warn(text, category, stacklevel=stacklevel + 1)


def say(verbose: Any, text: str) -> None:
    """Print a line on stderr if `verbose` is 1 or more."""
    if verbose not in (0, AUTO):
        sys.stderr.write(text + "\n")


class ProgressBar:
    """A line on stderr with the current part of a fit, the elapsed and the remaining time.

    If `verbose` is "auto", the line appears after 3 s, and only on a terminal or in a notebook. If `verbose`
    is 0, the line never appears. If `verbose` is 1 or more, the line appears immediately. If stderr is a
    file, a new line is written every 5 s.
    """

    def __init__(self, verbose: Any):
        self.in_place = sys.stderr.isatty() or "ipykernel" in sys.modules
        self.is_on = self.in_place if verbose == AUTO else bool(verbose)
        self.begun = time.monotonic()
        between = SECONDS_BETWEEN_UPDATES if self.in_place else SECONDS_BETWEEN_LINES
        self.between, self.next = between, self.begun + (SECONDS_OF_SHORT_FITS if verbose == AUTO else 0.0)
        self.name, self.share, self.width = "", 0.0, 0

    def part(self, name: str, n_done: int, n_parts: int) -> None:
        """Set the name of the current part and the share of finished parts."""
        self.name, self.share = f"{name}: ", n_done / n_parts

    def show(self, text: str) -> None:
        """Print the line unless it was printed a moment ago."""
        now = time.monotonic()
        if not self.is_on or now < self.next:
            return
        self.next, seconds = now + self.between, now - self.begun
        line = f"{self.name}{text}, {seconds:.0f} s"
        if self.share:
            line += f", about {seconds * (1 / self.share - 1):.0f} s left"
        sys.stderr.write(f"\r{line:<{self.width}}" if self.in_place else line + "\n")
        sys.stderr.flush()
        self.width = len(line)

    def close(self) -> None:
        if self.in_place and self.width:
            sys.stderr.write("\r" + " " * self.width + "\r")
            sys.stderr.flush()


@contextlib.contextmanager
def progress_bar(verbose: Any) -> Iterator[ProgressBar]:
    """Return a context with the progress bar of an outer fit, or with a new one."""
    if (outer := _BAR.get()) is not None:
        yield outer
        return
    bar = ProgressBar(verbose)
    token = _BAR.set(bar)
    try:
        yield bar
    finally:
        _BAR.reset(token)
        bar.close()
