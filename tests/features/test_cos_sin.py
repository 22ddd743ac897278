"""Cosine and sine in turns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stochgp.features.fourier import cos_sin


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1.5), ("float64", 3.0)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_accuracy(scale, dtype, bound):
    turns = np.concatenate([np.random.default_rng(0).normal(size=10_000), np.arange(-16, 17) / 8])
    turns = (scale * turns).astype(dtype)
    with jax.enable_x64(True):
        both = jax.jit(cos_sin)(turns)
    angles = 2 * np.longdouble("3.14159265358979323846") * (turns.astype(np.longdouble) % 1)
    for found, exact in zip(both, (np.cos, np.sin), strict=True):
        assert found.dtype == dtype
        error = np.abs(np.asarray(found, np.longdouble) - exact(angles))
        assert error.max() < bound * np.finfo(dtype).eps


def test_derivatives_and_float64():
    with jax.enable_x64(True):
        turns = jnp.asarray(np.random.default_rng(1).normal(size=50))
        angles = 2 * np.pi * np.asarray(turns)
        slope = lambda t, i: jax.grad(lambda t: cos_sin(t)[i])(t)
        values = jax.jit(jax.vmap(lambda t: (cos_sin(t), slope(t, 0), slope(t, 1), jax.grad(slope)(t, 0))))
        for dtype, atol in ((jnp.float64, 1e-13), (jnp.float32, 1e-4)):
            (cos, sin), by_cos, by_sin, curvature = values(turns.astype(dtype))
            np.testing.assert_allclose(cos, np.cos(angles), atol=atol)
            np.testing.assert_allclose(sin, np.sin(angles), atol=atol)
            np.testing.assert_allclose(by_cos, -2 * np.pi * np.sin(angles), atol=10 * atol)
            np.testing.assert_allclose(by_sin, 2 * np.pi * np.cos(angles), atol=10 * atol)
            np.testing.assert_allclose(curvature, -4 * np.pi**2 * np.cos(angles), atol=100 * atol)
            assert curvature.dtype == dtype
