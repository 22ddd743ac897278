"""`solver_times`: seconds to a posterior mean, and its RMSE, of every solver against PyTorch's Cholesky and GPyTorch's CG.

Matérn-3/2 with the published hyperparameters, split 0, float32, unit-variance targets. Ours are whole fits of `KernelGPRegressor`,
compilation included, mean and 64 samples where variances come from samples; PyTorch's are kernel, factorisation and mean alone;
GPyTorch's CG has its tolerance of 0.01, rank 100 and at most 1,000 iterations. Each run is in a process of its own.
"""

import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np

from measuring.places import ROOT

KEYS = ("set", "side")
SETS = ("pol", "elevators", "bike")
SIDES = ("auto", "cholesky", "cg", "sdd", "torch cholesky", "gpytorch cg")


def run(quick: bool, report: Callable[[str], object]) -> dict:
    """One row per set and side."""
    rows = []
    for name in SETS[:1] if quick else SETS:
        for side in SIDES[:1] if quick else SIDES:
            command = [sys.executable, "-m", "benchmarks.solver_times", name, side]
            found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
            rows.append(json.loads(found.stdout))
            report(json.dumps(rows[-1]))
    return {"settings": {"split": 0, "dtype": "float32"}, "rows": rows}


def table(result: dict) -> tuple[list[str], list[list]]:
    """Seconds and RMSE."""
    headings = ["set", "side", "seconds", "RMSE"]
    return headings, [
        [r["set"], r["side"], round(r["seconds"], 2), round(r["rmse"], 5)] for r in result["rows"]
    ]


def measure(name: str, side: str) -> dict:
    """One run in this process."""
    from benchmarks.datasets.prepared import hyperparameters, load_raw

    raw, theta = load_raw(name, 0), hyperparameters(name, 0)
    scale = np.where(raw.X.std(0) > 0, raw.X.std(0), 1)
    X, X_test = ((part - raw.X.mean(0)) / scale for part in (raw.X, raw.X_test))
    y, y_test = ((part - raw.y.mean()) / raw.y.std() for part in (raw.y, raw.y_test))
    solve = _OTHERS.get(side, _ours)
    seconds, mean = solve(X, y, X_test, theta, side)
    return {
        "set": name,
        "side": side,
        "seconds": seconds,
        "rmse": float(np.sqrt(np.mean((mean - y_test) ** 2))),
    }


def _ours(X, y, X_test, theta, side):
    from stochgp import KernelGPRegressor, kernels

    kernel = kernels.Matern32(theta["lengthscale"], theta["variance"])
    model = KernelGPRegressor(
        kernel,
        learner=None,
        noise_variance=theta["noise_variance"],
        solver=side,
        standardize=False,
        random_state=0,
    )
    begun = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, y)
    mean = model.predict(X_test)
    return time.perf_counter() - begun, mean


def _torch_cholesky(X, y, X_test, theta, side):
    import torch

    def kernel(A, B):
        r = 3**0.5 * torch.cdist(A, B)
        return theta["variance"] * (1 + r) * torch.exp(-r)

    lengthscale = torch.tensor(theta["lengthscale"], dtype=torch.float32)
    A, B = (torch.tensor(part, dtype=torch.float32) / lengthscale for part in (X, X_test))
    t = torch.tensor(y, dtype=torch.float32)[:, None]
    begun = time.perf_counter()
    K = kernel(A, A)
    K.diagonal().add_(theta["noise_variance"])
    mean = kernel(B, A) @ torch.cholesky_solve(t, torch.linalg.cholesky(K))
    return time.perf_counter() - begun, mean[:, 0].numpy()


def _gpytorch_cg(X, y, X_test, theta, side):
    import gpytorch
    import torch

    class Model(gpytorch.models.ExactGP):
        def __init__(self, X, y, likelihood):
            super().__init__(X, y, likelihood)
            base = gpytorch.kernels.MaternKernel(1.5, ard_num_dims=X.shape[1])
            base.lengthscale = torch.tensor(theta["lengthscale"], dtype=torch.float32)
            self.covar_module = gpytorch.kernels.ScaleKernel(base)
            self.covar_module.outputscale = theta["variance"]
            self.mean_module = gpytorch.means.ZeroMean()

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    A, B, t = (torch.tensor(part, dtype=torch.float32) for part in (X, X_test, y))
    likelihood = gpytorch.likelihoods.GaussianLikelihood(
        noise_constraint=gpytorch.constraints.GreaterThan(1e-8)
    )
    likelihood.noise = theta["noise_variance"]
    model = Model(A, t, likelihood).eval()
    settings = gpytorch.settings
    begun = time.perf_counter()
    with (
        torch.no_grad(), warnings.catch_warnings(), settings.max_cholesky_size(0), settings.cg_tolerance(0.01),
        settings.eval_cg_tolerance(0.01), settings.max_cg_iterations(1000), settings.max_preconditioner_size(100),
        settings.skip_posterior_variances(),
    ):  # fmt: skip
        warnings.simplefilter("ignore")
        mean = model(B).mean
    return time.perf_counter() - begun, mean.numpy()


_OTHERS = {"torch cholesky": _torch_cholesky, "gpytorch cg": _gpytorch_cg}


if __name__ == "__main__":
    json.dump(measure(sys.argv[1], sys.argv[2]), sys.stdout)
