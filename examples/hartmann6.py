"""Batches of 8 points for Hartmann-6, with qLogEI of BoTorch and Thompson sampling.

    pip install stochgp[botorch]
    python -m examples.hartmann6 [number of observations]

Hyperparameters are learned once. Both methods then start with the same 20,000 noisy observations.
"""

import sys
import time
from typing import Any

import numpy as np

ALPHA = np.array([1.0, 1.2, 3.0, 3.2])
A = np.array(
    [
        [10, 3, 17, 3.5, 1.7, 8],
        [0.05, 10, 17, 0.1, 8, 14],
        [3, 3.5, 1.7, 10, 17, 8],
        [17, 8, 0.05, 10, 0.1, 14],
    ]
)
P = 1e-4 * np.array([
    [1312, 1696, 5569, 124, 8283, 5886], [2329, 4135, 8307, 3736, 1004, 9991],
    [2348, 1451, 3522, 2883, 3047, 6650], [4047, 8828, 8732, 5743, 1091, 381],
])  # fmt: skip


def f(X):
    """Return Σᵢ αᵢ exp(−Σⱼ Aᵢⱼ(xⱼ − Pᵢⱼ)²), whose maximum is 3.32237 (Hartman 1973)."""
    return np.exp(-(A * (X[:, None, :] - P) ** 2).sum(axis=2)) @ ALPHA


def main(n_rows):
    import torch
    from botorch.acquisition.logei import qLogExpectedImprovement
    from botorch.optim import optimize_acqf
    from botorch.sampling import SobolQMCNormalSampler

    from stochgp import KernelGPRegressor
    from stochgp.contrib.botorch import PosteriorModel
    from stochgp.thompson import ThompsonSampler

    rng = np.random.default_rng(0)
    measured = lambda X: f(X) + 0.1 * rng.normal(size=len(X))
    X = rng.uniform(size=(n_rows, 6))
    y = measured(X)
    print(f"best of {n_rows} random points: {f(X).max():.3f}")

    begun = time.time()
    settings = {"standardize": False, "solver": "cholesky", "likelihood": "gaussian", "random_state": 0}
    model: Any = KernelGPRegressor("matern52", **settings).fit(X, y)
    print(f"model in {time.time() - begun:.0f} s: {model.kernel_}")

    begun = time.time()
    sampler = SobolQMCNormalSampler(sample_shape=torch.Size([64]), seed=0)
    best = float(model.predict(X).max())
    acquisition = qLogExpectedImprovement(PosteriorModel(model), best_f=best, sampler=sampler)
    bounds = torch.tensor([[0.0] * 6, [1.0] * 6], dtype=torch.double)
    points, _ = optimize_acqf(
        acquisition, bounds, q=8, num_restarts=4, raw_samples=64, options={"maxiter": 50}
    )
    print(f"qLogEI, a batch of 8 in {time.time() - begun:.0f} s: best {f(points.numpy()).max():.3f}")

    begun = time.time()
    given = {"noise_variance": model.noise_variance_, "batch_size": 8, "random_state": 0}
    thompson = ThompsonSampler(model.kernel_, bounds=[[0, 1]] * 6, **given)
    thompson.tell(X, y - y.mean())
    print(f"Thompson sampling, {n_rows} rows taken in after {time.time() - begun:.0f} s")
    for batch in range(2):
        begun = time.time()
        points = thompson.ask()
        thompson.tell(points, measured(points) - y.mean())
        print(f"batch {batch + 1} of 8 in {time.time() - begun:.0f} s: best {f(points).max():.3f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
