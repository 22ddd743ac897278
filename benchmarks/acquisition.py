"""`acquisition`: seconds and memory of BoTorch to choose 8 candidates for Hartmann-6.

BoTorch maximises qLogEI, given noisy observations. The model is `KernelGPRegressor` with fixed
hyperparameters (through `PosteriorModel`), or BoTorch's `SingleTaskGP` in float64 with the same kernel and
noise. A process that fails or exceeds the time limit has the field "failed" instead of figures.
"""

import subprocess
import time
import warnings
from typing import Any

import numpy as np

from examples.hartmann6 import f as hartmann6
from measuring import store
from measuring.harness import apart
from measuring.tables import table
from stochgp.budget import peak_resident

LIMIT = 600.0  # seconds
LENGTHSCALES, VARIANCE, NOISE = (0.4, 0.5, 0.9, 0.4, 0.4, 0.4), 1.0, 0.01


def cells(quick: bool, slow: bool) -> list[store.Cell]:
    common = {"q": 8, "restarts": 4, "raw_samples": 64, "steps": 50, "mc_samples": 64}
    sizes = (200,) if quick else (2_000, 20_000)
    return [common | {"side": side, "n_rows": n} for n in sizes for side in ("stochgp", "botorch")]


def run(cell: store.Cell) -> dict[str, Any]:
    try:
        return apart("benchmarks.acquisition", "measure", cell, timeout=LIMIT)["results"]
    except subprocess.TimeoutExpired:
        return {"failed": f"more than {LIMIT:.0f} s"}
    except RuntimeError as error:
        return {"failed": str(error)}


def page(records: list[store.Record]) -> list[str]:
    fields = ("prepare_seconds", "batch_seconds", "peak_gb", "expected")
    headings = "side | rows | posterior s | batch of 8 s | peak GB | best value of the batch | failed"
    shown = lambda value: "" if value is None else round(value, 3)
    return [
        table(headings, ([r["side"], r["n_rows"], *(shown(r.get(f)) for f in fields), r.get("failed", "")] for r in store.rows(records)))
    ]  # fmt: skip


def measure(cell: store.Cell) -> dict[str, float]:
    generator = np.random.default_rng(0)
    X = generator.uniform(size=(cell["n_rows"], 6))
    y = hartmann6(X) + NOISE**0.5 * generator.normal(size=len(X))
    begun = time.perf_counter()
    with warnings.catch_warnings(action="ignore"):
        model = {"stochgp": _ours, "botorch": _theirs}[cell["side"]](X, y)
        prepared = time.perf_counter()
        points = _batch(model, float(y.max()), cell)
    return {
        "prepare_seconds": prepared - begun,
        "batch_seconds": time.perf_counter() - prepared,
        "peak_gb": peak_resident() / 1e9,
        "expected": float(hartmann6(points).max()),
    }


def _batch(model: Any, best: float, cell: store.Cell) -> np.ndarray:
    """Return the candidates of qLogEI."""
    import torch
    from botorch.acquisition.logei import qLogExpectedImprovement
    from botorch.optim import optimize_acqf
    from botorch.sampling import SobolQMCNormalSampler

    sampler = SobolQMCNormalSampler(sample_shape=torch.Size([cell["mc_samples"]]), seed=0)
    acquisition = qLogExpectedImprovement(model, best_f=best, sampler=sampler)
    bounds = torch.tensor([[0.0] * 6, [1.0] * 6], dtype=torch.double)
    settings = {"num_restarts": cell["restarts"], "raw_samples": cell["raw_samples"]}
    points, _ = optimize_acqf(
        acquisition, bounds, q=cell["q"], options={"maxiter": cell["steps"]}, **settings
    )
    return points.numpy()


def _ours(X: np.ndarray, y: np.ndarray) -> Any:
    from stochgp import KernelGPRegressor, kernels
    from stochgp.contrib.botorch import PosteriorModel
    from stochgp.likelihoods import Gaussian
    from stochgp.likelihoods.noise import known_noise

    kernel = kernels.Matern52(lengthscale=list(LENGTHSCALES), variance=VARIANCE)
    model = KernelGPRegressor(
        kernel, solver="cholesky", likelihood=Gaussian(known_noise(NOISE)), learner=None, standardize=False, mean=float(y.mean()), memory_limit="2GB", random_state=0
    )  # fmt: skip
    return PosteriorModel(model.fit(X, y))


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
    given = {"covar_module": kernel, "mean_module": mean, "outcome_transform": None}
    model = SingleTaskGP(X_, y_, torch.full_like(y_, NOISE), **given).double()
    model.eval()
    model.posterior(X_[:1])  # computes the Cholesky factor
    return model
