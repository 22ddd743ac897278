"""The density of held-out rows against the dense posterior, its derivatives, and the refit that minimises it."""

import numpy as np
import pytest
from reference import dense_posterior, features
from toy import make_gp, make_toy, rows_of, theta_of

from stochgp.objectives import moments_of_rows, nlml_of_spectrum, refit, spectrum
from stochgp.objectives.held_out import HeldOut, nlpd_of_spectrum, refit_held_out

pytestmark = pytest.mark.usefixtures("double")


def _problem(n=40, n_new=30, M=6, seed=0, weight=None):
    """(spectrum, HeldOut, base features of the training rows, of the held-out rows, the toy)."""
    toy, gp = make_toy(n + n_new, seed=seed), make_gp(M=M)
    rows = rows_of(toy, np.arange(n))
    s = spectrum(moments_of_rows(gp, rows))
    Phi = features(theta_of(gp)._replace(raw_variance=0.0), toy.X)
    weight = np.ones(n_new) if weight is None else weight
    return s, HeldOut(Phi[n:] @ s.basis, toy.y[n:], weight, weight), Phi[:n], Phi[n:], toy


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


def test_weights_divide_the_noise_and_weigh_the_mean():
    weight = np.linspace(0.5, 3.0, 30)
    s, held_out, Phi, Phi_new, toy = _problem(weight=weight)
    mean, variance = _dense(Phi, Phi_new, toy, 0.8, 0.3)
    spread, residual = variance + 0.3 / weight, held_out.y - mean
    each = 0.5 * np.log(2 * np.pi * spread) + residual**2 / (2 * spread)
    dense = np.average(each, weights=weight)
    np.testing.assert_allclose(nlpd_of_spectrum(s, held_out, 0.8, 0.3)[0], dense, rtol=1e-10)


@pytest.mark.parametrize("weighted", [False, True])
def test_derivatives_by_the_variances(weighted):
    s, held_out, *_ = _problem(weight=np.linspace(0.5, 3.0, 30) if weighted else None)
    v, s2, h = 0.8, 0.3, 1e-6
    value = lambda v, s2: nlpd_of_spectrum(s, held_out, v, s2)[0]
    _, (by_v, by_s2) = nlpd_of_spectrum(s, held_out, v, s2)
    np.testing.assert_allclose(by_v, (value(v + h, s2) - value(v - h, s2)) / (2 * h), rtol=1e-6)
    np.testing.assert_allclose(by_s2, (value(v, s2 + h) - value(v, s2 - h)) / (2 * h), rtol=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_refit_is_stationary_and_beats_the_marginal_likelihood_on_the_held_out_rows(seed):
    s, held_out, *_ = _problem(seed=seed)
    start = refit(s, 1.0, 0.1)
    v, s2 = refit_held_out(s, held_out, *start)
    value, (by_v, by_s2) = nlpd_of_spectrum(s, held_out, v, s2)
    assert value <= nlpd_of_spectrum(s, held_out, *start)[0]
    assert nlml_of_spectrum(s, v, s2)[0] >= nlml_of_spectrum(s, *start)[0] - 1e-9
    assert abs(by_v * v) < 1e-4
    assert abs(by_s2 * s2) < 1e-4
