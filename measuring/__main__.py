"""`python -m measuring report [--check]`: writes docs/measured.md from the lines of results; with --check, says whether it is up to date."""

import argparse
import sys
from collections.abc import Sequence

from measuring import report


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m measuring", description=__doc__)
    parser.add_argument("command", choices=["report"], help="make the page of what was measured")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 where the page differs from the lines"
    )
    options = parser.parse_args(arguments)
    text = report.page(report.TEMPLATE.read_text(encoding="utf-8"))
    if options.check:
        current = report.PAGE.exists() and report.PAGE.read_text(encoding="utf-8") == text
        sys.stdout.write(f"{report.PAGE.name} is {'up to date' if current else 'not what the lines say'}\n")
        return 0 if current else 1
    report.PAGE.write_text(text, encoding="utf-8")
    sys.stdout.write(f"{report.PAGE}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
