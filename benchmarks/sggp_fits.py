"""`sggp_fits`: seconds of training and test RMSE of sgGP against GPyTorch's SGPR and SVGP: bike rentals by the hour and protein, 60/40.

RBF kernel with a lengthscale per input, float32, rows standardised by the training rows. SGPR has 512 inducing points and 100 steps of
Adam at 0.1, SVGP 1,024 and 100 epochs of batches of 1,024 by Adam at 0.01 (the rate is not published); both begin at random training
rows. `sggp` is the paper's batch of 16 and 100 epochs, `default` the learner as it comes; both predict locally from 256 rows. Every run
is in a process of its own; seconds of training include neighbour search and compilation.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from measuring.places import ROOT

SETS, SIDES = ("bike-hourly", "protein"), ("sggp", "default", "sgpr", "svgp")
KEYS = ("set", "side")
STEPS, EPOCHS, BATCH = 100, 100, 1024
INDUCING = {"sgpr": 512, "svgp": 1024}


def run(quick: bool, report: Callable[[str], object]) -> dict:
    """One row per set and side."""
    rows = []
    for name in SETS[:1] if quick else SETS:
        for side in SIDES[:2] if quick else SIDES:
            command = [sys.executable, "-m", "benchmarks.sggp_fits", name, side]
            found = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
            rows.append(json.loads(found.stdout))
            report(json.dumps(rows[-1]))
    return {"settings": {"trial": 0, "dtype": "float32"}, "rows": rows}


def table(result: dict) -> tuple[list[str], list[list]]:
    headings = ["set", "side", "train s", "predict s", "RMSE", "NLPD"]
    return headings, [
        [r["set"], r["side"], *(round(r[field], 1) for field in ("train_seconds", "predict_seconds"))]
        + [round(r[field], 4) for field in ("rmse", "nlpd")]
        for r in result["rows"]
    ]


def measure(name: str, side: str) -> dict:
    """One run in this process."""
    from measuring import sggp
    from stochgp import metrics

    split = sggp.load(name, 0)
    train, predict = (_gpytorch if side in INDUCING else _ours)(side, split)
    begun = time.perf_counter()
    model = train()
    trained = time.perf_counter()
    mean, variance = predict(model)
    return {
        "set": name,
        "side": side,
        "train_seconds": trained - begun,
        "predict_seconds": time.perf_counter() - trained,
        "rmse": metrics.rmse(split.y_test, mean),
        "nlpd": metrics.nlpd(split.y_test, mean, np.sqrt(variance)),
    }


def _ours(side: str, split: Any) -> tuple[Callable, Callable]:
    from measuring import sggp

    cell = {"batch": 16, "epochs": 100} if side == "sggp" else {"batch": 128, "epochs": None}

    def predict(found: Any) -> tuple[np.ndarray, np.ndarray]:
        posterior = sggp.posterior(found, split)
        mean, variance = posterior.mean_and_variance(split.X_test)
        return mean, variance + posterior.noise_variance

    return lambda: sggp.fit(cell | {"trial": 0}, split)[0], predict


def _gpytorch(side: str, split: Any) -> tuple[Callable, Callable]:
    import torch

    from measuring import sggp

    torch.manual_seed(0)
    X, y, X_test = (torch.as_tensor(part) for part in (*sggp.training_rows(split), split.X_test))
    start = X[torch.randperm(len(X))[: INDUCING[side]]].clone()
    train = _train_sgpr if side == "sgpr" else _train_svgp

    def predict(model: Any) -> tuple[np.ndarray, np.ndarray]:
        model.eval()
        with torch.no_grad():
            found = [model.likelihood(model(part)) for part in X_test.split(2048)]
        mean, variance = (torch.cat([getattr(f, field) for f in found]) for field in ("mean", "variance"))
        return mean.numpy(), variance.numpy()

    return lambda: train(X, y, start), predict


def _train_sgpr(X: Any, y: Any, start: Any) -> Any:
    import gpytorch
    import torch

    class Model(gpytorch.models.ExactGP):
        def __init__(self):
            super().__init__(X, y, gpytorch.likelihoods.GaussianLikelihood())
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.InducingPointKernel(
                _kernel(X.shape[1]), start, self.likelihood
            )

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model = Model()
    loss = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    model.train()
    for _ in range(STEPS):
        optimiser.zero_grad()
        (-loss(model(X), y)).backward()
        optimiser.step()
    return model


def _train_svgp(X: Any, y: Any, start: Any) -> Any:
    import gpytorch
    import torch

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self):
            distribution = gpytorch.variational.CholeskyVariationalDistribution(len(start))
            super().__init__(gpytorch.variational.VariationalStrategy(self, start, distribution))
            self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), _kernel(X.shape[1])
            self.likelihood = gpytorch.likelihoods.GaussianLikelihood()

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model = Model()
    loss = gpytorch.mlls.VariationalELBO(model.likelihood, model, num_data=len(y))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    model.train()
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(y)).split(BATCH):
            optimiser.zero_grad()
            (-loss(model(X[rows]), y[rows])).backward()
            optimiser.step()
    return model


def _kernel(n_inputs: int) -> Any:
    import gpytorch

    return gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=n_inputs))


if __name__ == "__main__":
    json.dump(measure(sys.argv[1], sys.argv[2]), sys.stdout)
