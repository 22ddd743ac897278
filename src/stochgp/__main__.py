"""`python -m stochgp`, the same as `stochgp`."""

import sys

from stochgp.cli import main

if __name__ == "__main__":
    sys.exit(main())
