"""Random division of rows into training and test rows."""

from hashlib import blake2b
from typing import Any

import narwhals as nw
import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int, Shaped, UInt64

from stochgp.tables.columns import read_column


def train_test_indices(
    n: int, fraction: float, seed: int, group: Shaped[np.ndarray, " n"] | None = None
) -> tuple[Int[np.ndarray, " train"], Int[np.ndarray, " test"]]:
    """Divide rows 0 … n-1 at random: return (training rows, test rows), each in ascending order.

    The same n, fraction and seed always give the same division (NumPy's PCG64 generator).

    Raises ValueError unless 0 < fraction < 1 and at least one row falls on each side.

    Parameters
    ----------
    n : int
        Number of rows.
    fraction : float
        Share of the rows that become test rows; their number is rounded. With `group`, share of the groups.
    seed : int
        Seed of the division.
    group : array [n], optional
        Label of each row; rows with the same label fall on the same side.
    """
    if group is not None:
        names, member = np.unique(group, return_inverse=True)
        n_test = count_test_rows(len(names), fraction)
        of_test = np.isin(member, np.random.default_rng(seed).choice(len(names), n_test, replace=False))
        return np.flatnonzero(~of_test), np.flatnonzero(of_test)
    n_test = count_test_rows(n, fraction)
    order = np.random.default_rng(seed).permutation(n)
    return np.sort(order[n_test:]), np.sort(order[:n_test])


def count_test_rows(n: int, fraction: float) -> int:
    """Return `fraction` of n rows, rounded. Raises ValueError unless 0 < fraction < 1 and at least one row falls on each side."""
    if not 0.0 < fraction < 1.0:
        raise ValueError(f"the test fraction must lie between 0 and 1, not {fraction!r}")
    n_test = round(n * fraction)
    if not 1 <= n_test <= n - 1:
        raise ValueError(
            f"a test fraction of {fraction} leaves {n - n_test} training rows and {n_test} test rows "
            f"of {n}; each side needs at least one"
        )
    return n_test


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
