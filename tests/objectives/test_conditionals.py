"""Conditional densities against plain NumPy: exact limits, gradients, curvature, expectations by enumeration, and what must not matter."""

import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from stochgp.data.memory import MemorySource
from stochgp.data.rows import Data
from stochgp.kernels import RBF, Matern12, Matern32, Matern52, Warped, dense
from stochgp.likelihoods.noise import AbstractNoise, known_noise
from stochgp.models import KernelGP
from stochgp.networks import Dense
from stochgp.numerics.arrays import packed
from stochgp.objectives.conditionals import (
    Conditional,
    conditional_moments,
    curvature,
    evaluate,
    left_out,
    of_last,
)
from stochgp.parameters import AbstractParameter, bounded, frozen, partition, positive

N, D = 8, 2
STEP = 1e-5
LOG_2PI = np.log(2 * np.pi)

pytestmark = pytest.mark.usefixtures("strict_double")


class Sloped(AbstractNoise):
    """s(x) = exp(slope x₁)."""

    level: AbstractParameter
    slope: Float[Array, ""]

    def multiplier(self, X: Float[Array, "N D"]) -> Float[Array, " N"]:
        return jnp.exp(jnp.asarray(self.slope, X.dtype) * X[:, 0])


def make_gp(variance=1.3, noise=0.2, slope=0.3, dtype=jnp.float64):
    """θ = (log ℓ₁, log ℓ₂, log v, log σ², slope)."""
    kernel = RBF(positive([0.7, 1.4], dtype=dtype), positive(variance, dtype=dtype))
    return KernelGP(kernel, Sloped(positive(noise, dtype=dtype), jnp.asarray(slope, dtype)))


def theta_of(gp):
    return packed(partition(gp)[0])


def make_data(n=N, seed=0):
    """X, y and whole counts of 1 to 3."""
    generator = np.random.default_rng(seed)
    return generator.normal(size=(n, D)), generator.normal(size=n), generator.integers(1, 4, n).astype(float)


# Plain NumPy


def noise_variances(theta, X):
    """σ² s."""
    return np.exp(theta[3] + theta[4] * X[:, 0])


def covariance(theta, X, count):
    ell, v = np.exp(theta[:2]), np.exp(theta[2])
    distances = np.sum(((X[:, None] - X[None]) / ell) ** 2, axis=2)
    return v * np.exp(-0.5 * distances) + np.diag(noise_variances(theta, X) / count)


def nlml(theta, X, y, count):
    """Per datum, of Σρ repeated rows."""
    which = np.repeat(np.arange(len(y)), count.astype(int))
    X, y = X[which], y[which]
    A = covariance(theta, X, np.ones(len(y)))
    return (y @ np.linalg.solve(A, y) + np.linalg.slogdet(A)[1] + len(y) * LOG_2PI) / (2 * len(y))


def conditional(theta, X, y, count, rows, joint=False):
    """(V, e) of the last of these rows, given the others: as one observation, or in a joint density as the mean of ρ."""
    count = count[rows] if joint else np.append(count[rows[:-1]], 1.0)
    A = covariance(theta, X[rows], count)
    b = np.linalg.solve(A[:-1, :-1], A[:-1, -1])
    return A[-1, -1] - A[:-1, -1] @ b, y[rows[-1]] - b @ y[rows[:-1]]


def row_loss(theta, X, y, count, rows, joint):
    """What a row adds to the sum that is divided by Σρ."""
    V, e = conditional(theta, X, y, count, rows, joint)
    rho, s2 = count[rows[-1]], noise_variances(theta, X)[rows[-1]]
    loss = (np.log(V) + LOG_2PI + e**2 / V) / 2
    return loss + ((rho - 1) * np.log(2 * np.pi * s2) + np.log(rho)) / 2 if joint else rho * loss


def slopes(f, theta):
    """Central differences of a number or an array by every entry of θ: the last axis."""
    parts = [(f(theta + d) - f(theta - d)) / (2 * STEP) for d in STEP * np.eye(len(theta))]
    return np.stack(parts, axis=-1)


# Lists of rows, each with its centre last


def all_others(n):
    return np.array([[*(j for j in range(n) if j != i), i] for i in range(n)])


