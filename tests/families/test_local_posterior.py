"""Local posteriors: how many neighbours are enough, and the scale of the variances."""

import re

import numpy as np
import pytest

from stochgp import KernelGPRegressor, kernels
from stochgp.likelihoods import Gaussian
from stochgp.likelihoods.noise import known_noise

GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(-2, 2, size=(400, 2))
Y = np.sin(X[:, 0]) + 0.5 * GENERATOR.normal(size=400)
SETTINGS = {"learner": None, "likelihood": Gaussian(known_noise(0.3)), "random_state": 0}


def fitted(lengthscale=0.3, **more):
    kernel = kernels.RBF([lengthscale, lengthscale])
    return KernelGPRegressor(kernel, solver="local", **SETTINGS, **more).fit(X, Y)


def loss_of(n, lengthscale, rows):
    """−log p of standardised rows from their n nearest others, less a constant, V = c (v + σ²) with the c of these rows: by dense algebra."""
    Z, t = (X - X.mean(axis=0)) / X.std(axis=0), (Y - Y.mean()) / Y.std()
    squares = np.sum((Z[:, None] - Z[None]) ** 2, axis=2)
    K = np.exp(-squares / (2 * lengthscale**2))
    errors, variances = [], []
    for i in rows:
        near = np.argsort(squares[i] + np.where(np.arange(len(Z)) == i, np.inf, 0))[:n]
        w = np.linalg.solve(K[np.ix_(near, near)] + 0.3 * np.eye(n), K[near, i])
        errors.append(t[i] - w @ t[near])
        variances.append(1 - w @ K[near, i] + 0.3)
    e, V = np.array(errors), np.array(variances)
    V = V * (1 + np.sum(e**2 / V)) / (1 + len(rows))
    return np.mean(np.log(V) + e**2 / V) / 2


@pytest.mark.parametrize(("lengthscale", "wanted"), [(0.1, 64), (2.0, 256)])
def test_neighbours_are_doubled_while_predictions_gain(lengthscale, wanted):
    """With a short lengthscale, 64 rows predict as well as 128. For a long lengthscale, 256 rows predict better than 128. Gains are equal to those of dense algebra."""
    found = fitted(lengthscale)
    chosen = found.plan_["neighbours"]
    n_rows = found.fit_report_["calibration_rows"]
    rows = np.random.default_rng(0).permutation(400)[:n_rows]
    loss = {n: loss_of(n, lengthscale, rows) for n in (64, 128, 256)}
    gains = {n: loss[n // 2] - loss[n] for n in (128, 256)}
    told = {int(n): float(nats) for n, nats in re.findall(r"(\d+): (-?[\d.]+)", chosen["why"])}
    assert told == pytest.approx({n: gains[n] for n in told}, abs=1e-4) and 128 in told
    assert chosen["choice"] == wanted == next((n // 2 for n in gains if gains[n] < 0.001), 256)


@pytest.mark.filterwarnings("ignore:the time limit ended the fit before the first step")
def test_where_time_is_short_no_numbers_are_compared():
    found = fitted(time_limit=1e-3)
    assert found._fitted.posterior.n_neighbours == 256 and "neighbours" not in found.plan_
    assert found.fit_report_["calibration_rows"] == 64


def test_local_variances_are_scaled_by_rows_left_out_with_their_groups():
    group = np.digitize(X[:150, 0], (-1, 0, 1))
    model = KernelGPRegressor(solver="local", **SETTINGS).fit(X[:150], Y[:150], groups=group)
    posterior = model._fitted.posterior
    order = np.lexsort((Y[:150], X[:150, 1], X[:150, 0]))
    assert posterior.scale == posterior.calibrated(2000, 0, group[order])[0].scale
    assert posterior.scale != posterior.calibrated(2000, 0)[0].scale
