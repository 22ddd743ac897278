"""Messages to the user: warnings, and lines of progress on stderr."""

import contextlib
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar

SECONDS_BETWEEN_LINES = 5.0
_SILENT: ContextVar[bool] = ContextVar("silent", default=False)  # a separate value in each thread


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Suppress `warn` inside the context, in this thread and in work that it shares."""
    token = _SILENT.set(True)
    try:
        yield
    finally:
        _SILENT.reset(token)


def warn(text: str, category: type[Warning] = UserWarning, stacklevel: int = 1) -> None:
    """Call `warnings.warn` for the caller, except inside `silent`.

    Fits inside a fit are silent without a change to the filters, which belong to the whole process.
    """
    if not _SILENT.get():
        warnings.warn(text, category, stacklevel=stacklevel + 1)


def say(verbose: int, text: str) -> None:
    """Print a line on stderr, unless `verbose` is 0."""
    if verbose:
        sys.stderr.write(text + "\n")


def progress_printer(verbose: int) -> Callable[[str], None]:
    """Return a function that prints progress at most every 5 seconds, if `verbose` is not 0."""
    last = -SECONDS_BETWEEN_LINES

    def show(text: str) -> None:
        nonlocal last
        now = time.monotonic()
        if not verbose or now - last < (0.1 if sys.stderr.isatty() else SECONDS_BETWEEN_LINES):
            return
        last = now
        sys.stderr.write(f"\r\033[K{text}" if sys.stderr.isatty() else text + "\n")
        sys.stderr.flush()

    return show