def all_earlier(order):
    """For each position of the order; −1 where there are fewer."""
    n = len(order)
    return np.array([[-1] * (n - 1 - t) + list(order[: t + 1]) for t in range(n)])


def some_others(n, m, seed=1):
    generator = np.random.default_rng(seed)
    return np.array([[*generator.choice(np.delete(np.arange(n), i), m, replace=False), i] for i in range(n)])


def there(rows):
    return rows[rows >= 0]


# What is exact


def test_all_earlier_rows_give_the_exact_likelihood_of_all_data():
    """Integer counts are repeated rows; the noise may differ from row to row; and so is the gradient."""
    X, y, count = make_data()
    near = all_earlier(np.random.default_rng(2).permutation(N))
    theta = theta_of(make_gp())
    found = curvature(make_gp(), MemorySource(X, y, count, dtype=jnp.float64), near, True, joint=True)
    np.testing.assert_allclose(found.loss, nlml(theta, X, y, count), rtol=1e-12)
    wanted = slopes(lambda t: nlml(t, X, y, count), theta)
    np.testing.assert_allclose(found.gradient, wanted, rtol=1e-6, atol=1e-9)


def test_counts_that_are_not_whole_have_the_likelihood_of_the_weighted_noise():
    """−2 log p = yᵀQy + log|A| + N log 2π + Σ[(ρ − 1) log(2πσ² s) + log ρ]."""
    X, y, _ = make_data()
    count = np.random.default_rng(3).uniform(0.3, 2.0, N)
    theta, near = theta_of(make_gp()), all_earlier(np.arange(N))
    A = covariance(theta, X, count)
    more = np.sum((count - 1) * np.log(2 * np.pi * noise_variances(theta, X)) + np.log(count))
    wanted = y @ np.linalg.solve(A, y) + np.linalg.slogdet(A)[1] + N * LOG_2PI + more
    found = curvature(make_gp(), MemorySource(X, y, count, dtype=jnp.float64), near, True, joint=True)
    np.testing.assert_allclose(found.loss, wanted / (2 * count.sum()), rtol=1e-12)
    assert np.linalg.eigvalsh(found.hessian).min() > -1e-12


def test_all_other_rows_give_the_closed_form_of_leave_one_out():
    """Rasmussen and Williams (5.10)–(5.12): with Q = A⁻¹, error α_i/Q_ii, variance 1/Q_ii of the mean of ρ rows.

    One observation has the variance 1/Q_ii − σ²s/ρ + σ²s, and weighs ρ.
    """
    X, y, count = make_data()
    theta, source = theta_of(make_gp()), MemorySource(X, y, count, dtype=jnp.float64)
    Q, s2 = np.linalg.inv(covariance(theta, X, count)), noise_variances(theta, X)
    e, V = Q @ y / np.diag(Q), 1 / np.diag(Q) - s2 / count + s2
    found = evaluate(make_gp(), source, all_others(N), True)
    np.testing.assert_allclose(found.variance, V, rtol=1e-11)
    np.testing.assert_allclose(found.z, e / np.sqrt(V), rtol=1e-9)
    losses = (LOG_2PI + np.log(V) + e**2 / V) / 2
    np.testing.assert_allclose(found.loss, losses, rtol=1e-11)
    whole = curvature(make_gp(), source, all_others(N), True)
    np.testing.assert_allclose(whole.loss, np.average(losses, weights=count), rtol=1e-11)


def test_a_multiple_of_all_weights_changes_leave_one_out_by_the_noise_of_neighbours_alone():
    """L, ∇L and H at weights κρ and noise κσ² of the neighbours are those at ρ and σ²:

    where no row has neighbours, at any κ; where rows have them, in the limit that these know f exactly.
    """
    X, y, count = make_data()
    at = lambda k, near: curvature(make_gp(), MemorySource(X, y, k * count, dtype=jnp.float64), near, True)
    alone = np.arange(N)[:, None]
    for k in (0.1, 10.0):
        for left, right in zip(at(1, alone), at(k, alone), strict=True):
            np.testing.assert_allclose(left, right, rtol=1e-12)
    for left, right in zip(at(1e7, some_others(N, 3)), at(1e8, some_others(N, 3)), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-6)


