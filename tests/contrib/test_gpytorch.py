"""Kernels of GPyTorch as ours: the formulas of its documentation by stand-ins, its own matrices where it is installed."""

import doctest
import warnings

import gpytorch_standin
import jax.numpy as jnp
import numpy as np
import pytest

from stochgp import KernelGPRegressor, kernels
from stochgp.contrib.kernels import from_gpytorch
from stochgp.parameters import Frozen

X = np.random.default_rng(0).normal(size=(12, 3))
D = X[:, None, :] - X[None, :, :]
ALL = [0, 1, 2]


def made(kind, tensor, values, **settings):
    kernel = kind(**settings)
    for name, value in values.items():
        setattr(kernel, name, tensor(value))
    return kernel


def rbf(lengthscale, dims=ALL):
    return np.exp(-np.sum((D[..., dims] / lengthscale) ** 2, -1) / 2)


def matern(nu, lengthscale):
    a = np.sqrt(2 * nu * np.sum((D / lengthscale) ** 2, -1))
    return {0.5: 1, 1.5: 1 + a, 2.5: 1 + a + a**2 / 3}[nu] * np.exp(-a)


def periodic(squared, period, dims=ALL):
    return np.exp(-2 * np.sum(np.sin(np.pi * D[..., dims] / period) ** 2 / squared, -1))


def linear(variance, dims=ALL):
    return (X[:, dims] * variance) @ X[:, dims].T


def cases(k, tensor):
    """Name → (a kernel of the module k, its matrix)."""
    new = lambda kind, settings=None, **values: made(kind, tensor, values, **(settings or {}))
    ard, some = {"ard_num_dims": 3}, {"active_dims": [2, 0]}
    short = lambda **settings: new(k.RBFKernel, settings, lengthscale=0.7)

    def scaled(kernel, outputscale, **settings):
        found = k.ScaleKernel(kernel, **settings)
        found.outputscale = tensor(outputscale)
        return found

    offset = lambda: new(k.ConstantKernel, constant=[0.3])
    return {
        "rbf": (short(), rbf(0.7)),
        "ard": (new(k.RBFKernel, ard, lengthscale=[0.5, 2.0, 1.0]), rbf([0.5, 2.0, 1.0])),
        **{f"matern {nu}": (new(k.MaternKernel, ard | {"nu": nu}, lengthscale=[0.8, 2.0, 1.5]), matern(nu, [0.8, 2.0, 1.5])) for nu in (0.5, 1.5, 2.5)},
        "rational quadratic": (new(k.RQKernel, lengthscale=0.6, alpha=1.7), (1 + np.sum(D**2, -1) / (2 * 1.7 * 0.36)) ** -1.7),
        "periodic": (new(k.PeriodicKernel, lengthscale=0.8, period_length=1.3), periodic(0.8, 1.3)),
        "periodic ard": (
            new(k.PeriodicKernel, {"ard_num_dims": 2} | some, lengthscale=[0.8, 2.0], period_length=[1.3, 3.0]),
            periodic([0.8, 2.0], [1.3, 3.0], [2, 0]),
        ),
        "linear": (new(k.LinearKernel, variance=0.4), linear(0.4)),
        "linear ard": (new(k.LinearKernel, ard, variance=[0.4, 1.0, 2.0]), linear([0.4, 1.0, 2.0])),
        "linear ard of some": (new(k.LinearKernel, {"ard_num_dims": 2} | some, variance=[0.4, 2.0]), linear([0.4, 2.0], [2, 0])),
        "constant": (k.AdditiveKernel(short(), offset()), rbf(0.7) + 0.3),
        "scaled": (scaled(short(), 3.0), 3 * rbf(0.7)),
        "scaled twice": (scaled(scaled(short(), 3.0), 0.5), 1.5 * rbf(0.7)),
        "scaled sum": (scaled(k.AdditiveKernel(short(), offset()), 3.0), 3 * (rbf(0.7) + 0.3)),
        "product": (k.ProductKernel(short(), new(k.LinearKernel), offset()), None),
        "columns": (short(**some), rbf(0.7, [2, 0])),
        "columns of what is scaled": (scaled(short(**some), 3.0), 3 * rbf(0.7, [2, 0])),
        "columns of the scale": (scaled(short(), 3.0, **some), 3 * rbf(0.7, [2, 0])),
        "columns of columns": (
            scaled(k.AdditiveKernel(short(active_dims=[0]), short(active_dims=[1])), 3.0, **some),
            3 * (rbf(0.7, [2]) + rbf(0.7, [0])),
        ),
    }  # fmt: skip


