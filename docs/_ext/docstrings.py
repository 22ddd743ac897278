"""Convert docstrings to reStructuredText; formulas and aligned lines keep their layout.

numpydoc sections are left to napoleon, but for `*`, `_` and `|` in their text, which mean nothing there.
"""

import re
from typing import Any

SECTION = re.compile(
    r"^(Parameters|Attributes|Returns|Raises|References|Examples|Notes|Warns)\n-{4,}$", re.MULTILINE
)
CODE = re.compile(r"(`[^`]*`)")
PAGE = re.compile(r"docs/([\w/]+)\.md(#[\w-]+)?")
ALIGNED = re.compile(r"\S {2,}\S")
COLON = "\ue000"  # stands for one
PROMPT = re.compile(r"^\s*(>>>|\.\.\. )")


def escaped(line: str) -> str:
    """Escape `*`, `_`, `|` and backslashes outside backticks, and link `docs/name.md` to its page."""
    parts = CODE.split(PAGE.sub(r":doc:`/\1`", line))
    return "".join(part if part.startswith("`") else re.sub(r"([*_|\\])", r"\\\1", part) for part in parts)


def as_paragraph(lines: list[str]) -> list[str]:
    """One paragraph, list or literal block."""
    bullets = lines[0].lstrip().startswith("- ")
    indented = any(line.startswith(" ") for line in lines) and not bullets
    if indented or any(ALIGNED.search(line) for line in lines):
        return ["::", "", *("    " + line for line in lines), ""]
    return [*([escaped(line) for line in lines]), ""]


def readable(lines: list[str]) -> list[str]:
    """Return a docstring of paragraphs, formulas and aligned lines."""
    found: list[str] = []
    paragraph: list[str] = []
    for line in [*lines, ""]:
        if line.strip():
            paragraph.append(line.rstrip())
        elif paragraph:
            found += as_paragraph(paragraph)
            paragraph = []
    return found


def typed(line: str) -> str:
    """Return a line `name : type` whose type Sphinx takes as it stands: its words are no names to look up."""
    names, _, kind = line.partition(" : ")
    return line if "`" in kind else f"{names} : ``{kind.strip()}``"


def of_sections(lines: list[str]) -> list[str]:
    """Convert a docstring with numpydoc sections; examples stay, and napoleon escapes parameter names."""
    names = re.compile(r"^\S")
    found, in_section = [], False
    for k, line in enumerate(lines):
        following = lines[k + 1] if k + 1 < len(lines) else ""
        in_section = in_section or (bool(following) and set(following) == {"-"})
        if in_section and names.match(line) and " : " in line:
            found.append(typed(line))
        elif PROMPT.match(line) or set(line.strip()) == {"-"} or (in_section and names.match(line)):
            found.append(line)
        else:
            found.append(escaped(line))
    return found


def convert(app: Any, what: str, name: str, subject: Any, options: Any, lines: list[str]) -> None:
    """Before napoleon, which knows the sections."""
    first = SECTION.search("\n".join(lines))
    n_before = len(lines) if first is None else "\n".join(lines)[: first.start()].count("\n")
    lines[:] = [*readable(lines[:n_before]), *of_sections(lines[n_before:])]
    if what == "property":
        lines[:] = [line.replace(":", COLON) for line in lines]


def restore(app: Any, what: str, name: str, subject: Any, options: Any, lines: list[str]) -> None:
    """After napoleon, which takes what stands before the first colon of a property for its type."""
    lines[:] = [line.replace(COLON, ":") for line in lines]


def leave_out(app: Any, what: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
    """Functions of other packages, which are defaults of fields."""
    module = getattr(member, "__module__", None)
    return True if callable(member) and module and not str(module).startswith("stochgp") else None


def setup(app: Any) -> dict[str, bool]:
    """Sphinx asks for it."""
    app.connect("autodoc-process-docstring", convert, priority=100)
    app.connect("autodoc-process-docstring", restore, priority=900)
    app.connect("autodoc-skip-member", leave_out)
    return {"parallel_read_safe": True}
