"""Errors and warnings, one class for each kind.

Bad input raises ValueError or TypeError. `MemoryLimitError` and `CheckpointError` are ValueErrors, all warnings are UserWarnings. `ConvergenceWarning` and
`NotFittedError` are those of scikit-learn.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sklearn.exceptions import ConvergenceWarning, NotFittedError

__all__ = [
    "CheckpointError",
    "ConvergenceWarning",
    "DataWarning",
    "ExtrapolationWarning",
    "MemoryLimitError",
    "NotFittedError",
]


class MemoryLimitError(ValueError):
    """More memory is needed than `memory_limit` leaves; the message has both numbers."""


class CheckpointError(ValueError):
    """A checkpoint is damaged, or belongs to another run."""


class DataWarning(UserWarning):
    """Rows or columns were read in a way that the user may not expect, repaired or left out."""


class ExtrapolationWarning(UserWarning):
    """Rows to be predicted are far outside of the range of the training rows."""


def __getattr__(name: str) -> Any:
    """Return the classes of scikit-learn, which takes a while to load."""
    if name not in ("ConvergenceWarning", "NotFittedError"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sklearn import exceptions

    return getattr(exceptions, name)
