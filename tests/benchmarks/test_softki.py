"""SoftKI, a rival of the benchmark `sparse`, is the Gaussian process of its paper: float64, against plain NumPy."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal

torch = pytest.importorskip("torch", reason="the rivals of the benchmarks need PyTorch (extra bench)")

from benchmarks import rivals_softki  # noqa: E402
from benchmarks.sparse import NOISE, VARIANCE  # noqa: E402

N, M, D = 9, 4, 2
LENGTHSCALE, TEMPERATURE = np.array([0.7, 1.6]), np.array([0.5, 1.3])
VARIANCE_NOW, NOISE_NOW = 1.7, 0.2
NO_FACTOR = {  # where a factor fails: of K_zz, or of the batch
    "_factor": lambda K, tries: (None, K),
    "negative_log_density": lambda F, noise_variance, y: None,
}


@pytest.fixture
def rows():
    generator = np.random.default_rng(0)
    return generator.normal(size=(N, D)), generator.normal(size=N), generator.normal(size=(5, D))


@pytest.fixture
def model():
    """With other hyperparameters than those of the start, and other ones for each input."""
    made = rivals_softki.SoftKI(torch.tensor(np.random.default_rng(1).normal(size=(M, D))), 1.0)
    with torch.no_grad():
        made.raw_lengthscale.copy_(raw(LENGTHSCALE))
        made.raw_temperature.copy_(raw(TEMPERATURE - rivals_softki.LEAST_TEMPERATURE))
        made.raw_variance.copy_(raw(VARIANCE_NOW))
        made.raw_noise.copy_(raw(NOISE_NOW))
    return made


def raw(value):
    return torch.as_tensor(np.log(np.expm1(value)))


def interpolated(X, Z, T):
    """W, an entry at a time."""
    W = np.array([[np.exp(-np.linalg.norm(x / T - z)) for z in Z] for x in X])
    return W / W.sum(axis=1, keepdims=True)


def matern(Z):
    r = np.sqrt(3) * np.array([[np.linalg.norm((a - b) / LENGTHSCALE) for b in Z] for a in Z])
    return VARIANCE_NOW * (1 + r) * np.exp(-r)


def dense(model, A, B):
    """The prior covariance W_A K_zz W_Bᵀ of f at rows A and B."""
    Z = model.points.detach().numpy()
    return interpolated(A, Z, TEMPERATURE) @ matern(Z) @ interpolated(B, Z, TEMPERATURE).T


def gradients(model, loss):
    return [part.numpy() for part in torch.autograd.grad(loss, model.optimiser.param_groups[0]["params"])]


def dense_loss(model, X, y):
    """By PyTorch's own density of the whole matrix."""
    W = model.weights(X)
    covariance = W @ model.kernel_matrix() @ W.T + model.noise_variance * torch.eye(N, dtype=y.dtype)
    return -torch.distributions.MultivariateNormal(torch.zeros_like(y), covariance).log_prob(y) / N


def test_a_model_starts_where_the_benchmark_says():
    points = torch.tensor(np.random.default_rng(1).normal(size=(M, D)))
    made = rivals_softki.SoftKI(points, 1.5)
    softplus = torch.nn.functional.softplus
    np.testing.assert_allclose(made.temperature.detach(), 1)
    np.testing.assert_allclose(softplus(made.raw_lengthscale.detach()), 1.5)
    np.testing.assert_allclose(softplus(made.raw_variance.detach()), VARIANCE)
    np.testing.assert_allclose(made.noise_variance.detach(), NOISE)
    np.testing.assert_array_equal(made.points.detach(), points)


def test_weights_are_the_softmax_and_rows_sum_to_one(model, rows):
    W = model.weights(torch.tensor(rows[0])).detach().numpy()
    np.testing.assert_allclose(W.sum(axis=1), 1, rtol=1e-14)
    np.testing.assert_allclose(
        W, interpolated(rows[0], model.points.detach().numpy(), TEMPERATURE), rtol=1e-12
    )


@pytest.mark.parametrize("temperature", [0.2, 0.1, 0.01])
def test_weights_concentrate_on_the_nearest_point_as_temperatures_fall(model, rows, temperature):
    """Of points z = p/T: all but the nearest p have at most (M − 1) exp(−gap/T), the gap being to the second nearest."""
    X, P = rows[0], model.points.detach().numpy().copy()
    with torch.no_grad():
        model.points.copy_(torch.tensor(P / temperature))
        model.raw_temperature.fill_(float(raw(temperature - rivals_softki.LEAST_TEMPERATURE)))
    W = model.weights(torch.tensor(X)).detach().numpy()
    distances = np.linalg.norm(X[:, None] - P, axis=2)
    first, second = np.sort(distances, axis=1)[:, :2].T
    others = 1 - W[np.arange(N), distances.argmin(axis=1)]
    assert np.all(others <= (M - 1) * np.exp((first - second) / temperature) + 1e-15)
    assert temperature > 0.01 or np.median(others) < 1e-9


