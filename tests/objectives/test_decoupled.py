"""The decoupled Gaussian process: plain NumPy, explicit finite-dimensional Gaussians, exact recovery, unbiased estimates by enumeration."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from toy import KEY

from stochgp.data.rows import Data
from stochgp.kernels import RBF, Matern32
from stochgp.models import SparseGP
from stochgp.objectives.elbo import bound_parts, elbo, sampled_mean_divergence
from stochgp.parameters import partition, positive
from stochgp.priors import prior_functions, spread_values
from stochgp.variational import (
    Decoupled,
    InducingFunctions,
    functions_at,
    no_functions,
)

pytestmark = pytest.mark.usefixtures("strict_double")

D, ELL, V, NOISE = 2, np.array([0.8, 1.4]), 1.7, 0.3
_generator = np.random.default_rng(0)
X = _generator.uniform(-2, 2, size=(6, D))
y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.2 * _generator.normal(size=6)
NEAR = _generator.uniform(-2, 2, size=(5, D))


def kernel():
    return RBF(jnp.asarray(ELL), jnp.asarray(V))


def noise():
    return positive(NOISE, dtype=jnp.float64)


def functions(n, seed, spread):
    generator = np.random.default_rng(seed)
    scales = jnp.asarray(0.4 * generator.normal(size=(n, D))) if spread else None
    return InducingFunctions(jnp.asarray(generator.uniform(-2, 2, (n, D))), scales, jnp.asarray(n, jnp.int32))


def made(n_mean=5, n_covariance=4, spread=True, seed=3):
    """A model with everything at random; `n_covariance` None: coupled."""
    generator = np.random.default_rng(seed)
    beta = None if n_covariance is None else functions(n_covariance, 5, spread)
    P = n_mean if n_covariance is None else n_covariance
    L = np.tril(generator.normal(size=(P, P)))
    weights = jnp.asarray(generator.normal(size=n_mean))
    return in_model(Decoupled(functions(n_mean, 4, spread), weights, beta, jnp.asarray(L)))


def in_model(q):
    return SparseGP(kernel(), q, noise())


@eqx.filter_jit  # one program is compiled sooner than one for each operation
def bound(gp, rows):
    return elbo(gp, rows, len(rows.y))


@eqx.filter_jit
def divergence(gp):
    return gp.process().divergence()


@eqx.filter_jit
def _moments(gp, Z):
    return tuple(part[:, 0] for part in gp.process().moments(Z))


def moments(gp, Z):
    return _moments(gp, jnp.asarray(Z))


@eqx.filter_jit
def covariance_parts(gp, Z):
    return gp.process().covariance_parts(Z)


@eqx.filter_jit
def at(functions, kernel, Z):
    return functions.at(kernel, Z)


@eqx.filter_jit
def among(functions, kernel, others):
    return functions.among(kernel, others)


def rows(S=None):
    S = np.arange(len(y)) if S is None else np.asarray(S)
    return Data(jnp.asarray(X[S]), jnp.asarray(y[S]), jnp.ones(len(S)))


def k_loop(x, z, c=None, e=None):
    """The generalised SE-ARD kernel of one pair, as printed in the docstring."""
    c = np.ones(D) if c is None else c
    e = np.ones(D) if e is None else e
    total = V
    for d in range(D):
        s = c[d] ** 2 + e[d] ** 2
        total *= np.sqrt(2 * c[d] * e[d] / s) * np.exp(-((x[d] - z[d]) ** 2) / (ELL[d] ** 2 * s))
    return total


def gram(A, B):
    """⟨ψ_i, ψ_j⟩ by a double loop; a pair is (points, scales)."""
    return np.array([[k_loop(x, z, c, e) for z, e in zip(*B, strict=True)] for x, c in zip(*A, strict=True)])


def plain(Z):
    return Z, np.ones_like(Z)


def of(found):
    scales = np.zeros((found.capacity, D)) if found.log_scales is None else np.asarray(found.log_scales)
    return np.asarray(found.points), np.exp(scales)


def process(q, Z):
    """(Mean, covariance) at rows Z, by formulas with inverses of B and K."""
    alpha, beta, L = of(q.mean_functions), of(q.beta), np.asarray(q.L)
    across = gram(plain(Z), beta)
    middle = np.linalg.inv(np.linalg.inv(L @ L.T) + gram(beta, beta))
    return gram(plain(Z), alpha) @ np.asarray(q.a), gram(plain(Z), plain(Z)) - across @ middle @ across.T


def gaussian_divergence(m, S, K):
    """KL[N(m, S) ‖ N(0, K)]."""
    inverse = np.linalg.inv(K)
    return 0.5 * (
        np.trace(inverse @ S) + m @ inverse @ m - len(m) + np.linalg.slogdet(K)[1] - np.linalg.slogdet(S)[1]
    )


@pytest.mark.parametrize("spread", [False, True])
def test_inducing_functions_are_those_of_the_double_loop(spread):
    alpha, beta = functions(5, 4, spread), functions(20, 5, spread)  # 20: more than one block of columns
    assert_allclose(at(alpha, kernel(), jnp.asarray(X)), gram(plain(X), of(alpha)), rtol=1e-12)
    assert_allclose(among(alpha, kernel(), beta), gram(of(alpha), of(beta)), rtol=1e-12)
    assert_allclose(np.diag(among(alpha, kernel(), alpha)), V, rtol=1e-12)
    J = jnp.asarray([3, 0, 3])
    assert_array_equal(alpha.chosen(J).points, alpha.points[J])


def test_width_one_is_the_kernel_itself_and_other_kernels_have_plain_functions_only():
    wide, plain_ones = functions_at(X, spread=True), functions_at(X)
    assert_allclose(
        at(wide, kernel(), jnp.asarray(NEAR)), at(plain_ones, kernel(), jnp.asarray(NEAR)), rtol=1e-12
    )
    assert at(plain_ones, Matern32(1.0), jnp.asarray(NEAR)).shape == (5, 6)
    with pytest.raises(ValueError, match="RBF kernel, but got Matern32"):
        wide.at(Matern32(1.0), jnp.asarray(NEAR))


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("n_covariance", [4, None])
def test_moments_are_the_formulas_with_inverses(spread, n_covariance):
    gp = made(n_covariance=n_covariance, spread=spread)
    mean, covariance = process(gp.approximation, NEAR)
    found = moments(gp, NEAR)
    assert_allclose(found[0], mean, rtol=1e-10)
    assert_allclose(found[1], np.diag(covariance), rtol=1e-9, atol=1e-12)
    assert np.all(found[1] >= 0) and np.all(found[1] <= V)
    K, W, left = map(np.asarray, covariance_parts(gp, jnp.asarray(NEAR)))
    assert_allclose(K - W.T @ W, covariance, atol=1e-10)
    assert not np.any(left)


@pytest.mark.parametrize("spread", [False, True])
def test_the_divergence_is_that_of_the_values_on_all_functions(spread):
    """Mean and precision differ from the prior's on the span of α and β alone, so the divergence of ⟨ψ, f⟩ there is that of the processes."""
    gp = made(spread=spread)
    q = gp.approximation
    alpha, beta = of(q.mean_functions), of(q.beta)
    both = tuple(np.concatenate(parts) for parts in zip(alpha, beta, strict=True))
    K, across, L = gram(both, both), gram(both, beta), np.asarray(q.L)
    S = K - across @ L @ np.linalg.solve(np.eye(4) + L.T @ gram(beta, beta) @ L, L.T @ across.T)
    wanted = gaussian_divergence(gram(both, alpha) @ np.asarray(q.a), S, K)
    assert_allclose(divergence(gp), wanted, rtol=1e-8)


