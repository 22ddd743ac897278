"""Test functions against their definitions, one scalar at a time, and the sets drawn from them."""

from math import cos, log, pi, prod, radians, sin, sqrt

import numpy as np
import pytest

import benchmarks.datasets.functions as functions
from benchmarks.datasets import load, load_function
from benchmarks.datasets.functions import FUNCTIONS

PRINTED_RMSE = {"levy": 0.265, "griewank": 0.071, "borehole": 0.172, "otl": 0.401, "wing": 0.072}  # sgGP


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


@pytest.mark.parametrize("name", FUNCTIONS)
def test_default_noise_allows_the_published_error_and_hardly_more(name):
    clean, noisy = load_function(name, 200_000, noise_std=0.0), load_function(name, 200_000)
    noise_std = FUNCTIONS[name].noise_std
    assert clean.noise_std == 0.0 and noisy.noise_std == noise_std
    floor = noise_std / np.hypot(clean.y.std(), noise_std)
    relative_error = 2.0 / sqrt(len(clean.y))  # of the standard deviation of f, generously for its kurtosis
    assert 0.97 * PRINTED_RMSE[name] < floor < PRINTED_RMSE[name] * (1 + 3 * relative_error)


def test_inputs_are_uniform_and_noise_is_normal():
    clean, noisy = (load_function("otl", 40_000, noise_std=s) for s in (0.0, 2.0))
    known, n = FUNCTIONS["otl"], len(clean.y)
    u = (clean.X - known.low) / (np.array(known.high) - known.low)
    assert np.all(abs(u.mean(axis=0) - 1 / 2) < 4 * sqrt(1 / 12 / n))
    assert np.all(abs((u**2).mean(axis=0) - 1 / 3) < 4 * sqrt(4 / 45 / n))
    assert np.all(abs(np.corrcoef(u, rowvar=False) - np.eye(6)) < 5 / sqrt(n))
    noise = (noisy.y - clean.y) / 2.0
    np.testing.assert_array_equal(clean.X, noisy.X)
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((noise**power).mean() - moment) < 4 * sqrt(variance / n)


def test_rows_depend_on_the_seed_alone(monkeypatch):
    first, again, other = (load("fun:wing:50", seed=s) for s in (0, 0, 1))
    assert len(first.y_test) == 5 and first.target_name == "y" and first.name == "fun:wing:50"
    np.testing.assert_array_equal(first.X, again.X)
    np.testing.assert_array_equal(first.y_test, again.y_test)
    assert not np.isin(first.X, other.X).any()
    half = load("fun:wing:50", test_fraction=0.5)
    np.testing.assert_array_equal(np.concatenate([half.y, half.y_test])[:45], first.y)
    monkeypatch.setattr(functions, "_CHUNK_ROWS", 7)
    longer = load("fun:wing:100", test_fraction=0.5)
    np.testing.assert_array_equal(longer.X[:45], first.X)
    np.testing.assert_array_equal(longer.y[:45], first.y)


def test_float32_rows_are_those_of_float64_and_consistent_in_themselves():
    double = load_function("borehole", 100, noise_std=0.0)
    single = load_function("borehole", 100, noise_std=0.0, dtype=np.float32)
    assert single.X.dtype == single.y.dtype == single.y_test.dtype == np.float32
    np.testing.assert_array_equal(single.X, double.X.astype(np.float32))
    at_stored = [borehole(*x) for x in single.X.astype(np.float64)]
    np.testing.assert_allclose(single.y, at_stored, rtol=2.0**-23)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("fun:borhole:1000", {}, "did you mean 'borehole'?"),
        ("fun:otl:1e6", {}, "did you mean 'fun:otl:2000000'?"),
        ("fun:otl:0", {}, "each side needs at least one"),
        ("fun:otl:100000000000000", {}, "fun:otl:100000000000000 takes 5600 TB of memory, but"),
        ("fun:otl:100", {"noise_std": -1.0}, "noise_std must be a standard deviation"),
        ("fun:otl:100", {"noise_std": float("nan")}, "noise_std must be a standard deviation"),
        ("fun:otl:100", {"test_fraction": 1.5}, "between 0 and 1"),
        ("bike-hourly", {"noise_std": 1.0}, "noise_std is for fun:NAME:ROWS"),
    ],
)
def test_wrong_names_and_options(name, options, words):
    with pytest.raises(ValueError) as caught:
        load(name, **options)
    assert words in str(caught.value) and "\n" not in str(caught.value)
