"""A regression data set, and the folders of its files."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training rows and test rows of a regression problem, not rescaled.

    Parameters
    ----------
    X, y : array [N, D] and [N]
        The training rows.
    X_test, y_test : array [P, D] and [P]
        The test rows.
    feature_names : tuple of str
        The names of the inputs.
    target_name : str
        The name of the target.
    name : str
        The name of the set.
    noise_std : float, optional
        The known standard deviation of the noise of simulated targets, in their units.
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
    """Return this folder in $STOCHGP_DATA, in ../shared/data, and in the user's cache."""
    given = os.environ.get("STOCHGP_DATA")
    shared = Path(__file__).resolve().parents[3] / "shared" / "data"
    roots = [Path(given)] if given else [shared] if shared.is_dir() else []
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "stochgp")
    return [root.joinpath(*parts) for root in (*roots, cache)]


def find_file(name: str, file: str, folders: list[Path], url: str, known_hash: str | None = None) -> Path:
    """Return a file from the folders, or download it. Raises ValueError if that fails."""
    for folder in folders:
        if (folder / file).is_file():
            return folder / file
    try:
        import pooch

        return Path(pooch.retrieve(url, known_hash, fname=file, path=folders[-1]))
    except Exception as error:  # network, file system, wrong hash or missing package
        raise ValueError(
            f"{name}: {file} is not in {' or '.join(map(str, folders))} and could not be downloaded "
            f"({type(error).__name__}: {' '.join(str(error).split())[:120]}); place {url} there, or set STOCHGP_DATA"
        ) from error
