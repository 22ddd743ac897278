"""What every kernel promises, swept over one table."""

import functools

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
    "rbf-ard-active", "matern12", "matern32-ard", "rational-quadratic", "periodic", "tanimoto", "product-sum", "warped"
]  # each kind, composed once  # fmt: skip
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
def _pairs(kernel, X, Z):
    return jax.vmap(lambda x: jax.vmap(lambda z: kernel(x, z))(Z))(X)


def _prepared(kernel, X, Z, centre):
    return kernel.between(kernel.prepare(X, centre), kernel.prepare(Z, centre))


@functools.cache
def _wide(name):
    """What the tests of float64 ask, in one program: (rows, values by name, gradients of both forms)."""
    with jax.enable_x64(True):
        kernel, X = KERNELS[name](), _rows(6, 1, jnp.float64)
        Z = jnp.concatenate([X[:2], _rows(3, 2, jnp.float64)])  # zero distance, twice
        trainable, rest = partition(kernel)
        chosen, centres = jnp.array([4, 0, 4]), (X[0], jnp.full(D, 3.0))

        def gathered(kernel, centre):
            rows, columns = kernel.prepare(X, centre), kernel.prepare(Z, centre)
            few = jax.tree.map(lambda leaf: leaf[chosen], rows)
            pairs = jax.tree.map(lambda leaf: leaf.reshape(3, 2, *leaf.shape[1:]), rows)
            tiles = jax.vmap(lambda tile: kernel.between(tile, columns))(pairs)
            return kernel.between(rows, columns), kernel.between(few, columns), tiles.reshape(6, 5)

        @jax.jit
        def everything(trainable, X):
            whole = eqx.combine(trainable, rest)
            summed = lambda values: lambda t, X: jnp.sum(jnp.sin(values(eqx.combine(t, rest), X, Z)))
            forms = (lambda k, X, Z: _prepared(k, X, Z, jnp.full(D, 0.3)), _pairs)
            slopes = [jax.grad(summed(values), argnums=(0, 1))(trainable, X) for values in forms]
            found = {"pairs": _pairs(whole, X, Z), "block": whole.matrix(X, Z), "gram": whole.matrix(X, X)}
            return found | {"gathered": jax.vmap(lambda c: gathered(whole, c))(jnp.stack(centres))}, slopes

        return kernel, X, everything(trainable, X)


@sweep
def test_rows_are_prepared_once_and_gathered(name):
    """Blocks of rows, and of gathered and stacked prepared rows for any centre, equal the pairwise form."""
    kernel, X, (found, _) = _wide(name)
    with jax.enable_x64(True):
        leaves = jax.tree.leaves(jax.eval_shape(kernel.prepare, X, X[0]))
    assert all(leaf.shape[0] == 6 for leaf in leaves)
    expected = np.asarray(found["pairs"])
    same = functools.partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12)
    same(found["block"], expected)
    for values, wanted in zip(found["gathered"], (expected, expected[[4, 0, 4]], expected), strict=True):
        same(values, np.stack([wanted, wanted]))


@sweep
def test_prepared_rows_have_the_gradients_of_the_pairwise_form(name):
    """By the parameters, by the rows and at zero distance, which the first two rows of Z have."""
    _, _, (_, both) = _wide(name)
    for found, wanted in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-7)


@sweep
def test_gram_matrix_is_symmetric_and_positive_semidefinite(name):
    gram = np.asarray(_wide(name)[2][0]["gram"])
    np.testing.assert_allclose(gram, gram.T, rtol=1e-12, atol=1e-14)
    assert np.linalg.eigvalsh(gram).min() > -1e-12 * np.trace(gram)


@functools.cache
def _single(name, x64):
    """Of rows that come twice: three diagonals, and gradients of a block and of a pair, by parameters and rows, in one program."""
    kernel, X = KERNELS[name](), jnp.concatenate([_rows(3), _rows(3)])
    weights = jnp.asarray(np.random.default_rng(4).normal(size=(6, 6)), jnp.float32)
    trainable, rest = partition(kernel)

    def block(trainable, X):
        matrix = eqx.combine(trainable, rest).matrix(X, X)
        return jnp.sum(weights * matrix), jnp.diagonal(matrix)

    def pair(trainable, x):
        return eqx.combine(trainable, rest)(x, X[0])

    def everything(trainable, X):
        of_block, diagonal = jax.grad(block, argnums=(0, 1), has_aux=True)(trainable, X)
        of_pair = jax.grad(pair, argnums=(0, 1))(trainable, X[0])
        whole = eqx.combine(trainable, rest)
        return (whole.diag(X), diagonal, jax.vmap(whole)(X, X)), (of_block, of_pair)

    return jax.jit(everything)(trainable, X)


@sweep
def test_diag_is_the_diagonal(name):
    diagonal, matrix, pairs = _single(name, jax.config.jax_enable_x64)[0]
    np.testing.assert_allclose(diagonal, matrix, rtol=1e-5)
    np.testing.assert_allclose(diagonal, pairs, rtol=1e-5)


@sweep
def test_gradients_are_finite_on_repeated_rows(name):
    for found in _single(name, jax.config.jax_enable_x64)[1]:
        leaves = jax.tree.leaves(found)
        assert leaves
        assert all(np.all(np.isfinite(leaf)) for leaf in leaves)


@sweep
def test_values_have_the_dtype_of_the_rows(name):
    kernel = KERNELS[name]()

    def values(X):
        rows = kernel.prepare(X, X[0])
        return kernel.matrix(X, X), kernel.diag(X), kernel(X[0], X[1]), *jax.tree.leaves(rows)

    with jax.enable_x64(True):
        for dtype in (jnp.float32, jnp.float64):
            for found in jax.eval_shape(values, _rows(4, dtype=dtype)):
                assert (found.dtype, found.weak_type) == (dtype, False)


@pytest.mark.parametrize("name", some_of(SMOOTH_AT_ZERO, [name for name in FEW if name in SMOOTH_AT_ZERO]))
def test_second_derivative_at_zero_distance(name):
    """∂²k/∂x∂z at x = z by automatic differentiation and by central differences."""
    with jax.enable_x64(True):
        kernel, x = KERNELS[name](), _rows(1, 5, jnp.float64)[0]
        h, eye = 1e-4, jnp.eye(D, dtype=x.dtype)
        near = x[None] + jnp.concatenate([h * eye, -h * eye])
        second = jax.jacfwd(jax.grad(kernel, argnums=0), argnums=1)
        found, pairs = jax.jit(lambda x, near: (second(x, x), _pairs(kernel, near, near)))(x, near)
        corners = np.asarray(pairs).reshape(2, D, 2, D)
        difference = np.einsum("a,b,aibj->ij", [1, -1], [1, -1], corners) / (4 * h * h)
        np.testing.assert_allclose(found, difference, rtol=2e-3, atol=2e-3)
