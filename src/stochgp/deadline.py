"""The moment by which a fit is to have ended. What would end later is not begun.

A fit sets its deadline once, with `within`, and the deadline holds for all that is called inside. Long loops ask `require` before each of
their pieces, with the seconds that the piece is expected to take, as a `Pace` knows them from the pieces before.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import TypeVar

COMPILING = 3.0  # seconds of a first piece that may have gone into compiling
SHARE_OF_WORK = 0.3  # of a first piece, the least that did not
AT_MOST = 10.0  # times the typical seconds
Piece = TypeVar("Piece")
Agree = Callable[[float], float]
_DEADLINE: ContextVar[float] = ContextVar("deadline", default=math.inf)  # by the clock `time.perf_counter`
_AGREE: ContextVar[Agree | None] = ContextVar("agree", default=None)


class TimeIsUpError(Exception):
    """The next piece of work would end after the deadline."""


@contextlib.contextmanager
def agreeing(agree: Agree) -> Iterator[None]:
    """What is inside is decided by seconds that `agree` makes of those measured: the same in each of several processes."""
    token = _AGREE.set(agree)
    try:
        yield
    finally:
        _AGREE.reset(token)


def is_agreed() -> bool:
    """Whether seconds are those that several processes agree on."""
    return _AGREE.get() is not None


@contextlib.contextmanager
def within(seconds: float | None) -> Iterator[None]:
    """What is inside is to end in so many seconds (None = no limit of its own), and by the deadline around it in any case."""
    own = math.inf if seconds is None else _now() + seconds
    token = _DEADLINE.set(min(_DEADLINE.get(), own))
    try:
        yield
    finally:
        _DEADLINE.reset(token)


@contextlib.contextmanager
def granted(seconds: float) -> Iterator[None]:
    """What is inside has at least so many seconds: for what has to be done also where the deadline has passed."""
    token = _DEADLINE.set(max(_DEADLINE.get(), _now() + seconds))
    try:
        yield
    finally:
        _DEADLINE.reset(token)


def left() -> float:
    """Seconds until the deadline: below 0 after it, inf where there is none."""
    return math.inf if _DEADLINE.get() == math.inf else _DEADLINE.get() - _now()


def require(seconds: float = 0.0) -> None:
    """Raises TimeIsUpError where fewer seconds are left."""
    if left() < seconds:
        raise TimeIsUpError(f"{seconds:.3g} s are needed, {max(left(), 0.0):.3g} s are left")


def _now() -> float:
    return _agreed(time.perf_counter())


def _agreed(seconds: float) -> float:
    agree = _AGREE.get()
    return seconds if agree is None else agree(seconds)


class Pace:
    """The seconds that the next piece of a kind is expected to take: those of the piece before it.

    `seconds` are those of the last piece, `expected` those of the next, which begins as `typical`, 0 where nothing is known. The first piece, of
    t seconds, also compiles. After it `expected` is max(0.3 t, t − 3), the part that was work, and at most 10 `typical` where that is known.
    """

    def __init__(self, typical: float = 0.0):
        self.expected, self.seconds, self._is_first = typical, 0.0, True
        self._most = AT_MOST * typical if typical > 0 else math.inf

    @contextlib.contextmanager
    def piece(self) -> Iterator[None]:
        """Around a piece, whose seconds are expected of the next one."""
        begun = time.perf_counter()
        yield
        self.seconds = self.expected = _agreed(time.perf_counter() - begun)
        if self._is_first:
            self.expected = min(max(SHARE_OF_WORK * self.seconds, self.seconds - COMPILING), self._most)
        self._is_first = False


def in_time(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The pieces one by one. Raises TimeIsUpError before one whose work, as long as the last one's, would end after the deadline."""
    pace, rest = Pace(), iter(pieces)
    while True:
        require(pace.expected)
        with pace.piece():
            try:
                piece = next(rest)
            except StopIteration:
                return
            yield piece
