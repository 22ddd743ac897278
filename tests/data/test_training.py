"""Units: what a history in target units owes to the units of the targets."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from numpy.testing import assert_allclose
from toy import KEY, begin, make_gp, make_toy, rows_of

from stochgp import FeatureGPRegressor, KernelGPRegressor, learners
from stochgp.data.rows import Data
from stochgp.learners import (
    BSGD,
    SCGD,
    ByEvidence,
    FullBatch,
    Minimax,
    constant,
)

SCALE = 8.0  # a power of two: standardised targets keep their bits
HELD = {
    "anchored": False,
    "evaluator": ByEvidence(refit=False),
    "decay": constant,
    "optimizer": optax.sgd,
    "learning_rate": 2**-8,
}

LEARNERS = {
    "bsgd": BSGD(batch_size=8, epochs=20),
    "full batch": FullBatch(epochs=2),
}


def make_data():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(40, 2))
    return X, np.sin(X[:, 0]) + 0.1 * generator.normal(size=40)


def losses(model):
    return np.array([entry["loss"] for entry in model.history_ if "loss" in entry])


@pytest.mark.parametrize("name", LEARNERS)
def test_a_loss_gains_what_a_density_gains(name):
    learner = LEARNERS[name]
    X, y = make_data()
    model = KernelGPRegressor(learner=learner, random_state=0)
    plain, scaled = losses(model.fit(X, y)), losses(model.fit(X, SCALE * y))
    assert len(plain) > 0
    assert_allclose(scaled - plain, np.log(SCALE), atol=1e-6)


@pytest.mark.usefixtures("strict_double")
@pytest.mark.parametrize("learner", [SCGD(tracking=0.5, **HELD), Minimax(**HELD)], ids=["scgd", "minimax"])
def test_losses_of_feature_learners_are_those_of_a_density(learner):
    """Targets s times as large, variances s² times: the loss per datum gains log s, whatever M is."""
    toy, found = make_toy(), []
    for s in (1.0, SCALE):
        gp = make_gp(variance=1.3 * s**2, noise_variance=0.4 * s**2)
        rows = rows_of(toy)
        rows = Data(rows.X, rows.y * s, rows.weight)
        if isinstance(learner, Minimax):
            rows = jax.tree.map(lambda part: jnp.stack([part, part]), rows)
        state = begin(learner, gp, toy)
        state = dataclasses.replace(state, weights=jnp.linspace(-1.0, 1.0, gp.n_features))
        found.append(float(eqx.filter_jit(learner.step)(state, rows, key=KEY)[1]["loss"]))
    assert_allclose(found[1] - found[0], np.log(SCALE), rtol=1e-12)


def test_functions_of_a_float64_model_are_drawn_in_float64():
    X, y = make_data()
    model = FeatureGPRegressor(
        "rff",
        n_features=30,
        learner=learners.SCGD(epochs=5, learning_rate=0.01),
        dtype="float64",
        random_state=0,
    ).fit(X, y)
    posterior, leaves = model._fitted.posterior, jax.tree.leaves(model.sample_functions(3).functions)
    drawn = next(leaf for leaf in leaves if np.shape(leaf) == (30, 3))
    z = np.linalg.lstsq(
        np.asarray(posterior.root), np.asarray(drawn) - np.asarray(posterior.weights)[:, None], rcond=None
    )[0]
    assert drawn.dtype == np.float64
    assert_allclose(z.astype(np.float32), z, rtol=1e-9)  # the normal draws themselves have 24 bits
