"""Load a data set by its name, such as `uci:bike:0` or `fun:borehole:1000000`."""

from stochgp.names import did_you_mean

from .dataset import Dataset
from .functions import FUNCTIONS, load_function
from .molecule_sets import load_molecule_set
from .tables import NAME, load_hourly_bikes
from .uci import UCI_SETS, load_uci


def load(name: str, *, test_fraction: float = 0.1, seed: int = 0, noise_std: float | None = None) -> Dataset:
    """Load a data set by its name.

    uci:NAME:SPLIT (0 to 9) has fixed test rows. fun:NAME:ROWS is drawn by `load_function`. mol:… are
    molecules as Morgan counts for the Tanimoto kernel.

    Raises ValueError for an unknown name, for `noise_std` with real data, and for data that are missing and
    cannot be downloaded.

    Parameters
    ----------
    name : str
        The name of the set.
    test_fraction : float
        The share of test rows, unless they are fixed.
    seed : int
        The seed of the division, unless it is fixed, and of the rows of fun:NAME:ROWS.
    noise_std : float, optional
        The standard deviation of the noise of fun:NAME:ROWS; None = the default of the function.
    """
    family, *rest = name.split(":")
    if family == "fun" and len(rest) == 2 and rest[1].isdecimal():
        return load_function(
            rest[0], int(rest[1]), test_fraction=test_fraction, seed=seed, noise_std=noise_std
        )
    if noise_std is not None:
        raise ValueError(f"{name} is not a simulated set; noise_std is only for fun:NAME:ROWS")
    if name == NAME:
        return load_hourly_bikes(test_fraction, seed)
    if family == "uci" and len(rest) == 2 and rest[1].isdecimal():
        return load_uci(rest[0], int(rest[1]))
    if family == "mol":
        return load_molecule_set(name, test_fraction, seed)
    known = [
        NAME,
        *(f"uci:{uci}:0" for uci in UCI_SETS),
        *(f"fun:{f}:{FUNCTIONS[f].rows}" for f in FUNCTIONS),
    ]
    raise ValueError(f"no data set is called {name!r}; {did_you_mean(name, known)}")
