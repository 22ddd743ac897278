"""GPyTorch's SVGP and SGPR as its documentation writes them, in float32, for the benchmark `sparse`."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import gpytorch
import numpy as np
import torch

from benchmarks import sparse
from benchmarks.sparse_start import BATCH, NETWORK, NOISE, RATE, VARIANCE, Start, nlpd, start, weights
from stochgp.budget import peak_resident

TRIAL = 3  # steps of each number of threads
PREDICTED = 2048  # rows of a prediction
DEEP_STEPS = 300
STEPS = 2_000  # at least, of `learned_svgp`


class Kernel(gpytorch.kernels.Kernel):
    """k(g(x), g(z)) of a network g."""

    def __init__(self, base: Any, network: torch.nn.Module):
        super().__init__()
        self.base, self.network = base, network

    def forward(self, x1, x2, diag=False, **params):
        return self.base.forward(self.network(x1), self.network(x2), diag=diag, **params)


class SVGP(gpytorch.models.ApproximateGP):
    """Cholesky factor of q(u), whitened, the inducing points learned."""

    def __init__(self, points: torch.Tensor, kernel: Any):
        distribution = gpytorch.variational.CholeskyVariationalDistribution(len(points))
        super().__init__(gpytorch.variational.VariationalStrategy(self, points, distribution))
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel
        self.likelihood = _likelihood()

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


class SGPR(gpytorch.models.ExactGP):
    """`InducingPointKernel`, whose marginal likelihood is Titsias' bound."""

    def __init__(self, X: torch.Tensor, y: torch.Tensor, points: torch.Tensor, kernel: Any):
        super().__init__(X, y, _likelihood())
        self.mean_module = gpytorch.means.ZeroMean()
        self.covar_module = gpytorch.kernels.InducingPointKernel(kernel, points, self.likelihood)

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def svgp(name: str, size: int) -> dict:
    given = start(name, size)
    model = SVGP(torch.as_tensor(given.points), _kernel(given.X.shape[1], given.lengthscale))
    step = _steps_of(model, torch.as_tensor(given.X), torch.as_tensor(given.y), BATCH)
    threads = best_threads(step)
    per_epoch, seconds = len(given.y) // min(BATCH, len(given.y)), []
    for _ in range(sparse.EPOCHS.get(name, 2)):
        begun = time.perf_counter()
        for _ in range(per_epoch):
            step()
        seconds.append((time.perf_counter() - begun) / per_epoch)
    return _found(float(np.median(seconds[1:])), per_epoch * (len(seconds) - 1), threads) | {
        "nlpd": _nlpd(model, given)
    }


def deep(name: str, size: int) -> dict:
    """The time of a step alone."""
    given = start(name, size)
    torch.manual_seed(0)
    kernel = Kernel(_kernel(NETWORK[-1], 1.0), _network(given.X.shape[1]))
    model = SVGP(torch.as_tensor(given.points), kernel)
    step = _steps_of(model, torch.as_tensor(given.X), torch.as_tensor(given.y), size)
    threads = best_threads(step, 50)
    begun = time.perf_counter()
    for _ in range(DEEP_STEPS):
        step()
    return _found((time.perf_counter() - begun) / DEEP_STEPS, DEEP_STEPS, threads)


def sgpr(name: str, size: int) -> dict:
    given = start(name, size)
    X, y = torch.as_tensor(given.X), torch.as_tensor(given.y)
    model = SGPR(X, y, torch.as_tensor(given.points), _kernel(X.shape[1], given.lengthscale))
    loss = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    model.train()

    def step() -> None:
        optimiser.zero_grad()
        (-loss(model(X), y)).backward()
        optimiser.step()

    threads, seconds = best_threads(step, 1), []
    for _ in range(sparse.ITERATIONS):
        begun = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begun)
    return _found(float(np.median(seconds)), sparse.ITERATIONS, threads)


def learned_svgp(
    X: torch.Tensor, y: torch.Tensor, n_points: int = 512, rate: float = 0.01, epochs: int = 40
) -> Callable[[torch.Tensor], tuple[np.ndarray, np.ndarray]]:
    """(Means, variances with noise) of new rows, by an SVGP of standardised rows: batches of 1,024, Adam, a Matérn-5/2 kernel, at least 2,000 steps."""
    torch.manual_seed(0)
    points = X[torch.randperm(len(y))[:n_points]].clone()
    matern = gpytorch.kernels.MaternKernel(nu=2.5, ard_num_dims=X.shape[1])
    model = SVGP(points, gpytorch.kernels.ScaleKernel(matern))
    step = _steps_of(model, X, y, BATCH, rate)
    for _ in range(max(STEPS, epochs * (len(y) // min(BATCH, len(y))))):
        step()
    model.eval()

    def moments(Z: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        with torch.no_grad():
            found = [model.likelihood(model(part)) for part in Z.split(PREDICTED)]
        mean, variance = (
            torch.cat([getattr(of, name) for of in found]).numpy() for name in ("mean", "variance")
        )
        return mean.astype(np.float64), variance.astype(np.float64)

    return moments


def _steps_of(
    model: SVGP, X: torch.Tensor, y: torch.Tensor, batch: int, rate: float = RATE
) -> Callable[[], None]:
    loss = gpytorch.mlls.VariationalELBO(model.likelihood, model, num_data=len(y))
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    batches = row_batches(len(y), min(batch, len(y)))
    model.train()

    def step() -> None:
        rows = next(batches)
        optimiser.zero_grad()
        (-loss(model(X[rows]), y[rows])).backward()
        optimiser.step()

    return step


def row_batches(n_rows: int, batch: int) -> Iterator[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    while True:
        yield from torch.randperm(n_rows, generator=generator)[: n_rows // batch * batch].split(batch)


def best_threads(step: Callable[[], None], n: int = TRIAL) -> int:
    """1 or 2, by `n` steps of each after one that is not timed; the better one is set."""
    seconds = {}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        step()
        begun = time.perf_counter()
        for _ in range(n):
            step()
        seconds[threads] = time.perf_counter() - begun
    best = min(seconds, key=lambda threads: seconds[threads])
    torch.set_num_threads(best)
    return best


def _found(step_seconds: float, steps: int, threads: int) -> dict:
    return {
        "step_seconds": step_seconds,
        "steps": steps,
        "threads": threads,
        "peak_bytes": peak_resident(),
    }


def _nlpd(model: SVGP, given: Start) -> float:
    model.eval()
    with torch.no_grad():
        found = [model.likelihood(model(part)) for part in torch.as_tensor(given.X_test).split(PREDICTED)]
    mean, variance = (torch.cat([getattr(f, name) for f in found]) for name in ("mean", "variance"))
    return nlpd(given, mean.numpy().astype(np.float64), variance.numpy().astype(np.float64))


def _likelihood() -> Any:
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    likelihood.noise = NOISE
    return likelihood


def _kernel(n_inputs: int, lengthscale: float) -> Any:
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=n_inputs))
    kernel.outputscale, kernel.base_kernel.lengthscale = VARIANCE, lengthscale
    return kernel


def _network(n_inputs: int) -> torch.nn.Module:
    layers: list[torch.nn.Module] = []
    for W, b in weights(n_inputs):
        layer = torch.nn.Linear(*W.shape)
        with torch.no_grad():
            layer.weight.copy_(torch.as_tensor(W.T))
            layer.bias.copy_(torch.as_tensor(b))
        layers += [layer, torch.nn.Tanh()]
    return torch.nn.Sequential(*layers[:-1])