def test_gradients_of_the_divergence_are_the_closed_forms():
    """∇_a = K_α a; ∇_B = ½(I + K_βB)⁻¹K_βBK_β(I + BK_β)⁻¹ and ∇_L = 2(∇_B)L."""
    gp = made()
    q, found = gp.approximation, eqx.filter_jit(eqx.filter_grad(divergence))(gp).approximation
    Ka, Kb, L = (
        gram(of(q.mean_functions), of(q.mean_functions)),
        gram(of(q.beta), of(q.beta)),
        np.asarray(q.L),
    )
    B, left = L @ L.T, np.linalg.inv(np.eye(4) + Kb @ L @ L.T)
    assert_allclose(found.weights, Ka @ np.asarray(q.a), rtol=1e-10)
    assert_allclose(found.root, (left @ Kb @ B @ Kb @ left.T) @ L, rtol=1e-7, atol=1e-9)


def test_gradients_of_variances_are_the_closed_form():
    """∇_B ŝ_n = −(I + K_βB)⁻¹k_n k_nᵀ(I + BK_β)⁻¹."""
    gp = made()
    q, variance = gp.approximation, lambda g: moments(g, NEAR[:1])[1][0]
    L, Kb = np.asarray(q.L), gram(of(q.beta), of(q.beta))
    k = np.linalg.inv(np.eye(4) + Kb @ L @ L.T) @ gram(of(q.beta), plain(NEAR[:1]))[:, 0]
    found = eqx.filter_jit(eqx.filter_grad(variance))(gp).approximation.root
    assert_allclose(found, -2 * np.outer(k, k) @ L, rtol=1e-7, atol=1e-9)


