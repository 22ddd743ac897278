"""A whole family in one file: constant functions. A new family needs a model, a learner, a posterior, and an estimator with a `fit`.

f(x) = c for every x, c ~ N(0, v), y = c + ε. The posterior of c is N(S, 1/(1/v + n/σ²)): all that is tested has a closed form.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, PRNGKeyArray

from stochgp.data.memory import MemorySource
from stochgp.data.training import TrainingData
from stochgp.estimators.base import FamilyRegressor
from stochgp.estimators.diagnostics import warn_of_data
from stochgp.families.common import (
    fitted_model,
    learn,
    observation_model,
    open_fit,
    read_regression_data,
    store,
)
from stochgp.families.default_learners import named_learner
from stochgp.learners import AbstractLearner, Problem
from stochgp.learners.evaluators import StepPlan
from stochgp.likelihoods import AbstractNoise, Gaussian, constant_noise
from stochgp.likelihoods.noise import as_noise
from stochgp.models import AbstractGP
from stochgp.posteriors.base import AbstractFunctions, AbstractPosterior
from stochgp.storage.trees import load_tree, save_tree

PRIOR = 4.0  # v, of standardised targets


class ConstantGP(AbstractGP):
    """The model: σ² trains."""

    noise: AbstractNoise = eqx.field(converter=as_noise, default=0.5)

    @property
    def has_moments(self) -> bool:
        return False


class ConstantState(eqx.Module):
    gp: ConstantGP


class Moments(AbstractLearner):
    """σ² = the mean square of the targets around their mean, in one step."""

    def plan(self, n_rows: int, n_inputs: int, evaluator: Any) -> StepPlan:
        return StepPlan(n_rows, 1, 2, 1)

    def peak_bytes(self, gp: ConstantGP, n_rows: int, n_inputs: int) -> int:
        return 8 * n_rows

    def prepare(self, gp: ConstantGP, source: MemorySource, plan: StepPlan, seed: Any) -> Any:
        return None

    def init(self, gp: ConstantGP, problem: Problem, *, key: PRNGKeyArray) -> ConstantState:
        return ConstantState(gp)

    def advance(
        self, state: ConstantState, problem: Problem, first_step: int, n_steps: int, seed: Any
    ) -> tuple[ConstantState, dict[str, float]]:
        y = problem.source.on_host(np.arange(problem.source.size)).y
        s2 = float(np.var(y))
        return ConstantState(ConstantGP(constant_noise(s2))), {
            "loss": 0.5 * float(np.log(2 * np.pi * s2) + 1)
        }


class ConstantFunctions(AbstractFunctions):
    values: Float[Array, " S"]

    @property
    def n_samples(self) -> int:
        return len(self.values)

    def __call__(self, X: Float[Array, "N D"]) -> Float[Array, "N S"]:
        return jnp.broadcast_to(self.values.astype(X.dtype), (X.shape[0], len(self.values)))


class ConstantPosterior(AbstractPosterior):
    """c | y ~ N(m, v)."""

    m: float
    v: float
    block_rows: ClassVar[int | None] = None

    def mean(self, X: Any) -> Any:
        return np.full(len(X), self.m)

    def mean_and_variance(self, X: Any) -> tuple[Any, Any]:
        return np.full(len(X), self.m), np.full(len(X), self.v)

    def covariance(self, X: Any) -> Float[np.ndarray, "N N"]:
        return np.full((len(X), len(X)), self.v)

    def functions(self, n_samples: int, *, key: PRNGKeyArray) -> ConstantFunctions:
        return ConstantFunctions(self.m + self.v**0.5 * jax.random.normal(key, (n_samples,)))

    def need_bytes(self, n_rows: int = 0, **wanted: Any) -> int:
        return 16 * n_rows


@dataclass(eq=False, repr=False)
class ConstantRegressor(FamilyRegressor):
    learner: Any = "moments"
    dtype: str = field(default="float64", kw_only=True)
    random_state: Any = field(default=0, kw_only=True)

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        checkpoint: Any = None,
        callback: Any = None,
    ) -> "ConstantRegressor":
        with open_fit(self, checkpoint, callback) as context:
            data = read_regression_data(self, X, y, sample_weight, groups, context)
            learner, why = named_learner(self.learner, {"moments": Moments()})
            context.record("learner", type(learner).__name__, why)
            warn_of_data(data, learns=True)
            learned, _ = learn(learner, ConstantGP(), data, context)
            posterior = constant_posterior(learned.gp, data)
            observation = observation_model(self, Gaussian(learned.gp.noise), None, posterior, data, True)
            fitted = fitted_model(data, posterior, observation)
            store(self, y, fitted, data, learned, context)
        return self


def constant_posterior(gp: Any, data: TrainingData) -> ConstantPosterior:
    s2 = float(gp.noise_variance)
    v = 1 / (1 / PRIOR + data.rows.weights.sum() / s2)
    return ConstantPosterior(float(v * (data.rows.weights @ data.y) / s2), float(v))


@pytest.fixture(scope="module")
def fitted():
    generator = np.random.default_rng(0)
    X, y = generator.normal(size=(50, 2)), 3 + 2 * generator.normal(size=50)
    return ConstantRegressor().fit(X, y), X, y


def test_predictions_are_the_closed_form(fitted):
    model, X, y = fitted
    mean, std = model.predict(X[:3], return_std=True)
    assert model.noise_variance_ == pytest.approx(np.var(y), rel=1e-9)
    np.testing.assert_allclose(mean, y.mean(), rtol=1e-9)  # the standardised mean is 0
    np.testing.assert_allclose(std, np.sqrt(np.var(y) / (1 / PRIOR + 50)), rtol=1e-6)
    noisy = model.predict(X[:3], return_std=True, include_noise=True)[1]
    np.testing.assert_allclose(noisy**2, std**2 + np.var(y), rtol=1e-9)
    np.testing.assert_allclose(model.predict(X[:3], return_cov=True)[1], std[0] ** 2, rtol=1e-9)
    lower, upper = model.predict_interval(X[:1])[0]
    assert (lower + upper) / 2 == pytest.approx(mean[0])


def test_the_loop_and_the_report_serve_it(fitted):
    model, _, _ = fitted
    assert model.converged_ and model.n_iter_ == 2
    assert [entry["step"] for entry in model.history_] == [0, 1, 2]
    assert model.plan_["learner"]["choice"] == "Moments"
    assert "Moments" in str(model.plan_)


def test_samples_have_the_posterior_mean_and_variance(fitted):
    model, X, _ = fitted
    draws = model.sample_functions(4000)(X[:2])
    mean, std = model.predict(X[:2], return_std=True)
    assert abs(draws[0].mean() - mean[0]) < 4 * std[0] / np.sqrt(4000)
    assert abs(draws[0].var() / std[0] ** 2 - 1) < 4 * np.sqrt(2 / 4000)
    np.testing.assert_array_equal(draws[0], draws[1])


def test_a_checkpoint_and_a_file_serve_it(fitted, tmp_path, monkeypatch):
    model, X, y = fitted
    first = ConstantRegressor().fit(X, y, checkpoint=tmp_path / "run")
    steps = []
    monkeypatch.setattr(Moments, "advance", lambda *a: steps.append(a))
    again = ConstantRegressor().fit(X, y, checkpoint=tmp_path / "run")
    assert steps == [] and again.predict(X[:1]) == first.predict(X[:1])
    tree = {"m": model._fitted.posterior.m, "likelihood": model._fitted.observation.likelihood}
    save_tree(tmp_path / "model", tree, {})
    assert load_tree(tmp_path / "model")[0]["m"] == tree["m"]
