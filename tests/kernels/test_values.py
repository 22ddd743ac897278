"""Kernels against plain NumPy, their limits, their algebra, and what they refuse."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grams import matrix
from scipy.special import gamma, kv

from stochgp import kernels, networks
from stochgp.kernels.base import points, squared_distances
from tests.kernels.test_contract import _pairs, _prepared

L = np.array([0.5, 1.0, 2.0])
P = np.array([1.0, 2.0, 3.0])
X = np.random.default_rng(0).normal(size=(5, 3))
Z = np.concatenate([np.random.default_rng(1).normal(size=(3, 3)), X[:1]])


def _matern(nu):
    def k(x, z):
        a = np.sqrt(2 * nu * np.sum(((x - z) / L) ** 2))
        return 1.0 if a == 0 else 2 ** (1 - nu) / gamma(nu) * a**nu * kv(nu, a)

    return k


REFERENCES = [
    (lambda: kernels.RBF(L, 1.7), lambda x, z: np.exp(-0.5 * np.sum(((x - z) / L) ** 2))),
    (lambda: kernels.Matern12(L, 1.7), _matern(0.5)),
    (lambda: kernels.Matern32(L, 1.7), _matern(1.5)),
    (lambda: kernels.Matern52(L, 1.7), _matern(2.5)),
    (
        lambda: kernels.RationalQuadratic(L, 1.7, alpha=0.8),
        lambda x, z: (1 + np.sum(((x - z) / L) ** 2) / 1.6) ** -0.8,
    ),
    (
        lambda: kernels.Periodic(L, 1.7, period=P),
        lambda x, z: np.exp(-2 * np.sum((np.sin(np.pi * (x - z) / P) / L) ** 2)),
    ),
    (lambda: kernels.Linear(1.7), lambda x, z: x @ z),
    (lambda: kernels.Constant(1.7), lambda x, z: 1.0),
]


@pytest.mark.parametrize(("make", "reference"), REFERENCES, ids=lambda f: "")
def test_matches_a_numpy_double_loop(make, reference):
    with jax.enable_x64(True):
        kernel = make()
        expected = [[1.7 * reference(x, z) for z in Z] for x in X]
        rtol = 1e-6  # parameters are float32 numbers
        both = eqx.filter_jit(lambda kernel, X, Z: (kernel.matrix(X, Z), _pairs(kernel, X, Z)))
        block, pairs = both(kernel, jnp.asarray(X), jnp.asarray(Z))
        np.testing.assert_allclose(block, expected, rtol=rtol, atol=1e-7)
        np.testing.assert_allclose(pairs, expected, rtol=rtol, atol=1e-12)


@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_float32_distances_far_from_the_origin(offset):
    """The bound is on what float32 rows can say: rounding of the inputs at `offset`, then of the centred
    norms.
    """
    rng = np.random.default_rng(2)
    A = (rng.normal(size=(200, 20)) + offset).astype(np.float32)
    B = np.concatenate([A[:50], rng.normal(size=(50, 20)).astype(np.float32) + np.float32(offset)])
    centre = B.mean(axis=0)
    found = np.asarray(squared_distances(points(jnp.asarray(A - centre)), points(jnp.asarray(B - centre))))
    exact = np.sum((A[:, None].astype(np.float64) - B[None].astype(np.float64)) ** 2, axis=2)
    norms = 20 + 6 * np.sqrt(40)  # a centred squared norm, its mean plus six standard deviations
    assert np.abs(found - exact).max() < 8 * np.finfo(np.float32).eps * 2 * norms * (1 + offset / 100)
    assert found.min() >= 0


def test_a_repeated_row_has_exactly_the_variance_in_float32():
    rows = np.random.default_rng(3).normal(size=(100, 20)).astype(np.float32) * 10
    A, B = jnp.asarray(rows), jnp.asarray(rows.copy())
    for kind in (kernels.RBF, kernels.Matern12, kernels.Matern32, kernels.Matern52):
        np.testing.assert_array_equal(np.diagonal(matrix(kind(1.0, 1.0), A, B)), np.float32(1.0))


def test_prepared_rows_far_from_the_origin_in_float32():
    """Stationary kernels subtract the centre; the linear kernel, which knows the origin, does not."""
    rng, prepared = np.random.default_rng(4), eqx.filter_jit(_prepared)
    offset = np.float32(1e3)
    A, B = (jnp.asarray(rng.normal(size=(20, 3)).astype(np.float32) + offset) for _ in range(2))
    centre = jnp.full(3, offset)
    for kernel in (kernels.RBF([0.5, 1.0, 2.0]), kernels.Matern32(2.0)):
        found, near = prepared(kernel, A, B, centre), prepared(kernel, A - offset, B - offset, 0 * centre)
        np.testing.assert_array_equal(found, near)
    found = prepared(kernels.Linear(0.7), A, B, centre)
    np.testing.assert_allclose(found, 0.7 * np.asarray(A) @ np.asarray(B).T, rtol=1e-5)


def test_a_network_that_has_no_value_at_the_centre():
    rows = jnp.asarray(X, jnp.float32)
    kernel = kernels.Warped(kernels.RBF(), lambda x: x / jnp.linalg.norm(x))
    at_zero = kernel.between(*2 * (kernel.prepare(rows, jnp.zeros(3, jnp.float32)),))
    np.testing.assert_allclose(at_zero, kernel.matrix(rows, rows), atol=1e-5)


def test_warped_is_the_kernel_of_the_network_output():
    A, B = jnp.asarray(X, jnp.float32), jnp.asarray(Z, jnp.float32)
    network = networks.mlp(3, (4,), key=jax.random.key(0))
    found = matrix(kernels.Warped(kernels.RBF(), network), A, B)
    by_hand = matrix(kernels.RBF(), jax.vmap(network)(A), jax.vmap(network)(B))
    np.testing.assert_allclose(found, by_hand, rtol=1e-6)


@pytest.mark.parametrize("call", ["__call__", "matrix", "diag"])
def test_a_lengthscale_of_the_wrong_length_is_refused(call):
    kernel, rows = kernels.RBF([1.0, 2.0]), jnp.ones((4, 3), jnp.float32)
    arguments = {"__call__": (rows[0], rows[0]), "matrix": (rows, rows), "diag": (rows,)}[call]
    with pytest.raises(ValueError, match=r"shape \(2,\).* 3 inputs"):
        jax.eval_shape(lambda *rows: getattr(kernel, call)(*rows), *arguments)


def test_impossible_kernels_and_rows_are_refused():
    rows = jnp.ones((4, 3), jnp.float32)
    with pytest.raises(ValueError, match="at least 4 inputs"):
        kernels.RBF(active_dims=[3]).matrix(rows, rows)
    for dims in ([-1], [0, 0], []):
        with pytest.raises(ValueError, match="active_dims"):
            kernels.RBF(active_dims=dims)
    with pytest.raises((ValueError, TypeError), match="int32|i32"):  # or the type checker, where it runs
        kernels.Linear().matrix(rows.astype(jnp.int32), rows.astype(jnp.int32))
    with pytest.raises(ValueError, match="one number"):
        kernels.RBF(variance=[1.0, 2.0])
    with pytest.raises(ValueError, match="must be above 0.0 and below inf"):
        kernels.RBF(lengthscale=-1.0)
    with pytest.raises(TypeError, match="expected a kernel"):
        kernels.Sum(kernels.RBF(), 1.0)


@pytest.mark.parametrize("name", ["rbf", "matern12", "matern32", "matern52", "linear", "periodic"])
def test_kernels_by_name(name):
    rows = jnp.ones((2, 4), jnp.float32)
    kernel = kernels.resolve(name, 4)
    assert jax.eval_shape(kernel.matrix, rows, rows).shape == (2, 2)
    assert kernels.resolve(kernel, 4) is kernel


def test_a_misspelt_name_is_told_the_nearest_one():
    with pytest.raises(ValueError, match="did you mean 'matern32'"):
        kernels.resolve("mattern32", 4)
    with pytest.raises(TypeError, match="'rbf'|Type-check"):
        kernels.resolve(3, 4)
