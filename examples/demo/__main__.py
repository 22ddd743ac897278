"""`python -m examples.demo --help`: exit code 2 and one line on stderr for bad input."""

import sys
from collections.abc import Sequence

import cyclopts

from examples.demo.compare import demo


def main(arguments: Sequence[str] | None = None) -> int:
    app = cyclopts.App(name="python -m examples.demo", default_command=demo)
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except (cyclopts.CycloptsError, ValueError, OSError) as error:
        sys.stderr.write(f"demo: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
