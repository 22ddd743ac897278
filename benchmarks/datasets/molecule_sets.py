"""Sets of molecules, such as `mol:esol`, `mol:chembl:CHEMBL205` and `mol:hiv:logp`.

Inputs are Morgan counts of radius 2 in 2,048 columns (DOCKSTRING: radius 1, 1,024 columns). Files are
searched in $STOCHGP_DATA and in the user's cache. DOCKSTRING (García-Ortegón et al. 2022) is downloaded.
"""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
from jaxtyping import Float

from stochgp.data import train_test_indices
from stochgp.names import lookup
from stochgp.tables.molecules import Morgan, fingerprints_of

from .dataset import Dataset, data_folders, find_file

CHEMBL = ("CHEMBL261", "CHEMBL205", "CHEMBL3594", "CHEMBL3242", "CHEMBL228")
PROPERTIES = ("logp", "qed")
HIGHEST_SCORE = 5.0  # maximum of DOCKSTRING's scores, as in its benchmark
DOCKSTRING_FILES = {
    "dockstring-dataset.tsv": "https://figshare.com/ndownloader/files/35948138",
    "cluster_split.tsv": "https://figshare.com/ndownloader/files/35948123",
}


class Published(NamedTuple):
    """Hyperparameters of Tripp et al. (2023), from table 3 of Lin et al. (2024)."""

    variance: float  # A, of the Tanimoto kernel
    noise_variance: float  # λ
    mean: float  # μ₀, of the prior


DOCKSTRING = {
    "ESR2": Published(0.497, 0.373, -6.79),
    "F2": Published(0.385, 0.049, -6.33),
    "KIT": Published(0.679, 0.112, -6.39),
    "PARP1": Published(0.560, 0.024, -6.95),
    "PGR": Published(0.630, 0.332, -7.08),
}


@dataclass(frozen=True, eq=False)
class Molecules:
    """SMILES and targets y of N molecules; `is_test` [N] if the set has fixed test rows."""

    name: str
    smiles: list[str]
    y: Float[np.ndarray, " N"]
    target: str
    morgan: Morgan
    is_test: np.ndarray | None = None


FILES = {
    "esol": ("esol.csv.gz", 1_128),
    "chembl": ("chembl_five_targets.csv.gz", 4_101),
    "hiv": ("hiv_smiles.csv.gz", 41_913),
}
NAMES = (
    "mol:esol",
    *(f"mol:chembl:{target}" for target in CHEMBL),
    *(f"mol:hiv:{name}" for name in PROPERTIES),
    *(f"mol:dockstring:{target}" for target in DOCKSTRING),
)


def load_molecules(name: str) -> Molecules:
    """Return SMILES and targets of a set of `NAMES`.

    esol: log solubility in mol/l (Delaney 2004). chembl: measured activities of a target. hiv: 41,913
    molecules of the NCI screen, with Crippen's logP or QED computed by RDKit. dockstring: docking scores,
    clipped at 5.

    Raises ValueError for an unknown name, and for files that are missing and cannot be downloaded.
    """
    lookup(name, dict.fromkeys(NAMES), "set of molecules")
    _, family, *rest = name.split(":")
    morgan = fingerprints_called(name)
    if family == "dockstring":
        return _dockstring(name, rest[0])
    table = read_molecule_file(family)
    if family == "hiv":
        smiles, y = _with_property(rest[0], table["smiles"].to_pylist())
        return Molecules(name, smiles, y, rest[0], morgan)
    target = rest[0] if rest else "log_solubility_mol_per_l"
    y = table[target].cast(pa.float64()).to_numpy(zero_copy_only=False)
    there = np.flatnonzero(np.isfinite(y))
    smiles = table["smiles"].take(pa.array(there)).to_pylist()
    return Molecules(name, smiles, y[there], target, morgan)


def fingerprints_called(name: str) -> Morgan:
    """Return the fingerprints of a set: as published for DOCKSTRING, else as in estimators."""
    return Morgan(radius=1, n_bits=1024) if ":dockstring:" in name else Morgan()


def load_molecule_set(name: str, test_fraction: float = 0.1, seed: int = 0) -> Dataset:
    """Return a set as fingerprints. Raises as `load_molecules`, and for bad molecules."""
    found = load_molecules(name)
    counts, bad = fingerprints_of(found.smiles, found.morgan)
    if bad.any():
        raise ValueError(
            f"{name}: {int(bad.sum())} molecules cannot be read, the first in row {int(np.argmax(bad)) + 1}"
        )
    if found.is_test is None:
        train, test = train_test_indices(len(found.y), test_fraction, seed)
    else:
        train, test = np.flatnonzero(~found.is_test), np.flatnonzero(found.is_test)
    X, X_test = (counts[rows].toarray().astype(np.float32) for rows in (train, test))
    names = tuple(f"morgan{j}" for j in range(found.morgan.n_bits))
    return Dataset(X, found.y[train], X_test, found.y[test], names, found.target, name)


def read_molecule_file(family: str) -> pa.Table:
    """Return the table of "esol", "chembl" or "hiv". Raises ValueError for a missing file."""
    name = f"mol:{family}"
    (file, n_rows), folders = FILES[family], data_folders("molecules")
    path = next((folder / file for folder in folders if (folder / file).is_file()), None)
    if path is None:
        raise ValueError(
            f"{name}: put {file}, made from deepchem's collection, in {' or '.join(map(str, folders))}"
        )
    table = _read_csv(path)
    if table.num_rows != n_rows or "smiles" not in table.column_names:
        raise ValueError(
            f"{name}: {path} has {table.num_rows} rows; expected {n_rows} with a column 'smiles'"
        )
    return table


def _read_csv(path: Path, delimiter: str = ",") -> pa.Table:
    try:
        return pa_csv.read_csv(path, parse_options=pa_csv.ParseOptions(delimiter=delimiter))
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"{path}: cannot be read; damaged? ({' '.join(str(error).split())[:120]})"
        ) from error


def _with_property(which: str, smiles: list[str]) -> tuple[list[str], np.ndarray]:
    """Return the molecules that RDKit can read, and the property of each."""
    if importlib.util.find_spec("rdkit") is None:
        raise ValueError("computed properties need RDKit: pip install 'stochgp[molecules]'")
    from rdkit import Chem, rdBase
    from rdkit.Chem import QED, Crippen

    compute: Any = Crippen.MolLogP if which == "logp" else QED.qed  # pyrefly: ignore[missing-attribute]
    there, values = [], []
    with rdBase.BlockLogs():
        for text in smiles:  # one by one to save memory
            molecule = Chem.MolFromSmiles(text)
            if molecule is not None:
                there.append(text)
                values.append(compute(molecule))
    return there, np.array(values, np.float64)


def _dockstring(name: str, target: str) -> Molecules:
    scores, split = (
        _read_csv(find_file(name, file, data_folders("dockstring"), url), "\t")
        for file, url in DOCKSTRING_FILES.items()
    )
    part = dict(zip(split["inchikey"].to_pylist(), split["split"].to_pylist(), strict=True))
    y = scores[target].cast(pa.float64()).to_numpy(zero_copy_only=False)
    there = np.flatnonzero(np.isfinite(y))
    keys, smiles = (scores[column].take(pa.array(there)).to_pylist() for column in ("inchikey", "smiles"))
    is_test = np.array([part[key] == "test" for key in keys])
    return Molecules(
        name, smiles, np.minimum(y[there], HIGHEST_SCORE), target, fingerprints_called(name), is_test
    )
