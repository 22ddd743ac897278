"""The Tanimoto kernel of counts and of packed sets, and its nearest rows, against plain loops."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stochgp import kernels, neighbours
from stochgp.neighbours import Neighbours, neighbours_bytes
from stochgp.numerics.arrays import WORD, packed_bits, words_of
from stochgp.operators import KernelOperator
from stochgp.parameters import partition

D = 100


def unpacked(numbers, n_bits):
    words = np.asarray(words_of(numbers))
    bits = (words[:, :, None] >> np.arange(WORD, dtype=np.uint32)) & 1
    return bits.reshape(len(words), -1)[:, :n_bits].astype(bool)


@pytest.fixture(autouse=True)
def strict():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


def draw_bits(n, seed=0, share=0.2):
    """Rows of bits; the first has none, the second all."""
    bits = np.random.default_rng(seed).random((n, D)) < share
    bits[0], bits[1] = False, True
    return bits


def draw_counts(n, seed=0):
    counts = np.random.default_rng(seed).poisson(0.4, (n, D)).astype(np.float64)
    counts[0] = 0
    return counts


def packed(bits, further=0):
    """Rows as the packed kernel takes them."""
    return np.concatenate([packed_bits(bits), np.full((len(bits), 1), further, np.float32)], axis=1)


def tanimoto(x, z):
    larger = np.maximum(x, z).sum()
    return 1.0 if larger == 0 else np.minimum(x, z).sum() / larger


def loop(X, Z):
    return np.array([[tanimoto(x, z) for z in Z] for x in X])


def test_words_keep_their_bits_as_numbers():
    """Every word of one bit, of all and of none; as float32, and widened to float64 and back."""
    bits = np.concatenate([np.eye(3 * WORD, dtype=bool), np.ones((1, 93), bool), np.zeros((1, 93), bool)])
    bits = np.concatenate([bits, np.random.default_rng(0).random((500, 93)) < 0.5])
    numbers = packed_bits(bits)
    assert numbers.shape == (len(bits), 3) and numbers.dtype == np.float32
    assert np.isfinite(numbers).all() and np.abs(numbers[numbers != 0]).min() >= np.finfo(np.float32).tiny
    with jax.enable_x64(True):
        for found in (numbers, numbers.astype(np.float64), np.asarray(jnp.asarray(numbers) * 1)):
            np.testing.assert_array_equal(unpacked(found, 93), bits)


def test_a_molecule_of_1024_bits_takes_136_bytes():
    assert packed_bits(np.ones((1, 1024), bool)).nbytes == 136


@eqx.filter_jit
def _values(kernel, rows):
    """(K of all rows and all but two, the same pair by pair, its diagonal)."""
    pairs = jax.vmap(lambda x: jax.vmap(lambda z: kernel(x, z))(rows))(rows)
    return kernel.matrix(rows, rows[2:]), pairs, kernel.diag(rows)


@eqx.filter_jit
def _matrix(kernel, rows):
    return kernel.matrix(rows, rows)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sets_and_counts_match_a_double_loop(dtype):
    bits, counts = draw_bits(9), draw_counts(9)
    with jax.enable_x64(True):
        for X, rows, are_packed in (
            (bits, packed(bits).astype(dtype), True),
            (np.insert(bits.astype(float), 0, 3, axis=1), packed(bits, 3).astype(dtype), True),
            (bits, bits.astype(dtype), False),
            (counts, counts.astype(dtype), False),
            (counts / 3, (counts / 3).astype(dtype), False),
        ):
            kernel, rows = kernels.Tanimoto(1.7, packed=are_packed), jnp.asarray(rows)
            wanted, rtol = 1.7 * loop(X, X), 1e-6
            found, pairs, diagonal = _values(kernel, rows)
            assert found.dtype == dtype
            np.testing.assert_allclose(found, wanted[:, 2:], rtol=rtol)
            np.testing.assert_allclose(pairs, wanted, rtol=rtol)
            np.testing.assert_allclose(diagonal, np.diagonal(wanted), rtol=rtol)


def test_two_rows_without_anything_are_equal():
    """T(0, 0) = 1, T(0, x) = 0, and K stays positive semi-definite with several such rows."""
    with jax.enable_x64(True):
        bits = np.concatenate([np.zeros((3, D), bool), draw_bits(20, 3)])
        for X, are_packed in ((packed(bits), True), (bits, False)):
            K = np.asarray(_matrix(kernels.Tanimoto(packed=are_packed), jnp.asarray(X, float)))
            np.testing.assert_array_equal(K[:3, :4], 1.0)
            np.testing.assert_array_equal(K[:3, 4:], 0.0)
            assert np.linalg.eigvalsh(K).min() > -1e-12


def test_packed_rows_have_the_derivative_by_the_variance_and_none_by_the_rows():
    bits = draw_bits(6)
    trainable, rest = partition(kernels.Tanimoto(1.7, packed=True))

    def total(trainable, X):
        return jnp.sum(eqx.combine(trainable, rest).matrix(X, X))

    by_variance, by_rows = jax.jit(jax.grad(total, argnums=(0, 1)))(trainable, jnp.asarray(packed(bits)))
    (found,) = jax.tree.leaves(by_variance)  # by the logarithm of the variance
    np.testing.assert_allclose(found, 1.7 * loop(bits, bits).sum(), rtol=1e-5)
    np.testing.assert_array_equal(by_rows, 0.0)


def test_operators_of_packed_rows_are_tiled():
    """Products, rows, columns and diagonal, in tiles that the rows do not fill."""
    bits = draw_bits(23)
    wanted = 1.7 * loop(bits, bits) + 0.3 * np.eye(23)
    rows, V = jnp.asarray(packed(bits)), np.random.default_rng(2).normal(size=(23, 2)).astype(np.float32)
    operator = KernelOperator.of(kernels.Tanimoto(1.7, packed=True), rows, 0.3, tile=10)
    close = lambda found, expected: np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    chosen = np.array([3, 0, 22], np.int32)

    @eqx.filter_jit
    def parts(operator, V, chosen):
        product = operator.unpad(operator.matvec(operator.pad(V), 5))
        dense = [one.dense() for one in (operator, operator.astype(jnp.float32))]
        return product, operator.diagonal(), operator.columns(chosen), dense

    product, diagonal, columns, dense = parts(operator, *map(jnp.asarray, (V, chosen)))
    close(product, wanted @ V)
    close(diagonal, np.diagonal(wanted))
    close(columns + 0.3 * np.eye(23, dtype=np.float32)[:, chosen], wanted[:, chosen])
    for found in dense:
        close(found, wanted)


@pytest.mark.parametrize("columns", [7, 1 << 15])
def test_nearest_rows_are_those_of_the_highest_similarity(columns, monkeypatch):
    """Of equal ones the first, whatever the blocks."""
    monkeypatch.setattr(neighbours, "COLUMNS", columns)
    monkeypatch.setattr(neighbours, "POINTS", 4)
    bits, points = draw_bits(60, share=0.05), draw_bits(11, seed=1, share=0.05)
    index = Neighbours(packed(bits), kernels.Tanimoto(1.7, packed=True))
    wanted = np.argsort(-loop(points, bits), axis=1, kind="stable")
    for k in (1, 60) if columns > 60 else (60,):
        found = index.query(packed(points), k)
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, wanted[:, :k])


def test_neighbours_of_training_rows_leave_them_and_their_group_out():
    bits = draw_bits(30, share=0.1)
    group = np.arange(30, dtype=np.int32) // 3
    index = Neighbours(packed(bits), kernels.Tanimoto(packed=True))
    chosen, K = np.array([4, 0, 29]), loop(bits, bits)
    for given, own in ((None, np.eye(30, dtype=bool)), (group, group[:, None] == group[None, :])):
        wanted = np.argsort(-np.where(own, -1, K), axis=1, kind="stable")[chosen, :6]
        np.testing.assert_array_equal(index.others(chosen, 6, given), wanted)


def test_a_sum_with_tanimoto_compares_the_whole_kernel():
    counts = np.maximum(draw_counts(40), 0)
    kernel = kernels.Tanimoto(0.5, active_dims=range(50)) + kernels.RBF(5.0, active_dims=range(50, D))
    with jax.enable_x64(True):
        K = np.asarray(_matrix(kernel, jnp.asarray(counts)))
    assert not kernel.has_places and not (kernels.Linear() * kernels.Tanimoto()).has_places
    found = Neighbours(counts, kernel).query(counts[:5], 6)
    np.testing.assert_array_equal(found, np.argsort(-K.astype(np.float32), axis=1, kind="stable")[:5, :6])
    assert neighbours_bytes(kernel, 40, D, 5, 6) > 0


def test_the_name_makes_the_kernel():
    kernel = kernels.resolve("tanimoto", D, variance=2.0)
    assert isinstance(kernel, kernels.Tanimoto) and float(kernel.variance) == pytest.approx(2.0)
    assert not kernel.packed
