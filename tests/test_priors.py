"""Prior functions and random features: the moments of every kernel, exact where they should be."""

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from grams import matrix as _matrix
from random_features import features, random_features
from sweeps import some_of

from stochgp import kernels, priors
from stochgp.kernels import dense
from stochgp.parameters import frozen
from stochgp.priors import prior_functions
from stochgp.storage.trees import load_tree, save_tree
from tests.kernels.test_contract import FEW, KERNELS, D

N_SE = 4.0
X = jnp.asarray(np.random.default_rng(0).normal(size=(4, D)), jnp.float32)
KEY = jax.random.key(3)
MORE = {
    "linear-rbf": lambda: kernels.Linear(0.6) * kernels.RBF(0.7),
    "sums-multiplied": lambda: (
        (kernels.Linear(active_dims=[0, 1]) + kernels.Constant())
        * (kernels.Periodic() + frozen(kernels.RBF()))
    ),
    "sum-of-matern": lambda: kernels.Matern32([0.5, 1.0, 2.0], 2.0) + kernels.Matern12(0.7, active_dims=[0]),
    "cubic": lambda: kernels.Linear(0.5) * kernels.Linear() * kernels.Linear(active_dims=[1, 2]),
}
ALL = KERNELS | MORE
sweep = pytest.mark.parametrize("name", some_of(ALL, [*FEW, "linear", "sums-multiplied", "cubic"]))


@pytest.fixture(autouse=True)
def strict():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


def assert_mean(samples, expected):
    """The mean of independent samples is as expected within N_SE of its own standard errors and rounding."""
    samples, expected = np.asarray(samples, np.float64), np.asarray(expected)
    error = np.abs(samples.mean(axis=0) - expected)
    rounding = 2e-6 * max(1.0, np.abs(expected).max())
    assert np.all(error <= N_SE * samples.std(axis=0, ddof=1) / np.sqrt(len(samples)) + rounding)


@functools.cache
def _functions(name):
    """512 groups of 4 functions: 512 independent draws of features."""
    kernel = ALL[name]()
    return prior_functions(kernel, D, 2048, n_features=13, group=4, key=KEY)


@eqx.filter_jit  # one program is compiled sooner than one for each operation
def _values(functions, X):
    return functions(X)


@sweep
def test_functions_have_the_moments_of_the_prior(name):
    """And so have features. By groups: the functions in one share their frequencies."""
    functions = _functions(name)
    groups = np.asarray(_values(functions, X), np.float64).reshape(4, 512, 4)  # [row, group, function]

    def gram(draws):
        Phi = features(functions.kernel, draws, X)
        return jnp.matmul(Phi, Phi.T)

    grams = jax.jit(jax.vmap(gram, axis_size=512))(functions.draws)
    expected = _matrix(functions.kernel, X, X)
    assert_mean(groups.mean(axis=2).T, np.zeros(4))
    assert_mean(np.einsum("igs,jgs->gij", groups, groups) / 4, expected)
    assert_mean(grams, expected)


