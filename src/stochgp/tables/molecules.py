"""Fingerprints of molecules: rows of counts as sets of bits, a few hundred bytes a molecule, also from a column of SMILES.

A count c of column d is the set of the elements (d, 1), …, (d, c): two rows have Σ_d min(x_d, z_d) elements in common, and the Tanimoto similarity of
counts is that of these sets. As many elements of a column are stored as its largest count among the training rows. Further elements of another row, in
all columns together, are one further count: the similarity with training rows is exact, and two new rows share the smaller of their further counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import scipy.sparse
from jaxtyping import Float32

from stochgp.budget import Budget
from stochgp.numerics.arrays import n_words, packed_bits
from stochgp.warning import warn

from .columns import TableError, column_named, is_array, row_of_first
from .encoding import TableEncoder

MOST_ELEMENTS = 1 << 17  # of a row
CHUNK_ELEMENTS = 1 << 24  # of the bits that are packed together
SHOWN = 60  # characters of a SMILES in a message
MOST_NAMED = 8  # rows in a warning


@dataclass(frozen=True, eq=False)
class Fingerprints:
    """N packed rows of counts, for `fit` and `predict` of an estimator with the Tanimoto kernel. Made by `pack`.

    Rows of bits of 1,024 columns take 140 bytes each.

    Parameters
    ----------
    levels : tuple of int
        How many bits each column is stored as: its largest count among the training rows.
    words : float32 array [N, W]
        The packed rows, 31 bits a number (`numerics.words`); the last number of a row is its further count.
    """

    levels: tuple[int, ...]
    words: Float32[np.ndarray, "N W"]

    @classmethod
    def pack(cls, X: Any, levels: tuple[int, ...] | None = None) -> "Fingerprints":
        """Rows of whole numbers from 0 up, as an array or a SciPy sparse matrix; `levels` None = the largest of each column.

        Raises ValueError, naming row and column, for other numbers, and if a row would have more than 131,072 bits.
        """
        X = checked_counts(X, whole=True)
        levels = tuple(map(int, X.max(axis=0).toarray().ravel())) if levels is None else levels
        if X.shape[1] != len(levels):
            raise ValueError(f"expected fingerprints of {len(levels)} columns, but got {X.shape[1]}")
        if sum(levels) > MOST_ELEMENTS:
            what = f"the largest counts of all columns are {sum(levels)} together"
            raise ValueError(f"{what}; packed rows hold up to {MOST_ELEMENTS}")
        sizes, n_rows = np.array(levels), X.shape[0]
        column = np.repeat(np.arange(len(sizes)), sizes)
        level = 1 + np.arange(len(column)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        order = np.argsort(level, kind="stable")  # the first element of all columns, then the second ones
        words = np.empty((n_rows, n_words(len(column)) + 1), np.float32)
        step = max(1, CHUNK_ELEMENTS // max(1, len(column)))
        for rows in (slice(start, start + step) for start in range(0, n_rows, step)):
            dense = X[rows].toarray()
            words[rows, :-1] = packed_bits(dense[:, column[order]] >= level[None, order])
            words[rows, -1] = np.maximum(dense.astype(np.int64) - sizes, 0).sum(axis=1)
        return cls(levels, words)

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, rows: Any) -> "Fingerprints":
        """Return some of the rows: a slice, or an array of numbers or booleans."""
        return Fingerprints(self.levels, self.words[rows])

    @property
    def shape(self) -> tuple[int, int]:
        """Molecules, columns."""
        return len(self.words), len(self.levels)


@dataclass(frozen=True)
class Morgan:
    """Morgan fingerprints of the SMILES in `column`: how often each circular fragment of up to `radius` bonds occurs (Rogers and Hahn 2010).

    Computed by RDKit. Raises ValueError for a negative radius and for no bits.

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
            what = "a Morgan fingerprint needs a radius of at least 0 and at least 1 bit"
            raise ValueError(f"{what}, got {self.radius} and {self.n_bits}")


