"""Random hashes of fingerprints: the probability that two are equal is T, and the error of their products falls as M^(−1/2)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_features import random_features

from stochgp import features, kernels
from stochgp.parameters import frozen
from stochgp.priors import prior_functions
from tests.kernels.test_tanimoto import D, draw_bits, draw_counts, loop, packed

N_SE = 4.0
KEY = jax.random.key(2)


def draw_sets(n):
    """Bits, and a last column of further counts; nothing in the first row, and no bits in the next two, so that T = 1/8 there."""
    bits, further = draw_bits(n), np.random.default_rng(8).poisson(3.0, (n, 1)).astype(float)
    bits[:3], further[:3, 0] = 0, (0, 1, 8)
    return np.concatenate([bits, further], axis=1)


def of_sets(X):
    """Of bits, and a last column of further counts."""
    return np.concatenate([packed(X[:, :D] > 0)[:, :-1], X[:, D:]], axis=1).astype(np.float32)


KINDS = {
    "sets": (lambda n: draw_sets(n), of_sets, True),
    "counts": (lambda n: draw_counts(n), lambda X: X.astype(np.float32), False),
    "numbers": (lambda n: draw_counts(n) * 0.37, lambda X: X.astype(np.float32), False),
}
each = pytest.mark.parametrize("kind", KINDS)


def made(kind, n):
    """(Rows as numbers, rows as the kernel takes them, the kernel)."""
    draw, as_rows, are_packed = KINDS[kind]
    X = draw(n)
    return np.asarray(X, float), jnp.asarray(as_rows(X)), kernels.Tanimoto(1.7, packed=are_packed)


_features = eqx.filter_jit(lambda phi, X: phi(X))


def gram(phi, X):
    Phi = np.asarray(_features(phi, X), np.float64)
    return Phi @ Phi.T


@each
def test_features_have_the_kernel_on_average(kind):
    """Over independent draws, within standard errors; on the diagonal exactly. Rows without elements are equal to each other."""
    X, rows, kernel = made(kind, 7)
    X, rows = np.concatenate([X, X[:1]]), jnp.concatenate([rows, rows[:1]])
    maps = [
        features.TanimotoHashes.init(kernel, rows.shape[1], 64, key=key) for key in jax.random.split(KEY, 40)
    ]
    found = np.stack([gram(phi, rows) for phi in maps])
    wanted = 1.7 * loop(X, X)
    error = np.abs(found.mean(axis=0) - wanted)
    assert np.all(error <= N_SE * found.std(axis=0, ddof=1) / np.sqrt(40) + 1e-5)
    np.testing.assert_allclose(found[:, range(8), range(8)], 1.7, rtol=1e-5)


@pytest.mark.parametrize("kind", ["sets", "counts"])
def test_errors_fall_with_the_root_of_the_number_of_features(kind):
    """Mean square over 10,000 pairs and eight draws: slope of its root −1/2 ± 0.05, and (1 − T²)/M, of independent signs, within errors."""
    X, rows, kernel = made(kind, 142)
    pairs = np.triu_indices(142, 1)
    T = loop(X, X)[pairs][:10_000]
    sizes, found = np.array([32, 128, 512]), []
    for M in sizes:
        draw = jax.jit(
            lambda key, M=int(M): features.TanimotoHashes.init(kernel, rows.shape[1], M, key=key)(rows)
        )
        Phis = [np.asarray(draw(key), np.float64) for key in jax.random.split(jax.random.fold_in(KEY, M), 8)]
        errors = [(Phi @ Phi.T)[pairs][:10_000] / 1.7 - T for Phi in Phis]
        found.append([np.mean(error**2) for error in errors])
    squares = np.mean(found, axis=1)
    assert abs(np.polyfit(np.log(sizes), 0.5 * np.log(squares), 1)[0] + 0.5) < 0.05
    standard_error = np.std(found, axis=1, ddof=1) / np.sqrt(8)
    assert np.all(np.abs(squares - np.mean(1 - T**2) / sizes) < N_SE * standard_error)


def test_names_make_the_map():
    phi = features.resolve("tanimoto", n_inputs=D, key=KEY)
    assert isinstance(phi, features.TanimotoHashes) and phi.n_features == 1000
    assert features.resolve("tanimoto", "tanimoto", 30, n_inputs=D, key=KEY).n_features == 30
    with pytest.raises(TypeError, match="need a Tanimoto kernel"):
        features.resolve("tanimoto", "rbf", n_inputs=D, key=KEY)
    with pytest.raises(ValueError, match="n_features must be at least 1, but is 0"):
        features.TanimotoHashes.init(kernels.Tanimoto(), D, 0, key=KEY)


@pytest.mark.parametrize("kind", ["sets", "counts"])
def test_prior_functions_have_the_moments_of_the_kernel(kind):
    """By groups of functions that share their hashes; the kernel alone, and in a sum and a product with others."""
    X, rows, kernel = made(kind, 6)
    T = 1.7 * loop(X, X)
    linear = kernels.Linear(1e-3) if kind != "sets" else kernels.Constant(0.4)
    with_others = linear + kernel * frozen(kernels.Constant(0.5))
    other = np.asarray(linear.matrix(rows, rows), np.float64)
    for k, wanted in ((kernel, T), (with_others, other + 0.5 * T)):
        functions = prior_functions(k, rows.shape[1], 1024, n_features=60, group=4, key=KEY)
        groups = np.asarray(functions(rows), np.float64).reshape(6, 256, 4)
        found = np.einsum("igs,jgs->gij", groups, groups) / 4
        error = np.abs(found.mean(axis=0) - wanted)
        assert np.all(error <= N_SE * found.std(axis=0, ddof=1) / np.sqrt(256) + 1e-5)
        mean = groups.mean(axis=2).T
        assert np.all(np.abs(mean.mean(axis=0)) <= N_SE * mean.std(axis=0, ddof=1) / np.sqrt(256) + 1e-5)


@pytest.mark.long
def test_products_with_waves_have_random_features():
    X = jnp.asarray(draw_counts(5), jnp.float32)
    kernel = kernels.Tanimoto(0.8) * kernels.RBF(8.0) * kernels.Tanimoto(1.5, active_dims=range(50))
    Phi = random_features(kernel, 1000, X, KEY)
    wanted = kernel.matrix(X, X)
    np.testing.assert_allclose(Phi @ Phi.T, wanted, atol=N_SE * 1.2 * np.sqrt(2 / 1000))
