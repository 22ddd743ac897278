"""Hashes of rows by their values: which rows are held out or sampled depends neither on order, nor on files, nor on blocks."""

import numpy as np
from jaxtyping import Float, UInt64

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def hash_rows(X: Float[np.ndarray, "N D"], y: Float[np.ndarray, " N"], seed: int) -> UInt64[np.ndarray, " N"]:
    """64 bits of each row: SplitMix64 (Steele, Lea and Flood 2014) over the bits of its numbers in float64, after the seed. −0 is 0."""
    found = np.full(len(y), _mixed(np.array([seed], np.uint64))[0])
    for column in (*X.T, y):
        bits = (np.ascontiguousarray(column, np.float64) + 0.0).view(np.uint64)
        found = _mixed(found ^ bits)
    return found


def is_below(hashes: UInt64[np.ndarray, " N"], fraction: float) -> np.ndarray:
    """Which rows are among a random `fraction` of all: those whose hash is below it, as a share of 2⁶⁴."""
    return hashes < np.uint64(min(int(fraction * 2.0**64), 2**64 - 1))


def _mixed(x: UInt64[np.ndarray, " N"]) -> UInt64[np.ndarray, " N"]:
    x = x + _GOLDEN  # modulo 2⁶⁴
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))