def test_with_all_rows_as_functions_it_is_exact():
    """α = β = X, a = (K + σ²I)⁻¹y, B = I/σ²: the exact posterior, and the bound is the log likelihood."""
    K, n = gram(plain(X), plain(X)), len(y)
    A = K + NOISE * np.eye(n)
    at, root = functions_at(X), jnp.eye(n) / np.sqrt(NOISE)
    gp = in_model(Decoupled(at, jnp.asarray(np.linalg.solve(A, y)), at, root))
    across = gram(plain(NEAR), plain(X))
    mean, variance = moments(gp, NEAR)
    assert_allclose(mean, across @ np.linalg.solve(A, y), rtol=1e-10)
    assert_allclose(variance, V - np.sum(across * np.linalg.solve(A, across.T).T, axis=1), rtol=1e-9)
    log_likelihood = -0.5 * (y @ np.linalg.solve(A, y) + np.linalg.slogdet(A)[1] + n * np.log(2 * np.pi))
    assert_allclose(bound(gp, rows()), log_likelihood, rtol=1e-10)
    assert float(bound(made(), rows())) < log_likelihood


def test_without_functions_of_the_covariance_the_mean_is_kernel_ridge_regression():
    """M_β = 0, α = X: the bound's only maximum in a is (K + σ²I)⁻¹y, and it keeps −Σ k(x, x)/(2σ²) (erratum SV8)."""
    K = gram(plain(X), plain(X))
    a = np.linalg.solve(K + NOISE * np.eye(6), y)
    gp = in_model(
        Decoupled(functions_at(X), jnp.asarray(a), no_functions(0, D, dtype=jnp.float64), jnp.zeros((0, 0)))
    )
    assert_allclose(_gradient(gp, lambda g: bound(g, rows())).approximation.weights, 0, atol=1e-10)
    fit = -0.5 * (6 * np.log(2 * np.pi * NOISE) + (np.sum((y - K @ a) ** 2) + 6 * V) / NOISE)
    assert_allclose(bound(gp, rows()), fit - 0.5 * a @ K @ a, rtol=1e-10)


def test_mean_and_covariance_do_not_meet_under_gaussian_noise():
    """L = F(a, α) + G(B, β) at fixed θ: every mixed second derivative is 0."""
    gp = made()
    q = gp.approximation
    of_mean, of_covariance = (q.weights, q.mean_functions), (q.root, q.covariance_functions)
    where = lambda g: tuple(
        getattr(g.approximation, name)
        for name in ("weights", "mean_functions", "root", "covariance_functions")
    )
    value = lambda m, c: bound(eqx.tree_at(where, gp, (*m, *c)), rows())
    slope = lambda m: eqx.filter_grad(lambda c: value(m, c))(of_covariance)
    moved = jax.tree.map(lambda leaf: leaf + 0.3 if eqx.is_inexact_array(leaf) else leaf, of_mean)
    for here, there in zip(jax.tree.leaves(slope(of_mean)), jax.tree.leaves(slope(moved)), strict=True):
        assert_allclose(here, there, rtol=1e-11, atol=1e-11)


def _gradient(gp, of):
    trainable, rest = partition(gp)
    return jax.jit(jax.grad(lambda t: of(eqx.combine(t, rest))))(trainable)


def _by_columns(gp, of):
    """J ↦ the gradient of `of(model, J)`, compiled once."""
    trainable, rest = partition(gp)
    compiled = jax.jit(jax.grad(lambda t, J: of(eqx.combine(t, rest), J)))
    return lambda J: compiled(trainable, J)


@eqx.filter_jit
def slope_of_batch(gp, batch, J):
    """The gradient of the bound's estimate from a batch of the 6 rows and columns J."""
    trainable, rest = partition(gp)

    def estimate(t):
        fit, of_mean, of_covariance = bound_parts(eqx.combine(t, rest), batch, 6.0, J)
        return fit - of_mean - of_covariance

    return jax.grad(estimate)(trainable)


def _average(found):
    return jax.tree.map(lambda *leaves: np.mean(leaves, axis=0), *found)


def _assert_gradients(found, wanted):
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert_allclose(a, b, rtol=1e-10, atol=1e-10)


@eqx.filter_jit
def mean_divergence(gp):
    return gp.process().mean_divergence()


@pytest.mark.parametrize("spread", [False, True])
def test_the_sampled_divergence_of_the_mean_is_unbiased_in_value_and_in_every_gradient(spread):
    """Over all pairs of columns, drawn independently."""
    gp = made(spread=spread)
    every = [jnp.asarray(J, jnp.int32) for J in itertools.product(range(5), repeat=2)]
    slope = _by_columns(gp, sampled_mean_divergence)
    _assert_gradients(_average([slope(J) for J in every]), _gradient(gp, mean_divergence))
    value = jax.jit(lambda J: sampled_mean_divergence(gp, J))
    assert_allclose(np.mean([float(value(J)) for J in every]), mean_divergence(gp), rtol=1e-12)


