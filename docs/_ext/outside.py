"""Links of the pages to files outside docs/: a page of the site cannot open them, so their paths are said instead."""

import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(((?:\.\./)+[^)#\s]+)(#[^)\s]*)?\)")


def name_files(app: Any, page: str, source: list[str]) -> None:
    """`[text](../../CONTRIBUTING.md)` becomes text (`CONTRIBUTING.md`); links that stay within docs/ are left alone."""
    docs = Path(app.srcdir).resolve()
    here = (docs / page).parent

    def named(link: re.Match) -> str:
        target = (here / link[2]).resolve()
        if target.is_relative_to(docs):
            return link[0]
        path = str(target.relative_to(docs.parent))
        return f"`{path}`" if link[1] == path else f"{link[1]} (`{path}`)"

    source[0] = LINK.sub(named, source[0])


def setup(app: Any) -> dict[str, bool]:
    """Sphinx asks for it."""
    app.connect("source-read", name_files)
    return {"parallel_read_safe": True}
