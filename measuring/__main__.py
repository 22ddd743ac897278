"""`python -m measuring` writes docs/measured.md, docs/comparison.md, docs/solvers.md and their pictures from the lines of results."""

import importlib
import sys

from measuring import report

if __name__ == "__main__":
    importlib.import_module("benchmarks.arena_pictures").write()
    for name in report.PAGES:
        report.path_of(name).write_text(report.filled(report.template_of(name)), encoding="utf-8")
        sys.stdout.write(f"{report.path_of(name)}\n")
