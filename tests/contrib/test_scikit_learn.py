"""Kernels of scikit-learn as ours: the same matrices, their noise apart, what is fixed frozen."""

import doctest

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.gaussian_process import kernels as theirs

from stochgp import KernelGPRegressor, kernels
from stochgp.contrib.scikit_learn import from_sklearn
from stochgp.parameters import Frozen

X = np.random.default_rng(0).normal(size=(12, 2))
KERNELS = {
    "rbf": theirs.RBF([0.5, 2.0]),
    "scaled": 3.0 * theirs.RBF(0.7),
    "scaled behind": theirs.Matern(0.7, nu=1.5) * theirs.ConstantKernel(0.2),
    **{f"matern {nu}": theirs.Matern(0.8, nu=nu) for nu in (0.5, 1.5, 2.5, np.inf)},
    "rational quadratic": 2.0 * theirs.RationalQuadratic(0.6, 1.7),
    "dot product": theirs.DotProduct(0.4),
    "scaled dot product": 0.3 * theirs.DotProduct(0.4),
    "constant": theirs.RBF(1.0) + theirs.ConstantKernel(0.3),
    "two constants": theirs.ConstantKernel(2.0) * theirs.ConstantKernel(3.0) * theirs.RBF(1.0),
    "sum in a product": (theirs.RBF(1.0) + theirs.DotProduct(1.0)) * theirs.Matern(2.0, nu=2.5),
    "noise": 2.0 * theirs.RBF(0.5) + theirs.WhiteKernel(0.1) + theirs.Matern(1.0) + theirs.WhiteKernel(0.2),
    "fixed": theirs.ConstantKernel(2.0, "fixed") * theirs.RBF(0.5, "fixed"),
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_matrices_are_equal(name, double):
    found, noise = from_sklearn(KERNELS[name])
    K = np.asarray(found.matrix(jnp.asarray(X), jnp.asarray(X)))
    if noise is not None:
        K = K + float(noise) * np.eye(len(X))
    np.testing.assert_allclose(K, KERNELS[name](X), rtol=1e-6)  # numbers become float32


def test_the_example_of_the_docstring_runs():
    said, name = [], "from_sklearn"
    example = doctest.DocTestParser().get_doctest(from_sklearn.__doc__, {}, name, None, 0)
    doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert len(example.examples) == 4 and said == []


def test_what_is_fixed_is_frozen_and_constants_are_amplitudes():
    found, noise = from_sklearn(KERNELS["fixed"] + theirs.WhiteKernel(0.1))
    assert isinstance(found, kernels.RBF) and noise == 0.1
    assert isinstance(found.lengthscale, Frozen) and isinstance(found.variance, Frozen)
    free, none = from_sklearn(KERNELS["scaled"])
    assert isinstance(free, kernels.RBF) and not isinstance(free.lengthscale, Frozen) and none is None


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (theirs.Matern(nu=2.0), "nu=2: only"),
        (theirs.WhiteKernel(1.0), "noise alone"),
        (theirs.RBF(1.0) * theirs.WhiteKernel(1.0), "inside a product"),
        (theirs.PairwiseKernel(), "PairwiseKernel has no counterpart"),
        (theirs.Exponentiation(theirs.RBF(1.0), 2), "Exponentiation has no counterpart"),
    ],
)
def test_others_are_refused(kernel, words):
    with pytest.raises(ValueError, match=words):
        from_sklearn(kernel)


def test_a_fit_of_such_a_kernel_is_that_of_scikit_learn():
    from sklearn.gaussian_process import GaussianProcessRegressor

    y = np.sin(2 * X[:, 0])
    asked = theirs.ConstantKernel(1.5, "fixed") * theirs.RBF(0.9, "fixed") + theirs.WhiteKernel(0.01, "fixed")
    kernel, noise = from_sklearn(asked)  # to be kept: learner=None
    options = {"standardize": False, "learner": None, "dtype": "float64"}
    ours = KernelGPRegressor(kernel, noise_variance=noise, **options).fit(X, y)
    wanted = GaussianProcessRegressor(asked, optimizer=None).fit(X, y)
    mean, std = ours.predict(X + 0.1, return_std=True)
    expected, deviation = wanted.predict(X + 0.1, return_std=True)
    np.testing.assert_allclose(mean, expected, atol=1e-5)
    np.testing.assert_allclose(np.hypot(std, 0.1), deviation, atol=1e-5)
