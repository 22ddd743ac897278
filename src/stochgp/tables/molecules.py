"""Molecules as rows: a column of SMILES, and what is counted in each molecule. Needs the extra `molecules` (RDKit, scikit-fingerprints)."""

import functools
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from jaxtyping import Float32

from stochgp.names import did_you_mean

from .columns import TableError, is_array, read_column, table_columns
from .fingerprints import FingerprintEncoder

HOW_TO_INSTALL = "pip install 'stochgp[molecules]'"
SHOWN = 60  # characters of a SMILES in a message
AT_A_TIME = 2048  # molecules: as objects of RDKit they take some 30 kB each


@dataclass(frozen=True)
class Morgan:
    """Morgan fingerprints of the SMILES in `column`: how often each circular fragment of up to `radius` bonds occurs (Rogers and Hahn 2010).

    As in RDKit, through scikit-fingerprints. Raises ValueError for a negative radius and for no bits.

    Parameters
    ----------
    column : str
        The column of a data frame that holds SMILES.
    radius : int
        Of the largest fragment, in bonds from its centre.
    n_bits : int
        Columns into which fragments are folded; RDKit has as many by default.
    counts : bool
        False keeps only which fragments occur.
    chirality : bool
        Whether mirror images are distinguished.
    """

    column: str
    radius: int = 2
    n_bits: int = 2048
    counts: bool = True
    chirality: bool = False

    def __post_init__(self) -> None:
        if self.radius < 0 or self.n_bits < 1:
            raise ValueError(
                f"a Morgan fingerprint needs a radius of at least 0 and at least 1 bit, got {self.radius} and {self.n_bits}"
            )

    @property
    def described(self) -> str:
        kind = "counts" if self.counts else "bits"
        chiral = " with chirality" if self.chirality else ""
        return f"Morgan {kind} of radius {self.radius}{chiral} in {self.n_bits} columns, of column {self.column!r}"


@dataclass(frozen=True)
class MoleculeEncoder:
    """A table's molecules as packed fingerprints. With `skips` a molecule that cannot be read becomes a row of NaN, else it is refused."""

    morgan: Morgan
    packing: FingerprintEncoder
    skips: bool = False
    named: bool = True

    @classmethod
    def fit(
        cls, table: Any, morgan: Morgan, skips: bool = False
    ) -> tuple["MoleculeEncoder", Float32[np.ndarray, "N W"]]:
        """(The encoder, the packed rows of the table).

        Raises TableError for a table without the column, and as `transform`; ValueError where the extra is not installed.
        """
        counts, bad = fingerprints_of(smiles_of(table, morgan.column), morgan)
        _refuse(table, bad, morgan, skips)
        if bad.all():
            raise TableError(f"column {morgan.column!r}: none of the {len(bad)} molecules can be read")
        encoder = cls(morgan, FingerprintEncoder.fit(counts), skips)
        return encoder, encoder._words(counts, bad)

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.packing.output_names

    @property
    def described(self) -> str:
        return self.morgan.described

    def transform(self, table: Any) -> Float32[np.ndarray, "N W"]:
        """Packed rows. Raises TableError, naming the row, for a molecule that is missing, empty or cannot be read, unless it `skips` these."""
        counts, bad = fingerprints_of(smiles_of(table, self.morgan.column), self.morgan)
        _refuse(table, bad, self.morgan, self.skips)
        return self._words(counts, bad)

    def _words(self, counts: Any, bad: np.ndarray) -> np.ndarray:
        words = self.packing.transform(counts)
        words[bad] = np.nan
        return words

    def unknown(self, table: Any) -> tuple[str, ...]:
        """None: the model reads one column and no other."""
        return ()


def smiles_of(table: Any, column: str) -> list[str | None]:
    """The texts of a column, None where missing. Raises TableError for a table without it, and for a column of another kind."""
    if is_array(table):
        raise TableError(f"molecules are a column of a data frame, {column!r}, but got an array")
    columns = table_columns(table)
    if column not in columns:
        raise TableError(f"the table lacks the column {column!r}; {did_you_mean(column, columns)}")
    found = read_column(column, columns[column], allow_missing=True)
    if found.missing.all():
        return [None] * len(found.missing)
    if found.kind != "text":
        raise TableError(f"column {column!r} holds a {found.kind}, not SMILES")
    return found.values.to_pylist()


def fingerprints_of(smiles: Sequence[str | None], morgan: Morgan) -> tuple[Any, np.ndarray]:
    """(Counts [N, n_bits] as a sparse matrix, which molecules are missing, empty or cannot be read: their rows are 0).

    Raises ValueError where the extra is not installed.
    """
    make, parse = _tools(morgan.radius, morgan.n_bits, morgan.counts, morgan.chirality)
    parts: list[Any] = [scipy.sparse.csr_array((0, morgan.n_bits), dtype=np.int64)]
    read: list[bool] = []
    for start in range(0, len(smiles), AT_A_TIME):
        molecules = [parse(text) for text in smiles[start : start + AT_A_TIME]]
        read += [molecule is not None for molecule in molecules]
        if there := [molecule for molecule in molecules if molecule is not None]:
            parts.append(scipy.sparse.csr_array(make.transform(there)).astype(np.int64))
    good = np.array(read, bool)
    found, rows = scipy.sparse.vstack(parts, format="csr"), np.flatnonzero(good)
    place = scipy.sparse.csr_array(
        (np.ones(len(rows), np.int64), (rows, np.arange(len(rows)))), shape=(len(smiles), len(rows))
    )
    return scipy.sparse.csr_array(place @ found), ~good


def are_installed() -> bool:
    """Whether RDKit and scikit-fingerprints are there."""
    return all(importlib.util.find_spec(name) is not None for name in ("rdkit", "skfp"))


@functools.lru_cache(maxsize=8)
def _tools(radius: int, n_bits: int, counts: bool, chirality: bool) -> tuple[Any, Any]:
    """(The fingerprints, what makes a molecule of a SMILES, or None)."""
    if not are_installed():
        raise ValueError(f"molecules need RDKit and scikit-fingerprints: {HOW_TO_INSTALL}")
    from rdkit import Chem, rdBase  # most of a second to load, for molecules alone
    from skfp.fingerprints import ECFPFingerprint

    def parse(text: str | None) -> Any:
        with rdBase.BlockLogs():
            molecule = None if text is None else Chem.MolFromSmiles(text)
        return molecule if molecule is not None and molecule.GetNumAtoms() else None

    make = ECFPFingerprint(
        fp_size=n_bits, radius=radius, count=counts, include_chirality=chirality, sparse=True
    )
    return make, parse


def _refuse(table: Any, bad: np.ndarray, morgan: Morgan, skips: bool) -> None:
    if skips or not bad.any():
        return
    row = int(np.argmax(bad))
    text = smiles_of(table, morgan.column)[row]
    shown = "missing" if text is None else "empty" if not text.strip() else repr(text[:SHOWN])
    raise TableError(
        f"column {morgan.column!r} has {int(bad.sum())} molecule(s) that cannot be read, the first at data row {row + 1}: {shown} "
        '(rows count from 1, header excluded); missing="skip" (--set missing=skip) leaves them out'
    )
