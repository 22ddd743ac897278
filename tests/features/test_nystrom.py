"""Nyström features: exact at the landmarks, never above the kernel, safe in float32."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grams import matrix

from stochgp import features, kernels
from stochgp.parameters import partition

KEY = jax.random.key(0)


def _rows(n, dimension=2, seed=0, dtype=jnp.float64):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(n, dimension)), dtype)


_phi = eqx.filter_jit(lambda phi, X: phi(X))


def _gram(phi, X):
    Phi = np.asarray(_phi(phi, X))
    return Phi @ Phi.T


@pytest.mark.parametrize(
    "kernel", [kernels.Matern12(1.1, 1.7), kernels.RBF(0.3) * kernels.Matern32() + kernels.Linear()]
)
def test_exact_at_the_landmarks(kernel):
    with jax.enable_x64(True):
        U = _rows(8)
        gram, K = _gram(features.Nystrom(kernel, U), U), matrix(kernel, U, U)
        np.testing.assert_allclose(gram, K, rtol=1e-9, atol=1e-9)


def test_is_the_inverse_root_form():
    """φ(x)·φ(z) = k(x, U) K⁻¹ k(U, z), and the prior variance is never above k(x, x)."""
    with jax.enable_x64(True):
        kernel, U, X = kernels.Matern32(0.8, 1.7), _rows(8), _rows(30, seed=1)
        gram, Kxu = _gram(features.Nystrom(kernel, U), X), np.asarray(matrix(kernel, X, U))
        expected = Kxu @ np.linalg.solve(matrix(kernel, U, U), Kxu.T)
        np.testing.assert_allclose(gram, expected, rtol=1e-8, atol=1e-9)
        assert np.all(np.diag(gram) <= 1.7 * (1 + 1e-6))


@pytest.mark.parametrize("lengthscale", [0.1, 1.0, 100.0])
@pytest.mark.parametrize("repeated", [False, True])
def test_float32_survives_singular_landmark_matrices(lengthscale, repeated):
    U = _rows(128, 1, dtype=jnp.float32)
    U = jnp.concatenate([U[:64], U[:64]]) if repeated else U
    phi, X = features.Nystrom(kernels.RBF(lengthscale), U), _rows(50, 1, seed=1, dtype=jnp.float32)
    trainable, rest = partition(phi)

    def square(trainable):
        Phi = eqx.combine(trainable, rest)(X)
        return jnp.sum(jnp.square(Phi)), Phi

    gradient, Phi = jax.jit(jax.grad(square, has_aux=True))(trainable)
    assert np.all(np.isfinite(Phi))
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(gradient))
    assert np.all(np.sum(np.square(Phi), axis=1) < 1.02)  # k(x, x) = 1, and float32 rounding


def test_landmarks_are_rows_and_do_not_train():
    X = _rows(20, dtype=jnp.float32)
    phi = features.Nystrom.init(kernels.RBF(), X, 5, key=KEY)
    assert (phi.n_features, phi.n_inputs) == (5, 2)
    rows = {tuple(row) for row in np.asarray(X)}
    chosen = {tuple(row) for row in np.asarray(phi.landmarks.value)}
    assert chosen <= rows
    assert len(chosen) == 5
    assert jax.tree.leaves(partition(phi)[0].landmarks) == []
