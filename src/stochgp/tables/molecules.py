"""Fingerprints of molecules, from counts or a column of SMILES, packed as sets of bits.

A count c in column d is the set of elements (d, 1), …, (d, c). Two rows share Σ_d min(x_d, z_d) elements, and
the Tanimoto similarity of counts is the similarity of these sets. A column has as many bits
as its largest training count. A further count of each row adds up the elements without a bit, which only new
rows have. Similarities to training rows are exact. Two new rows share the smaller of their further counts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import scipy.sparse
from jaxtyping import Float32

from stochgp.budget import Budget
from stochgp.exceptions import DataWarning
from stochgp.numerics.arrays import n_words, packed_bits
from stochgp.warning import warn

from .columns import TableError, column_named, is_array, read_column, row_of_first, table_columns
from .encoding import TableEncoder

MOST_ELEMENTS = 1 << 17  # largest number of bits of a row
CHUNK_ELEMENTS = 1 << 24  # bits to pack at a time
SHOWN = 60  # characters of a SMILES in a message
MOST_NAMED = 8  # rows in a warning


@dataclass(frozen=True, eq=False)
class Fingerprints:
    """N rows of counts, packed as bits for the Tanimoto kernel; `pack` builds the object.

    Parameters
    ----------
    levels : tuple of int
        The number of bits of each column: its largest count among the training rows.
    words : float32 array [N, W]
        The packed rows, with 31 bits per number. The last number of a row is the sum of max(count − level, 0)
        over all columns.
    """

    levels: tuple[int, ...]
    words: Float32[np.ndarray, "N W"]

    @classmethod
    def pack(cls, X: Any, levels: tuple[int, ...] | None = None) -> "Fingerprints":
        """Pack counts, from an array or a SciPy sparse matrix.

        `levels` None = the largest count of each column. Raises ValueError, with row and column, for values
        that are not counts, and for rows of more than 131,072 bits.
        """
        X = checked_counts(X, whole=True)
        levels = tuple(map(int, X.max(axis=0).toarray().ravel())) if levels is None else levels
        if X.shape[1] != len(levels):
            raise ValueError(f"expected fingerprints of {len(levels)} columns, but got {X.shape[1]} columns")
        if sum(levels) > MOST_ELEMENTS:
            what = f"the sum of the largest counts of all columns is {sum(levels)}"
            raise ValueError(f"{what}; a packed row has at most {MOST_ELEMENTS} bits")
        sizes, n_rows = np.array(levels), X.shape[0]
        column = np.repeat(np.arange(len(sizes)), sizes)
        level = 1 + np.arange(len(column)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        order = np.argsort(level, kind="stable")  # first elements of all columns, then second elements
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
        """The numbers of molecules and columns."""
        return len(self.words), len(self.levels)


@dataclass(frozen=True)
class Morgan:
    """Morgan fingerprints of SMILES: counts of circular fragments (Rogers and Hahn 2010).

    `data.Morgan()(smiles)` calls RDKit and returns counts for `fit` and `predict`. Raises ValueError if
    `radius` is below 0 or `n_bits` is below 1.

    Parameters
    ----------
    radius : int
        The radius of the largest fragment, in bonds from its centre.
    n_bits : int
        The number of columns; a hash assigns fragments to columns. The default is the same as in RDKit.
    counts : bool
        True: count how often a fragment occurs. False: a fragment that occurs counts as 1.
    chirality : bool
        True: mirror images are different fragments.
    skip_unreadable : bool
        True: `fit` ignores unreadable molecules, and predictions for them are NaN. False: raise ValueError.
    """

    radius: int = 2
    n_bits: int = 2048
    counts: bool = True
    chirality: bool = False
    skip_unreadable: bool = False

    def __post_init__(self) -> None:
        if self.radius < 0 or self.n_bits < 1:
            what = "a Morgan fingerprint needs a radius of at least 0 and at least 1 bit"
            raise ValueError(f"{what}, got {self.radius} and {self.n_bits}")

    def __call__(self, smiles: Any) -> Any:
        """Return counts [N, n_bits] as a sparse matrix, from a sequence or column of SMILES.

        Skipped rows are NaN. Raises ValueError for an unreadable molecule, or if none is readable.
        """
        values = smiles.to_pylist() if hasattr(smiles, "to_pylist") else smiles
        return self.read([one if isinstance(one, str) else None for one in values], "the input")

    def read(self, smiles: Sequence[str | None], what: str) -> Any:
        """Return counts of texts (None = missing); errors begin with `what`."""
        counts, bad = fingerprints_of(smiles, self)
        if bad.all():
            raise TableError(f"{what}: none of the {len(bad)} molecules can be read")
        if not bad.any():
            return counts
        if not self.skip_unreadable:
            text = smiles[int(np.argmax(bad))]
            shown = "missing" if text is None else "empty" if not text.strip() else repr(text[:SHOWN])
            place = f"the first at data row {row_of_first(bad)}: {shown} (rows count from 1, header excluded)"
            end = "data.Morgan(skip_unreadable=True)(smiles) skips such molecules"
            raise TableError(f"{what} has {bad.sum()} molecule(s) that cannot be read, {place}; {end}")
        rows = np.flatnonzero(bad)
        skipped = (np.full(len(rows), np.nan), (rows, np.zeros(len(rows), np.int64)))
        return scipy.sparse.csr_array(counts + scipy.sparse.csr_array(skipped, counts.shape))


@dataclass(frozen=True)
class FingerprintEncoder:
    """Encoder of molecules as rows of bits. The input is fingerprints, or a table with SMILES in `column`."""

    levels: tuple[int, ...]
    column: str | None = None

    @classmethod
    def fit(
        cls, X: Any, column: str | None = None
    ) -> tuple["FingerprintEncoder", Float32[np.ndarray, "N W"]]:
        """Return the encoder and the packed rows of counts or of a column of a table."""
        packed = _packed(X if column is None else _molecules_of(X, column))
        return cls(packed.levels, column), packed.words

    @property
    def named(self) -> bool:
        return self.column is not None

    @property
    def output_names(self) -> tuple[str, ...]:
        return (*(f"word {i}" for i in range(n_words(sum(self.levels)))), "further counts")

    @property
    def described(self) -> str:
        if self.column is None:
            kind = "bits" if max(self.levels, default=0) <= 1 else "counts"
            return f"fingerprints of {len(self.levels)} {kind}"
        return (
            f"Morgan counts of radius {MORGAN.radius} in {MORGAN.n_bits} columns, of column {self.column!r}"
        )

    def transform(self, X: Any) -> Float32[np.ndarray, "N W"]:
        """Return packed rows. Raises ValueError for other levels or unreadable molecules."""
        if self.column is not None:
            return _packed(_molecules_of(X, self.column), self.levels).words
        packed = _packed(counts_of(X), self.levels)
        if packed.levels != self.levels:
            raise ValueError(
                "these fingerprints have other levels than the training rows; use data.Fingerprints.pack(X, levels) with the levels of the training rows"
            )
        return packed.words

    def unknown(self, X: Any) -> tuple[str, ...]:
        return ()


Encoder = TableEncoder | FingerprintEncoder
MORGAN = Morgan()  # for columns of SMILES


def checked_counts(X: Any, whole: bool = False) -> Any:
    """Return a CSR matrix of numbers ≥ 0. Raises ValueError for other values, with the row."""
    if not scipy.sparse.issparse(X):
        X = np.asarray(X)
        if X.ndim != 2 or X.dtype.kind not in "biuf":
            raise ValueError(
                f"fingerprints must be an array [N, D] of numbers, but have the dtype {X.dtype} and the shape {X.shape}"
            )
    if X.shape[0] == 0 or X.shape[1] == 0:
        raise ValueError(f"expected fingerprints [N, D] with N and D above 0, but got the shape {X.shape}")
    X = scipy.sparse.csr_array(X)
    X.sum_duplicates()
    bad, what = ~(np.isfinite(X.data) & (X.data >= 0)), "fingerprints must be numbers of at least 0"
    if whole and not bad.any():
        bad, what = X.data != np.floor(X.data), "packed fingerprints must be whole numbers"
    if bad.any():
        first = int(np.argmax(bad))
        row, column = int(np.searchsorted(X.indptr, first, side="right")), X.indices[first] + 1
        raise ValueError(
            f"{what}, but the value in row {row}, column {column} is {X.data[first]} (rows and columns count from 1)"
        )
    return X


def _packed(X: Any, levels: tuple[int, ...] | None = None) -> Fingerprints:
    """Return packed rows; skipped molecules are NaN."""
    if isinstance(X, Fingerprints):
        return X
    if not scipy.sparse.issparse(X) or not np.isnan(X.data).any():
        return Fingerprints.pack(X, levels)
    skipped = np.isnan(X.sum(axis=1))
    packed = Fingerprints.pack(
        scipy.sparse.csr_array((np.nan_to_num(X.data), X.indices, X.indptr), X.shape), levels
    )
    packed.words[skipped] = np.nan
    return packed


def _molecules_of(table: Any, name: str) -> Any:
    """Return the counts of the SMILES in a column. Raises TableError if it is not text."""
    if is_array(table):
        raise TableError(f"molecules must be in the column {name!r} of a data frame, but got an array")
    column = column_named(table, name, allow_missing=True)
    if column.kind != "text" and not column.missing.all():
        raise TableError(f"column {name!r} must contain SMILES, but has the kind {column.kind!r}")
    smiles = column.values.to_pylist() if column.kind == "text" else [None] * len(column.missing)
    return MORGAN.read(smiles, f"column {name!r}")


def smiles_column(table: Any) -> str | None:
    """Return the only column of a table if it is text, or None if all columns are numbers."""
    columns = table_columns(table)
    if all(read_column(name, values, allow_missing=True).kind != "text" for name, values in columns.items()):
        return None
    if len(columns) > 1:
        others = ", ".join(map(repr, columns))
        raise TableError(
            f"the Tanimoto kernel needs a single column of SMILES, or columns of counts, but the table has the columns {others}"
        )
    return next(iter(columns))


def fingerprints_of(smiles: Sequence[str | None], morgan: Morgan) -> tuple[Any, np.ndarray]:
    """Return counts [N, n_bits] as a sparse matrix, and a mask of unreadable molecules."""
    try:
        from rdkit import Chem, rdBase  # slow to import
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
    """Treatment of the inputs of an estimator; the values appear in `plan_`."""

    NUMBERS = "standardised if `standardize` is True"
    AS_GIVEN = "unchanged; the Tanimoto kernel depends on origin and scale, so `standardize` changes only the targets"
    FINGERPRINTS = "packed as sets of bits; the Tanimoto kernel depends on the origin, so `standardize` changes only the targets"


def name_inputs(estimator: Any, n_inputs: int, names: Sequence[str] | np.ndarray | None = None) -> None:
    """Set `n_features_in_`, and `feature_names_in_` if inputs have names."""
    estimator.n_features_in_ = n_inputs
    if names is not None:
        estimator.feature_names_in_ = np.array(names, dtype=object)
    elif hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_


def read_fingerprints(estimator: Any, X: Any, budget: Budget) -> tuple[Any, np.ndarray]:
    """Return the encoder and the packed rows for `fit`, and set `n_features_in_`.

    For an array with fractions, return None and rows of float64. Raises ValueError for other values.
    """
    if is_table(X) and (column := smiles_column(X)) is not None:
        name_inputs(estimator, 1, [column])
        return FingerprintEncoder.fit(X, column)
    X = counts_of(X)
    name_inputs(estimator, np.shape(X)[-1])
    if not isinstance(X, Fingerprints) and not scipy.sparse.issparse(X):
        values = checked_counts(X).data
        if (values != np.floor(values)).any():
            return None, np.asarray(X, np.float64)
    encoder, words = FingerprintEncoder.fit(X)
    budget.require(4 * len(words) * words.shape[1], f"{len(words)} packed fingerprints")
    return encoder, words


def counts_of(X: Any) -> Any:
    """Return the numbers of a data frame; other objects are unchanged."""
    return TableEncoder.fit(X).transform(X) if is_table(X) else X


def is_table(X: Any) -> bool:
    """Return True for a data frame."""
    return not isinstance(X, Fingerprints) and not scipy.sparse.issparse(X) and not is_array(X)


def is_packed(encoder: Any) -> bool:
    """Return True if an estimator's encoder packs fingerprints."""
    return isinstance(encoder, FingerprintEncoder)


def refuse_further_counts(words: np.ndarray) -> None:
    """Raise ValueError for packed rows with more counts than bits."""
    beyond = words[:, -1] > 0  # False for NaN
    if beyond.any():
        raise ValueError(
            f"{int(beyond.sum())} of {len(words)} rows, the first at row {int(np.argmax(beyond)) + 1}, have a count above the largest training count in the same column; "
            "fit all rows again, or fit data.Fingerprints.pack(X, levels) with larger levels"
        )


def without_skipped(rows: np.ndarray) -> np.ndarray:
    """Return a mask of readable rows, and warn about unreadable rows."""
    there = ~np.isnan(rows[:, 0])
    if not there.all():
        which = np.flatnonzero(~there) + 1
        more = f" and {len(which) - MOST_NAMED} more" if len(which) > MOST_NAMED else ""
        places = f"data rows {', '.join(map(str, which[:MOST_NAMED]))}{more} (rows count from 1)"
        warn(f"{len(which)} molecule(s) cannot be read and are ignored: {places}", DataWarning, stacklevel=6)
    return there
