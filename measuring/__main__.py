"""`python -m measuring` writes docs/measured.md, docs/comparison.md and docs/solvers.md from the lines of results."""

import sys

from measuring import report

if __name__ == "__main__":
    for name in report.PAGES:
        report.path_of(name).write_text(report.filled(report.template_of(name)), encoding="utf-8")
        sys.stdout.write(f"{report.path_of(name)}\n")
