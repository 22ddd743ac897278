"""The benchmarks' PyTorch rivals compute the gradients of the equations: float64, against plain NumPy."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the rivals of the benchmarks need PyTorch (extra bench)")

from benchmarks import rivals_torch  # noqa: E402
from benchmarks.feature_steps import make_problem  # noqa: E402

N, B, D, M = 40, 12, 3, 5


@pytest.fixture
def problem():
    return make_problem(N, D, M)


def rival(method, problem):
    made = rivals_torch.METHODS[method](problem, rivals_torch.OPTIMISERS["adam"], dtype=torch.float64)
    rng = np.random.default_rng(1)
    with torch.no_grad():
        made.model.w.copy_(torch.tensor(rng.standard_normal(M)))
    return made


def batch(problem, start=0):
    rows = slice(start, start + B)
    return torch.tensor(problem.X[rows], dtype=torch.float64), torch.tensor(
        problem.y[rows], dtype=torch.float64
    )


def features(problem, X):
    """Φ and the function that takes ∂/∂Φ back to (W₁, b₁, W₂, b₂)."""
    W1, b1, W2, b2 = (part.astype(np.float64) for part in problem.weights)
    before = X @ W1 + b1
    hidden = np.maximum(before, 0)
    Phi = np.maximum(hidden @ W2 + b2, 0)

    def backward(dPhi):
        outer = dPhi * (Phi > 0)
        inner = (outer @ W2.T) * (before > 0)
        return [X.T @ inner, inner.sum(0), hidden.T @ outer, outer.sum(0)]

    return Phi, backward


def moment(problem, Phi):
    return N / len(Phi) * Phi.T @ Phi + problem.noise_variance * np.eye(M)


def residual_gradients(problem, Phi, y, w):
    """∂w, ∂σ² and ∂Φ of ĝ = (N/(Bσ²))‖Φw − y‖² + ‖w‖² + (N − M) log σ²."""
    s2, scale, r = problem.noise_variance, N / len(y), Phi @ w - y
    by_noise = -scale * r @ r / s2**2 + (N - M) / s2
    return 2 * scale / s2 * Phi.T @ r + 2 * w, by_noise, 2 * scale / s2 * np.outer(r, w)


def assert_gradients(made, problem, backward, dPhi, by_noise, by_w=None):
    for part, expected in zip(made.model.network, backward(dPhi), strict=True):
        np.testing.assert_allclose(part.grad.numpy(), expected, rtol=1e-9, atol=1e-9)
    slope = problem.noise_variance - problem.noise_floor  # dσ²/dβ
    np.testing.assert_allclose(made.model.beta.grad.item(), by_noise * slope, rtol=1e-9)
    if by_w is not None:
        np.testing.assert_allclose(made.model.w.grad.numpy(), by_w, rtol=1e-9)


def test_scgd_gradient_is_that_of_the_equation(problem):
    made = rival("scgd", problem)
    X, y = batch(problem)
    Phi, backward = features(problem, X.numpy())
    tracker = 0.1 * problem.noise_variance * np.eye(M) + 0.9 * moment(problem, Phi)
    inverse = np.linalg.inv(tracker)
    by_w, by_noise, dPhi = residual_gradients(problem, Phi, y.numpy(), made.model.w.detach().numpy())
    made.gradient(X, y)
    np.testing.assert_allclose(made.tracker.numpy(), tracker, rtol=1e-12)
    assert_gradients(
        made, problem, backward, dPhi + 2 * N / B * Phi @ inverse, by_noise + np.trace(inverse), by_w
    )


def test_bsgd_gradient_is_that_of_the_equation(problem):
    made = rival("bsgd", problem)
    X, y = batch(problem)
    Phi, backward = features(problem, X.numpy())
    Q = np.linalg.inv(Phi @ Phi.T + problem.noise_variance * np.eye(B))
    Qy = Q @ y.numpy()
    dPhi = -2 * np.outer(Qy, Qy) @ Phi + 2 * Q @ Phi
    made.gradient(X, y)
    assert_gradients(made, problem, backward, dPhi, np.trace(Q) - Qy @ Qy)


def test_minimax_gradients_are_those_of_the_equations(problem):
    made = rival("minimax", problem)
    X, y = batch(problem)
    Phi, backward = features(problem, X.numpy())
    A = made.A.detach().numpy().copy()
    noise = np.random.default_rng(2).standard_normal((M, M))
    dual = (noise + noise.T) / np.linalg.norm(noise + noise.T)
    with torch.no_grad():
        made.B.copy_(torch.tensor(dual))
    norm = np.linalg.norm(A)
    by_w, by_noise, dPhi = residual_gradients(problem, Phi, y.numpy(), made.model.w.detach().numpy())
    made.gradient(X, y)
    assert_gradients(
        made, problem, backward, dPhi - 2 * N / B / norm * Phi @ dual, by_noise - np.trace(dual) / norm, by_w
    )
    slope = np.sum(dual * (A - moment(problem, Phi))) * A / norm**3
    np.testing.assert_allclose(made.A.grad.numpy(), np.linalg.inv(A) + dual / norm - slope, rtol=1e-9)
    made.ascend(batch(problem, B)[0])
    other, _ = features(problem, batch(problem, B)[0].numpy())
    np.testing.assert_allclose(made.B.grad.numpy(), -(A - moment(problem, other)) / norm, rtol=1e-9)
    assert torch.linalg.matrix_norm(made.B) <= 1 + 1e-12


def test_minimax_counts_steps_with_an_active_projection(problem):
    made = rival("minimax", problem)
    made.project()
    assert int(made.violations) == 0
    with torch.no_grad():
        made.A.mul_(-1)
    made.project()
    assert int(made.violations) == 1


def test_an_epoch_evaluations_each_row_once():
    X, y = torch.arange(12.0)[:, None], torch.arange(12.0)
    batches = list(rivals_torch.shuffled(X, y, 4, 3, torch.Generator().manual_seed(0)))
    assert [len(rows) for _, rows in batches] == [4, 4, 4]
    assert sorted(torch.cat([rows for _, rows in batches]).tolist()) == y.tolist()