@pytest.mark.parametrize("name", ["rbf", "sum-of-matern"])
def test_values_on_the_host_are_those_of_the_device(name):
    functions = prior_functions(ALL[name](), D, 6, n_features=40, key=KEY)
    rows = np.asarray(X)
    assert dense.terms_of(functions.kernel) is not None  # else both would be the same program
    np.testing.assert_allclose(functions.on_host(rows), _values(functions, X), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", some_of(ALL, ["sum-of-matern"]))
def test_gradients_are_the_slopes(name):
    with jax.enable_x64(True):
        draws, weights = jax.tree.map(
            lambda leaf: leaf[:1], (_functions(name).draws, _functions(name).weights)
        )
        functions = priors.PriorFunctions(ALL[name](), draws, weights[:, :, :2], D, 2)
        rows, h = X[:2].astype(jnp.float64), 1e-6
        steps = h * jnp.eye(2 * D, dtype=jnp.float64).reshape(2 * D, 2, D)
        moved = jnp.concatenate([rows[None], rows[None] + steps, rows[None] - steps])
        contrast = jnp.asarray([[1.0, -2.0], [0.5, 3.0]])
        loss = jax.value_and_grad(lambda X: jnp.sum(contrast * functions(X)))
        values, found = map(np.asarray, jax.jit(jax.vmap(loss))(moved))
        slopes = (values[1 : 2 * D + 1] - values[2 * D + 1 :]) / (2 * h)
        np.testing.assert_allclose(found[0], slopes.reshape(2, D), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", some_of(ALL, ["sums-multiplied"]))
def test_saved_functions_are_the_same_functions(name, tmp_path):
    functions = _functions(name)
    save_tree(tmp_path / "prior", functions, {})
    found, _ = load_tree(tmp_path / "prior")
    np.testing.assert_array_equal(_values(found, X), _values(functions, X))


def test_lengths_of_frequencies_are_stratified():
    """A twentieth of the lengths is beyond the 95 % point of their distribution, in every group but for a few."""
    functions = prior_functions(kernels.Matern32(), D, 128, n_features=400, group=1, key=KEY)
    (draw,) = functions.draws.value
    lengths = np.linalg.norm(np.asarray(draw.frequencies), axis=1) * 2 * np.pi  # [128, 200]
    assert lengths.shape == (128, 200)
    limit = np.sqrt(D * scipy.stats.f(D, 3).ppf(0.95))  # ‖ω‖²/D is F(D, 3)
    beyond = np.sum(lengths > limit, axis=1)
    assert abs(np.mean(beyond) - 10) < N_SE * np.sqrt(200 * 0.05 * 0.95 / 128)
    assert np.var(beyond) < 0.25 * 200 * 0.05 * 0.95  # of independent ones: 200 · 0.05 · 0.95


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.RBF(2.0, 1.7),
        kernels.RationalQuadratic(variance=1.7),
        kernels.RBF(active_dims=[0]) * kernels.Matern12([0.1, 0.2], 1.7, active_dims=[1, 2]),
        kernels.Matern32(variance=1.7) * kernels.Periodic(),
    ],
    ids=lambda kernel: type(kernel).__name__,
)
def test_waves_have_the_exact_variance(kernel):
    Phi = random_features(kernel, 20, X, KEY)
    np.testing.assert_allclose(jnp.sum(jnp.square(Phi), axis=1), 1.7, rtol=1e-5)


@pytest.mark.parametrize("n_features", [13, 100])
def test_polynomials_are_exact_where_they_fit(n_features):
    """(0.5 x·z + 2)²: four terms of 9, 3, 3 and 1 features."""
    affine = kernels.Linear(0.5) + kernels.Constant(2.0)
    Phi, wanted = random_features(affine * affine, n_features, X, KEY), _matrix(affine * affine, X, X)
    assert Phi.shape[1] == min(n_features, 16)
    exact = np.allclose(jnp.matmul(Phi, Phi.T), wanted, rtol=1e-5, atol=1e-5)
    assert exact == (n_features >= 16)


def test_features_are_shared_by_need():
    assert priors.share([None], 7) == [6]
    assert priors.share([None, 3, 1], 20) == [16, 3, 1]
    assert priors.share([None, 30, None], 20) == [6, 6, 8]
    with pytest.raises(ValueError, match="n_features is 3; a kernel of 2 terms needs at least 4"):
        priors.share([None, None], 3)


class _Brownian(kernels.AbstractKernel):
    """k = min(x, z) of one positive input."""

    def __call__(self, x, z):
        return jnp.minimum(x[0], z[0])

    def prepare(self, X, centre):
        return X[:, 0]

    def between(self, rows, columns):
        return jnp.minimum(rows[:, None], columns[None, :])

    def diag(self, X):
        return X[:, 0]


def test_what_has_no_prior_functions_is_refused():
    for kernel in (_Brownian(), kernels.RBF() + frozen(_Brownian())):
        with pytest.raises(TypeError, match="a _Brownian has no random features"):
            prior_functions(kernel, D, 3, key=KEY)
    with pytest.raises(ValueError, match="n_samples is 0"):
        prior_functions(kernels.RBF(), D, 0, key=KEY)
    with pytest.raises(ValueError, match="n_features is 1"):
        prior_functions(kernels.RBF(), D, 1, n_features=1, key=KEY)
    with pytest.raises(ValueError, match=r"\[N, 3\]"):
        prior_functions(kernels.RBF(), D, 1, key=KEY)(X[:, :2])


def test_rows_are_evaluated_in_blocks():
    kernel = kernels.RBF() + kernels.Linear() * kernels.Matern32() + kernels.Constant()
    functions = prior_functions(kernel, D, 3, n_features=20, key=KEY)
    draws = jax.tree.map(lambda leaf: leaf[0], functions.draws)
    rows = np.random.default_rng(1).normal(size=(2 * priors.BLOCK + 6, D)).astype(np.float32)
    expected = np.asarray(eqx.filter_jit(features)(kernel, draws, rows)) @ np.asarray(functions.weights[0])
    for n in (0, priors.BLOCK, len(rows)):
        np.testing.assert_allclose(functions(rows[:n]), expected[:n], rtol=1e-4, atol=1e-5)
