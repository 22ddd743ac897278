"""Posterior functions of KernelGPRegressor: their moments, slopes, randomness and noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from stochgp.observations import Observation
from tests.families.test_kernel import X_NEW, X, given, y


@pytest.fixture(scope="module")
def fitted():
    return given().fit(X, y)


def test_functions_are_differentiable_and_agree_with_sample_y(fitted):
    f = fitted.sample_functions(3, random_state=2)
    assert f.n_samples == 3
    assert_array_equal(f(X_NEW), fitted.sample_y(X_NEW, 3, random_state=2))
    single = jax.jit(lambda X: f(X))(jnp.asarray(X_NEW, jnp.float32))  # outside of the 64-bit mode
    assert single.dtype == jnp.float32
    assert_allclose(single, f(X_NEW), rtol=1e-3)
    with jax.enable_x64(True):
        value = jax.jit(lambda x: f(x[None])[0, 1])
        slope = jax.jit(jax.grad(value))(jnp.asarray(X_NEW[0]))
        for i, step in enumerate(np.diag([1e-5, 1e-6])):
            ahead, behind = (float(value(jnp.asarray(X_NEW[0] + d))) for d in (step, -step))
            assert_allclose(slope[i], (ahead - behind) / (2 * step[i]), rtol=1e-4)


def test_the_random_state_decides_the_functions(fitted):
    first, again, other = (fitted.sample_functions(2, random_state=s)(X_NEW) for s in (4, 4, 5))
    assert_array_equal(first, again)
    assert np.all(first != other)
    with pytest.raises(ValueError, match="n_samples is 0"):
        fitted.sample_functions(0)


def test_parts_of_functions_and_noise_are_drawn_from_keys_of_their_own(monkeypatch):
    """No key is another's, nor one that a split or `fold_in` of another gives: else parts and noise share normal numbers."""
    model, drawn = given().fit(X, y), []
    normal, kind = Observation.draw_noise, type(model._fitted.posterior)
    functions = kind.functions

    def recorded(of, where):
        def call(self, *args, key):
            drawn.append(key)
            return of(self, *args, key=key)

        monkeypatch.setattr(*where, call)

    recorded(functions, (kind, "functions"))
    recorded(normal, (Observation, "draw_noise"))
    model.sample_y(X_NEW, 3, random_state=5, include_noise=True)
    assert len(drawn) == 2
    as_words = lambda key: tuple(np.asarray(jax.random.key_data(key)).tolist())
    families = [{as_words(key)} | {as_words(child) for child in jax.random.split(key, 8)} for key in drawn]
    assert len(set.union(*families)) == sum(map(len, families))
