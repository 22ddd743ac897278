"""The density of held-out rows against the dense posterior, its derivatives, and the refit that minimises it."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference import dense_posterior, features
from toy import make_gp, make_toy, rows_of, theta_of

from stochgp.data.rows import Data
from stochgp.objectives import moments_of_rows, nlml_of_spectrum, refit, spectrum
from stochgp.objectives.feature import (
    NOISE_RANGE,
    STANDARD_ERRORS,
    VARIANCE_RANGE,
    HeldOut,
    densities_of_spectrum,
    errors_of_spectrum,
    joint_nlpd,
    minimise_variances,
    nlpd_of_spectrum,
    pessimistic_nlpd,
    robust_nlpd,
)

pytestmark = pytest.mark.usefixtures("double")


def _problem(n=40, n_new=30, M=6, seed=0, weight=None, sloped=False):
    """(spectrum, HeldOut, base features of the training rows, of the held-out rows, the toy); `sloped`: s differs from row to row."""
    toy, gp = make_toy(n + n_new, seed=seed), make_gp(M=M)
    rows = rows_of(toy, np.arange(n))
    s = spectrum(moments_of_rows(gp, rows))
    Phi = features(theta_of(gp)._replace(raw_variance=0.0), toy.X)
    weight = np.ones(n_new) if weight is None else weight
    multiplier = np.linspace(0.7, 1.6, n_new) if sloped else np.ones(n_new)
    return s, HeldOut(Phi[n:] @ s.basis, toy.y[n:], weight, multiplier), Phi[:n], Phi[n:], toy


def _dense(Phi, Phi_new, toy, v, s2):
    """(mean, variance) of the held-out function values."""
    n = len(Phi)
    mean, covariance = dense_posterior(np.sqrt(v) * Phi, toy.y[:n], s2, np.sqrt(v) * Phi_new)
    return mean, np.diag(covariance)


@pytest.mark.parametrize("M", [6, 60])
def test_value_is_that_of_the_dense_posterior(M):
    s, held_out, Phi, Phi_new, toy = _problem(M=M)
    mean, variance = _dense(Phi, Phi_new, toy, 0.8, 0.3)
    spread, residual = variance + 0.3, held_out.y - mean
    dense = np.mean(0.5 * np.log(2 * np.pi * spread) + residual**2 / (2 * spread))
    np.testing.assert_allclose(nlpd_of_spectrum(s, held_out, 0.8, 0.3)[0], dense, rtol=1e-10)


def test_errors_and_their_standard_deviations_are_those_of_the_dense_posterior():
    """Of one observation, of noise variance σ²s, whatever it weighs."""
    s, held_out, Phi, Phi_new, toy = _problem(weight=np.linspace(0.5, 3.0, 30), sloped=True)
    mean, variance = _dense(Phi, Phi_new, toy, 0.8, 0.3)
    error, std = errors_of_spectrum(s, held_out, 0.8, 0.3)
    np.testing.assert_allclose(error, held_out.y - mean, rtol=1e-10)
    noise = 0.3 * np.linspace(0.7, 1.6, 30)
    np.testing.assert_allclose(std, np.sqrt(variance + noise), rtol=1e-10)


def test_rows_are_the_same_in_blocks(monkeypatch):
    s, held_out, *_ = _problem(weight=np.linspace(0.5, 3.0, 30))
    whole = densities_of_spectrum(s, held_out, 0.8, 0.3), errors_of_spectrum(s, held_out, 0.8, 0.3)
    monkeypatch.setattr("stochgp.objectives.feature.ROWS", 7)
    parts = densities_of_spectrum(s, held_out, 0.8, 0.3), errors_of_spectrum(s, held_out, 0.8, 0.3)
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-12)


def _repeated(held_out):
    """A row of weight ρ as ρ rows of weight 1."""
    times = held_out.weight.astype(int)
    P, y, multiplier = (
        np.repeat(part, times, axis=0) for part in (held_out.P, held_out.y, held_out.multiplier)
    )
    return HeldOut(P, y, np.ones(len(y)), multiplier)


def test_weights_are_repeated_rows_and_their_multiples_change_nothing():
    """The mean of −log N(y; m, v + σ²s), each as often as it weighs; of few rows with the error √Σ w²(l − l̄)², w the shares of Σρ."""
    weight = np.tile([1.0, 3.0, 2.0], 10)
    s, held_out, Phi, Phi_new, toy = _problem(weight=weight, sloped=True)
    mean, variance = _dense(Phi, Phi_new, toy, 0.8, 0.3)
    spread, residual = variance + 0.3 * held_out.multiplier, held_out.y - mean
    each = 0.5 * np.log(2 * np.pi * spread) + residual**2 / (2 * spread)
    dense, share = np.average(each, weights=weight), weight / weight.sum()
    found = nlpd_of_spectrum(s, held_out, 0.8, 0.3)
    np.testing.assert_allclose(found[0], dense, rtol=1e-10)
    for a, b in zip(found, nlpd_of_spectrum(s, _repeated(held_out), 0.8, 0.3), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    few = pessimistic_nlpd(s, held_out, 0.8, 0.3)
    error = np.sqrt(np.sum(share**2 * (each - dense) ** 2))
    np.testing.assert_allclose(few[0], dense + STANDARD_ERRORS * error, rtol=1e-10)
    for k in (0.1, 10.0):
        more = held_out._replace(weight=k * weight)
        for of, wanted in ((nlpd_of_spectrum, found), (pessimistic_nlpd, few)):
            for a, b in zip(of(s, more, 0.8, 0.3), wanted, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
def test_derivatives_by_the_variances(weighted):
    s, held_out, *_ = _problem(weight=np.linspace(0.5, 3.0, 30) if weighted else None, sloped=weighted)
    v, s2, h = 0.8, 0.3, 1e-6
    value = lambda v, s2: nlpd_of_spectrum(s, held_out, v, s2)[0]
    _, (by_v, by_s2) = nlpd_of_spectrum(s, held_out, v, s2)
    np.testing.assert_allclose(by_v, (value(v + h, s2) - value(v - h, s2)) / (2 * h), rtol=1e-6)
    np.testing.assert_allclose(by_s2, (value(v, s2 + h) - value(v, s2 - h)) / (2 * h), rtol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_refit_is_stationary_and_beats_the_marginal_likelihood_on_the_held_out_rows(seed):
    s, held_out, *_ = _problem(seed=seed)
    start = refit(s, 1.0, 0.1)
    v, s2 = minimise_variances(
        lambda *at: nlpd_of_spectrum(s, held_out, *at), start, (VARIANCE_RANGE, NOISE_RANGE)
    )
    value, (by_v, by_s2) = nlpd_of_spectrum(s, held_out, v, s2)
    assert value <= nlpd_of_spectrum(s, held_out, *start)[0]
    assert nlml_of_spectrum(s, v, s2)[0] >= nlml_of_spectrum(s, *start)[0] - 1e-9
    assert abs(by_v * v) < 1e-4
    assert abs(by_s2 * s2) < 1e-4


# Few rows


def _both(n=20, n_new=12, M=6, weight=None):
    """(spectrum of the training rows, of all rows, HeldOut, base features of all rows, targets)."""
    toy, gp = make_toy(n + n_new), make_gp(M=M)
    ones = np.ones(n)
    weight = np.ones(n_new) if weight is None else weight
    rows = rows_of(toy, weight=np.concatenate([ones, weight]))
    train = jax.tree.map(lambda part: part[:n], rows)
    Phi = features(theta_of(gp)._replace(raw_variance=0.0), toy.X)
    s = spectrum(moments_of_rows(gp, train))
    held_out = HeldOut(Phi[n:] @ s.basis, toy.y[n:], weight, np.ones(n_new))
    return s, spectrum(moments_of_rows(gp, rows)), held_out, Phi, toy.y


@pytest.mark.parametrize("M", [6, 40])
def test_the_joint_density_is_that_of_the_dense_posterior(M):
    n, v, s2 = 20, 0.8, 0.3
    s, both, _, Phi, y = _both(n, M=M)
    mean, covariance = dense_posterior(np.sqrt(v) * Phi[:n], y[:n], s2, np.sqrt(v) * Phi[n:])
    C, r = covariance + s2 * np.eye(len(y) - n), y[n:] - mean
    dense = (r @ np.linalg.solve(C, r) + np.linalg.slogdet(2 * np.pi * C)[1]) / (2 * len(r))
    np.testing.assert_allclose(joint_nlpd(s, both, v, s2)[0], dense, rtol=1e-9)


def test_pessimism_adds_standard_errors_of_the_mean_density():
    s, _, held_out, Phi, y = _both()
    n = 20
    mean, variance = _dense(Phi[:n], Phi[n:], SimpleNamespace(y=y), 0.8, 0.3)
    spread = variance + 0.3
    each = 0.5 * np.log(2 * np.pi * spread) + (held_out.y - mean) ** 2 / (2 * spread)
    wanted = each.mean() + STANDARD_ERRORS * each.std() / np.sqrt(len(each))
    np.testing.assert_allclose(pessimistic_nlpd(s, held_out, 0.8, 0.3)[0], wanted, rtol=1e-10)


def test_pessimism_of_groups_is_that_of_their_sums():
    """By hand; groups of a row each are rows, and equal rows of a group are one of their weight."""
    weight = np.tile([1.0, 3.0, 2.0], 4)
    s, _, held_out, *_ = _both(weight=weight)
    each, share = densities_of_spectrum(s, held_out, 0.8, 0.3)[0], weight / weight.sum()
    mean, group = share @ each, np.arange(12) // 3
    found = lambda rows, group: pessimistic_nlpd(s, rows._replace(group=group), 0.8, 0.3)
    squares = [np.sum((share * (each - mean))[3 * g : 3 * g + 3]) ** 2 for g in range(4)]
    wanted = mean + STANDARD_ERRORS * np.sqrt(sum(squares))
    np.testing.assert_allclose(found(held_out, group)[0], wanted, rtol=1e-12)
    np.testing.assert_allclose(found(held_out, np.arange(12))[1], found(held_out, None)[1], rtol=1e-12)
    many = found(_repeated(held_out), np.repeat(group, weight.astype(int)))
    np.testing.assert_allclose(many[0], wanted, rtol=1e-12)
    np.testing.assert_allclose(many[1], found(held_out, group)[1], rtol=1e-12)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_derivatives_of_what_judges_few_rows(weighted, grouped):
    s, both, held_out, *_ = _both(weight=np.linspace(0.5, 3.0, 12) if weighted else None)
    held_out = held_out._replace(group=np.arange(12) // 2 if grouped else None)
    loss, v, s2, h = robust_nlpd(s, held_out, both), 0.8, 0.3, 1e-6
    by_v, by_s2 = loss(v, s2)[1]
    np.testing.assert_allclose(by_v, (loss(v + h, s2)[0] - loss(v - h, s2)[0]) / (2 * h), rtol=1e-6)
    np.testing.assert_allclose(by_s2, (loss(v, s2 + h)[0] - loss(v, s2 - h)[0]) / (2 * h), rtol=1e-6)


def test_rows_that_contradict_each_other_are_seen_jointly_only():
    """Two held-out rows at one place with targets ±1, by a model that believes in no noise: alone each is within its variance."""
    toy, gp = make_toy(6), make_gp(M=12)
    rows = rows_of(toy)
    train = jax.tree.map(lambda part: part[:2], rows)
    X = np.stack([toy.X[3], toy.X[3]])
    two = Data(jnp.asarray(X), jnp.asarray([1.0, -1.0]), jnp.ones(2))
    s, more = spectrum(moments_of_rows(gp, train)), moments_of_rows(gp, two)
    both = spectrum(jax.tree.map(jnp.add, moments_of_rows(gp, train), more))
    Phi = features(theta_of(gp)._replace(raw_variance=0.0), X)
    held_out = HeldOut(Phi @ s.basis, np.array([1.0, -1.0]), np.ones(2), np.ones(2))
    alone, together = nlpd_of_spectrum(s, held_out, 1.0, 1e-6)[0], joint_nlpd(s, both, 1.0, 1e-6)[0]
    assert together > 100 * alone
