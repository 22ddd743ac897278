"""Names given by users: options looked up, and what was probably meant."""

import difflib
import sys
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")
_LISTED = 8
REGISTERED: dict[
    str, dict[str, Any]
] = {}  # what → name → the class or value that a user has registered (`extending.register`)


def lookup(name: str, table: Mapping[str, T], what: str) -> T:
    """table[name], or what a user has registered of that kind. For an unknown name a ValueError gives the nearest valid one, and all."""
    table = {**table, **REGISTERED.get(what, {})}
    if name in table:
        return table[name]
    near = nearest(name, table)
    hint = f"; did you mean {near!r}?" if near is not None else ""
    raise ValueError(f"unknown {what} {name!r}{hint} (valid: {', '.join(map(repr, table))})")


def class_of(registered: Any) -> type | None:
    """The class that was registered, of an entry of a table of `REGISTERED`."""
    return registered if isinstance(registered, type | None) else type(registered)


def nearest(word: str, options: Iterable[str]) -> str | None:
    """The option that is spelt most like the word, whatever the case; None where none is near."""
    folded = {str(option).casefold(): str(option) for option in reversed(list(options))}
    close = difflib.get_close_matches(str(word).casefold(), list(folded), n=1, cutoff=0.5)
    return folded[close[0]] if close else None


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """A clause for the end of an error line: "did you mean 'count'?", or the valid names when none is near."""
    names = [str(option) for option in options]
    near = nearest(word, names)
    if near is not None:
        return f"did you mean {near!r}?"
    return f"valid: {quoted(names)}" if names else "there are none"


def printable(text: str) -> str:
    """The text with a question mark for each character that the standard output cannot show, as on an ASCII terminal."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def quoted(names: Iterable[str]) -> str:
    """'a', 'b', 'c', … : at most eight names, then how many more."""
    names = list(names)
    listed = ", ".join(repr(name) for name in names[:_LISTED])
    return listed if len(names) <= _LISTED else f"{listed} and {len(names) - _LISTED} more"
