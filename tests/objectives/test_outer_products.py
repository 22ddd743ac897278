"""Average gradient outer products against plain NumPy, and what they must find."""

import jax.numpy as jnp
import numpy as np
import pytest
from grams import matrix
from sweeps import some_of

from stochgp.data.memory import MemorySource
from stochgp.kernels import RBF, Matern12, Matern32, Matern52
from stochgp.kernels.warped import kernel_and_directions
from stochgp.kernels.warped import turned as turned_kernel
from stochgp.models import KernelGP
from stochgp.objectives.kernel import outer_products, outer_products_of_few
from stochgp.parameters import positive

pytestmark = pytest.mark.usefixtures("strict_double")
N, D = 40, 3
GENERATOR = np.random.default_rng(0)
X, Y, WEIGHT = (
    GENERATOR.normal(size=(N, D)),
    GENERATOR.normal(size=N),
    GENERATOR.integers(1, 4, N).astype(float),
)
LENGTHS, NOISE = np.array([0.8, 1.5, 2.5]), 0.3


def model(kind=RBF, lengths=LENGTHS):
    return KernelGP(kind(positive(lengths, dtype=jnp.float64)), positive(NOISE, dtype=jnp.float64))


def source(X=X, y=Y, weight=WEIGHT):
    return MemorySource(X, y, weight, dtype=jnp.float64)


def near(n_centres, m, seed=1):
    """Random rows beside each of the first centres, which come last."""
    generator = np.random.default_rng(seed)
    others = [generator.permutation(np.delete(np.arange(N), i))[:m] for i in range(n_centres)]
    return np.concatenate([np.stack(others), np.arange(n_centres)[:, None]], axis=1).astype(np.int32)


def by_loops(near, n_sloping, lengths=LENGTHS):
    """RBF: ∂m/∂z = Σ_j α_j k(x, x_j) (z_j − z), z = x/ℓ, at the last rows; each has the noise variance σ²/ρ."""
    M, total = np.zeros((D, D)), 0.0
    for row in near:
        S = row[row >= 0]
        Z = X[S] / lengths
        K = np.exp(-0.5 * np.sum((Z[:, None] - Z[None]) ** 2, axis=2))
        alpha = np.linalg.solve(K + np.diag(NOISE / WEIGHT[S]), Y[S])
        for i in range(len(S) - n_sloping, len(S)):
            g = (alpha * K[i]) @ (Z - Z[i])
            M, total = M + WEIGHT[S[i]] * np.outer(g, g), total + WEIGHT[S[i]]
    return M / total


@pytest.mark.parametrize("n_sloping", [1, 3])
@pytest.mark.parametrize("n_centres", [5, 35])
def test_equals_plain_loops(n_centres, n_sloping):
    rows = near(n_centres, 12)
    rows[2, :4] = -1  # too few neighbours
    found = outer_products(model(), source(), rows, True, n_sloping)
    np.testing.assert_allclose(found, by_loops(rows, n_sloping), rtol=1e-9)


@pytest.mark.parametrize("kind", [RBF, Matern12, Matern32, Matern52])
def test_slopes_are_those_of_the_posterior_mean(kind):
    """Given all rows, by central differences; Matérn 1/2 has a kink at each row, where its own term counts as flat."""
    gp, i, step = model(kind), 4, 1e-6
    rows = np.concatenate([np.delete(np.arange(N), i), [i]])[None].astype(np.int32)
    K = np.asarray(matrix(gp.kernel, jnp.asarray(X), jnp.asarray(X)))
    alpha = np.linalg.solve(K + np.diag(NOISE / WEIGHT), Y)
    if kind is Matern12:
        alpha[i] = 0.0
    mean = lambda x: float(np.asarray(matrix(gp.kernel, jnp.asarray(x[None]), jnp.asarray(X)))[0] @ alpha)
    shifts = step * LENGTHS * np.eye(D)
    g = np.array([(mean(X[i] + s) - mean(X[i] - s)) / (2 * step) for s in shifts])
    np.testing.assert_allclose(outer_products(gp, source(), rows, True), np.outer(g, g), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("kind", some_of([RBF, Matern12, Matern32, Matern52], [Matern32]))
@pytest.mark.parametrize("n", [N, 300])
def test_of_few_rows_all_others_are_neighbours(n, kind):
    """Of rows in one tile and in several; also along other directions."""
    generator = np.random.default_rng(2)
    rows = source(generator.normal(size=(n, D)), generator.normal(size=n), generator.integers(1, 4, n) / 2)
    sloping = np.sort(generator.permutation(n)[: n // 3]).astype(np.int32)
    whole = np.stack([[*np.delete(np.arange(n), i), i] for i in sloping]).astype(np.int32)
    gp = model(kind)
    turned = KernelGP(
        turned_kernel(*kernel_and_directions(gp.kernel), np.linalg.qr(generator.normal(size=(D, D)))[0]),
        gp.noise,
    )
    for given in (gp, turned):
        found = outer_products_of_few(given, rows.on_host(np.arange(n)), sloping)
        np.testing.assert_allclose(found, outer_products(given, rows, whole, True), rtol=1e-8)


def test_units_of_inputs_do_not_count():
    units, rows = np.array([0.01, 1.0, 100.0]), near(20, 12)
    other = outer_products(model(lengths=LENGTHS * units), source(X * units), rows, True)
    np.testing.assert_allclose(other, outer_products(model(), source(), rows, True), rtol=1e-9)


def test_turned_coordinates_turn_the_products():
    """M' = VᵀMV: with the eigenvectors of M it is diagonal."""
    gp, rows = model(), near(30, 12)
    M = outer_products(gp, source(), rows, True)
    V = np.linalg.eigh(M)[1]
    turned = KernelGP(turned_kernel(*kernel_and_directions(gp.kernel), V), gp.noise)
    found = outer_products(turned, source(), rows, True)
    np.testing.assert_allclose(found, V.T @ M @ V, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found - np.diag(np.diagonal(found)), 0, atol=1e-10)


def test_a_function_of_one_direction_has_one_direction():
    direction, lengths = np.array([1.0, -2.0, 0.5]), np.ones(D)
    rows = np.random.default_rng(3).normal(size=(400, D))
    gp = KernelGP(RBF(positive(lengths, dtype=jnp.float64)), positive(1e-4, dtype=jnp.float64))
    whole = np.array([[*np.delete(np.arange(400), i), i] for i in range(50)], np.int32)
    M = outer_products(gp, source(rows, np.sin(0.7 * rows @ direction), np.ones(400)), whole, True)
    values, V = np.linalg.eigh(M)
    assert values[-1] > 50 * values[-2]
    assert abs(V[:, -1] @ direction) / np.linalg.norm(direction) > 0.999


def test_kernels_of_several_terms_are_refused():
    gp = KernelGP(RBF(1.0) + Matern12(1.0), 0.1)
    with pytest.raises(ValueError, match="not Sum"):
        outer_products(gp, source(), near(3, 5), True)
    with pytest.raises(ValueError, match="not Sum"):
        outer_products_of_few(gp, source().on_host(np.arange(N)), np.arange(3))
