"""Random division of rows into training and test rows."""

import numpy as np
from jaxtyping import Int, Shaped


def train_test_indices(
    n: int, fraction: float, seed: int, group: Shaped[np.ndarray, " n"] | None = None
) -> tuple[Int[np.ndarray, " train"], Int[np.ndarray, " test"]]:
    """Divide rows 0 … n-1 at random: return (training rows, test rows), each in ascending order.

    The same n, fraction and seed always give the same division (NumPy's PCG64 generator).

    Raises ValueError unless 0 < fraction < 1 and at least one row falls on each side.

    Parameters
    ----------
    n : int
        Number of rows.
    fraction : float
        Share of the rows that become test rows; their number is rounded. With `group`, share of the groups.
    seed : int
        Seed of the division.
    group : array [n], optional
        Label of each row; rows with the same label fall on the same side.
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
    """Return `fraction` of n rows, rounded. Raises ValueError unless 0 < fraction < 1 and at least one row falls on each side."""
    if not 0.0 < fraction < 1.0:
        raise ValueError(f"the test fraction must lie between 0 and 1, not {fraction!r}")
    n_test = round(n * fraction)
    if not 1 <= n_test <= n - 1:
        raise ValueError(
            f"a test fraction of {fraction} leaves {n - n_test} training rows and {n_test} test rows "
            f"of {n}; each side needs at least one"
        )
    return n_test
