"""Pages without running them: links between files lead somewhere, names and messages are those of the code, cells of notebooks compile.

What the pages show is run by `test_pages.py`; the README by `test_wheel.py`, from a wheel; the cells of notebooks, which are pages with
`file_format: mystnb`, by `make docs`, where every warning is an error (.github/workflows/docs.yml).
"""

import ast
import itertools
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "stochgp"
BUILT = ("docs/_build/", "docs/api/generated/")  # by `make docs`
FOUND = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
PAGES = ["README.md", *(page for page in FOUND if not page.startswith(BUILT))]
NOTEBOOK = "---\nfile_format: mystnb\n"
NOTEBOOKS = [page for page in PAGES if (ROOT / page).read_text().startswith(NOTEBOOK)]
FENCE = re.compile(r"^```(\w*|\{code-cell\} ipython3)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
GENERATED = (
    "experiments/results",
    "generated/",
)  # written by the experiments and by `make docs`, so not there in a fresh clone


class Block(NamedTuple):
    language: str
    text: str
    line: int  # of the page, from 0, on which the text begins
    prints: str | None  # the ```text block right after it


def blocks_of(page):
    text = (ROOT / page).read_text()
    blocks = []
    for fence, after in itertools.pairwise([*FENCE.finditer(text), None]):
        follows = after is not None and after[1] == "text" and not text[fence.end() : after.start()].strip()
        line = text.count("\n", 0, fence.start()) + 1
        blocks.append(Block(fence[1], fence[2], line, after[2] if follows else None))
    return blocks


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    links = [link for link in LINK.findall((ROOT / page).read_text()) if "://" not in link]
    targets = [(ROOT / page).parent / link for link in links if not any(part in link for part in GENERATED)]
    assert [str(target) for target in targets if not target.exists()] == []


@pytest.mark.parametrize("page", NOTEBOOKS)
def test_cells_of_notebooks_are_python_and_nothing_else_is_shown_as_run(page):
    blocks = blocks_of(page)
    cells = [block for block in blocks if block.language == "{code-cell} ipython3"]
    assert cells and not [block.line for block in blocks if block.language in ("python", "sh")]
    for block in cells:
        lines = [line for line in block.text.splitlines() if not line.startswith(("%", ":tags:"))]
        compile("\n".join(lines), page, "exec")


def test_every_page_is_in_one_table_of_contents():
    listed = []
    for page in PAGES:
        for tree in TOCTREE.findall((ROOT / page).read_text()):
            names = [line for line in tree.splitlines() if line and not line.startswith(":")]
            listed += [str(Path(page).parent / f"{name}.md") for name in names]
    listed = sorted(page for page in listed if not page.startswith(BUILT))
    assert listed == [page for page in PAGES[1:] if page != "docs/index.md"]


def test_every_name_of_the_page_of_the_papers_is_in_its_file():
    """`file.py: Class.method`, `other`."""
    missing = []
    for row in (ROOT / "docs" / "papers.md").read_text().splitlines():
        for file, names in re.findall(r"`([\w/]+\.py): ([\w.]+(?:`, `[\w.]+)*)`", row):
            known = names_in(SOURCES / file)
            missing += [f"{file}: {name}" for name in names.split("`, `") if name not in known]
    assert missing == []


def names_in(path):
    """Functions and classes of a file, and methods as `Class.method`."""
    known = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            known.add(node.name)
            known |= {
                f"{node.name}.{part.name}"
                for part in ast.iter_child_nodes(node)
                if isinstance(part, ast.FunctionDef)
            }
    return known


def test_messages_that_the_page_of_questions_explains_are_those_of_the_code():
    text = " ".join(path.read_text() for path in SOURCES.rglob("*.py"))
    said = re.findall(
        r"^\| `([^`]+)` \|", (ROOT / "docs" / "start" / "questions.md").read_text(), re.MULTILINE
    )
    parts = [part.strip() for message in said for part in message.split("…") if part.strip()]
    assert len(said) >= 10 and [part for part in parts if part not in text] == []
