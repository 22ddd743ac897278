"""Write docs/measured.md, docs/comparison.md and docs/solvers.md from templates.

Expressions `{{expression | format}}` in a template may call functions of this module.
"""

import functools
import importlib
import re
from pathlib import Path
from typing import Any

from measuring import store
from measuring.store import BENCHMARKS, EXPERIMENTS, ROOT, Record
from measuring.tables import printed, table

PAGES = ("measured", "comparison", "solvers")
PLACEHOLDER = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)


def template_of(name: str) -> str:
    return (ROOT / "measuring" / f"{name}.template.md").read_text(encoding="utf-8")


def path_of(name: str) -> Path:
    return ROOT / "docs" / f"{name}.md"


def filled(template: str) -> str:
    """Fill in a template. Raises ValueError for a placeholder without results."""
    return PLACEHOLDER.sub(lambda match: _filled(match[1].strip()), template)


def names() -> list[str]:
    """Return the names of all files of results."""
    return sorted(path.stem for folder in (EXPERIMENTS, BENCHMARKS) for path in folder.glob("*.jsonl"))


@functools.cache
def records(name: str) -> list[Record]:
    """Return the records of an experiment or a benchmark."""
    path = EXPERIMENTS / f"{name}.jsonl"
    return store.read(path if path.exists() else BENCHMARKS / f"{name}.jsonl")


def values(name: str, field: str, **settings: Any) -> list[Any]:
    """Return a field of all results with these settings. Raises ValueError without results."""
    found = [r["results"][field] for r in store.select(records(name), **settings)]
    if not found:
        raise ValueError(f"none of {len(records(name))} records has {settings}")
    return found


def value(name: str, field: str, **settings: Any) -> Any:
    """Return a field of the only result with these settings."""
    (found,) = values(name, field, **settings)
    return found


def page(name: str, *parts: int) -> str:
    """Return parts of the page of an experiment or a benchmark, by default the first."""
    package = "experiments" if (ROOT / "experiments" / f"{name}.py").exists() else "benchmarks"
    if not records(name):
        return f"Not measured at this state of the software: `python -m {package} {name}` makes the lines."
    written = importlib.import_module(f"{package}.{name}").page(records(name))
    return "\n\n".join(written[part] for part in parts or (0,))


def columns(text: str, *wanted: str, rows: dict[str, tuple[str, ...]] | None = None) -> str:
    """Return some columns and rows of a Markdown table; "old → new" renames a column.

    `rows` maps a column to the cells of the rows to keep. Raises ValueError for an unknown column.
    """
    heading, _, *lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines())
    pairs = [(name, heading.index(name.partition(" → ")[0])) for name in wanted]
    kept = [(heading.index(name), cells) for name, cells in (rows or {}).items()]
    lines = [line for line in lines if all(line[place] in cells for place, cells in kept)]
    names = [name.rpartition(" → ")[2] for name, _ in pairs]
    return table(names, [[line[place] for _, place in pairs] for line in lines])


def dates(*files: str, commits: bool = False) -> str:
    """Return the days of the first and the last run, optionally with their commits."""
    lines = [record for name in files or names() for record in records(name)]
    ends = [choose(lines, key=lambda record: record["finished"]) for choose in (min, max)]
    shown = [end["finished"][:10] + f" (commit {end['commit'][:7]})" * commits for end in ends]
    return " to ".join(dict.fromkeys(shown))


def _filled(content: str) -> str:
    expression, _, spec = content.rpartition(" | ") if " | " in content else (content, "", "")
    offered = (page, columns, value, values, dates, min, max)
    known = {function.__name__: function for function in offered}
    try:
        found = eval(expression, known)  # the template is a file of this repository
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{{{{{content}}}}}: {error}") from error
    return found if isinstance(found, str) else printed(found, spec.strip())
