"""`acquisition`: seconds and memory until BoTorch has chosen 8 candidates by qLogEI from noisy observations of Hartmann-6.

Ours: `KernelGPRegressor` with given hyperparameters, prepared posterior included, through `stochgp.contrib.botorch.PosteriorModel`. The other side is BoTorch's
own exact GP, `SingleTaskGP` in float64 with the same kernel and noise. Each runs in a process of its own; peaks are of resident memory. A process that
dies, or takes longer than the limit, has no figures: "failed" says how it ended.
"""

import json
import math
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from measuring.places import ROOT
from stochgp.budget import peak_resident

KEYS = ("side", "n_rows")
SIZES, QUICK, LIMIT = (2_000, 20_000), (200,), 600
Q, RESTARTS, RAW, STEPS, SAMPLES = 8, 4, 64, 50, 64
MEMORY = "2GB"  # for ours
LENGTHSCALES, VARIANCE, NOISE = (0.4, 0.5, 0.9, 0.4, 0.4, 0.4), 1.0, 0.01


def run(quick: bool, report: Callable[[str], object]) -> dict:
    """One row per side and number of rows."""
    rows = []
    for n_rows in QUICK if quick else SIZES:
        for side in ("stochgp", "botorch"):
            found = _in_fresh_process(side, n_rows)
            rows.append({"side": side, "n_rows": n_rows, **found})
            report(f"{side}, {n_rows} rows: {json.dumps(found)}")
    settings = {"q": Q, "restarts": RESTARTS, "raw_samples": RAW, "steps": STEPS, "mc_samples": SAMPLES}
    return {"settings": settings, "rows": rows}


def table(result: dict) -> tuple[list[str], list[list]]:
    fields = ("prepare_seconds", "batch_seconds", "peak_gb", "expected", "failed")
    headings = ["side", "rows", "posterior s", "batch of 8 s", "peak GB", "best value of the batch", "failed"]
    return headings, [[r["side"], r["n_rows"], *(_shown(r.get(f)) for f in fields)] for r in result["rows"]]


def measure(side: str, n_rows: int) -> dict:
    """One run in this process, which should be a fresh one."""
    X, y = observations(n_rows)
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = {"stochgp": _ours, "botorch": _theirs}[side](X, y)
        prepared = time.perf_counter()
        points = batch(model, float(y.max()))
    ended = time.perf_counter()
    return {
        "prepare_seconds": prepared - begun,
        "batch_seconds": ended - prepared,
        "peak_gb": peak_resident() / 1e9,
        "expected": float(hartmann6(points).max()),
    }


def batch(model: Any, best: float) -> np.ndarray:
    """The candidates of qLogEI."""
    import torch
    from botorch.acquisition.logei import qLogExpectedImprovement
    from botorch.optim import optimize_acqf
    from botorch.sampling import SobolQMCNormalSampler

    sampler = SobolQMCNormalSampler(sample_shape=torch.Size([SAMPLES]), seed=0)
    acquisition = qLogExpectedImprovement(model, best_f=best, sampler=sampler)
    bounds = torch.tensor([[0.0] * 6, [1.0] * 6], dtype=torch.double)
    points, _ = optimize_acqf(
        acquisition, bounds, q=Q, num_restarts=RESTARTS, raw_samples=RAW, options={"maxiter": STEPS}
    )
    return points.numpy()


def observations(n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Uniform rows and −Hartmann-6 with noise of standard deviation 0.1."""
    generator = np.random.default_rng(0)
    X = generator.uniform(size=(n_rows, 6))
    return X, hartmann6(X) + NOISE**0.5 * generator.normal(size=n_rows)


def hartmann6(X: np.ndarray) -> np.ndarray:
    """Σᵢ αᵢ exp(−Σⱼ Aᵢⱼ(xⱼ − Pᵢⱼ)²), largest 3.32237 (Hartman 1973)."""
    alpha = np.array([1.0, 1.2, 3.0, 3.2])
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
    return np.exp(-(A * (X[:, None, :] - P) ** 2).sum(axis=2)) @ alpha


def _ours(X: np.ndarray, y: np.ndarray) -> Any:
    from stochgp import KernelGPRegressor, kernels
    from stochgp.contrib.botorch import PosteriorModel

    kernel = kernels.Matern52(lengthscale=list(LENGTHSCALES), variance=VARIANCE)
    settings = {
        "learner": None,
        "noise_variance": NOISE,
        "standardize": False,
        "mean": float(y.mean()),
        "memory_limit": MEMORY,
    }
    return PosteriorModel(
        KernelGPRegressor(kernel, prediction="global", random_state=0, **settings).fit(X, y)
    )


def _theirs(X: np.ndarray, y: np.ndarray) -> Any:
    import torch
    from botorch.models import SingleTaskGP
    from gpytorch.kernels import MaternKernel, ScaleKernel
    from gpytorch.means import ConstantMean

    kernel, mean = ScaleKernel(MaternKernel(2.5, ard_num_dims=6)), ConstantMean()
    kernel.base_kernel.lengthscale = torch.tensor(LENGTHSCALES)
    kernel.outputscale = VARIANCE
    mean.initialize(constant=float(y.mean()))
    X_, y_ = torch.tensor(X), torch.tensor(y)[:, None]
    model = SingleTaskGP(
        X_, y_, torch.full_like(y_, NOISE), covar_module=kernel, mean_module=mean, outcome_transform=None
    ).double()
    model.eval()
    model.posterior(X_[:1])  # factorises
    return model


def _in_fresh_process(side: str, n_rows: int) -> dict:
    command = [sys.executable, "-m", "benchmarks.acquisition", side, str(n_rows)]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return {"failed": f"more than {LIMIT} s"}
    return json.loads(done.stdout) if done.returncode == 0 else {"failed": f"exit code {done.returncode}"}


def _shown(value: Any) -> Any:
    return (
        ""
        if value is None
        else round(value, 3)
        if isinstance(value, float) and math.isfinite(value)
        else value
    )


if __name__ == "__main__":
    json.dump(measure(sys.argv[1], int(sys.argv[2])), sys.stdout)
