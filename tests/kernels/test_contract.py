"""What every kernel promises, swept over one table."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sweeps import some_of

from stochgp import kernels, networks
from stochgp.parameters import bounded, frozen, partition

D = 3


def _network(dtype=jnp.float32):
    return networks.mlp(D, (5, 2), key=jax.random.key(1), activation=jnp.tanh, dtype=dtype)


KERNELS = {
    "rbf": lambda: kernels.RBF(0.7, 1.3),
    "rbf-ard-active": lambda: kernels.RBF([0.5, 2.0], 0.4, active_dims=(2, 0)),
    "rbf-bounded-frozen": lambda: kernels.RBF(bounded(1.0, 0.1, 10.0), frozen(2.0)),
    "matern12": lambda: kernels.Matern12(0.7, 1.3),
    "matern32-ard": lambda: kernels.Matern32([0.5, 1.0, 2.0]),
    "matern52": lambda: kernels.Matern52(0.7, 1.3),
    "rational-quadratic": lambda: kernels.RationalQuadratic(0.7, 1.3, alpha=0.6),
    "periodic": lambda: kernels.Periodic(1.5, 0.8, period=[1.0, 2.0, 3.0]),
    "linear": lambda: kernels.Linear(0.6),
    "constant": lambda: kernels.Constant(0.6),
    "tanimoto": lambda: kernels.Warped(kernels.Tanimoto(1.3), jnp.exp),  # of positive rows
    "tanimoto-rbf": lambda: kernels.Warped(
        kernels.Tanimoto(0.6, active_dims=[2, 0]) * kernels.RBF() + kernels.Linear(), jnp.exp
    ),
    "sum": lambda: kernels.RBF() + kernels.Linear(0.3, active_dims=[0]) + kernels.Constant(2.0),
    "product": lambda: kernels.Matern32(2.0) * kernels.Periodic(active_dims=[2]),
    "product-sum": lambda: (kernels.Linear(0.3) + kernels.Constant(2.0)) * kernels.RBF(active_dims=[1]),
    "sum-frozen": lambda: kernels.RBF() + frozen(kernels.Matern12(3.0)),
    "warped": lambda: kernels.Warped(kernels.Matern52(0.9), _network()),
    "warped-sum": lambda: kernels.Warped(kernels.Linear(0.5) + kernels.RBF(), frozen(_network())),
}
FEW = [
    name
    for name in KERNELS
    if name not in ("rbf", "rbf-bounded-frozen", "matern52", "sum", "product", "sum-frozen", "warped-sum")
]  # each kind, composed once
SMOOTH_AT_ZERO = [
    name for name in KERNELS if name not in ("matern12", "sum-frozen", "tanimoto", "tanimoto-rbf")
]
sweep = pytest.mark.parametrize("name", some_of(KERNELS, FEW))


@pytest.fixture(autouse=True)
def strict():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


def _rows(n, seed=0, dtype=jnp.float32):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(n, D)), dtype)


@eqx.filter_jit
def _matrix(kernel, X, Z):
    return kernel.matrix(X, X) if Z is None else kernel.matrix(X, Z)


@eqx.filter_jit
def _pairs(kernel, X, Z):
    return jax.vmap(lambda x: jax.vmap(lambda z: kernel(x, z))(Z))(X)


@sweep
def test_block_form_equals_pairwise_form(name):
    with jax.enable_x64(True):
        kernel, X, Z = KERNELS[name](), _rows(6, 1, jnp.float64), _rows(5, 2, jnp.float64)
        np.testing.assert_allclose(_matrix(kernel, X, Z), _pairs(kernel, X, Z), rtol=1e-10, atol=1e-12)


@sweep
def test_rows_are_prepared_once_and_gathered(name):
    """Blocks of gathered and stacked prepared rows equal the pairwise form, for any centre."""
    with jax.enable_x64(True):
        kernel, X, Z = KERNELS[name](), _rows(6, 1, jnp.float64), _rows(5, 2, jnp.float64)
        chosen = jnp.array([4, 0, 4])

        @eqx.filter_jit
        def blocks(kernel, X, Z, centre):
            rows, columns = kernel.prepare(X, centre), kernel.prepare(Z, centre)
            few = jax.tree.map(lambda leaf: leaf[chosen], rows)
            pairs = jax.tree.map(lambda leaf: leaf.reshape(3, 2, *leaf.shape[1:]), rows)
            tiles = jax.vmap(lambda tile: kernel.between(tile, columns))(pairs)
            return kernel.between(rows, columns), kernel.between(few, columns), tiles.reshape(6, 5)

        expected = np.asarray(_pairs(kernel, X, Z))
        for centre in (X[0], jnp.full(D, 3.0)):
            assert all(
                leaf.shape[0] == 6 for leaf in jax.tree.leaves(jax.eval_shape(kernel.prepare, X, centre))
            )
            for found, wanted in zip(
                blocks(kernel, X, Z, centre), (expected, expected[chosen], expected), strict=True
            ):
                np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)


@sweep
def test_prepared_rows_have_the_gradients_of_the_pairwise_form(name):
    """By the parameters, by the rows and at zero distance, which the first two rows of Z have."""
    with jax.enable_x64(True):
        kernel, X, centre = KERNELS[name](), _rows(4, 1, jnp.float64), jnp.full(D, 0.3)
        Z = jnp.concatenate([X[:2], _rows(3, 2, jnp.float64)])
        trainable, rest = partition(kernel)

        def prepared(kernel, X, Z):
            return kernel.between(kernel.prepare(X, centre), kernel.prepare(Z, centre))

        def gradient(values):
            loss = lambda t, X: jnp.sum(jnp.sin(values(eqx.combine(t, rest), X, Z)))
            return jax.grad(loss, argnums=(0, 1))(trainable, X)

        both = jax.jit(lambda: [gradient(values) for values in (prepared, _pairs)])()
        for found, wanted in zip(*map(jax.tree.leaves, both), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-7)


@sweep
def test_diag_is_the_diagonal(name):
    parts = eqx.filter_jit(lambda kernel, X: (kernel.diag(X), kernel.matrix(X, X), _pairs(kernel, X, X)))
    diagonal, matrix, pairs = parts(KERNELS[name](), _rows(6))
    np.testing.assert_allclose(diagonal, np.diagonal(matrix), rtol=1e-5)
    np.testing.assert_allclose(diagonal, np.diagonal(pairs), rtol=1e-5)


@sweep
def test_gram_matrix_is_symmetric_and_positive_semidefinite(name):
    with jax.enable_x64(True):
        kernel, X = KERNELS[name](), _rows(12, 3, jnp.float64)
        gram = np.asarray(_matrix(kernel, X, None))
        np.testing.assert_allclose(gram, gram.T, rtol=1e-12, atol=1e-14)
        assert np.linalg.eigvalsh(gram).min() > -1e-12 * np.trace(gram)


@sweep
def test_values_have_the_dtype_of_the_rows(name):
    kernel = KERNELS[name]()

    def values(X):
        rows = kernel.prepare(X, X[0])
        return kernel.matrix(X, X), kernel.diag(X), kernel(X[0], X[1]), *jax.tree.leaves(rows)

    for x64 in (False, True):
        with jax.enable_x64(x64):
            for found in jax.eval_shape(values, _rows(4)):
                assert (found.dtype, found.weak_type) == (jnp.float32, False)
    with jax.enable_x64(True):
        for found in jax.eval_shape(values, _rows(4, dtype=jnp.float64)):
            assert (found.dtype, found.weak_type) == (jnp.float64, False)


@sweep
def test_a_kernel_is_a_pytree(name):
    kernel = KERNELS[name]()
    leaves, structure = jax.tree.flatten(kernel)
    assert eqx.tree_equal(jax.tree.unflatten(structure, leaves), kernel)


@sweep
def test_gradients_are_finite_on_repeated_rows(name):
    kernel = KERNELS[name]()
    X = jnp.concatenate([_rows(3), _rows(3)])
    weights = jnp.asarray(np.random.default_rng(4).normal(size=(6, 6)), jnp.float32)
    trainable, rest = partition(kernel)

    def block(trainable, X):
        return jnp.sum(weights * eqx.combine(trainable, rest).matrix(X, X))

    def pair(trainable, x):
        return eqx.combine(trainable, rest)(x, X[0])

    of_both = lambda t, X: [jax.grad(f, argnums=(0, 1))(t, x) for f, x in ((block, X), (pair, X[0]))]
    for found in jax.jit(of_both)(trainable, X):
        leaves = jax.tree.leaves(found)
        assert leaves
        assert all(np.all(np.isfinite(leaf)) for leaf in leaves)


@pytest.mark.parametrize("name", some_of(KERNELS, ["rbf-ard-active", "matern12", "product-sum", "warped"]))
def test_block_gradients_equal_pairwise_gradients(name):
    """Blocks are made of prepared rows, whose gradients are tested above for every kernel."""
    with jax.enable_x64(True):
        kernel, X, Z = KERNELS[name](), _rows(4, 1, jnp.float64), _rows(5, 2, jnp.float64)
        trainable, rest = partition(kernel)

        def gradient(values):
            loss = lambda t, X: jnp.sum(jnp.sin(values(eqx.combine(t, rest), X, Z)))
            return jax.jit(jax.grad(loss, argnums=(0, 1)))(trainable, X)

        for found, wanted in zip(*map(jax.tree.leaves, map(gradient, (_matrix, _pairs))), strict=True):
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("name", some_of(SMOOTH_AT_ZERO, [name for name in FEW if name in SMOOTH_AT_ZERO]))
def test_second_derivative_at_zero_distance(name):
    """∂²k/∂x∂z at x = z by automatic differentiation and by central differences."""
    with jax.enable_x64(True):
        kernel, x = KERNELS[name](), _rows(1, 5, jnp.float64)[0]
        found = jax.jit(jax.jacfwd(jax.grad(kernel, argnums=0), argnums=1))(x, x)
        h, eye = 1e-4, jnp.eye(D, dtype=x.dtype)
        up, down = x[None] + h * eye, x[None] - h * eye
        corners = [np.asarray(_pairs(kernel, a, b)) for a, b in itertools.product((up, down), repeat=2)]
        difference = (corners[0] - corners[1] - corners[2] + corners[3]) / (4 * h * h)
        np.testing.assert_allclose(found, difference, rtol=2e-3, atol=2e-3)
