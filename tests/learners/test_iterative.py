"""The iterative learner: unbiased gradients, the optimum of full batch, what warm starts save, resumption."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stochgp import kernels
from stochgp.data.streams import DeviceRows
from stochgp.learners import ByLoss
from stochgp.learners.full_batch import FullBatch
from stochgp.learners.iterative import Iterative
from stochgp.learning import fit
from stochgp.models import KernelGP
from stochgp.objectives.kernel import nlml, nlml_and_gradient
from stochgp.parameters import positive
from stochgp.results import RESULTS
from stochgp.solvers import CG, SDD, Cholesky

N, D = 40, 2
N_SE = 4.0
KEY = jax.random.key(0)


pytestmark = pytest.mark.usefixtures("double")


def make_source(n=N, weighted=False):
    with jax.enable_x64(True):
        generator = np.random.default_rng(0)
        X = generator.uniform(-2, 2, size=(n, D))
        y = np.sin(2 * X[:, 0]) + 0.3 * np.sin(3 * X[:, 1]) + 0.2 * generator.normal(size=n)
        weight = np.arange(n) % 3 + 1.0 if weighted else None
        return DeviceRows(X, y, weight, dtype=jnp.float64)


def rows_of(source):
    return source.take(np.arange(source.size))


def make_gp():
    with jax.enable_x64(True):
        kernel = kernels.Matern32(positive([1.0, 2.0], dtype=jnp.float64), positive(1.5, dtype=jnp.float64))
        return KernelGP(kernel, positive(0.2, lower=1e-6, dtype=jnp.float64))


def vector(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def estimate(learner, source, key):
    plan = learner.plan(source.size, source.n_inputs, ByLoss())
    seed = tuple(int(word) for word in jax.random.key_data(key))
    prepared = learner.prepare(make_gp(), source, plan, seed)
    return vector(learner.gradient(make_gp(), prepared[:2], known=None, key=key)[1])


class Every(Iterative):
    """Probes √N times every unit vector: nothing is random."""

    def prepare(self, gp, source, plan, seed):
        rows, _, start = super().prepare(gp, source, plan, seed)
        return rows, jnp.sqrt(N) * jnp.eye(N), start


@pytest.mark.parametrize("weighted", [False, True])
def test_all_probes_together_give_the_exact_gradient(weighted):
    source = make_source(weighted=weighted)
    exact = vector(nlml_and_gradient(make_gp(), rows_of(source)).gradient)
    np.testing.assert_allclose(
        estimate(Every(n_probes=N, solver=Cholesky()), source, KEY), exact, rtol=1e-8, atol=1e-12
    )


def test_the_estimated_gradient_is_right_on_average():
    source = make_source(weighted=True)
    exact = vector(nlml_and_gradient(make_gp(), rows_of(source)).gradient)
    found = np.array(
        [estimate(Iterative(n_probes=50, solver=Cholesky()), source, jax.random.key(i)) for i in range(30)]
    )
    stderr = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    assert np.all(stderr > 0)
    assert np.all(np.abs(found.mean(axis=0) - exact) < N_SE * stderr)


def test_it_reaches_the_optimum_of_full_batch():
    source = make_source(200)
    best = fit(FullBatch(tolerance=1e-10, precision="float64"), make_gp(), source, key=KEY)
    solver = SDD(epochs=50, batch_size=64)
    learner = Iterative(epochs=40, n_probes=64, solver=solver, tolerance=1e-3)
    found = fit(learner, make_gp(), source, key=KEY)
    assert nlml(found.gp, rows_of(source)) < best.loss + 0.002
    assert nlml(make_gp(), rows_of(source)) > best.loss + 0.02


class Cold(Iterative):
    """Every solve starts from 0."""

    def gradient(self, gp, prepared, *, known, key):
        return super().gradient(gp, prepared, known=None, key=key)


@functools.cache
def _run(kind):
    source = make_source(400)
    learner = kind(epochs=20, n_probes=4, solver=CG(rank=0), learning_rate=0.02)
    return fit(learner, make_gp(), source, key=KEY), source


@pytest.mark.long
def test_warm_starts_save_two_thirds_of_the_solver():
    with jax.enable_x64(True):
        epochs, ends = [], []
        for kind in (Iterative, Cold):
            found, source = _run(kind)
            epochs.append(sum(entry.get("solver_epochs", 0) for entry in found.history))
            ends.append(nlml(found.gp, rows_of(source)))
            assert all(entry["residual"] <= 0.01 for entry in found.history[1:])
    assert epochs[0] < epochs[1] / 3
    np.testing.assert_allclose(*ends, atol=1e-3)


def test_the_loss_is_the_change_of_the_exact_value():
    """It integrates the gradient along the path; the last entry is at the point before the last step, which the cosine makes tiny."""
    found, source = _run(Iterative)
    change = nlml(found.gp, rows_of(source)) - nlml(make_gp(), rows_of(source))
    assert found.history[1]["loss"] == 0
    np.testing.assert_allclose(found.loss, change, atol=0.05 * abs(change) + 1e-3)


def test_a_killed_run_resumes_to_the_same_bits(tmp_path):
    source, path = make_source(), tmp_path / "run"
    learner = Iterative(epochs=6, n_probes=3, solver=SDD(epochs=5, batch_size=16))
    whole = fit(learner, make_gp(), source, key=KEY)

    def stop(entry):
        if entry["step"] == 3:
            raise KeyboardInterrupt

    cut = fit(learner, make_gp(), source, key=KEY, checkpoint=path, progress=stop)
    assert cut.result is RESULTS.interrupted
    resumed = fit(learner, make_gp(), source, key=KEY, checkpoint=path)
    np.testing.assert_array_equal(vector(resumed.gp), vector(whole.gp))
    assert resumed.loss == whole.loss


@pytest.mark.parametrize("options", [{"batch_size": 8}, {"tolerance": 0.0}, {"n_probes": 0}, {"epochs": 0}])
def test_impossible_settings_are_refused(options):
    with pytest.raises((ValueError, TypeError)):
        Iterative(**options)
