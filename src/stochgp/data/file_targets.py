"""How the target's column of files becomes numbers, block by block."""

import abc
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool, Float, Shaped

from .columns import TableError
from .encoding import label_column, target_column

MOST_CLASSES = 1_000  # different labels that are remembered


class AbstractTargets(abc.ABC):
    """What the numbers of a target's column stand for. What is wrong with a block's is said with its data row.

    scaled   whether models may standardise what they learn from
    """

    scaled: ClassVar[bool] = True

    def sees(self, table: Any, name: str) -> "AbstractTargets":
        """What is known after the rows of this block, in the first pass over all of them."""
        return self

    @abc.abstractmethod
    def numbers(self, table: Any, name: str) -> Float[np.ndarray, " N"]:
        """Those of a block, by which rows are divided too."""

    def learned(self, y: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        """What a model learns from, of these numbers."""
        return y


class RealTargets(AbstractTargets):
    """Numbers as they are."""

    def numbers(self, table: Any, name: str) -> Float[np.ndarray, " N"]:
        return target_column(table, name)


REAL = RealTargets()


class CountTargets(AbstractTargets):
    """Whole numbers of at least 0."""

    scaled: ClassVar[bool] = False

    def numbers(self, table: Any, name: str) -> Float[np.ndarray, " N"]:
        y = target_column(table, name)
        refuse_targets(name, y, (y < 0) | (y != np.floor(y)), "counts are whole numbers of at least 0")
        return y


@dataclass(frozen=True, eq=False)
class ClassTargets(AbstractTargets):
    """The number of each label among `levels`, all that the files hold, sorted."""

    levels: Shaped[np.ndarray, " C"] | None = None  # None = no rows seen yet
    scaled: ClassVar[bool] = False

    def sees(self, table: Any, name: str) -> "ClassTargets":
        found = np.unique(label_column(table, name))
        if self.levels is not None and len(found):
            if (self.levels.dtype == object) != (found.dtype == object):
                raise TableError(f"target column {name!r} holds text in some files and numbers in others")
            found = np.unique(np.concatenate([self.levels, found]))
        if len(found) > MOST_CLASSES:
            raise TableError(
                f"target column {name!r} holds more than {MOST_CLASSES} different labels: no classes"
            )
        return replace(self, levels=found)

    def numbers(self, table: Any, name: str) -> Float[np.ndarray, " N"]:
        levels: Any = self.levels
        return np.searchsorted(levels, label_column(table, name)).astype(np.float64)


def refuse_targets(name: str, y: Float[np.ndarray, " N"], bad: Bool[np.ndarray, " N"], wanted: str) -> None:
    """Raises TableError, with the first data row, for targets of a block that cannot be learned."""
    if bad.any():
        row = int(np.argmax(bad))
        raise TableError(f"target column {name!r} holds {y[row]:g} at data row {row + 1}; {wanted}")
