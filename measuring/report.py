"""Pages of docs from templates: every number of docs/measured.md, docs/comparison.md and docs/solvers.md comes from a line, or is marked as given.

In the template `{{expression | format}}` is a Python expression over `lines` (`query`), `paper` (`papers.value`), `tables` and `facts`; `{{given TEXT}}`
is a setting or an aim, `{{earlier TEXT}}` a measurement of which no line was kept. Digits stand nowhere else but in code, links and words.
"""

import re
from pathlib import Path

from measuring import acceptance, page_facts, page_tables, papers
from measuring.places import ROOT
from measuring.query import lines
from measuring.tables import printed

PAGES = ("measured", "comparison", "solvers")
PLACEHOLDER = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`|\]\([^)\s]*\)", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"(?<![\w./])\d")


def template_of(name: str) -> str:
    return (ROOT / "measuring" / f"{name}.template.md").read_text(encoding="utf-8")


def path_of(name: str) -> Path:
    return ROOT / "docs" / f"{name}.md"


def page(template: str) -> str:
    """The page of a template; `ValueError` names the placeholder that has no lines."""
    return PLACEHOLDER.sub(lambda found: _filled(found[1].strip()), template)


def unmarked(template: str) -> list[str]:
    """Digits of a template that no placeholder accounts for, with what stands around them."""
    text = CODE.sub(" ", PLACEHOLDER.sub(" ", template))
    return [text[max(0, m.start() - 20) : m.end() + 20] for m in NUMBER.finditer(text)]


def _filled(content: str) -> str:
    word, _, rest = content.partition(" ")
    if word in ("given", "earlier"):
        return rest
    expression, _, spec = (
        (part.strip() for part in content.rpartition(" | ")) if " | " in content else (content, "", "")
    )
    try:
        found = eval(expression, dict(_NAMES))  # the template is a file of this repository
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"{{{{{content}}}}}: {error}") from error
    return found if isinstance(found, str) else printed(found, spec)


_NAMES = {
    "lines": lines,
    "paper": papers.value,
    "tables": page_tables,
    "facts": page_facts,
    "acceptance": acceptance,
    "min": min,
    "max": max,
}
