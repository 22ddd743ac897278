"""The deadline of a fit; work that would end after the deadline does not start.

Long loops call `require` with the expected seconds of the next piece, which `Pace` estimates.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

COMPILING = 3.0  # assumed maximum seconds of compiling in a first piece
SHARE_OF_WORK = 0.3  # assumed minimum share of work in a first piece
AT_MOST = 10.0  # maximum ratio of expected to typical seconds
Piece = TypeVar("Piece")
Agree = Callable[[float], float]
_DEADLINE: ContextVar[float] = ContextVar("deadline", default=math.inf)  # in seconds of `time.perf_counter`
_AGREE: ContextVar[Agree | None] = ContextVar("agree", default=None)


class TimeIsUpError(Exception):
    """The next piece of work would end after the deadline."""


@contextlib.contextmanager
def _set(variable: ContextVar, value: Any) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def agreeing(agree: Agree) -> contextlib.AbstractContextManager[None]:
    """Return a context whose clock is `agree(seconds)`, so that processes agree on the time."""
    return _set(_AGREE, agree)


def within(seconds: float | None) -> contextlib.AbstractContextManager[None]:
    """Return a context with a deadline in `seconds` (None: none) or an earlier outer deadline."""
    return _set(_DEADLINE, min(_DEADLINE.get(), math.inf if seconds is None else _now() + seconds))


def granted(seconds: float) -> contextlib.AbstractContextManager[None]:
    """Return a context with at least `seconds` for necessary work, even after the deadline."""
    return _set(_DEADLINE, max(_DEADLINE.get(), _now() + seconds))


def left() -> float:
    """Return the seconds until the deadline (< 0 after the deadline, inf without a deadline)."""
    return math.inf if _DEADLINE.get() == math.inf else _DEADLINE.get() - _now()


def require(seconds: float = 0.0) -> None:
    """Raise TimeIsUpError if fewer than `seconds` remain."""
    if left() < seconds:
        raise TimeIsUpError(f"{seconds:.3g} s are needed, but {max(left(), 0.0):.3g} s remain")


def _now() -> float:
    agree = _AGREE.get()
    return time.perf_counter() if agree is None else agree(time.perf_counter())


class Pace:
    """An estimate, `expected`, of the seconds that the next piece of work will take.

    The first estimate is `typical`, and each later estimate is the duration of the last piece. The estimate
    is max(0.3 t, t − 3) only after the first piece, which includes compiling and takes t seconds. The maximum
    of this second estimate is 10 · `typical` if `typical` > 0.
    """

    def __init__(self, typical: float = 0.0):
        self.expected, self.seconds, self._is_first = typical, 0.0, True
        self._most = AT_MOST * typical if typical > 0 else math.inf

    @contextlib.contextmanager
    def piece(self) -> Iterator[None]:
        """Measure the duration of a piece of work."""
        begun = _now()
        yield
        self.seconds = self.expected = _now() - begun
        if self._is_first:
            self.expected = min(max(SHARE_OF_WORK * self.seconds, self.seconds - COMPILING), self._most)
        self._is_first = False


def in_time(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield the pieces. Raises TimeIsUpError before a piece that would end after the deadline."""
    pace, rest = Pace(), iter(pieces)
    while True:
        require(pace.expected)
        with pace.piece():
            try:
                piece = next(rest)
            except StopIteration:
                return
            yield piece
