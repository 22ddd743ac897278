"""Hashes of rows by their values: which rows are held out or sampled depends neither on order, nor on files, nor on blocks."""

from hashlib import blake2b
from typing import Any

import narwhals as nw
import numpy as np
import pyarrow as pa
from jaxtyping import Float, UInt64

from stochgp.tables.columns import read_column

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def hash_rows(X: Float[np.ndarray, "N D"], y: Float[np.ndarray, " N"], seed: int) -> UInt64[np.ndarray, " N"]:
    """64 bits of each row: SplitMix64 (Steele, Lea and Flood 2014) over the bits of its numbers in float64, after the seed. −0 is 0."""
    found = np.full(len(y), _mixed(np.array([seed], np.uint64))[0])
    for column in (*X.T, y):
        found = _mixed(found ^ _bits(column))
    return found


def hash_keys(table: pa.Table, names: tuple[str, ...]) -> UInt64[np.ndarray, " N"]:
    """64 bits of the values that a row has in these columns: of numbers and times as in `hash_rows`, of text by its UTF-8 bytes; none may be missing."""
    found = np.zeros(table.num_rows, np.uint64)
    for name in names:
        column = read_column(name, nw.from_native(table[name], series_only=True))
        bits = _bits_of_texts(column.values) if column.kind == "text" else _bits(column.values)
        found = _mixed(found ^ bits)
    return found


def hash_again(keys: UInt64[np.ndarray, " N"], seed: int) -> UInt64[np.ndarray, " N"]:
    """Further 64 bits of what has these."""
    return _mixed(_mixed(np.array([seed], np.uint64)) ^ keys)


def _bits_of_texts(texts: Any) -> UInt64[np.ndarray, " N"]:
    whole = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    coded = whole.dictionary_encode()
    digests = [blake2b(text.encode(), digest_size=8).digest() for text in coded.dictionary.to_pylist()]
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)[coded.indices.to_numpy()]


def _bits(values: np.ndarray) -> UInt64[np.ndarray, " N"]:
    return (np.ascontiguousarray(values, np.float64) + 0.0).view(np.uint64)


def is_below(hashes: UInt64[np.ndarray, " N"], fraction: float) -> np.ndarray:
    """Which rows are among a random `fraction` of all: those whose hash is below it, as a share of 2⁶⁴."""
    return hashes < np.uint64(min(int(fraction * 2.0**64), 2**64 - 1))


def _mixed(x: UInt64[np.ndarray, " N"]) -> UInt64[np.ndarray, " N"]:
    x = x + _GOLDEN  # modulo 2⁶⁴
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))