@pytest.mark.parametrize("spread", [False, True])
def test_estimates_from_batches_are_unbiased(spread):
    """All 15 batches of 2 of 6 rows, with all pairs of columns of 3 functions."""
    gp = made(n_mean=3, n_covariance=2, spread=spread)
    found = [
        slope_of_batch(gp, rows(S), jnp.asarray(J, jnp.int32))
        for S in itertools.combinations(range(6), 2)
        for J in itertools.product(range(3), repeat=2)
    ]
    _assert_gradients(_average(found), _gradient(gp, lambda g: bound(g, rows())))


def test_functions_that_are_not_there_count_for_nothing():
    """A model with room left is the one without that room, whatever lies in the arrays, and nothing pulls there."""
    small = made(n_mean=3, n_covariance=2)

    def fill(big, part):
        filled = np.full(big.shape, 7.7)
        filled[tuple(slice(n) for n in part.shape)] = part
        return jnp.asarray(filled)

    parts = lambda f: (f.points, f.log_scales)
    of_q = lambda q: (*parts(q.mean_functions), *parts(q.covariance_functions), q.weights, q.root)
    where = lambda g: of_q(g.approximation)
    used = lambda g: (g.approximation.mean_functions.used, g.approximation.covariance_functions.used)
    roomy = in_model(Decoupled.of(8, 7, D, spread=True, dtype=jnp.float64))
    roomy = eqx.tree_at(where, roomy, tuple(map(fill, where(roomy), where(small))))
    roomy = eqx.tree_at(used, roomy, used(small))
    assert_allclose(bound(roomy, rows()), bound(small, rows()), rtol=1e-13)
    slopes = [slope_of_batch(g, rows([0, 3]), jnp.asarray([2, 1], jnp.int32)) for g in (roomy, small)]
    for big, little in zip(*map(where, slopes), strict=True):
        inner = tuple(slice(n) for n in little.shape)
        rest = np.array(big)
        assert_allclose(rest[inner], little, rtol=1e-11, atol=1e-12)
        rest[inner] = 0
        assert not np.any(rest)


def test_coupled_models_are_decoupled_ones():
    """a = K⁻¹m̃, B = S̃⁻¹ − K⁻¹: the mean is that of m̃, the covariance that of S̃ = (K⁻¹ + B)⁻¹."""
    Z = X[:4]
    K = gram(plain(Z), plain(Z))
    m, root = np.array([0.3, -1.0, 0.5, 0.2]), np.random.default_rng(2).normal(size=(4, 2))
    S = np.linalg.inv(np.linalg.inv(K) + root @ root.T)
    q = Decoupled(
        functions_at(Z), jnp.asarray(np.linalg.solve(K, m)), None, jnp.asarray(np.pad(root, ((0, 0), (0, 2))))
    )
    across = gram(plain(NEAR), plain(Z)) @ np.linalg.inv(K)
    found = moments(in_model(q), NEAR)
    assert_allclose(found[0], across @ m, rtol=1e-9)
    assert_allclose(found[1], V + np.sum((across @ (S - K)) * across, axis=1), rtol=1e-7)


def test_values_seen_by_spread_functions_have_their_covariance():
    """Over 512 groups of prior functions with 64 waves each, within 5 standard errors; at width 1 they are the functions' values."""
    S, at = 2048, functions(3, 4, True)
    prior = prior_functions(kernel(), D, S, n_features=128, key=KEY, dtype=jnp.dtype(jnp.float64))
    both = np.concatenate([spread_values(prior, at.points, at.log_scales), prior(jnp.asarray(NEAR[:2]))])
    (Z, c), (W, e) = of(at), plain(NEAR[:2])
    everything = (np.concatenate([Z, W]), np.concatenate([c, e]))
    wanted, products = gram(everything, everything), both[:, None, :] * both[None, :, :]
    error = products.reshape(5, 5, -1, 4).mean(axis=3).std(axis=2) / np.sqrt(S / 4)
    assert np.all(np.abs(products.mean(axis=2) - wanted) < 5 * error)
    assert_allclose(
        spread_values(prior, at.points, jnp.zeros((3, D))), prior(at.points), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.long
def test_tiles_of_functions_add_up_to_all(spread, monkeypatch, traced_afresh):
    """All of the gradient, from drawn columns and from every one: five functions in tiles of two."""
    gp, some = made(spread=spread), jnp.asarray([4, 1], jnp.int32)
    both = lambda g: sum(bound_parts(g, rows(), 6.0, None)) + sampled_mean_divergence(g, some)
    wanted, value = _gradient(gp, both), divergence(gp)
    monkeypatch.setattr("stochgp.variational.functions.TILE", 2)
    _assert_gradients(_gradient(gp, both), wanted)
    assert_allclose(divergence(gp), value, rtol=1e-13)
