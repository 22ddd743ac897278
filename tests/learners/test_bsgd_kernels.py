"""BSGD for kernels: gradients against plain NumPy, its conditional expectation in closed form, batches of neighbours, recovery of parameters."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from reference import finite_differences
from toy import KEY, all_batches

from stochgp.data.memory import MemorySource
from stochgp.data.rows import Data
from stochgp.features import Network
from stochgp.kernels import RBF, Matern32, Warped
from stochgp.learners import (
    BSGD,
    NearestNeighbours,
    PowerLaw,
    Problem,
    Uniform,
    constant,
)
from stochgp.learners.bsgd import batch_gradient
from stochgp.learners.evaluators import StepPlan
from stochgp.learning import fit
from stochgp.models import FeatureGP, KernelGP
from stochgp.networks import mlp
from stochgp.parameters import AbstractParameter, frozen, partition, positive
from stochgp.results import RESULTS


class Raw(AbstractParameter):
    """A parameter that is its own unconstrained array."""

    raw: jax.Array

    @property
    def value(self):
        return self.raw


def _raw(value, dtype=jnp.float64):
    return Raw(jnp.asarray(value, dtype))


def _rows(X, y, weight=None, dtype=jnp.float64):
    weight = np.ones(len(y)) if weight is None else weight
    return Data(*(jnp.asarray(a, dtype) for a in (X, y, weight)))


_batch_gradient = eqx.filter_jit(batch_gradient)  # one program is compiled sooner than one for each operation


def _gradient(gp, rows, **settings):
    trainable, rest = partition(gp)
    info, gradient = _batch_gradient(trainable, rest, rows, **settings)
    return float(info["loss"]), gradient


# Plain NumPy: loops over pairs


def _covariance(theta, X, weight):
    """θ = (lengthscales, variance, noise variance)."""
    lengthscale, variance, noise = theta
    K = np.zeros((len(X), len(X)))
    for i in range(len(X)):
        for j in range(len(X)):
            K[i, j] = variance * np.exp(-0.5 * np.sum(((X[i] - X[j]) / lengthscale) ** 2))
        K[i, i] += noise / weight[i]
    return K


def _nlml(theta, X, y, weight):
    K = _covariance(theta, X, weight)
    n = len(y)
    return (y @ np.linalg.solve(K, y) + np.linalg.slogdet(K)[1] + n * np.log(2 * np.pi)) / (2 * n)


def _toy(n=8, d=2, seed=0):
    generator = np.random.default_rng(seed)
    return generator.normal(size=(n, d)), generator.normal(size=n), generator.uniform(0.5, 2, size=n)


def test_the_gradient_of_a_batch_is_that_of_its_likelihood(strict_double):
    """By finite differences of the loops; ARD lengthscales, a variance, a noise, weights."""
    X, y, weight = _toy()
    theta = (np.array([0.7, 1.4]), np.asarray(1.3), np.asarray(0.2))
    gp = KernelGP(RBF(_raw(theta[0]), _raw(theta[1])), _raw(theta[2]))
    loss, gradient = _gradient(gp, _rows(X, y, weight))
    np.testing.assert_allclose(loss, _nlml(theta, X, y, weight), rtol=1e-12)
    wanted = finite_differences(lambda t: _nlml(t, X, y, weight), _Three(*theta))
    found = gradient.kernel.lengthscale.raw, gradient.kernel.variance.raw, gradient.noise_variance.raw
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)


class _Three(tuple):
    def __new__(cls, *parts):
        return super().__new__(cls, parts)


def test_the_conditional_expectation_is_the_closed_form(strict_double):
    """Over targets of the true model, given the rows: (1/2s_l) Σ λ_j^[l=1] c_j/(θ₁λ_j + θ₂)², c_j = (θ₁ − θ₁*)λ_j + (θ₂ − θ₂*).

    The gradient is affine in y yᵀ, whose expectation K* = RRᵀ is the average over j of y yᵀ at y = √m r_j: so the average of m gradients
    is the expectation, exactly.
    """
    X, _, _ = _toy()
    m, tau = len(X), 3.0
    theta, truth = (2.5, 0.7), (4.0, 1.0)
    eigenvalues = np.linalg.eigvalsh(_covariance((np.full(2, 0.9), 1.0, 0.0), X, np.ones(m)))
    root = np.linalg.cholesky(_covariance((np.full(2, 0.9), *truth), X, np.ones(m)))
    gp = KernelGP(RBF(frozen(jnp.asarray(0.9)), _raw(theta[0])), _raw(theta[1]))
    slopes = jax.jit(jax.vmap(lambda y: _gradient_pair(gp, X, y, tau)))(jnp.asarray(np.sqrt(m) * root.T))
    c = (theta[0] - truth[0]) * eigenvalues + theta[1] - truth[1]
    d = theta[0] * eigenvalues + theta[1]
    np.testing.assert_allclose(
        np.mean(slopes[0]), np.sum(eigenvalues * c / d**2) / (2 * tau * np.log(m)), rtol=1e-9
    )
    np.testing.assert_allclose(np.mean(slopes[1]), np.sum(c / d**2) / (2 * m), rtol=1e-9)


def _gradient_pair(gp, X, y, tau):
    trainable, rest = partition(gp)
    rows = Data(jnp.asarray(X), y, jnp.ones(len(X)))
    _, gradient = batch_gradient(trainable, rest, rows, tau)
    return gradient.kernel.variance.raw, gradient.noise_variance.raw


def test_the_signal_scale_is_for_variances_of_kernels_only(strict_double):
    X, y, _ = _toy()
    kernel = RBF(_raw([0.7, 0.9]), _raw(1.0)) + Matern32(_raw(0.5), _raw(0.4))
    gp = KernelGP(kernel, _raw(0.3))
    plain, scaled = (_gradient(gp, _rows(X, y), **s)[1] for s in ({}, {"signal_scale": 3.0}))
    factor = 8 / (3 * np.log(8))
    for side in ("left", "right"):
        a, b = getattr(plain.kernel, side), getattr(scaled.kernel, side)
        np.testing.assert_allclose(b.variance.raw, factor * a.variance.raw)
        np.testing.assert_array_equal(b.lengthscale.raw, a.lengthscale.raw)
    np.testing.assert_array_equal(scaled.noise_variance.raw, plain.noise_variance.raw)


def test_the_mean_over_all_batches_is_not_the_full_gradient(strict_double):
    """The bias of the paper: it falls with the size of the batches."""
    X, y, _ = _toy(6)
    gp = KernelGP(RBF(frozen(jnp.asarray(0.9)), _raw(2.0)), _raw(0.5))
    slopes = jax.jit(lambda X, y: _gradient_pair(gp, X, y, 1 / np.log(2))[1])
    full = float(_gradient(gp, _rows(X, y))[1].noise_variance.raw)
    bias = []
    for size in (2, 5):
        found = [float(slopes(X[S], jnp.asarray(y[S]))) for S in all_batches(6, size)]
        bias.append(abs(np.mean(found) - full))
    assert bias[0] > bias[1] > 1e-6


def test_ten_steps_are_those_of_the_plain_loop(strict_double):
    """α₁/k in the raw parameters, s₁ = τ log m, s₂ = m."""
    X, y, _ = _toy(12)
    learner = BSGD(
        4,
        learning_rate=PowerLaw(0.3, 1.0),
        optimizer=optax.sgd,
        sampling=Uniform(),
        signal_scale=3.0,
    )
    gp = KernelGP(RBF(frozen(jnp.asarray(0.9)), _raw(2.0)), _raw(0.8))
    source = MemorySource(X, y, dtype=jnp.float64)
    plan = StepPlan(4, 3, 10, 10, 10)
    problem = Problem(source, plan, learner.prepare(gp, source, plan, (0, 0)))
    state, _ = learner.advance(learner.init(gp, problem, key=KEY), problem, 0, 10, (5, 6))
    theta = np.array([2.0, 0.8])
    for k, S in enumerate(learner.sampling.batches(np.arange(12), 0, 10, 4, (5, 6)), start=1):
        E = _covariance((np.full(2, 0.9), 1.0, 0.0), X[S], np.ones(4))
        Q = np.linalg.inv(theta[0] * E + theta[1] * np.eye(4))
        C = Q - np.outer(Q @ y[S], Q @ y[S])
        theta -= 0.3 / k * np.array([np.sum(C * E) / (2 * 3 * np.log(4)), np.trace(C) / 8])
    found = state.gp.kernel.variance.raw, state.gp.noise_variance.raw
    np.testing.assert_allclose(found, theta, rtol=1e-5)  # rates are float32


# Batches


def test_a_batch_of_neighbours_is_a_centre_and_the_rows_nearest_to_it():
    X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    X[7] = X[3]
    source, sampling = MemorySource(X, X[:, 0]), NearestNeighbours()
    prepared = sampling.prepare(source, 5, 100, (1,))
    batches = sampling.batches(prepared, 0, 100, 5, (1,))
    assert sorted(batches[:40, 0]) == list(range(40))  # every row is a centre once per shuffle
    distance = np.linalg.norm(X[:, None].astype(np.float64) - X, axis=2)
    for batch in batches:
        assert len(set(batch)) == 5
        np.testing.assert_allclose(np.sort(distance[batch[0]])[:5], np.sort(distance[batch[0], batch]))
    np.testing.assert_array_equal(batches[30:35], sampling.batches(prepared, 30, 5, 5, (1,)))


# Fits


def _waves(n, seed=0, noise=0.1):
    generator = np.random.default_rng(seed)
    X = generator.uniform(-2, 2, size=(n, 2)).astype(np.float32)
    return MemorySource(X, np.sin(3 * X[:, 0]) + noise * generator.normal(size=n))


def test_neighbours_find_lengths_and_noise():
    found = fit(BSGD(16, 80), KernelGP(RBF([1.4, 1.4])), _waves(600), key=KEY)
    lengthscale = np.asarray(found.gp.kernel.lengthscale)
    assert 0.3 < lengthscale[0] < 1.5 < 3 < lengthscale[1]
    assert 0.005 < float(found.gp.noise_variance) < 0.02
    assert found.converged


def test_sums_frozen_parts_and_deep_kernels_train():
    network = mlp(2, (4, 2), key=KEY)
    kernels = [
        Warped(RBF([1.0, 1.0]), network),
        RBF([1.4, 1.4]) + RBF(frozen(0.5), 0.1),
    ]
    for kernel in kernels:
        gp = KernelGP(kernel)
        found = fit(BSGD(16, 10), gp, _waves(200), key=KEY)
        assert found.history[-1]["loss"] < found.history[1]["loss"]
        assert jax.tree.structure(found.gp) == jax.tree.structure(gp)
    assert float(found.gp.kernel.right.lengthscale) == 0.5


def test_the_noise_stays_above_its_floor():
    gp = KernelGP(RBF([1.4, 1.4]), positive(0.1, lower=0.05))
    found = fit(BSGD(16, 100), gp, _waves(200, noise=0.0), key=KEY)
    assert 0.05 < float(found.gp.noise_variance) < 0.06


DIFFICULT = {
    "one row": (np.zeros((1, 2)), np.zeros(1)),
    "fewer rows than a batch": (np.arange(10.0).reshape(5, 2), np.arange(5.0)),
    "equal rows": (np.ones((40, 2)), np.arange(40.0) / 40),
    "constant targets": (np.random.default_rng(0).normal(size=(40, 2)), np.zeros(40)),
}


@pytest.mark.parametrize(
    ("name", "sampling"), [*((n, NearestNeighbours()) for n in DIFFICULT), ("one row", Uniform())]
)
def test_difficult_rows_end_finite(name, sampling):
    source = MemorySource(*DIFFICULT[name])
    found = fit(BSGD(16, 60, sampling=sampling), KernelGP(RBF([1.0, 1.0])), source, key=KEY)
    assert found.result in (RESULTS.successful, RESULTS.not_settled)
    assert np.isfinite(found.loss)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(found.gp) if eqx.is_inexact_array(leaf))


# X19, with all of its rows and steps


def test_the_paper_recovers_its_parameters():
    """n = 1024, x ~ N(0, 5²), RBF 0.5 known, truth (4, 1), m = 128, 200 steps of α₁/k = 9/k, s₁ = 3 log m, from (5, 3); 3 draws.

    Ten draws have a spread of 0.05 in the noise and of 1.04 in the signal.
    """
    learner = BSGD(
        128,
        25,
        PowerLaw(9.0, 1.0),
        optax.sgd,
        constant,
        sampling=Uniform(),
        signal_scale=3.0,
    )
    found = []
    for seed in range(3):
        generator = np.random.default_rng(seed)
        X = 5 * generator.standard_normal((1024, 1))
        K = 4 * np.exp(-0.5 * ((X - X.T) / 0.5) ** 2) + np.eye(1024)
        y = np.linalg.cholesky(K) @ generator.standard_normal(1024)
        gp = KernelGP(RBF(frozen(0.5), _raw(5.0, jnp.float32)), _raw(3.0, jnp.float32))
        result = fit(learner, gp, MemorySource(X, y), key=jax.random.key(seed))
        assert all(entry["noise_variance"] > 0 for entry in result.history)
        found.append((float(result.gp.kernel.variance), float(result.gp.noise_variance)))
    signal, noise = np.mean(found, axis=0)
    assert abs(noise - 1) < 4 * 0.05 / np.sqrt(3)
    assert abs(signal - 4) < 4 * 1.04 / np.sqrt(3)


# Settings


def test_the_sampling_suits_the_model_unless_it_is_given():
    feature = FeatureGP(Network(lambda x: x, 2))
    assert BSGD().sampling_for(KernelGP(RBF())) == NearestNeighbours()
    assert BSGD().sampling_for(feature) == Uniform()
    given = BSGD(sampling=Uniform(replace=True))
    assert given.sampling_for(KernelGP(RBF())) == given.sampling_for(feature) == Uniform(replace=True)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_size": 0}, "batch_size is 0"),
        ({"epochs": 0}, "epochs is 0"),
        ({"learning_rate": -1.0}, "learning_rate is -1"),
        ({"signal_scale": 0.0}, "signal_scale is 0"),
    ],
)
def test_impossible_settings_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        BSGD(**settings)