STANDINS = cases(gpytorch_standin, lambda value: value)
STANDINS["product"] = (STANDINS["product"][0], 0.3 * rbf(0.7) * linear(0.6931))


@pytest.fixture(scope="module")
def gpytorch():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other packages, while they load
        return pytest.importorskip(
            "gpytorch", reason="its own matrices need gpytorch, which comes with stochgp[botorch]"
        )


def matrix(kernel):
    return np.asarray(kernel.matrix(jnp.asarray(X), jnp.asarray(X)))


@pytest.mark.parametrize("name", STANDINS)
def test_matrices_are_those_of_the_formulas(name, double):
    kernel, expected = STANDINS[name]
    np.testing.assert_allclose(matrix(from_gpytorch(kernel)), expected, atol=1e-6)


@pytest.mark.parametrize("name", STANDINS)
def test_matrices_are_gpytorch_s(name, gpytorch, double):
    import torch

    theirs = cases(gpytorch.kernels, torch.tensor)[name][0].double()
    expected = theirs(torch.tensor(X)).to_dense().detach().numpy()
    np.testing.assert_allclose(matrix(from_gpytorch(theirs)), expected, atol=1e-6)


def test_the_example_of_the_docstring_runs(gpytorch):
    said, name = [], "from_gpytorch"
    example = doctest.DocTestParser().get_doctest(from_gpytorch.__doc__, {}, name, None, 0)
    doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert len(example.examples) == 5 and said == []


def test_what_does_not_train_is_frozen_and_scales_are_amplitudes():
    kernel = cases(gpytorch_standin, lambda value: value)["scaled"][0]
    free = from_gpytorch(kernel)
    assert isinstance(free, kernels.RBF) and float(free.variance) == 3.0
    assert not isinstance(free.variance, Frozen) and not isinstance(free.lengthscale, Frozen)
    kernel.base_kernel.raw_lengthscale.requires_grad_(False)
    fixed = from_gpytorch(kernel)
    assert isinstance(fixed.lengthscale, Frozen) and not isinstance(fixed.variance, Frozen)
    kernel.raw_outputscale.requires_grad_(False)
    assert isinstance(from_gpytorch(kernel).variance, Frozen)
    assert isinstance(from_gpytorch(kernel.base_kernel).variance, Frozen)


def test_a_variance_of_each_input_may_be_frozen():
    kernel = gpytorch_standin.LinearKernel(ard_num_dims=2)
    kernel.raw_variance.requires_grad_(False)
    found = from_gpytorch(kernel)
    assert isinstance(found.left.variance, Frozen) and isinstance(found.right.variance, Frozen)


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (gpytorch_standin.CosineKernel(), "CosineKernel has no counterpart"),
        (gpytorch_standin.RBFKernel(batch_shape=(2,)), r"RBFKernel has batch_shape \(2,\)"),
        (gpytorch_standin.ScaleKernel(gpytorch_standin.RBFKernel(batch_shape=(2,))), "batch_shape"),
        (gpytorch_standin.ProductKernel(), "ProductKernel has no kernels"),
    ],
)
def test_others_are_refused(kernel, words):
    with pytest.raises(ValueError, match=words):
        from_gpytorch(kernel)


def test_a_fit_of_such_a_kernel_is_that_of_gpytorch(gpytorch):
    """An exact GP with the mean, the noise and the kernel given, as the page on coming from GPyTorch has it."""
    import torch

    y, mean, noise = 5 + np.sin(2 * X[:, 0]), 4.9, 0.01
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = noise

    class Model(gpytorch.models.ExactGP):
        def __init__(self):
            super().__init__(torch.tensor(X), torch.tensor(y), likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = cases(gpytorch.kernels, torch.tensor)["scaled"][0]

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model = Model().double()
    model.mean_module.constant = mean
    expected = model.eval()(torch.tensor(X + 0.1))
    options = {"standardize": False, "learner": None, "dtype": "float64"}
    kernel = from_gpytorch(model.covar_module)
    ours = KernelGPRegressor(kernel, noise_variance=likelihood.noise.item(), **options).fit(X, y - mean)
    found, std = ours.predict(X + 0.1, return_std=True)
    np.testing.assert_allclose(found + mean, expected.mean.detach().numpy(), atol=1e-5)
    np.testing.assert_allclose(std, expected.stddev.detach().numpy(), atol=1e-5)
