"""The bridge to BoTorch: its posteriors are ours, slopes are differences, acquisition functions run. Skipped where botorch is not installed."""

import warnings
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of other packages, while they load
    torch = pytest.importorskip(
        "torch", reason="the bridge to BoTorch needs torch: pip install stochgp[botorch]"
    )
    pytest.importorskip("botorch", reason="the bridge needs BoTorch: pip install stochgp[botorch]")
    from botorch.acquisition import LogExpectedImprovement, UpperConfidenceBound
    from botorch.acquisition.logei import qLogExpectedImprovement, qLogNoisyExpectedImprovement
    from botorch.exceptions.errors import UnsupportedError
    from botorch.optim import optimize_acqf
    from botorch.sampling import SobolQMCNormalSampler

    from stochgp.contrib.botorch import FunctionModel, PosteriorModel

from stochgp import FeatureGPRegressor, KernelGPRegressor, kernels, learners, likelihoods, solvers
from stochgp.likelihoods import Gaussian
from stochgp.likelihoods.noise import known_noise

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:.*Sobol.*")
_generator = np.random.default_rng(0)
X = _generator.uniform([0, 10], [1, 12], (50, 2))
y = 40 + 5 * np.sin(5 * X[:, 0]) * (X[:, 1] - 10.5) + 0.1 * _generator.normal(size=50)
BOUNDS = torch.tensor([[0.0, 10.0], [1.0, 12.0]], dtype=torch.double)
SETS = torch.tensor(_generator.uniform([0, 10], [1, 12], (2, 3, 2)))
KERNEL = kernels.Matern52([1.0, 1.2], 1.0)


def _kernel_gp(solver):
    settings = {
        "learner": None,
        "likelihood": Gaussian(known_noise(0.01)),
        "dtype": "float64",
        "random_state": 0,
    }
    return KernelGPRegressor(KERNEL, solver=solver, **settings).fit(X, y)


def _feature_gp():
    settings = {"kernel": KERNEL, "n_features": 40, "learner": learners.FullBatch(epochs=5)}
    return FeatureGPRegressor("rff", dtype="float64", random_state=0, **settings).fit(X, y)


MAKERS = {
    "exact": lambda: _kernel_gp("cholesky"),
    "samples": lambda: _kernel_gp(solvers.CG()),
    "feature": _feature_gp,
}
_made = {}


def estimator(name):
    if name not in _made:
        _made[name] = MAKERS[name]()
    return _made[name]


def sampler():
    return SobolQMCNormalSampler(sample_shape=torch.Size([16]), seed=0)


@pytest.mark.parametrize("name", MAKERS)
def test_the_posterior_is_the_estimators(name):
    ours, model = estimator(name), PosteriorModel(estimator(name))
    assert model.num_outputs == 1 and model.batch_shape == torch.Size([])
    found = model.posterior(SETS)
    assert found.mean.shape == found.variance.shape == (2, 3, 1)
    rows = SETS.numpy().reshape(-1, 2)
    mean, std = ours.predict(rows, return_std=True)
    assert_allclose(found.mean.detach().numpy().ravel(), mean, rtol=1e-8)
    rtol = 4 * (2 / 64) ** 0.5 if name == "samples" else 1e-5
    assert_allclose(found.variance.detach().numpy().ravel(), std**2, rtol=rtol, atol=1e-7)
    noisy = model.posterior(SETS, observation_noise=True).variance - found.variance
    assert_allclose(noisy.detach().numpy(), ours.noise_variance_, rtol=1e-7)
    given = torch.full((2, 3, 1), 0.7, dtype=torch.double)
    more = model.posterior(SETS, observation_noise=given).variance - found.variance
    assert_allclose(more.detach().numpy(), 0.7, rtol=1e-9)
    assert found.rsample(torch.Size([5])).shape == (5, 2, 3, 1)
    assert model.posterior(SETS[0]).mean.shape == (3, 1)
    wide = model.posterior(SETS.expand(4, 2, 3, 2).float())
    assert wide.mean.shape == (4, 2, 3, 1) and wide.mean.dtype == torch.float32
    if name != "samples":
        covariance = ours.predict(SETS[1].numpy(), return_cov=True)[1]
        assert_allclose(found.mvn.covariance_matrix[1].detach().numpy(), covariance, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MAKERS)
