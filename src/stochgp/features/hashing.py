"""Random features of the Tanimoto kernel, computed by hashing fingerprints."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

from stochgp.features.base import AbstractFeatureMap, check_rows
from stochgp.kernels import Tanimoto
from stochgp.kernels.base import as_kernel, select
from stochgp.numerics.arrays import WORD, words_of
from stochgp.parameters import Frozen, value_of

N_SIGNS = 8  # signs per input of `_of_counts`


# r, ln c and u for each input [D, M]; 8 signs per byte [D, M]; the signs of a row of zeros [M].
CountDraws = tuple[Array, Array, Array, Array, Array]
# For sets: two words for each hash, from which `_mixed` computes the random number of an element.
Draws = UInt32[Array, "M 2"] | CountDraws


class TanimotoHashes(AbstractFeatureMap):
    """Random features φ of a Tanimoto kernel k, computed by hashing (Tripp et al. 2023).

    Feature j is φ_j(x) = √(variance/M) ξ_j(h_j(x)), where the hash h_j selects one element of a row x, and
    ξ_j assigns a random sign ±1 to each element. Two rows have the same hash with probability
    T = k(x, z)/variance. The product φ(x)·φ(z) has the mean k(x, z) and the standard deviation
    variance · √((1 − T²)/M). Only the variance has derivatives. `init` creates φ.

    Parameters
    ----------
    kernel : Tanimoto
        The kernel k; its variance may be frozen.
    draws : array [M, 2] or CountDraws
        The random numbers of the M hashes; they are not learned.
    n_inputs : int
        The number D of inputs.
    """

    kernel: Any = eqx.field(converter=as_kernel)
    draws: Frozen
    n_inputs: int = eqx.field(static=True)

    @classmethod
    def init(
        cls, kernel: Any, n_inputs: int, n_features: int, *, key: PRNGKeyArray, dtype: DTypeLike = jnp.float32
    ) -> "TanimotoHashes":
        """Draw hashes. Raises TypeError for another kernel, and ValueError if M is below 1."""
        plain = value_of(kernel)
        if not isinstance(plain, Tanimoto):
            raise TypeError(f"Tanimoto features need a Tanimoto kernel, but got {kernel!r}")
        if n_features < 1:
            raise ValueError(f"n_features must be at least 1, but is {n_features}")
        row = jax.ShapeDtypeStruct((n_inputs,), dtype)
        width = jax.eval_shape(lambda x: select(x, plain.active_dims), row).shape[0]
        keys = jax.random.key_data(jax.random.split(key, n_features))
        return cls(kernel, Frozen(draw_hashes(plain.packed, width, keys, dtype)), n_inputs)

    @property
    def n_features(self) -> int:
        draws = self.draws.value
        return (draws[-1] if isinstance(draws, tuple) else draws).shape[0]

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N M"]:
        check_rows(X, self.n_inputs)
        kernel = value_of(self.kernel)
        signs = hash_signs(select(X, kernel.active_dims), self.draws.value)
        return jnp.sqrt(value_of(kernel.variance, X.dtype) / self.n_features) * signs


def draw_hashes(
    packed: bool, n_inputs: int, keys: UInt32[Array, "M 2"], dtype: DTypeLike = jnp.float32
) -> Draws:
    """Draw a hash for each key and rows of `n_inputs` numbers; `packed` rows are sets."""
    if packed:
        return keys

    def draw(key: Array) -> CountDraws:
        keys, tiny = jax.random.split(jax.random.wrap_key_data(key), 5), jnp.finfo(dtype).tiny
        uniform = [jax.random.uniform(k, (2, n_inputs), dtype, minval=tiny) for k in keys[:2]]
        r, c = (-jnp.sum(jnp.log(u), axis=0) for u in uniform)  # Gamma(2, 1): the sum of two exponentials
        signs, of_zero = (
            jax.random.bits(keys[2], (n_inputs,), jnp.uint8),
            jax.random.bits(keys[3], (), jnp.uint8),
        )
        return r, jnp.log(c), jax.random.uniform(keys[4], (n_inputs,), dtype), signs, of_zero

    return jax.vmap(draw, out_axes=-1)(keys)


def hash_signs(X: Float[Array, "N D"], draws: Draws) -> Float[Array, "N M"]:
    """Return the sign ξ_j(h_j(x)), 1 or −1, for each row and hash."""
    X = jax.lax.stop_gradient(X)
    negative = _of_counts(X, draws) if isinstance(draws, tuple) else _of_sets(X, draws)
    return jnp.where(negative, -jnp.ones((), X.dtype), jnp.ones((), X.dtype))


def _of_sets(X: Array, seeds: UInt32[Array, "M 2"]) -> Array:
    """Return the lowest bit of the smallest random number of each set (Broder 1997)."""
    words, further = words_of(X[:, :-1]), X[:, -1:].astype(jnp.uint32)
    empty = jnp.all(words == 0, axis=1)[:, None] & (further == 0)
    largest = jnp.uint32(np.iinfo(np.uint32).max)
    least = jnp.where(empty, _mixed(jnp.full((1,), largest), seeds), largest)
    first = jnp.uint32(WORD * words.shape[1])  # the number of the first element that is only counted

    unfinished = lambda state: jnp.any(state[0] != 0) | jnp.any(state[1] != 0)

    def take_one(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        words, further, least = state
        place = jnp.argmax(words != 0, axis=1)[:, None]
        word = jnp.take_along_axis(words, place, axis=1)  # [N, 1]
        has_word, has_more = word != 0, further != 0
        rest = word & (word - jnp.uint32(1))  # without its lowest bit
        bit = jax.lax.population_count((word ^ rest) - jnp.uint32(1))
        element = jnp.where(has_word, jnp.uint32(WORD) * place.astype(jnp.uint32) + bit, first + further)
        numbers = _mixed(element[:, 0], seeds)
        least = jnp.where(has_word | has_more, jnp.minimum(least, numbers), least)
        further = jnp.where(has_word | ~has_more, further, further - jnp.uint32(1))
        rest = jnp.where(has_word, rest, word)
        return jnp.put_along_axis(words, place, rest, axis=1, inplace=False), further, least

    return (jax.lax.while_loop(unfinished, take_one, (words, further, least))[2] & 1) == 1


def _mixed(elements: UInt32[Array, " N"], seeds: UInt32[Array, "M 2"]) -> UInt32[Array, "N M"]:
    """Return a random number for each element and hash, with the last step of MurmurHash3."""

    def mix(x: Array) -> Array:
        x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
        x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
        return x ^ (x >> 16)

    apart = mix(elements)[:, None] ^ seeds[None, :, 0]
    return mix(apart * (seeds[None, :, 1] | 1))


def _of_counts(X: Array, draws: CountDraws) -> Array:
    """Return True if the sign of a row of counts is −1, with the hash of Ioffe (2010)."""
    *of_inputs, of_zero = draws
    shape = X.shape[0], of_zero.shape[0]
    start = jnp.full(shape, jnp.inf, X.dtype), jnp.broadcast_to((of_zero & 1) == 1, shape)

    def look(state: tuple[Array, Array], item: tuple) -> tuple[tuple[Array, Array], None]:
        least, negative = state
        x, r, log_c, u, signs = item
        r, log_c, u = (part.astype(X.dtype)[None] for part in (r, log_c, u))
        log_x = jnp.log(jnp.where(x > 0, x, jnp.ones_like(x)))[:, None]
        t = jnp.floor(log_x / r + u)
        log_a = log_c - r * (t - u) - r
        better = (x > 0)[:, None] & (log_a < least)
        which = jnp.mod(t, N_SIGNS).astype(jnp.uint8)
        sign = (jnp.right_shift(signs[None], which) & 1) == 1
        return (jnp.where(better, log_a, least), jnp.where(better, sign, negative)), None

    return jax.lax.scan(look, start, (X.T, *of_inputs))[0][1]
