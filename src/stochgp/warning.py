"""Warnings of the package. Fits inside of a fit are silent without a change to the filters, which belong to the whole process."""

import contextlib
import warnings
from collections.abc import Iterator
from contextvars import ContextVar

_SILENT: ContextVar[bool] = ContextVar("silent", default=False)  # a value of its own in each thread


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Inside, in this thread and in work that it shares among threads, `warn` does nothing."""
    token = _SILENT.set(True)
    try:
        yield
    finally:
        _SILENT.reset(token)


def warn(text: str, category: type[Warning] = UserWarning, stacklevel: int = 1) -> None:
    """`warnings.warn` of the caller, except inside of `silent`."""
    if not _SILENT.get():
        warnings.warn(text, category, stacklevel=stacklevel + 1)
