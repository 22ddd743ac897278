"""Transforms of targets: inverses, slopes against finite differences, ranges, anchors, in NumPy and JAX alike."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stochgp import transforms

RNG = np.random.default_rng(3)
REAL, POSITIVE = RNG.standard_t(3, size=400), RNG.lognormal(0, 1, size=400)


CASES = {
    "log": (transforms.Log(), POSITIVE),
    "shifted log": (transforms.Log(0.5), np.floor(10 * POSITIVE)),
    "sinh-arcsinh": (transforms.SinhArcsinh(0.6, 0.3), REAL),
    "anchored": (transforms.anchored(transforms.SinhArcsinh(1.4, -0.2), 100 + 5 * REAL), 100 + 5 * REAL),
}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


def test_inverse_and_order(case):
    T, y = case
    y = np.sort(y)
    z = T(y)
    assert np.all(np.diff(z)[np.diff(y) > 0] > 0)
    np.testing.assert_allclose(T.inverse(z), y, rtol=1e-9, atol=1e-12)


def test_slopes_are_finite_differences(case):
    T, y = case
    h = 1e-5 * (y - T.lower if np.isfinite(T.lower) else 1 + np.abs(y))
    slope = (T(y + h) - T(y - h)) / (2 * h)
    apart = np.abs(slope - np.exp(T.log_slope(y))) > 1e-5 * np.exp(T.log_slope(y))
    assert apart.sum() <= 0  # differences across a knot


def test_parameters_go_without_bounds_and_back(case):
    T, y = case
    again = T.from_raw(T.raw)
    np.testing.assert_allclose(again(y), T(y), rtol=1e-9, atol=1e-12)


def test_the_same_in_programs_and_differentiable_in_its_parameters(case, double):
    T, y = case
    raw = jnp.asarray(T.raw, jnp.float64)
    of = lambda raw: (
        jnp.sum(jnp.sin(T.from_raw(raw)(jnp.asarray(y)))) + jnp.sum(T.from_raw(raw).log_slope(jnp.asarray(y)))
    )
    of = jax.jit(jax.value_and_grad(of))
    value, gradient = of(raw)
    np.testing.assert_allclose(value, np.sum(np.sin(T(y))) + np.sum(T.log_slope(y)), rtol=1e-8)
    for i, h in enumerate(1e-6 * np.eye(len(raw))):
        slope = (of(raw + h)[0] - of(raw - h)[0]) / 2e-6
        np.testing.assert_allclose(gradient[i], slope, rtol=1e-4, atol=1e-4)
