"""Fingerprints of molecules: rows of counts as sets of bits, a few hundred bytes a molecule.

A count c of column d is the set of the elements (d, 1), …, (d, c). The number of elements that two rows have in common is Σ_d min(x_d, z_d),
so that the Tanimoto similarity of counts is that of these sets. As many elements of a column are stored as its largest count among the
training rows. What another row has beyond them, in all columns together, is one further count: the similarity with every training row
is exact, and two new rows share the smaller of their two further counts.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse
from jaxtyping import Float32

from stochgp.numerics.arrays import n_words, packed_bits, unpacked_bits

MOST_ELEMENTS = 1 << 17  # of a row
CHUNK_ELEMENTS = 1 << 24  # of the bits that are packed together


@dataclass(frozen=True, eq=False)
class Fingerprints:
    """N packed rows of counts, for `fit` and `predict` of an estimator with the Tanimoto kernel. Made by `pack` or `from_bytes`.

    Rows of bits of 1,024 columns take 140 bytes each.

    Parameters
    ----------
    levels : tuple of int
        How many bits each column is stored as: its largest count among the training rows.
    words : float32 array [N, W]
        The packed rows, 31 bits a number (`numerics.words`); the last number of a row counts what it has beyond the levels.
    """

    levels: tuple[int, ...]
    words: Float32[np.ndarray, "N W"]

    @classmethod
    def pack(cls, X: Any, levels: tuple[int, ...] | None = None) -> "Fingerprints":
        """Rows of whole numbers from 0 up, as an array or a SciPy sparse matrix; `levels` None = the largest of each column.

        Raises ValueError, naming row and column, for other numbers, and where a row would have more than 131,072 bits.
        """
        X = checked_counts(X)
        refuse_fractions(X)
        levels = tuple(int(level) for level in _largest(X)) if levels is None else levels
        if X.shape[1] != len(levels):
            raise ValueError(f"expected fingerprints of {len(levels)} columns, but got {X.shape[1]}")
        if sum(levels) > MOST_ELEMENTS:
            raise ValueError(
                f"the largest counts of all columns are {sum(levels)} together; packed rows hold up to {MOST_ELEMENTS}"
            )
        return cls(levels, _packed(X, np.array(levels)))

    @classmethod
    def from_bytes(cls, rows: Any, n_bits: int | None = None) -> "Fingerprints":
        """Bits as `numpy.packbits` and fingerprint libraries write them: uint8 [N, n_bits / 8], the first bit the highest of its byte."""
        rows = np.asarray(rows)
        if rows.ndim != 2 or rows.dtype != np.uint8:
            raise ValueError(f"expected bytes, uint8 [N, B], but got {rows.dtype} of shape {rows.shape}")
        n_bits = int(8 * rows.shape[1] if n_bits is None else n_bits)
        step = max(1, CHUNK_ELEMENTS // max(1, n_bits))
        words = np.zeros((len(rows), n_words(n_bits) + 1), np.float32)
        for start in range(0, len(rows), step):
            bits = np.unpackbits(rows[start : start + step], axis=1, count=n_bits)
            words[start : start + step, :-1] = packed_bits(bits.astype(bool))
        return cls((1,) * n_bits, words)

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, rows: Any) -> "Fingerprints":
        """Some of the rows: a slice, or an array of numbers or booleans."""
        return Fingerprints(self.levels, self.words[rows])

    @property
    def shape(self) -> tuple[int, int]:
        """(Molecules, columns)."""
        return len(self.words), len(self.levels)

    @property
    def nbytes(self) -> int:
        """Of the packed rows."""
        return self.words.nbytes

    def counts(self) -> Any:
        """The counts as a sparse matrix of uint16 [N, columns]. Raises ValueError where a row has more than is stored by column."""
        if self.words[:, -1].any():
            raise ValueError(
                "these fingerprints were packed for other rows, and hold some of their counts only as a sum"
            )
        columns, _ = _elements(np.array(self.levels))
        step, parts = max(1, CHUNK_ELEMENTS // max(1, len(columns))), []
        for start in range(0, len(self), step):
            bits = unpacked_bits(self.words[start : start + step, :-1], len(columns))
            row, element = np.nonzero(bits)
            ones = np.ones(len(row), np.uint16)
            shape = (len(bits), len(self.levels))
            parts.append(scipy.sparse.coo_array((ones, (row, columns[element])), shape).tocsr())
        return scipy.sparse.vstack(parts, format="csr")


@dataclass(frozen=True)
class FingerprintEncoder:
    """Fingerprints given to an estimator as packed words, the same way at fit and at predict: arrays, sparse matrices, `Fingerprints`."""

    levels: tuple[int, ...]
    named: bool = False

    @classmethod
    def fit(cls, X: Any) -> "FingerprintEncoder":
        """The levels of training rows. Raises as `Fingerprints.pack`."""
        return cls(X.levels if isinstance(X, Fingerprints) else Fingerprints.pack(X).levels)

    @property
    def n_columns(self) -> int:
        return len(self.levels)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Of the numbers of a packed row."""
        return (*(f"word {i}" for i in range(n_words(sum(self.levels)))), "further counts")

    @property
    def described(self) -> str:
        """For the summary of a model."""
        kind = "bits" if max(self.levels, default=0) <= 1 else "counts"
        return f"fingerprints of {self.n_columns} {kind}"

    def transform(self, X: Any) -> Float32[np.ndarray, "N W"]:
        """Packed rows. Raises ValueError for rows of another number of columns, and as `Fingerprints.pack`."""
        if isinstance(X, Fingerprints) and X.levels == self.levels:
            return X.words
        return Fingerprints.pack(X.counts() if isinstance(X, Fingerprints) else X, self.levels).words

    def unknown(self, X: Any) -> tuple[str, ...]:
        """None: columns have no names."""
        return ()