@dataclass(frozen=True)
class FingerprintEncoder:
    """Rows as packed words: of counts, or with `morgan` of the molecules of a table, where it `skips` unreadable ones as NaN."""

    levels: tuple[int, ...]
    morgan: Morgan | None = None
    skips: bool = False

    @classmethod
    def fit(
        cls, X: Any, morgan: Morgan | None = None, skips: bool = False
    ) -> tuple["FingerprintEncoder", Float32[np.ndarray, "N W"]]:
        """Return the encoder and the packed rows of arrays, sparse matrices or `Fingerprints`; with `morgan` of a table."""
        bad: Any = None
        if morgan is not None:
            X, bad = _read_molecules(X, morgan, skips)
            if bad.all():
                raise TableError(f"column {morgan.column!r}: none of the {len(bad)} molecules can be read")
        packed = X if isinstance(X, Fingerprints) else Fingerprints.pack(X)
        if morgan is not None:
            packed.words[bad] = np.nan
        return cls(packed.levels, morgan, skips), packed.words

    @property
    def named(self) -> bool:
        """Return True if rows are read from a column by name."""
        return self.morgan is not None

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the numbers of a packed row."""
        return (*(f"word {i}" for i in range(n_words(sum(self.levels)))), "further counts")

    @property
    def described(self) -> str:
        """For the summary of a model."""
        if self.morgan is None:
            kind = "bits" if max(self.levels, default=0) <= 1 else "counts"
            return f"fingerprints of {len(self.levels)} {kind}"
        kind, of = "counts" if self.morgan.counts else "bits", self.morgan
        chiral = " with chirality" if of.chirality else ""
        return f"Morgan {kind} of radius {of.radius}{chiral} in {of.n_bits} columns, of column {of.column!r}"

    def transform(self, X: Any) -> Float32[np.ndarray, "N W"]:
        """Packed rows. Raises as `Fingerprints.pack`, for other levels, and, naming the row, for an unreadable molecule unless it `skips`."""
        if self.morgan is not None:
            counts, bad = _read_molecules(X, self.morgan, self.skips)
            words = Fingerprints.pack(counts, self.levels).words
            words[bad] = np.nan
            return words
        if not isinstance(X, Fingerprints):
            return Fingerprints.pack(counts_of(X), self.levels).words
        if X.levels != self.levels:
            raise ValueError(
                "these fingerprints have other levels than those of fit: pack(X, levels) with these"
            )
        return X.words

    def unknown(self, X: Any) -> tuple[str, ...]:
        """None: one column is read, or columns have no names."""
        return ()


Encoder = TableEncoder | FingerprintEncoder


def checked_counts(X: Any, whole: bool = False) -> Any:
    """Return a CSR matrix of finite numbers of at least 0, `whole` ones if required. Raises ValueError, naming row and column, for others."""
    if not scipy.sparse.issparse(X):
        X = np.asarray(X)
        if X.ndim != 2 or X.dtype.kind not in "biuf":
            raise ValueError(f"expected fingerprints [N, D] of numbers, but got {X.dtype} of shape {X.shape}")
    if X.shape[0] == 0 or X.shape[1] == 0:
        raise ValueError(f"expected fingerprints [N, D] with N and D above 0, but got {X.shape}")
    X = scipy.sparse.csr_array(X)
    X.sum_duplicates()
    bad, what = ~(np.isfinite(X.data) & (X.data >= 0)), "a fingerprint holds numbers of at least 0"
    if whole and not bad.any():
        bad, what = X.data != np.floor(X.data), "packed fingerprints hold whole numbers"
    if bad.any():
        first = int(np.argmax(bad))
        row, column = int(np.searchsorted(X.indptr, first, side="right")), X.indices[first] + 1
        raise ValueError(f"{what}, but row {row}, column {column} holds {X.data[first]} (both count from 1)")
    return X


def _read_molecules(table: Any, morgan: Morgan, skips: bool) -> tuple[Any, np.ndarray]:
    """`fingerprints_of` the column of a table. Raises TableError without such a column of texts, and for an unreadable molecule unless it is skipped."""
    name = morgan.column
    if is_array(table):
        raise TableError(f"molecules are a column of a data frame, {name!r}, but got an array")
    column = column_named(table, name, allow_missing=True)
    if column.kind != "text" and not column.missing.all():
        raise TableError(f"column {name!r} holds a {column.kind}, not SMILES")
    smiles = column.values.to_pylist() if column.kind == "text" else [None] * len(column.missing)
    counts, bad = fingerprints_of(smiles, morgan)
    if bad.any() and not skips:
        text = smiles[int(np.argmax(bad))]
        shown = "missing" if text is None else "empty" if not text.strip() else repr(text[:SHOWN])
        what = f"column {name!r} has {bad.sum()} molecule(s) that cannot be read, the first at data row {row_of_first(bad)}: {shown}"
        end = 'missing="skip" (--set missing=skip) leaves them out'
        raise TableError(f"{what} (rows count from 1, header excluded); {end}")
    return counts, bad


def fingerprints_of(smiles: Sequence[str | None], morgan: Morgan) -> tuple[Any, np.ndarray]:
    """Return counts [N, n_bits] as a sparse matrix, and which molecules are missing, empty or cannot be read (rows of 0)."""
    try:
        from rdkit import Chem, rdBase  # most of a second to load, for molecules alone
        from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator
    except ImportError as error:
        raise ValueError("molecules need RDKit: pip install 'stochgp[molecules]'") from error
    settings = {"radius": morgan.radius, "fpSize": morgan.n_bits, "includeChirality": morgan.chirality}
    make, bad = GetMorganGenerator(**settings).GetCountFingerprint, np.zeros(len(smiles), bool)
    found = scipy.sparse.lil_array((len(smiles), morgan.n_bits), dtype=np.int64)
    with rdBase.BlockLogs():
        for row, text in enumerate(smiles):
            molecule = None if text is None else Chem.MolFromSmiles(text)
            bad[row] = molecule is None or not molecule.GetNumAtoms()
            if not bad[row]:
                counts = make(molecule).GetNonzeroElements()
                found.rows[row] = sorted(counts)
                found.data[row] = [counts[j] if morgan.counts else 1 for j in sorted(counts)]
    return found.tocsr(), bad


class Inputs(Enum):
    """Treatment of an estimator's inputs, as `plan_` says it."""

    NUMBERS = "standardised if so asked"
    AS_GIVEN = "as they are: the Tanimoto kernel knows the origin and the scale, so `standardize` is of the targets alone"
    FINGERPRINTS = "as they are, packed as sets of bits: the Tanimoto kernel knows the origin, so `standardize` is of the targets alone"