def test_a_row_of_weight_2_counts_as_two_equal_centres_and_as_two_equal_neighbours():
    """Rows 0 to 2, the first one twice or with weight 2: given the rows of the others, whatever stands for them."""
    X, y, _ = make_data(3)
    X, y = X[[0, 1, 2, 0]], y[[0, 1, 2, 0]]
    merged = MemorySource(X[:3], y[:3], np.array([2.0, 1.0, 1.0]), dtype=jnp.float64)
    repeated = MemorySource(X, y, dtype=jnp.float64)
    once = curvature(make_gp(), merged, np.array([[-1, 1, 2, 0], [-1, 0, 2, 1], [-1, 0, 1, 2]]), True)
    near = np.array([[-1, 1, 2, 0], [0, 2, 3, 1], [0, 1, 3, 2], [-1, 1, 2, 3]])
    twice = curvature(make_gp(), repeated, near, True)
    for name in ("loss", "gradient", "hessian"):
        np.testing.assert_allclose(getattr(once, name), getattr(twice, name), rtol=1e-10)


def test_no_neighbour_is_the_prior():
    X, y, count = make_data()
    prior = np.diag(covariance(theta_of(make_gp()), X, np.ones(N)))
    source = MemorySource(X, y, count, dtype=jnp.float64)
    alone = np.arange(N)[:, None]
    for near in (alone, np.concatenate([np.full((N, 3), -1), alone], axis=1)):
        found = evaluate(make_gp(), source, near, True)
        np.testing.assert_allclose(found.variance, prior, rtol=1e-12)
        np.testing.assert_allclose(found.z, y / np.sqrt(prior), rtol=1e-12)


# Gradients and curvature


def test_rows_left_out_of_one_matrix_and_how_they_change_with_it():
    """Each of the last two given the other four, against plain solves; derivatives along symmetric directions, by central differences."""
    generator = np.random.default_rng(4)
    A, y = generator.normal(size=(5, 9)), generator.normal(size=5)
    A, more = A @ A.T, np.array([0.3, -0.1])
    parts = left_out(A[None], y[None], more[None], np.zeros((1, 2)))
    found, u, H, own = Conditional(*(part[0] for part in parts[0])), parts[1][0], parts[2][0].T, parts[3][0]

    def values(A, i):
        others = np.delete(np.arange(5), i)
        b = np.linalg.solve(A[np.ix_(others, others)], A[others, i])
        return np.array([A[i, i] - A[i, others] @ b + more[i - 3], y[i] - b @ y[others]])

    for k, i in enumerate((3, 4)):
        V, e = values(A, i)
        np.testing.assert_allclose([found.variance[k], found.z[k]], [V, e / np.sqrt(V)], rtol=1e-10)
        for _ in range(3):
            S = generator.normal(size=A.shape)
            S = S + S.T
            slope = (values(A + STEP * S, i) - values(A - STEP * S, i)) / (2 * STEP)
            wanted = [H[k] @ S @ H[k], -(u - own[k] * H[k]) @ S @ H[k]]
            np.testing.assert_allclose(wanted, slope, rtol=1e-7)


def test_a_variance_is_never_below_that_of_one_observation():
    """Rows of tiny weight: 1/Q_ii − σ²/ρ + σ² is a difference of huge numbers."""
    parts = np.diag([1.0, 1e8])[None], [[1.0, 2.0]], [[-1e8 - 9]], [[0.1]]
    found = left_out(*(np.asarray(part, np.float32) for part in parts))
    np.testing.assert_allclose(found[0].variance, 0.1, rtol=1e-6)


