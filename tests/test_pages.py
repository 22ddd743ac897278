"""Everything that the pages show is run: Python blocks, what they print, and the command line.

A page's ```python blocks run in order in one namespace, in an empty folder. A ```text block right after one is what it prints. Each
line `stochgp …` of a ```sh block is run there too.
"""

import contextlib
import io
import shlex

import pytest

from stochgp import budget
from stochgp.cli import main
from tests.test_docs import NOTEBOOKS, PAGES, ROOT, blocks_of


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


@pytest.mark.parametrize("page", RUN)
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
