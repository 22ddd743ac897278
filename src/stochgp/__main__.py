"""`python -m stochgp`, the same as `stochgp`."""

import sys


def run() -> int:
    """Run the command line and return its exit code. Ctrl-C prints one line."""
    try:
        from stochgp.cli import main

        return main()
    except KeyboardInterrupt:
        sys.stderr.write("stochgp: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(run())