@pytest.mark.parametrize("n_scored", [2, 4])
def test_rows_scored_together_are_those_scored_one_by_one(n_scored):
    """The last rows of lists with gaps, weights and sloped noise: as if each came last in a list of its own."""
    X, y, count = make_data(12)
    source, gp = MemorySource(X, y, count, dtype=jnp.float64), make_gp()
    near = np.stack([np.random.default_rng(i).permutation(12)[:9] for i in range(6)])
    near[1, :2] = -1
    near[3, -2] = -1
    own = lambda rows: [np.append(np.delete(rows, j), rows[j]) for j in range(9 - n_scored, 9)]
    lists = np.concatenate([own(rows) for rows in near])
    together = curvature(gp, source, near, True, n_scored=n_scored)
    alone = curvature(gp, source, lists[lists[:, -1] >= 0], True)
    for name in ("loss", "gradient", "hessian"):
        np.testing.assert_allclose(getattr(together, name), getattr(alone, name), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("joint", [False, True])
def test_the_gradient_is_that_of_the_loss_by_differences(joint):
    X, y, count = make_data(6)
    near = some_others(6, 3)
    near[2, 0] = -1
    source, gp = MemorySource(X, y, count, dtype=jnp.float64), make_gp()
    losses = lambda t: np.array([row_loss(t, X, y, count, there(rows), joint) for rows in near])
    found, wanted = (
        curvature(gp, source, near, True, joint),
        slopes(lambda t: losses(t).sum() / count.sum(), theta_of(gp)),
    )
    np.testing.assert_allclose(found.loss, losses(theta_of(gp)).sum() / count.sum(), rtol=1e-12)
    np.testing.assert_allclose(found.gradient, wanted, rtol=1e-6, atol=1e-9)


ROTATION = frozen(Dense(np.array([[0.6, -0.8], [0.8, 0.6]]), np.zeros(2)))
HOST_KERNELS = {
    "rbf": lambda: RBF(positive([0.7, 1.4], dtype=jnp.float64), positive(1.3, dtype=jnp.float64)),
    "one lengthscale": lambda: Matern12(positive(0.7, dtype=jnp.float64), positive(1.3, dtype=jnp.float64)),
    "sum": lambda: (
        Matern32(bounded(0.9, 0.1, 3.0, dtype=jnp.float64), frozen(np.float64(0.8)), active_dims=(1,))
        + Matern52(frozen(np.array([0.5, 2.0])), positive(0.4, lower=0.1, dtype=jnp.float64))
    ),
    "rotated": lambda: Warped(
        Matern32(positive([0.7, 1.4], dtype=jnp.float64), positive(1.3, dtype=jnp.float64)), ROTATION
    ),
}


@pytest.mark.parametrize("name", HOST_KERNELS)
@pytest.mark.parametrize("joint", [False, True])
def test_kernels_on_the_host_are_those_of_jax(name, joint, monkeypatch):
    """Loss, gradient and H with gaps and weights: the same without the forms that NumPy knows."""
    X, y, count = make_data(12)
    near = np.stack([np.random.default_rng(i).permutation(12)[:7] for i in range(5)])
    near[1, :2] = -1
    source = MemorySource(X, y, count, dtype=jnp.float64)
    gp = KernelGP(HOST_KERNELS[name](), positive(0.2, dtype=jnp.float64))
    assert dense.terms_of(gp.kernel) is not None
    here = curvature(gp, source, near, True, joint, n_scored=1 if joint else 2)
    monkeypatch.setattr(dense, "PROFILES", {})
    there = curvature(gp, source, near, True, joint, n_scored=1 if joint else 2)
    for left, right in zip(here, there, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("joint", [False, True])
def test_curvature_is_its_formula_with_derivatives_by_differences(joint):
    """H = Σ[½J^V J^Vᵀ + J^e J^eᵀ + ½(ρ − 1)J^s J^sᵀ], or Σρ[…] without the last, over n."""
    X, y, count = make_data()
    near, theta = some_others(N, 4), theta_of(make_gp())
    H = np.zeros((5, 5))
    for rows in near:
        V = conditional(theta, X, y, count, rows, joint)[0]
        J_V = slopes(lambda t, r=rows: np.log(conditional(t, X, y, count, r, joint)[0]), theta)
        J_e = slopes(lambda t, r=rows: conditional(t, X, y, count, r)[1], theta) / np.sqrt(V)
        J_s = slopes(lambda t, r=rows: np.log(noise_variances(t, X)[r[-1]]), theta)
        rho = count[rows[-1]]
        H += (1 if joint else rho) * (np.outer(J_V, J_V) / 2 + np.outer(J_e, J_e))
        H += (rho - 1) / 2 * np.outer(J_s, J_s) if joint else 0
    per_row = count.mean()
    found = curvature(make_gp(), MemorySource(X, y, count, dtype=jnp.float64), near, True, joint)
    np.testing.assert_allclose(found.hessian, H / (N * per_row), rtol=1e-6, atol=1e-8)


def targets_of_the_model(theta, X, count):
    """y = √N r_j with A = RRᵀ: what is affine in y yᵀ has its expectation under the model as the mean over j."""
    R = np.linalg.cholesky(covariance(theta, X, count))
    return [np.sqrt(len(X)) * r for r in R.T]


def test_expected_curvature_is_the_information_that_the_centre_adds():
    """E H = I(c ∪ i) − I(c), I = ½ tr(A⁻¹ ∂A A⁻¹ ∂A) of the joint density of the rows."""
    X, *_ = make_data(6)
    theta, rows = theta_of(make_gp()), np.arange(6)

    def information(rows):
        A = covariance(theta, X[rows], np.ones(len(rows)))
        slope = np.moveaxis(slopes(lambda t: covariance(t, X[rows], np.ones(len(rows))), theta), -1, 0)
        B = np.linalg.solve(A, slope)
        return np.einsum("kij,lji->kl", B, B) / 2

    sources = [MemorySource(X, y, dtype=jnp.float64) for y in targets_of_the_model(theta, X, np.ones(6))]
    H = [curvature(make_gp(), source, rows[None], True).hessian for source in sources]
    np.testing.assert_allclose(np.mean(H, axis=0), information(rows) - information(rows[:-1]), rtol=1e-6)


def test_at_the_true_model_the_expected_gradient_is_zero_whatever_the_neighbours_are():
    """For any number of neighbours, means of ρ observations each, of a centre that is one observation; a single gradient is not zero."""
    X, _, count = make_data()
    theta = theta_of(make_gp())
    for m, i in ((0, 0), (1, 3), (3, 2), (7, 5)):
        near = some_others(N, m)[i : i + 1]
        gradients = [
            curvature(make_gp(), MemorySource(X, y, count, dtype=jnp.float64), near, True).gradient
            for y in targets_of_the_model(theta, X, np.where(np.arange(N) == i, 1.0, count))
        ]
        np.testing.assert_allclose(np.mean(gradients, axis=0), 0, atol=1e-12)
        assert np.abs(gradients).max() > 0.01


def test_the_divergence_from_the_exact_density_is_that_of_the_variances_and_falls_with_more_neighbours():
    """KL(p‖q) = ½ Σ log(V_i(c(i))/V_i(all earlier)) = E_p(−log q) + E_p log p, for nested lists of earlier rows."""
    X, _, count = make_data()
    theta, gp, exact = theta_of(make_gp()), make_gp(), all_earlier(np.arange(N))
    targets = targets_of_the_model(theta, X, count)
    sources = [MemorySource(X, y, count, dtype=jnp.float64) for y in targets]
    last, s2 = np.inf, noise_variances(theta, X)
    for m in range(N):
        near = np.where(np.arange(N) >= N - 1 - m, exact, -1)
        V, V_all = (evaluate(gp, sources[0], rows, True).variance - s2 + s2 / count for rows in (near, exact))
        divergence = np.sum(np.log(V / V_all)) / 2
        expected = [
            np.mean([curvature(gp, source, rows, True, joint=True).loss for source in sources])
            for rows in (near, exact)
        ]
        np.testing.assert_allclose(divergence, count.sum() * (expected[0] - expected[1]), atol=1e-9)
        assert -1e-12 <= divergence <= last + 1e-12
        last = divergence
    assert abs(last) < 1e-12


def test_the_mean_square_is_the_best_common_scale():
    """ĉ = mean z²: L at (cĉk, cĉσ²) is above L at (ĉk, ĉσ²) by ½(log c + 1/c − 1) ≥ 0."""
    X, y, count = make_data()
    source, near = MemorySource(X, y, count, dtype=jnp.float64), some_others(N, 3)
    loss = lambda c: curvature(make_gp(1.3 * c, 0.2 * c), source, near, True).loss
    best = np.average(np.square(evaluate(make_gp(), source, near, True).z), weights=count)
    gains = [loss(best * c) - loss(best) - (np.log(c) + 1 / c - 1) / 2 for c in (0.5, 0.9, 1.1, 3.0)]
    np.testing.assert_allclose(gains, 0, atol=1e-12)


# What must not matter, and what must not fail


@pytest.mark.parametrize("noise", [0.2, 1e-8])
@pytest.mark.parametrize("wide", [False, True])
def test_missing_neighbours_have_no_influence(noise, wide):
    """However small the noise is: not on the loss, nor on gradient and curvature. Row 0, which stands in for them, has a huge target."""
    X, y, count = make_data()
    y[0] = 1e6
    source, near = MemorySource(X, y, count, dtype=jnp.float64), some_others(N, 3)[1:]
    near = near[(near != 0).all(axis=1)]
    more = np.insert(near, [0, 2], -1, axis=1)
    a, b = (curvature(make_gp(noise=noise), source, rows, wide, joint=True) for rows in (near, more))
    for left, right in zip(a, b, strict=True):
        rounding = 0.0 if wide else 4 * np.finfo(np.float32).eps * np.abs(right).max()
        np.testing.assert_allclose(left, right, rtol=1e-6 if wide else 2e-5, atol=1e-9 + rounding)


def test_float32_is_as_right_as_rounding_of_the_matrix_allows():
    """V changes relatively by at most (m + 1) roundings of a/σ²; in float64 (`wide`) from the same float32 rows it does not."""
    X, y, _ = make_data(40)
    X, y = X.astype(np.float32), y.astype(np.float32)
    gp, source = make_gp(noise=1e-4, slope=0.0, dtype=jnp.float32), MemorySource(X, y, dtype=jnp.float32)
    exact = np.array(
        [
            conditional(theta_of(gp), X.astype(float), y.astype(float), np.ones(40), r)[0]
            for r in all_others(40)
        ]
    )
    single, double = (evaluate(gp, source, all_others(40), wide).variance for wide in (False, True))
    bound = 40 * np.finfo(np.float32).eps * 1.3 / 1e-4
    assert np.abs(single / exact - 1).max() < bound
    assert np.abs(double / exact - 1).max() < 1e-5  # θ itself is a float32 number


@pytest.mark.parametrize("is_singular", [False, True])
def test_the_last_row_given_the_others_by_cholesky_and_by_inverses(is_singular):
    """If one matrix is singular, all use the inverse, with jitter."""
    generator = np.random.default_rng(3)
    B, m = 5, 7
    root = generator.normal(size=(B, m, m))
    A, y = root @ root.transpose(0, 2, 1) + 0.1 * np.eye(m), generator.normal(size=(B, m))
    if is_singular:
        A[2, 0], A[2, :, 0] = A[2, 1], A[2, :, 1]
        A[2, 0, 0] = A[2, 1, 1]
    more, least = generator.uniform(0, 1, (B, 1)), np.full((B, 1), 0.3)
    found, wanted = of_last(A, y, more[:, 0], least[:, 0]), left_out(A, y, more, least)[0]
    for ours, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, other[:, 0], rtol=1e-9)


def test_moments_in_float32_are_those_in_float64():
    """For noise of a hundredth of the prior variance, the errors are small shares of standard deviations."""
    generator = np.random.default_rng(4)
    gp = KernelGP(Matern32(jnp.asarray([3.0, 2.0]), 1.0), known_noise(0.01))
    near = Data(generator.uniform(-1, 1, (6, 200, 2)), generator.normal(size=(6, 200)), np.ones((6, 200)))
    x = generator.uniform(-1, 1, (6, 2))
    (mean, variance, prior), found = (conditional_moments(gp, near, x, wide) for wide in (True, False))
    assert 0 < np.abs(found[0] - mean).max() < 1e-3 * np.sqrt(0.01)
    np.testing.assert_allclose(found[1], variance, rtol=1e-3)
    np.testing.assert_allclose(found[2], prior, rtol=1e-6)
    assert found[0].dtype == found[1].dtype == np.float64
