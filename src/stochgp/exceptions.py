"""Classes of errors and warnings.

Invalid input raises ValueError or TypeError. `MemoryLimitError` and `CheckpointError` are ValueErrors. All
warnings are UserWarnings. `ConvergenceWarning` and `NotFittedError` are classes of scikit-learn.
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
    """A call needs more memory than `memory_limit` allows."""


class CheckpointError(ValueError):
    """A checkpoint is damaged or belongs to another run."""


class DataWarning(UserWarning):
    """Rows or columns were changed or dropped, or their values are suspicious."""


class ExtrapolationWarning(UserWarning):
    """Rows for prediction are far outside the range of the training rows."""


def __getattr__(name: str) -> Any:
    """Import a class of scikit-learn at its first use."""
    if name not in ("ConvergenceWarning", "NotFittedError"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sklearn import exceptions

    return getattr(exceptions, name)
