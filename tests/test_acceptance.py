"""What acceptance experiments judge: differences of losses with their errors, arrivals at an optimum, scales from samples; and the scores they judge by."""

import math

import jax
import numpy as np
import pytest

from experiments import kernel_fits, rivals
from experiments.problems import Problem
from measuring import acceptance
from stochgp.distributions import Normal
from stochgp.kernels.dense import block


def truth(n: int) -> kernel_fits.Truth:
    generator = np.random.default_rng(0)
    return kernel_fits.Truth(generator.normal(size=(n, 2)), generator.normal(size=n), np.arange(n) % 50)


def test_a_run_has_arrived_only_where_it_stays():
    """Near the optimum at the second pass, away again, near from the fourth on; a run that ends away never arrives."""
    run = {"losses": [1.0, 0.0005, 0.5, 0.0009, 0.0], "seconds": [1.0, 2.0, 3.0, 4.0, 5.0]}
    assert acceptance.arrived(run, 0.0) == (4, 4.0)
    assert acceptance.arrived({**run, "losses": [0.0, None]}, 0.0) is None
    assert acceptance.arrived({"losses": [0.0], "seconds": [7.0]}, 0.0) == (1, 7.0)


def test_the_optimum_is_the_lowest_of_all_starts_and_ratios_are_to_scoring():
    def record(start: str, scoring: list, adam: list) -> dict:
        seconds = [float(i + 1) for i in range(len(scoring))]
        runs = {acceptance.SCORING: {"losses": scoring, "seconds": seconds}}
        return {
            "settings": {"set": "a", "start": start},
            "results": {"runs": runs | {"Adam 1": {"losses": adam, "seconds": seconds}}},
        }

    records = [record("one", [2.0, 1.0], [1.0, 1.0]), record("two", [3.0, 1.5], [2.0, 1.0005])]
    assert acceptance.optimum_of(records, "a") == 1.0
    assert [(name, at, ratio) for _, name, at, ratio in acceptance.arrivals(records)] == [
        ("scoring", (2, 2.0), 1.0),
        ("Adam 1", (1, 1.0), 0.5),
        ("scoring", None, None),
        ("Adam 1", (2, 2.0), None),
    ]
    assert "scoring arrives from 1 and Adam alone, by the best of its settings, from 2" in (
        acceptance.scoring_or_adam(records)
    )


def test_losses_are_normal_densities_and_scales_multiply_variances():
    rows = truth(200)
    predicted = kernel_fits.Predicted(np.zeros(200), np.full(200, 0.5))
    law = Normal(predicted.mean, np.sqrt(2.0 * predicted.variance))
    np.testing.assert_allclose(predicted.times(2.0).losses(rows.y), -law.logpdf(rows.y), rtol=1e-12)


def test_errors_of_paired_differences_are_those_of_independent_rows():
    """Where rows have nothing in common, errors over rows and over boxes agree, and the mean is within four of them of the expectation."""
    n, rows = 20_000, truth(20_000)
    wide, right = (kernel_fits.Predicted(np.zeros(n), np.full(n, v)) for v in (2.0, 1.0))
    found = kernel_fits.paired(wide, right, rows)
    assert abs(found["nlpd"] - (0.5 * math.log(2) - 0.25)) < 4 * found["error"]
    assert found["error"] / math.sqrt(2) < found["error_by_boxes"] < math.sqrt(2) * found["error"]
    assert acceptance.is_better(kernel_fits.paired(right, wide, rows)) and not acceptance.is_better(found)


@pytest.fixture(scope="module")
def few():
    generator = np.random.default_rng(1)
    X = generator.uniform(0, 3, (80, 2)).astype(np.float32)
    y = (np.sin(X[:, 0]) + 0.1 * generator.normal(size=80)).astype(np.float32)
    return Problem(X[:60], y[:60], X[60:], y[60:].astype(np.float64), 1.0)


def test_the_dense_posterior_is_that_of_all_neighbours(few):
    """Local prediction from all rows, without its scale; Q_ii is the diagonal of the inverse."""
    gp, rows = kernel_fits.start(2), kernel_fits.some_tests(few, None)
    made = kernel_fits.dense(gp, few.X, few.y)
    local = kernel_fits.locally(gp, few, rows, n_neighbours=60)
    exact = made.predict(rows.X)
    np.testing.assert_allclose(exact.mean, local.mean, atol=1e-5)
    np.testing.assert_allclose(exact.variance, local.variance / local.scale, rtol=1e-5)
    X = np.asarray(few.X, np.float64)
    with jax.enable_x64(True):
        A = block(made.gp.kernel, X, X) + made.noise * np.eye(60)
    np.testing.assert_allclose(made.inverse_diagonal(), np.diagonal(np.linalg.inv(A)), rtol=1e-4)


def test_the_crps_of_quantiles_is_near_that_of_the_law_they_are_of():
    """To the width of the levels: 1/39."""
    y = np.random.default_rng(2).normal(size=400)
    law = Normal(np.zeros(400), np.ones(400))
    quantiles = rivals.Quantiles(law.quantile(list(rivals.LEVELS)), np.zeros(400))
    assert np.mean(quantiles.crps(y)) == pytest.approx(float(np.mean(law.crps(y))), rel=1 / 39)
    assert quantiles.coverage(y, 0.8) == pytest.approx(float(np.mean(np.abs(y) < 1.2816)), abs=0.01)
    assert math.isnan(quantiles.coverage(y, 0.99))
