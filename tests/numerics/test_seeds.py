"""Keys and seeds made on the host are those of JAX."""

import jax
import numpy as np
import pytest

from stochgp.numerics.seeds import as_key, key_of, seed_of, split


@pytest.mark.parametrize("seed", [0, 1, 12345, 2**32 - 1])
def test_keys_splits_and_seeds_are_those_of_jax(seed):
    key = as_key(seed)
    np.testing.assert_array_equal(jax.random.key_data(key), jax.random.key_data(jax.random.key(seed)))
    found = split(key, 5)
    np.testing.assert_array_equal(found, jax.random.key_data(jax.random.split(key, 5)))
    for words in found:
        np.testing.assert_array_equal(seed_of(words), jax.random.bits(key_of(words), (2,), "uint32"))


@pytest.mark.parametrize("wrong", [-1, 2**32, 1.5, "0", True])
def test_what_is_no_seed_is_refused(wrong):
    with pytest.raises(ValueError, match="random_state"):
        as_key(wrong)