def test_the_kernel_of_the_points_is_matern(model):
    np.testing.assert_allclose(
        model.kernel_matrix().detach().numpy(), matern(model.points.detach().numpy()), rtol=1e-12
    )


def test_the_loss_is_the_negative_log_density_of_a_row_with_its_gradient(model, rows):
    X, y = rows[:2]
    found = model.loss(torch.tensor(X), torch.tensor(y))
    normal = multivariate_normal(np.zeros(N), dense(model, X, X) + NOISE_NOW * np.eye(N))
    np.testing.assert_allclose(found.item(), -normal.logpdf(y) / N, rtol=1e-12)
    wanted = gradients(model, dense_loss(model, torch.tensor(X), torch.tensor(y)))
    for a, b in zip(gradients(model, found), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    assert model.pseudo_steps == 0


@pytest.mark.parametrize("part", NO_FACTOR)
def test_without_a_factor_the_gradient_is_the_same_on_average(model, rows, part, monkeypatch):
    """Over probes √N e_i, whose mean of ppᵀ is I."""
    X, y = (torch.tensor(part) for part in rows[:2])
    wanted = gradients(model, dense_loss(model, X, y))
    monkeypatch.setattr(rivals_softki, part, NO_FACTOR[part])
    monkeypatch.setattr(torch, "randn", lambda n, _, dtype: n**0.5 * torch.eye(n, dtype=dtype))
    found = gradients(model, model.loss(X, y))
    assert model.pseudo_steps == 1
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def test_the_least_jitter_that_gives_a_factor_is_taken():
    K = torch.diag(torch.tensor([1.0, -5e-6], dtype=torch.float64))
    L, shifted = rivals_softki._factor(K, 3)
    np.testing.assert_allclose(shifted, K.numpy() + 1e-5 * np.eye(2), rtol=1e-12)
    np.testing.assert_allclose(L @ L.T, shifted, rtol=1e-12)
    assert rivals_softki._factor(K, 1)[0] is None
    L, shifted = rivals_softki._factor(torch.eye(2), 3)
    assert torch.equal(L, torch.eye(2)) and torch.equal(shifted, torch.eye(2))
    nan = torch.full((3, 2), torch.nan)
    assert rivals_softki.negative_log_density(nan, torch.tensor(0.1), torch.ones(3)) is None


def test_the_posterior_is_that_of_the_dense_process(model, rows):
    """Kernel W K_zz Wᵀ: k_*ᵀ (K + σ²I)⁻¹ y and k_** − k_*ᵀ (K + σ²I)⁻¹ k_* + σ², at new rows and at a training row."""
    X, y, new = rows
    new = np.concatenate([new, X[:1]])
    with torch.no_grad():
        posterior = model.posterior(torch.tensor(X), torch.tensor(y))
        mean, variance = posterior.predict(model.weights(torch.tensor(new)))
    A, k = dense(model, X, X) + NOISE_NOW * np.eye(N), dense(model, X, new)
    np.testing.assert_allclose(mean, k.T @ np.linalg.solve(A, y), rtol=1e-10)
    less = np.sum(k * np.linalg.solve(A, k), axis=0)
    np.testing.assert_allclose(variance, np.diag(dense(model, new, new)) - less + NOISE_NOW, rtol=1e-10)


def test_a_step_moves_every_parameter(model, rows):
    parameters = model.optimiser.param_groups[0]["params"]
    before = [part.detach().clone() for part in parameters]
    model.step(torch.tensor(rows[0]), torch.tensor(rows[1]))
    assert model.steps == 1 and len(parameters) == 5
    assert all(bool((a != b).all()) for a, b in zip(before, parameters, strict=True))


def test_a_fit_of_the_fewest_steps_predicts_better_than_the_mean(monkeypatch):
    """Those that choose the number of threads; its solve is exact."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(rivals_softki, "SECONDS", 0.0)
    try:
        found = rivals_softki.softki("synthetic", 32)
    finally:
        torch.set_num_threads(threads)
    assert found["steps"] == 8 and found["pseudo_steps"] == 0
    assert found["rmse"] < 0.6 and 0.8 < found["coverage95"] <= 1 and np.isfinite(found["nlpd"])
