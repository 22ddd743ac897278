"""The nearest valid name, for messages about a name that does not exist."""

import difflib
from collections.abc import Iterable

_LISTED = 8


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """A clause for the end of an error line: "did you mean 'count'?", or the valid names when none is near."""
    names = [str(option) for option in options]
    folded = {name.casefold(): name for name in reversed(names)}
    close = difflib.get_close_matches(str(word).casefold(), list(folded), n=1, cutoff=0.6)
    if close:
        return f"did you mean {folded[close[0]]!r}?"
    return f"valid: {quoted(names)}" if names else "there are none"


def quoted(names: Iterable[str]) -> str:
    """'a', 'b', 'c', … : at most eight names, then how many more."""
    names = list(names)
    listed = ", ".join(repr(name) for name in names[:_LISTED])
    return listed if len(names) <= _LISTED else f"{listed} and {len(names) - _LISTED} more"
