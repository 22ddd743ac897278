"""Sweeps of which `make test` runs a part and `make test-all` the whole."""

from collections.abc import Collection, Iterable
from pathlib import Path

import pytest

LIST = Path(__file__).parent / "long_cells.txt"


def long_cells() -> list[str]:
    """The nodes of the list, whose files do not mark them long themselves."""
    return [line for line in LIST.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


def some_of(values: Iterable, few: Collection) -> list:
    """The values of a sweep: those not in `few` are marked `long`."""
    values = list(values)
    unknown = [value for value in few if value not in values]
    if unknown:
        raise ValueError(f"the sweep has no {unknown}; it has {values}")
    return [value if value in few else pytest.param(value, marks=pytest.mark.long) for value in values]
