"""What requests to a fitted kernel GP are counted to need, against the peaks of processes that make them, from both sides."""

import functools
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from stochgp import KernelGPRegressor
from stochgp.solvers.sizes import most_columns

WORKER = Path(__file__).parent / "support" / "memory_worker.py"
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="peaks are reset by Linux alone")
ROOM = 120_000_000  # bytes by which a need may be above three peaks: what compiling may leave behind


@functools.cache
def peaks(n_rows):
    requests = [["predict", 20_000], ["functions", 64], ["covariance", 128], ["likelihood", 2]]
    given = {"n_rows": n_rows, "n_inputs": 4, "n_samples": 16, "solver": "SDD", "requests": requests}
    found = subprocess.run(
        [sys.executable, WORKER, json.dumps(given)], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    return {row["name"]: row for row in json.loads(found.stdout)}


@linux_only
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["predict", "functions", "covariance", "likelihood"])
def test_needs_are_peaks_at_least_and_not_many_times_them(name):
    row = peaks(20_000)[name]
    assert row["took"] <= row["need"] <= 3 * row["took"] + ROOM, row


def test_the_likelihoods_estimate_asks_the_memory_limit():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(300, 2))
    model = KernelGPRegressor(learner=None, noise_variance=0.1, solver="sdd", n_samples=2, random_state=0)
    model.fit(X, np.sin(X[:, 0]))
    model.set_params(memory_limit="20MB")
    with pytest.raises(
        ValueError, match=r"estimate of the marginal likelihood needs .* memory_limit is 20 MB"
    ):
        _ = model.nlml_estimate_
    model.set_params(memory_limit=None)
    known = model.nlml_estimate_
    model.set_params(memory_limit="20MB")
    assert model.nlml_estimate_ == known  # nothing is computed


def test_in_slices_functions_and_covariances_are_those_of_the_whole(double):
    """Functions of the first slice have its bits; covariances agree to the tolerance of their solves."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(300, 2))
    model = KernelGPRegressor(
        learner=None, noise_variance=0.1, solver="cg", n_samples=2, dtype="float64", random_state=0
    ).fit(X, np.sin(X[:, 0]))
    fitted, Z = model._fitted, X[:40] + 0.1
    posterior = fitted.posterior
    whole = posterior.covariance_within(Z, 10**12)
    assert_allclose(whole, posterior.covariance(Z), rtol=1e-12)
    sliced = posterior._covariance(Z, 7)
    assert_allclose(sliced, whole, atol=3e-2 * np.abs(whole).max())
    assert_array_equal(sliced, sliced.T)
    assert np.linalg.eigvalsh(sliced).min() > -1e-6 * np.abs(sliced).max()


@pytest.mark.parametrize(
    ("free", "columns"), [(10**9, 100), (10_000, 100), (9_999, 64), (100, 1), (99, 1), (3_300, 32)]
)
def test_the_most_columns_that_fit_are_taken_together(free, columns):
    assert most_columns(lambda n: 100 * n, 100, free) == columns