def test_slopes_of_expected_improvement_of_a_batch_are_differences(name):
    acquisition = qLogExpectedImprovement(PosteriorModel(estimator(name)), best_f=43.0, sampler=sampler())
    sets = SETS.clone().requires_grad_()
    (slope,) = torch.autograd.grad(acquisition(sets).sum(), sets)
    for place in [(0, 0, 0), (0, 2, 1), (1, 1, 0)]:
        step = torch.zeros_like(SETS)
        step[place] = 1e-5
        with torch.no_grad():
            difference = (acquisition(SETS + step) - acquisition(SETS - step)).sum() / 2e-5
        assert_allclose(slope[place].item(), difference.item(), rtol=2e-4, atol=1e-5)


ACQUISITIONS = {
    "LogEI": (1, lambda model: LogExpectedImprovement(model, best_f=43.0)),
    "UCB": (1, lambda model: UpperConfidenceBound(model, beta=4.0)),
    "qLogEI": (2, lambda model: qLogExpectedImprovement(model, best_f=43.0, sampler=sampler())),
    "qLogNEI": (2, lambda model: qLogNoisyExpectedImprovement(
        model, X_baseline=torch.tensor(X[:4]), sampler=sampler(), prune_baseline=False, cache_root=False
    )),
}  # fmt: skip


@pytest.mark.parametrize("acquisition", ACQUISITIONS)
def test_acquisition_functions_are_optimised(acquisition):
    """What the optimiser returns is in the box and better than what it began with."""
    q, make = ACQUISITIONS[acquisition]
    model = PosteriorModel(estimator("samples" if acquisition == "qLogEI" else "exact"))
    function = make(model)
    begun = torch.tensor(_generator.uniform([0, 10], [1, 12], (2, q, 2)))
    found, value = optimize_acqf(
        function, BOUNDS, q=q, num_restarts=2, batch_initial_conditions=begun, options={"maxiter": 5}
    )
    assert found.shape == (q, 2) and torch.all((found >= BOUNDS[0]) & (found <= BOUNDS[1]))
    assert value >= function(begun).max() - 1e-9


@pytest.mark.parametrize("name", ["exact", "feature"])
def test_functions_are_deterministic_models(name):
    draws = estimator(name).sample_functions(3, random_state=1)
    model = FunctionModel(draws)
    sets = SETS.clone().requires_grad_()
    values = model(sets)
    expected = draws(SETS.numpy().reshape(-1, 2)).reshape(2, 3, 3)
    assert model.num_outputs == 3
    assert_allclose(values.detach().numpy(), expected, rtol=1e-7)
    assert_allclose(model.posterior(SETS).mean.detach().numpy(), expected, rtol=1e-7)
    (slope,) = torch.autograd.grad(values[1, 0, 2], sets)
    step = torch.zeros_like(SETS)
    step[1, 0, 1] = 1e-5
    difference = (model(SETS + step) - model(SETS - step))[1, 0, 2] / 2e-5
    assert_allclose(slope[1, 0, 1].item(), difference.item(), rtol=1e-4)
    assert not np.any(slope.numpy()[0])


def test_what_is_not_supported_is_refused():
    model = PosteriorModel(estimator("exact"))
    for refused in (
        lambda: model.fantasize(SETS[0], sampler()),
        lambda: model.condition_on_observations(SETS[0], SETS[0, :, :1]),
        lambda: model.posterior(SETS, output_indices=[1]),
    ):
        with pytest.raises(UnsupportedError):
            refused()
    with pytest.raises(ValueError, match=r"X must have the shape \[…, q, 2\]"):
        model.posterior(SETS[..., :1])
    local = KernelGPRegressor(
        KERNEL, learner=None, likelihood=Gaussian(known_noise(0.01)), solver="local"
    ).fit(X, y)
    with pytest.raises(ValueError, match="solver='cholesky'"):
        PosteriorModel(local)
    counts = KernelGPRegressor(KERNEL, learner=None, likelihood=likelihoods.Warped("auto", "log")).fit(X, y)
    with pytest.raises(ValueError, match="not Gaussian around f"):
        PosteriorModel(counts)


def test_the_example_of_the_page_runs():
    page = (Path(__file__).parents[2] / "docs" / "methods" / "botorch.md").read_text()
    code = page.split("```")[1]
    rows = np.random.default_rng(1).uniform(size=(60, 6))
    names = {"X": rows, "y": -np.sum((rows - 0.4) ** 2, axis=1)}
    exec(code, names)
    points = names["points"].numpy()
    assert points.shape == (4, 6) and np.all((points >= 0) & (points <= 1))
