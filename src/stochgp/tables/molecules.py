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
from stochgp.exceptions import DataWarning
from stochgp.numerics.arrays import n_words, packed_bits
from stochgp.warning import warn

from .columns import TableError, column_named, is_array, read_column, row_of_first, table_columns
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
    """Morgan fingerprints of SMILES: how often each circular fragment of up to `radius` bonds occurs (Rogers and Hahn 2010).

    `data.Morgan()(smiles)` returns counts for `fit` and `predict`, computed by RDKit. Raises ValueError for a negative radius and for no bits.

    Parameters
    ----------
    radius : int
        Of the largest fragment, in bonds from its centre.
    n_bits : int
        Columns into which fragments are folded; RDKit has as many by default.
    counts : bool
        False keeps only which fragments occur.
    chirality : bool
        Whether mirror images are distinguished.
    skip_unreadable : bool
        True: `fit` leaves molecules out that cannot be read, and predictions for them are NaN. False: an error names the first.
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
        """Return counts [N, n_bits] of SMILES, a sequence or a column, as a sparse matrix for `fit` and `predict`; NaN in rows that are skipped.

        Raises ValueError, with its row, for a molecule that cannot be read, and if none can be read.
        """
        values = smiles.to_pylist() if hasattr(smiles, "to_pylist") else smiles
        return self.read([one if isinstance(one, str) else None for one in values], "the input")

    def read(self, smiles: Sequence[str | None], what: str) -> Any:
        """Return the same of texts, None for missing ones; `what` is the subject of errors."""
        counts, bad = fingerprints_of(smiles, self)
        if bad.all():
            raise TableError(f"{what}: none of the {len(bad)} molecules can be read")
        if not bad.any():
            return counts
        if not self.skip_unreadable:
            text = smiles[int(np.argmax(bad))]
            shown = "missing" if text is None else "empty" if not text.strip() else repr(text[:SHOWN])
            place = f"the first at data row {row_of_first(bad)}: {shown} (rows count from 1, header excluded)"
            end = "data.Morgan(skip_unreadable=True)(smiles) leaves them out"
            raise TableError(f"{what} has {bad.sum()} molecule(s) that cannot be read, {place}; {end}")
        rows = np.flatnonzero(bad)
        skipped = (np.full(len(rows), np.nan), (rows, np.zeros(len(rows), np.int64)))
        return scipy.sparse.csr_array(counts + scipy.sparse.csr_array(skipped, counts.shape))


@dataclass(frozen=True)
class FingerprintEncoder:
    """Rows as packed words: of counts, or of the SMILES in a `column` of tables."""

    levels: tuple[int, ...]
    column: str | None = None

    @classmethod
    def fit(
        cls, X: Any, column: str | None = None
    ) -> tuple["FingerprintEncoder", Float32[np.ndarray, "N W"]]:
        """Return the encoder and the packed rows of arrays, sparse matrices or `Fingerprints`, or of a column of a table."""
        packed = _packed(X if column is None else _molecules_of(X, column))
        return cls(packed.levels, column), packed.words

    @property
    def named(self) -> bool:
        """Return True if rows are read from a column by name."""
        return self.column is not None

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the numbers of a packed row."""
        return (*(f"word {i}" for i in range(n_words(sum(self.levels)))), "further counts")

    @property
    def described(self) -> str:
        """For the summary of a model."""
        if self.column is None:
            kind = "bits" if max(self.levels, default=0) <= 1 else "counts"
            return f"fingerprints of {len(self.levels)} {kind}"
        return (
            f"Morgan counts of radius {MORGAN.radius} in {MORGAN.n_bits} columns, of column {self.column!r}"
        )

    def transform(self, X: Any) -> Float32[np.ndarray, "N W"]:
        """Packed rows. Raises as `Fingerprints.pack`, for other levels, and, naming the row, for an unreadable molecule of a table."""
        if self.column is not None:
            return _packed(_molecules_of(X, self.column), self.levels).words
        packed = _packed(counts_of(X), self.levels)
        if packed.levels != self.levels:
            raise ValueError(
                "these fingerprints have other levels than those of fit: pack(X, levels) with these"
            )
        return packed.words

    def unknown(self, X: Any) -> tuple[str, ...]:
        """None: one column is read, or columns have no names."""
        return ()


Encoder = TableEncoder | FingerprintEncoder
MORGAN = Morgan()  # of columns of SMILES


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


def _packed(X: Any, levels: tuple[int, ...] | None = None) -> Fingerprints:
    """Return packed rows; those with a NaN of `Morgan` are NaN."""
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
    """Return the counts of the SMILES in this column. Raises TableError without such a column of text."""
    if is_array(table):
        raise TableError(f"molecules are a column of a data frame, {name!r}, but got an array")
    column = column_named(table, name, allow_missing=True)
    if column.kind != "text" and not column.missing.all():
        raise TableError(f"column {name!r} holds a {column.kind}, not SMILES")
    smiles = column.values.to_pylist() if column.kind == "text" else [None] * len(column.missing)
    return MORGAN.read(smiles, f"column {name!r}")


def smiles_column(table: Any) -> str | None:
    """Return the only column of a table if it is text; None if all are numbers. Raises TableError if there are others beside it."""
    columns = table_columns(table)
    if all(read_column(name, values, allow_missing=True).kind != "text" for name, values in columns.items()):
        return None
    if len(columns) > 1:
        others = ", ".join(map(repr, columns))
        raise TableError(
            f"the Tanimoto kernel takes one column of SMILES, or counts; drop the others of {others}"
        )
    return next(iter(columns))


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

    The only column of a table may be SMILES. Sets `n_features_in_`. Raises ValueError, naming row and column, for other values.
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
    """Return the numbers of a data frame; arrays, sparse matrices and `Fingerprints` as they are."""
    return TableEncoder.fit(X).transform(X) if is_table(X) else X


def is_table(X: Any) -> bool:
    """Return True for a data frame."""
    return not isinstance(X, Fingerprints) and not scipy.sparse.issparse(X) and not is_array(X)


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
        warn(f"{len(which)} molecule(s) cannot be read and are left out: {places}", DataWarning, stacklevel=6)
    return there
