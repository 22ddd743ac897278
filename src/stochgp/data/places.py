"""Where files of named sets are looked for."""

import os
from pathlib import Path

import pooch


def data_folders(*parts: str) -> list[Path]:
    """The folder of these parts below $STOCHGP_DATA, where that is set, then below the user's cache, into which downloads go."""
    given = os.environ.get("STOCHGP_DATA")
    roots = [Path(given)] if given else []
    return [root.joinpath(*parts) for root in (*roots, Path(pooch.os_cache("stochgp")))]
