"""Everything that the documentation shows is run: Python blocks, what they print, and the command line.

A page's ```python blocks run in order in one namespace, in an empty folder. A ```text block right after one is what it prints. Each
line `stochgp …` of a ```sh block is run there too. Links between files must lead somewhere.
"""

import contextlib
import io
import itertools
import re
import shlex
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from sweeps import some_of

from stochgp import budget
from stochgp.cli import main
from stochgp.planning import steps as planning

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
GENERATED = "experiments/results"  # written by the experiments, so not there in a fresh clone


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


def given_to(page):
    """The README's first example speaks of the reader's own rows."""
    if page != "README.md":
        return {}
    generator = np.random.default_rng(0)
    X = generator.normal(size=(300, 2))
    return {"X": X, "y": np.sin(X[:, 0]) + 0.1 * generator.normal(size=300), "X_new": X[:5]}


RUN = [page for page in PAGES if any(b.language in ("python", "sh") for b in blocks_of(page))]


@pytest.mark.parametrize("page", some_of(RUN, [page for page in RUN if page != "docs/methods/iterative.md"]))
def test_examples_run_and_print_what_the_page_shows(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(budget, "resident", lambda: 300_000_000)  # the process of all tests may hold more
    if page == "README.md":  # default settings, shortened
        monkeypatch.setattr(planning, "default_epochs", lambda steps_per_epoch: 2)
    namespace = given_to(page)
    for block in blocks_of(page):
        if block.language not in ("python", "sh"):
            continue
        printed = run_python(block, page, namespace) if block.language == "python" else run_shell(block)
        if block.prints is not None:
            assert printed.strip() == block.prints.strip()


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    links = [link for link in LINK.findall((ROOT / page).read_text()) if "://" not in link]
    targets = [(ROOT / page).parent / link for link in links if GENERATED not in link]
    assert [str(target) for target in targets if not target.exists()] == []


def test_every_page_is_in_the_index():
    index = (ROOT / "docs" / "README.md").read_text()
    missing = [page for page in PAGES if page.startswith("docs/") and page.removeprefix("docs/") not in index]
    assert missing == ["docs/README.md"]
