"""Progress on stderr."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

_SECONDS_BETWEEN_LINES = 5.0


@contextmanager
def progress_line(verbose: int, describe: Callable[[dict[str, float]], str]) -> Iterator[Callable | None]:
    """A callable for entries of the history: one line that changes on a terminal, a line every 5 seconds elsewhere; None when silent."""
    if not verbose:
        yield None
        return
    console = Console(file=sys.stderr)
    if console.is_terminal:
        with console.status("starting", spinner_style="none") as status:
            yield lambda entry: status.update(describe(entry))
        return
    last = -_SECONDS_BETWEEN_LINES

    def show(entry: dict[str, float]) -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= _SECONDS_BETWEEN_LINES:
            last = now
            console.print(describe(entry), markup=False, highlight=False, soft_wrap=True)

    yield show


def say(verbose: int, text: str) -> None:
    """A line that stays; nothing when silent."""
    if verbose:
        Console(file=sys.stderr).print(text, markup=False, highlight=False, soft_wrap=True)
