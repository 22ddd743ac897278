"""Data sets by name: `flights`, `uci:bike:0`, `fun:borehole:1000000`, `mol:esol`, and the tables of `tables`, such as `bike-hourly`."""

import re
from dataclasses import dataclass
from pathlib import Path

from stochgp.names import did_you_mean

from .dataset import Dataset
from .flights import FLIGHT_INPUTS, FLIGHT_ROWS, HOW_TO_INSTALL, flights_folder, load_flights
from .flights_3m import (
    FLIGHTS_3M_INPUTS,
    FLIGHTS_3M_ROWS,
    NAME,
    flights_3m_folder,
    how_to_get_flights_3m,
    load_flights_3m,
)
from .functions import FUNCTIONS, load_function
from .molecule_sets import NAMES as MOLECULES
from .molecule_sets import ROWS, fingerprints_called, load_molecule_set, molecules_location
from .molecule_sets import how_to_get as molecules_source
from .tables import TABLES, how_to_get, load_table, table_location
from .uci import N_SPLITS, UCI_SETS, load_uci, uci_folders, uci_location

BY_DAY = "flights:by-day"


@dataclass(frozen=True)
class NamedSet:
    """A line of the list.

    Parameters
    ----------
    name : str
        As `load` takes it, but for the splits uci:NAME:0…9, of which it takes one.
    rows : int
        Training and test rows together.
    columns : int
        How many inputs there are.
    location : path, optional
        Where the set is on this machine; None until it is there, and for simulated sets.
    how_to_get : str
        How it comes onto this machine.
    """

    name: str
    rows: int
    columns: int
    location: Path | None
    how_to_get: str


def is_named(text: str) -> bool:
    """Whether `text` means a named set rather than a file: neither a path that exists nor a name with a suffix.

    Parameters
    ----------
    text : str
        A name or a path.
    """
    head = text.partition(":")[0]
    return head in ("uci", "fun", "flights", "mol", NAME, *TABLES) or not (
        Path(text).suffix or len(Path(text).parts) > 1 or Path(text).exists()
    )


def load(name: str, *, test_fraction: float = 0.1, seed: int = 0, noise_std: float | None = None) -> Dataset:
    """The data set called `name`, one of `list_named`.

    mol:… are molecules as Morgan counts, for the Tanimoto kernel (`load_molecules` has their SMILES). flights:by-day are the flights with whole days as
    test rows. uci:NAME:SPLIT, SPLIT 0 … 9, has fixed test rows. fun:NAME:ROWS is drawn by
    `load_function`.

    Raises ValueError, in one line, for a name, split or number of rows that does not exist (with the nearest), for a noise given to
    real data, and for data that are not on this machine and cannot be had (with the places that were searched).

    Parameters
    ----------
    name : str
        One of `list_named`.
    test_fraction : float
        The share of the rows that are test rows, where they are not fixed; of the days for flights:by-day.
    seed : int
        Of the division into training and test rows, where it is not fixed; of the rows themselves for fun:NAME:ROWS.
    noise_std : float, optional
        For fun:NAME:ROWS, the standard deviation of the noise in the units of f; None = the function's default.
    """
    family, _, rest = name.partition(":")
    if family == "fun":
        function, rows = _function_and_rows(name, rest)
        return load_function(function, rows, test_fraction=test_fraction, seed=seed, noise_std=noise_std)
    if noise_std is not None:
        raise ValueError(f"{name} is not a simulated set: noise_std is for fun:NAME:ROWS")
    if name in ("flights", BY_DAY):
        return load_flights(test_fraction, seed, by_day=name == BY_DAY)
    if name == NAME:
        return load_flights_3m(test_fraction, seed)
    if name in TABLES:
        return load_table(name, test_fraction, seed)
    if family == "uci":
        return load_uci(*_set_and_split(name, rest))
    if family == "mol":
        return load_molecule_set(name, test_fraction, seed)
    raise ValueError(f"no data set is called {name!r}; {_nearest(name)}")


def list_named() -> list[NamedSet]:
    """Every named set, with where it is on this machine or how to get it."""
    flights = NamedSet("flights", FLIGHT_ROWS, len(FLIGHT_INPUTS), flights_folder(), HOW_TO_INSTALL)
    more = NamedSet(
        NAME, FLIGHTS_3M_ROWS, len(FLIGHTS_3M_INPUTS), flights_3m_folder(), how_to_get_flights_3m()
    )
    tables = [
        NamedSet(name, known.rows, known.columns, table_location(name), how_to_get(name))
        for name, known in TABLES.items()
    ]
    functions = [
        NamedSet(
            f"fun:{name}:{known.rows}",
            known.rows,
            len(known.inputs),
            None,
            "simulated, with any number of rows",
        )
        for name, known in FUNCTIONS.items()
    ]
    molecules = [
        NamedSet(
            name,
            ROWS[name.split(":")[1]],
            fingerprints_called(name).n_bits,
            molecules_location(name),
            molecules_source(name),
        )
        for name in MOLECULES
    ]
    return [flights, more, *tables, *(_uci_line(name) for name in UCI_SETS), *functions, *molecules]


def _nearest(name: str) -> str:
    by_stem = {
        **{name: name for name in ("flights", BY_DAY, NAME, *TABLES)},
        **{stem: f"uci:{stem}:0" for stem in UCI_SETS},
        **{name: name for name in MOLECULES},
        **{stem: f"fun:{stem}:{known.rows}" for stem, known in FUNCTIONS.items()},
    }
    return f"did you mean {by_stem[name]!r}?" if name in by_stem else did_you_mean(name, by_stem.values())


def _function_and_rows(name: str, rest: str) -> tuple[str, int]:
    function, _, rows = rest.partition(":")
    if function not in FUNCTIONS:
        raise ValueError(
            f"no data set is called {name!r}; fun:NAME:ROWS, NAME: {did_you_mean(function, FUNCTIONS)}"
        )
    if not re.fullmatch("[0-9]{1,15}", rows):
        raise ValueError(
            f"{name!r} needs a number of rows (1 to 15 digits), such as 'fun:{function}:{FUNCTIONS[function].rows}'"
        )
    return function, int(rows)


def _set_and_split(name: str, rest: str) -> tuple[str, int]:
    uci, _, split = rest.partition(":")
    if uci not in UCI_SETS:
        raise ValueError(
            f"no data set is called {name!r}; uci:NAME:SPLIT, NAME: {did_you_mean(uci, UCI_SETS)}"
        )
    if split not in [str(number) for number in range(N_SPLITS)]:
        raise ValueError(f"{name!r} needs a split from 0 to {N_SPLITS - 1}, such as 'uci:{uci}:0'")
    return uci, int(split)


def _uci_line(name: str) -> NamedSet:
    how = f"downloaded at first use into {uci_folders(name)[-1]}"
    known = UCI_SETS[name]
    return NamedSet(f"uci:{name}:0…{N_SPLITS - 1}", known.rows, known.inputs, uci_location(name), how)
