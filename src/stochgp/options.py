"""Options given by name."""

import difflib
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")


def lookup(name: str, table: Mapping[str, T], what: str) -> T:
    """table[name]. For an unknown name a ValueError gives the nearest valid one, and all."""
    if name in table:
        return table[name]
    nearest = difflib.get_close_matches(name.lower(), table, n=1, cutoff=0.5)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise ValueError(f"unknown {what} {name!r}{hint} (valid: {', '.join(map(repr, table))})")
