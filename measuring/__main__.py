"""`python -m measuring report [--check]`: writes docs/measured.md, docs/comparison.md and docs/solvers.md from the lines of results; with --check, says whether they are up to date."""

import argparse
import sys
from collections.abc import Sequence

from measuring import report


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m measuring", description=__doc__)
    parser.add_argument("command", choices=["report"], help="make the pages of what was measured")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 where a page differs from the lines"
    )
    options = parser.parse_args(arguments)
    stale = 0
    for name in report.PAGES:
        path, text = report.path_of(name), report.page(report.template_of(name))
        if not options.check:
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"{path}\n")
            continue
        current = path.exists() and path.read_text(encoding="utf-8") == text
        stale += not current
        sys.stdout.write(f"{path.name} is {'up to date' if current else 'not what the lines say'}\n")
    return min(stale, 1)


if __name__ == "__main__":
    sys.exit(main())
