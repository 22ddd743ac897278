"""A regression data set, and where the files of named sets are looked for."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training rows and test rows of a regression, as given: nothing is rescaled.

    Parameters
    ----------
    X, y : array [N, D] and [N]
        The training rows.
    X_test, y_test : array [P, D] and [P]
        The test rows.
    feature_names : tuple of str
        Of the D inputs.
    target_name : str
        Of the target.
    name : str
        Of the set.
    noise_std : float, optional
        The standard deviation of the noise in the targets, in their units, where it is known because they are simulated: no prediction has a smaller root
        mean squared error on average.
    """

    X: Float[np.ndarray, "N D"]
    y: Float[np.ndarray, " N"]
    X_test: Float[np.ndarray, "P D"]
    y_test: Float[np.ndarray, " P"]
    feature_names: tuple[str, ...]
    target_name: str
    name: str
    noise_std: float | None = None


def data_folders(*parts: str) -> list[Path]:
    """Return this folder below $STOCHGP_DATA (if set), below ../shared/data (if present) and below the user's cache, where downloads go."""
    given = os.environ.get("STOCHGP_DATA")
    shared = Path(__file__).resolve().parents[3] / "shared" / "data"
    roots = [Path(given)] if given else [shared] if shared.is_dir() else []
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "stochgp")
    return [root.joinpath(*parts) for root in (*roots, cache)]


def find_file(name: str, file: str, folders: list[Path], url: str, known_hash: str | None = None) -> Path:
    """The file in one of the folders, or downloaded into the last one. Raises ValueError if set `name` cannot be obtained."""
    for folder in folders:
        if (folder / file).is_file():
            return folder / file
    try:
        import pooch

        return Path(pooch.retrieve(url, known_hash, fname=file, path=folders[-1]))
    except (
        Exception
    ) as error:  # the network, the file system, a wrong hash, no pooch: all mean "not obtained"
        raise ValueError(
            f"{name}: {file} is not in {' or '.join(map(str, folders))} and could not be downloaded "
            f"({type(error).__name__}: {' '.join(str(error).split())[:120]}); place {url} there, or set STOCHGP_DATA"
        ) from error
