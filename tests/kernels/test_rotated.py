"""Stationary kernels with lengthscales along other directions: the same kernel in turned coordinates, and what it is along each input."""

import grams
import jax.numpy as jnp
import numpy as np
import pytest

from stochgp.kernels import RBF, Matern32, Tanimoto, Warped
from stochgp.kernels.warped import along_inputs, kernel_and_directions, turned
from stochgp.networks import Dense
from stochgp.parameters import frozen, positive

pytestmark = pytest.mark.usefixtures("strict_double")
GENERATOR = np.random.default_rng(0)
X, D = GENERATOR.normal(size=(7, 3)), 3
LENGTHS = np.array([0.5, 1.0, 3.0])


def orthogonal(seed):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(D, D)))[0]


def kernel(lengths=LENGTHS):
    return Matern32(positive(lengths, dtype=jnp.float64), positive(1.7, dtype=jnp.float64))


def matrix(k, X=X):
    return np.asarray(grams.matrix(k, jnp.asarray(X), jnp.asarray(X)))


def test_turning_the_coordinates_leaves_the_kernel_as_it_is():
    once = turned(*kernel_and_directions(kernel()), orthogonal(1))
    twice = turned(*kernel_and_directions(once), orthogonal(2))
    np.testing.assert_allclose(matrix(once), matrix(kernel()), rtol=1e-12)
    np.testing.assert_allclose(matrix(twice), matrix(kernel()), rtol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(once.network.value.weight, axis=0), 1, rtol=1e-12)


def test_a_lengthscale_of_a_turned_kernel_is_one_along_its_direction():
    """Of equal lengthscales the directions are orthonormal: with others learned, k falls along column d of W as a kernel of lengthscale ℓ_d."""
    network = turned(kernel(np.ones(D)), np.eye(D), orthogonal(1)).network
    learned = Warped(kernel(LENGTHS), network)
    W, t = np.asarray(network.value.weight), 0.8
    for d in range(D):
        rows = np.stack([np.zeros(D), t * W[:, d]])
        alone = matrix(kernel(LENGTHS[d : d + 1]), np.array([[0.0], [t]]))
        np.testing.assert_allclose(matrix(learned, rows)[0, 1], alone[0, 1], rtol=1e-12)


def test_along_each_input_alone_a_turned_kernel_is_that_of_its_inputs():
    along = Warped(kernel(LENGTHS[::-1]), turned(kernel(), np.eye(D), orthogonal(1)).network)
    plain = along_inputs(along)
    for d in range(D):
        rows = np.stack([X[0], X[0] + 0.7 * np.eye(D)[d]])
        np.testing.assert_allclose(matrix(along, rows), matrix(plain, rows), rtol=1e-12)
    assert along_inputs(kernel()).lengthscale is not None
    assert along_inputs(Tanimoto()) is None


LINEAR = Dense(jnp.eye(D), jnp.zeros(D))


@pytest.mark.parametrize(
    "other",
    [
        RBF(1.0),
        RBF(frozen(LENGTHS)),
        RBF([1.0, 2.0], active_dims=(0, 2)),
        RBF([1.0]),
        kernel() + kernel(),
        Tanimoto(),
        Warped(kernel(), LINEAR),
        Warped(kernel(), frozen(jnp.tanh)),
    ],
    ids=[
        "one number",
        "kept",
        "some inputs",
        "one input",
        "sum",
        "tanimoto",
        "a map that trains",
        "no matrix",
    ],
)
def test_other_kernels_have_no_metric_to_turn(other):
    assert kernel_and_directions(other) is None
