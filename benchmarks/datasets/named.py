"""Load a benchmark data set by its name: `uci:bike:0`, `fun:borehole:1000000`, `mol:esol`, `bike-hourly`."""

from stochgp.names import did_you_mean

from .dataset import Dataset
from .functions import FUNCTIONS, load_function
from .molecule_sets import load_molecule_set
from .tables import NAME, load_hourly_bikes
from .uci import UCI_SETS, load_uci


def load(name: str, *, test_fraction: float = 0.1, seed: int = 0, noise_std: float | None = None) -> Dataset:
    """Load a data set by its name.

    uci:NAME:SPLIT, SPLIT 0 … 9, has fixed test rows. fun:NAME:ROWS is drawn by `load_function`. mol:… are molecules as Morgan counts,
    for the Tanimoto kernel (`load_molecules` returns their SMILES).

    Raises ValueError, in one line, for a name that does not exist (with the nearest one), for a noise given to real data, and for
    data that are not on this machine and cannot be obtained.

    Parameters
    ----------
    name : str
        Name of the set.
    test_fraction : float
        Share of the rows that become test rows, unless they are fixed.
    seed : int
        Seed of the division into training and test rows, unless it is fixed; seed of the rows themselves for fun:NAME:ROWS.
    noise_std : float, optional
        For fun:NAME:ROWS, standard deviation of the noise in the units of f; None = the function's default.
    """
    family, *rest = name.split(":")
    if family == "fun" and len(rest) == 2 and rest[1].isdecimal():
        return load_function(
            rest[0], int(rest[1]), test_fraction=test_fraction, seed=seed, noise_std=noise_std
        )
    if noise_std is not None:
        raise ValueError(f"{name} is not a simulated set: noise_std is for fun:NAME:ROWS")
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
