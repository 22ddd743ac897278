"""A regression data set, how its rows are divided, and where files of named sets are looked for."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pooch
from jaxtyping import Float, Int, Shaped


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
    groups : array [N], optional
        Of the training rows, where rows belong together (`fit`).
    """

    X: Float[np.ndarray, "N D"]
    y: Float[np.ndarray, " N"]
    X_test: Float[np.ndarray, "P D"]
    y_test: Float[np.ndarray, " P"]
    feature_names: tuple[str, ...]
    target_name: str
    name: str
    noise_std: float | None = None
    groups: Shaped[np.ndarray, " N"] | None = None


def train_test_indices(
    n: int, fraction: float, seed: int, group: Shaped[np.ndarray, " n"] | None = None
) -> tuple[Int[np.ndarray, " train"], Int[np.ndarray, " test"]]:
    """Rows 0 … n-1 divided at random: (training rows, test rows), each in ascending order.

    The same n, fraction and seed always give the same division (NumPy's PCG64 generator).

    Raises ValueError unless 0 < fraction < 1 and at least one row falls on each side.

    Parameters
    ----------
    n : int
        How many rows there are.
    fraction : float
        Of the rows that are test rows; their number is rounded. With `group` it is that of the groups.
    seed : int
        Of the division.
    group : array [n], optional
        A label of each row; rows of the same label fall on the same side.
    """
    if group is not None:
        names, member = np.unique(group, return_inverse=True)
        n_test = count_test_rows(len(names), fraction)
        of_test = np.isin(member, np.random.default_rng(seed).choice(len(names), n_test, replace=False))
        return np.flatnonzero(~of_test), np.flatnonzero(of_test)
    n_test = count_test_rows(n, fraction)
    order = np.random.default_rng(seed).permutation(n)
    return np.sort(order[n_test:]), np.sort(order[:n_test])


def count_test_rows(n: int, fraction: float) -> int:
    """`fraction` of n rows, rounded. Raises ValueError unless 0 < fraction < 1 and at least one row falls on each side."""
    if not 0.0 < fraction < 1.0:
        raise ValueError(f"the test fraction must lie between 0 and 1, not {fraction!r}")
    n_test = round(n * fraction)
    if not 1 <= n_test <= n - 1:
        raise ValueError(
            f"a test fraction of {fraction} leaves {n - n_test} training rows and {n_test} test rows "
            f"of {n}; each side needs at least one"
        )
    return n_test


def data_folders(*parts: str) -> list[Path]:
    """The folder of these parts below $STOCHGP_DATA, where that is set, then below the user's cache, into which downloads go."""
    given = os.environ.get("STOCHGP_DATA")
    roots = [Path(given)] if given else []
    return [root.joinpath(*parts) for root in (*roots, Path(pooch.os_cache("stochgp")))]
