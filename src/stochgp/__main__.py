"""`python -m stochgp`, the same as `stochgp`."""

import sys


def run() -> int:
    """Return the command line, whose exit code it returns; also while it is being loaded Ctrl-C is answered by one line."""
    try:
        from stochgp.cli import main

        return main()
    except KeyboardInterrupt:
        sys.stderr.write("stochgp: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(run())
