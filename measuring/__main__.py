"""`python -m measuring` writes the pages of measurements in docs/ from the results."""

import importlib
import sys

from measuring import report

if __name__ == "__main__":
    importlib.import_module("benchmarks.arena_pictures").write()
    for name in report.PAGES:
        report.path_of(name).write_text(report.filled(report.template_of(name)), encoding="utf-8")
        sys.stdout.write(f"{report.path_of(name)}\n")