def name_inputs(estimator: Any, n_inputs: int, names: Sequence[str] | np.ndarray | None = None) -> None:
    """Set `n_features_in_`, and `feature_names_in_` where inputs have names."""
    estimator.n_features_in_ = n_inputs
    if names is not None:
        estimator.feature_names_in_ = np.array(names, dtype=object)
    elif hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_


def read_fingerprints(estimator: Any, X: Any, budget: Budget) -> tuple[Any, np.ndarray]:
    """Return the encoder and the packed rows for `fit`; (None, rows of float64) for an array that holds fractions.

    With the setting `smiles` X is a table. Sets `n_features_in_`. Raises ValueError, naming row and column, for other values.
    """
    smiles = estimator.smiles
    if smiles is not None:
        if not isinstance(smiles, str | Morgan):
            raise TypeError(f"smiles must be the name of a column, or a data.Morgan, but got {smiles!r}")
        morgan = Morgan(smiles) if isinstance(smiles, str) else smiles
        found = FingerprintEncoder.fit(X, morgan, estimator.missing == "skip")
        name_inputs(estimator, 1, [morgan.column])
        return found
    X = counts_of(X)
    name_inputs(estimator, np.shape(X)[-1])
    if not isinstance(X, Fingerprints):
        values = checked_counts(X).data
        if not scipy.sparse.issparse(X) and (values != np.floor(values)).any():
            return None, np.asarray(X, np.float64)
    encoder, words = FingerprintEncoder.fit(X)
    budget.require(4 * len(words) * words.shape[1], f"{len(words)} packed fingerprints")
    return encoder, words


def counts_of(X: Any) -> Any:
    """Return the numbers of a data frame; arrays, sparse matrices and `Fingerprints` as they are."""
    is_table = not isinstance(X, Fingerprints) and not scipy.sparse.issparse(X) and not is_array(X)
    return TableEncoder.fit(X).transform(X) if is_table else X


def is_packed(encoder: Any) -> bool:
    """Return True if an estimator's encoder packs fingerprints."""
    return isinstance(encoder, FingerprintEncoder)


def refuse_further_counts(words: np.ndarray) -> None:
    """Raise ValueError, naming the first, for packed rows with counts that have no bits of their own: of two such rows T is not known."""
    beyond = words[:, -1] > 0  # False for NaN
    if beyond.any():
        raise ValueError(
            f"{int(beyond.sum())} of {len(words)} rows, the first row {int(np.argmax(beyond)) + 1}, have larger counts in some column than any row of "
            "fit, by whose largest counts rows are packed: fit all rows again, or fit data.Fingerprints.pack(X, levels) with levels that hold new rows too"
        )


def without_skipped(rows: np.ndarray) -> np.ndarray:
    """Return the rows of a molecule encoder that were read; warn of the others."""
    there = ~np.isnan(rows[:, 0])
    if not there.all():
        which = np.flatnonzero(~there) + 1
        more = f" and {len(which) - MOST_NAMED} more" if len(which) > MOST_NAMED else ""
        places = f"data rows {', '.join(map(str, which[:MOST_NAMED]))}{more} (from 1)"
        warn(f"{len(which)} molecule(s) cannot be read and are left out: {places}", UserWarning, stacklevel=6)
    return there