def checked_counts(X: Any) -> Any:
    """A CSR matrix, or an array of two axes, of finite numbers of at least 0. Raises ValueError, naming row and column, for others."""
    if scipy.sparse.issparse(X):
        X = scipy.sparse.csr_array(X)
        X.sum_duplicates()
        values = X.data
    else:
        X = np.asarray(X)
        if X.ndim != 2 or X.dtype.kind not in "biuf":
            raise ValueError(f"expected fingerprints [N, D] of numbers, but got {X.dtype} of shape {X.shape}")
        values = X
    if X.shape[0] == 0 or X.shape[1] == 0:
        raise ValueError(f"expected fingerprints [N, D] with N and D above 0, but got {X.shape}")
    if values.size and not (np.isfinite(values).all() and values.min() >= 0):
        _refuse(X, lambda v: ~(np.isfinite(v) & (v >= 0)), "a fingerprint holds numbers of at least 0")
    return X


def holds_fractions(X: Any) -> bool:
    """Whether a number of the checked rows is not whole."""
    values = X.data if scipy.sparse.issparse(X) else X
    return values.dtype.kind == "f" and bool((values != np.floor(values)).any())


def refuse_fractions(X: Any) -> None:
    """Raises ValueError, naming the first, for numbers that are not whole."""
    if holds_fractions(X):
        _refuse(X, lambda v: v != np.floor(v), "packed fingerprints hold whole numbers")


def _refuse(X: Any, bad: Any, what: str) -> None:
    if scipy.sparse.issparse(X):
        first = int(np.argmax(bad(X.data)))
        row = int(np.searchsorted(X.indptr, first, side="right")) - 1
        column, value = int(X.indices[first]), X.data[first]
    else:
        row, column = (int(i) for i in np.argwhere(bad(X))[0])
        value = X[row, column]
    raise ValueError(f"{what}, but row {row + 1}, column {column + 1} holds {value} (both count from 1)")


def _largest(X: Any) -> np.ndarray:
    found = X.max(axis=0)
    return np.asarray(found.todense() if scipy.sparse.issparse(found) else found).ravel()


def _elements(levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(Column, level from 1) of every element: the first of all columns, then the second of those that have it, and so on."""
    highest = int(levels.max(initial=0))
    columns = [np.flatnonzero(levels >= level) for level in range(1, highest + 1)]
    level = np.repeat(np.arange(1, highest + 1), [len(part) for part in columns])
    return (np.concatenate(columns) if columns else np.zeros(0, np.int64)), level


def _packed(X: Any, levels: np.ndarray) -> np.ndarray:
    columns, level = _elements(levels)
    words = np.empty((X.shape[0], n_words(len(columns)) + 1), np.float32)
    step = max(1, CHUNK_ELEMENTS // max(1, len(columns)))
    for start in range(0, X.shape[0], step):
        part = X[start : start + step]
        dense = part.toarray() if scipy.sparse.issparse(part) else part
        words[start : start + step, :-1] = packed_bits(dense[:, columns] >= level[None, :])
        words[start : start + step, -1] = np.maximum(dense.astype(np.int64) - levels, 0).sum(axis=1)
    return words
