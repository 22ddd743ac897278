"""Data sets by name: `flights`, and `uci:NAME:SPLIT` such as `uci:bike:0`."""

from dataclasses import dataclass
from pathlib import Path

from .dataset import Dataset
from .flights import FLIGHT_INPUTS, FLIGHT_ROWS, HOW_TO_INSTALL, flights_folder, load_flights
from .nearest import did_you_mean
from .uci import N_SPLITS, UCI_SETS, load_uci, uci_folders, uci_location


@dataclass(frozen=True)
class NamedSet:
    """A line of the list: `columns` counts the inputs; `location` is None until the set is on this machine."""

    name: str
    rows: int
    columns: int
    location: Path | None
    how_to_get: str


def is_named(text: str) -> bool:
    """Whether `text` means a named set rather than a file: neither a path that exists nor a name with a suffix."""
    head = text.partition(":")[0]
    return head in ("uci", "flights") or not (
        Path(text).suffix or len(Path(text).parts) > 1 or Path(text).exists()
    )


def load(name: str, *, test_fraction: float = 0.1, seed: int = 0) -> Dataset:
    """The data set called `flights` or `uci:NAME:SPLIT`, SPLIT 0 … 9.

    The uci sets have fixed test rows; `test_fraction` and `seed` choose those of `flights`.

    Raises ValueError, in one line, for a name or split that does not exist (with the nearest), and for data that are
    not on this machine and cannot be had (with the places that were searched).
    """
    family, _, rest = name.partition(":")
    if name == "flights":
        return load_flights(test_fraction, seed)
    if family != "uci":
        names = ["flights", *(f"uci:{uci}:0" for uci in UCI_SETS)]
        raise ValueError(f"no data set is called {name!r}; {did_you_mean(name, names)}")
    uci, _, split = rest.partition(":")
    if uci not in UCI_SETS:
        raise ValueError(
            f"no data set is called {name!r}; uci:NAME:SPLIT, NAME: {did_you_mean(uci, UCI_SETS)}"
        )
    if split not in [str(number) for number in range(N_SPLITS)]:
        raise ValueError(f"{name!r} needs a split from 0 to {N_SPLITS - 1}, such as 'uci:{uci}:0'")
    return load_uci(uci, int(split))


def list_named() -> list[NamedSet]:
    """Every named set, with where it is on this machine or how to get it."""
    flights = NamedSet("flights", FLIGHT_ROWS, len(FLIGHT_INPUTS), flights_folder(), HOW_TO_INSTALL)
    return [flights, *(_uci_line(name) for name in UCI_SETS)]


def _uci_line(name: str) -> NamedSet:
    how = f"downloaded at first use into {uci_folders(name)[-1]}"
    known = UCI_SETS[name]
    return NamedSet(f"uci:{name}:0…{N_SPLITS - 1}", known.rows, known.inputs, uci_location(name), how)
