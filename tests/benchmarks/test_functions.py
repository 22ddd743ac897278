"""Test functions against their definitions, one scalar at a time, and the sets drawn from them."""

from math import cos, log, pi, prod, radians, sin, sqrt

import numpy as np
import pytest

from benchmarks.datasets import load_function
from benchmarks.datasets.functions import FUNCTIONS


def levy(*x):
    w = [1 + (value - 1) / 4 for value in x]
    middle = sum((v - 1) ** 2 * (1 + 10 * sin(pi * v + 1) ** 2) for v in w[:-1])
    return sin(pi * w[0]) ** 2 + middle + (w[-1] - 1) ** 2 * (1 + sin(2 * pi * w[-1]) ** 2)


def griewank(*x):
    return sum(v * v for v in x) / 4000 - prod(cos(v / sqrt(i)) for i, v in enumerate(x, start=1)) + 1


def borehole(rw, r, Tu, Hu, Tl, Hl, L, Kw):
    ln = log(r / rw)
    return (2 * pi * Tu * (Hu - Hl)) / (ln * (1 + 2 * L * Tu / (ln * rw**2 * Kw) + Tu / Tl))


def otl(Rb1, Rb2, Rf, Rc1, Rc2, beta):
    Vb1, q = 12 * Rb2 / (Rb1 + Rb2), beta * (Rc2 + 9)
    return (Vb1 + 0.74) * q / (q + Rf) + 11.35 * Rf / (q + Rf) + 0.74 * Rf * q / ((q + Rf) * Rc1)


def wing(Sw, Wfw, A, sweep, q, taper, tc, Nz, Wdg, Wp):
    c = cos(radians(sweep))
    lift = 0.036 * Sw**0.758 * Wfw**0.0035 * (A / c**2) ** 0.6 * q**0.006 * taper**0.04
    return lift * (100 * tc / c) ** (-0.3) * (Nz * Wdg) ** 0.49 + Sw * Wp


REFERENCE = {"levy": levy, "griewank": griewank, "borehole": borehole, "otl": otl, "wing": wing}


def middle(name):
    return (np.array(FUNCTIONS[name].low) + np.array(FUNCTIONS[name].high)) / 2


@pytest.mark.parametrize(
    ("name", "x", "expected"),
    [
        ("levy", np.ones(4), 0.0),
        ("levy", np.zeros(4), 0.8975336623509235),
        ("griewank", np.zeros(6), 0.0),
        ("griewank", np.ones(6), 0.7515382465827026),
        ("borehole", middle("borehole"), 70.87291263681897),
        ("otl", middle("otl"), 5.31061694218833),
        ("wing", middle("wing"), 267.6246925704356),
    ],
)
def test_published_values(name, x, expected):
    np.testing.assert_allclose(FUNCTIONS[name].value(x[None]), [expected], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_rows_without_noise_are_the_function_on_its_box(name):
    found, known = load_function(name, 200, test_fraction=0.4, seed=3, noise_std=0.0), FUNCTIONS[name]
    X, y = np.concatenate([found.X, found.X_test]), np.concatenate([found.y, found.y_test])
    np.testing.assert_allclose(y, [REFERENCE[name](*x) for x in X], rtol=1e-12)
    assert found.X.shape == (120, len(known.inputs)) and found.feature_names == known.inputs
    assert len(known.low) == len(known.high) == len(set(known.inputs)) == X.shape[1]
    assert np.all(known.low <= X) and np.all(known.high >= X)
