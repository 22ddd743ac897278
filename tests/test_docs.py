"""Everything that the documentation shows is run: Python blocks, what they print, and the command line.

A page's ```python blocks run in order in one namespace, in an empty folder. A ```text block right after one is what it prints. Each
line `stochgp …` of a ```sh block is run there too. Links between files must lead somewhere. What is run elsewhere: the README by
`test_wheel.py`, from a wheel; the cells of notebooks, which are pages with `file_format: mystnb`, by `make docs`, where every warning
is an error (.github/workflows/docs.yml). Here they are compiled.
"""

import ast
import contextlib
import io
import itertools
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
from sweeps import some_of

from stochgp import budget
from stochgp.cli import main

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


def run_python(block, page, namespace):
    """The block's printed lines; errors point into the page."""
    code = compile("\n" * block.line + block.text, str(ROOT / page), "exec")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, namespace)
    return printed.getvalue()


def run_shell(block):
    """The printed lines of the block's commands of stochgp."""
    lines = [line for line in block.text.replace("\\\n", " ").splitlines() if line.startswith("stochgp ")]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for line in lines:
            assert main(shlex.split(line, comments=True)[1:]) == 0, line
    return printed.getvalue()


RUN = [page for page in PAGES[1:] if any(b.language in ("python", "sh") for b in blocks_of(page))]
RUN = [
    page for page in RUN if page not in (*NOTEBOOKS, "docs/start/install.md")
]  # which shows how to install


@pytest.mark.parametrize("page", some_of(RUN, [page for page in RUN if page != "docs/methods/iterative.md"]))
def test_examples_run_and_print_what_the_page_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(budget, "resident", lambda: 300_000_000)  # the process of all tests may hold more
    namespace = {}
    for block in blocks_of(page):
        if block.language not in ("python", "sh"):
            continue
        printed = run_python(block, page, namespace) if block.language == "python" else run_shell(block)
        if block.prints is not None:
            assert printed.strip() == block.prints.strip()


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
