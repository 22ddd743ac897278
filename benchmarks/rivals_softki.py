"""SoftKI in PyTorch for the benchmark `sparse` (Camaño and Huang, arXiv 2410.21419).

k̂(x, x') = w(x)ᵀ K_zz w(x'),   w_j(x) = softmax_j(−‖x/T − z_j‖),   y ~ N(0, W K_zz Wᵀ + σ²I)

Adam learns the M points z_j, a temperature T and a lengthscale per input, the variance and σ². K_zz is a
Matérn-3/2 kernel. Temperatures start at 1, and points at training rows instead of k-means centres.
"""

import math
import time
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.linalg import cholesky_ex, solve_triangular
from torch.nn.functional import softplus

from benchmarks.datasets.prepared import load_raw
from benchmarks.sparse import BATCH, NOISE, RATE, VARIANCE
from stochgp import data, metrics
from stochgp.budget import peak_resident

LEAST_TEMPERATURE = 5e-5  # as in the authors' settings
PROBES = 10  # probes for traces
JITTER = 1e-6  # first jitter if K_zz has no Cholesky factor
TRIAL, SECONDS = 3, 150.0  # steps to compare numbers of threads; seconds of learning
LEARNING, SOLVING = 3, 10  # numbers of jitters, each ten times the previous one


class Posterior(NamedTuple):
    """The posterior of f(x) = w(x)ᵀ K_zz v: c = K_zz α [M], A = R⁻ᵀ K_zz [M, M] and σ²."""

    c: Tensor
    A: Tensor
    noise_variance: Tensor

    def predict(self, W: Tensor) -> tuple[Tensor, Tensor]:
        """Return means w(x)ᵀc and variances ‖A w(x)‖² + σ² of observations."""
        return W @ self.c, (W @ self.A.T).square().sum(1) + self.noise_variance


class SoftKI:
    """The model. Each call takes one step on a batch of rows."""

    def __init__(self, points: Tensor, lengthscale: float):
        self.points = points.clone().requires_grad_()
        each = torch.ones_like(points[0])
        self.raw_lengthscale, self.raw_temperature = _raw(lengthscale * each), _raw(each - LEAST_TEMPERATURE)
        self.raw_variance, self.raw_noise = _raw(VARIANCE * each[0]), _raw(NOISE * each[0])
        raw = [self.raw_lengthscale, self.raw_temperature, self.raw_variance, self.raw_noise]
        self.optimiser = torch.optim.Adam([self.points, *raw], lr=RATE, foreach=True)
        self.steps = self.pseudo_steps = 0

    @property
    def temperature(self) -> Tensor:
        return softplus(self.raw_temperature) + LEAST_TEMPERATURE

    @property
    def noise_variance(self) -> Tensor:
        return softplus(self.raw_noise)

    def weights(self, X: Tensor) -> Tensor:
        """Return W [N, M] with rows w(x), which sum to 1."""
        return torch.softmax(-_distances(X / self.temperature, self.points), dim=1)

    def kernel_matrix(self) -> Tensor:
        """Return K_zz = s²(1 + r) e⁻ʳ, r = √3 ‖(z − z')/ℓ‖."""
        Z = self.points / softplus(self.raw_lengthscale)
        r = math.sqrt(3) * _distances(Z, Z)
        return softplus(self.raw_variance) * (1 + r) * (-r).exp()

    def loss(self, X: Tensor, y: Tensor) -> Tensor:
        """Return −log N(y; 0, W K_zz Wᵀ + σ²I)/B, or the pseudo-loss if a factorisation fails."""
        W, K, s2 = self.weights(X), self.kernel_matrix(), self.noise_variance
        L, _ = _factor(K, LEARNING)
        exact = None if L is None else negative_log_density(W @ L, s2, y)
        if exact is not None:
            return exact
        self.pseudo_steps += 1
        covariance = W @ K @ W.T + s2 * torch.eye(len(y), dtype=y.dtype)
        return pseudo_loss(covariance, y, torch.randn(len(y), PROBES, dtype=y.dtype))

    def step(self, X: Tensor, y: Tensor) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        self.loss(X, y).backward()
        self.optimiser.step()
        self.steps += 1

    @torch.no_grad()
    def posterior(self, X: Tensor, y: Tensor) -> Posterior:
        """Return α = R⁻¹ Q₁ᵀ y/σ from the factorisation [W K_zz/σ; U] = QR with UᵀU = K_zz."""
        std = self.noise_variance.sqrt()
        L, K = _factor(self.kernel_matrix(), SOLVING)
        if L is None:
            raise RuntimeError("the kernel matrix of the points has no Cholesky factor")
        Q, R = torch.linalg.qr(torch.cat([self.weights(X) @ K / std, L.T]))
        alpha = solve_triangular(R, Q[: len(y)].T @ y[:, None] / std, upper=True)[:, 0]
        return Posterior(K @ alpha, solve_triangular(R.T, K, upper=False), std**2)


def negative_log_density(F: Tensor, noise_variance: Tensor, y: Tensor) -> Tensor | None:
    """Return −log N(y; 0, FFᵀ + σ²I)/B from C = I + FᵀF/σ²; None if C has no factor.

    log|FFᵀ + σ²I| = log|C| + B log σ²,   yᵀ(FFᵀ + σ²I)⁻¹y = min_v ‖y − Fv‖²/σ² + ‖v‖², at v = C⁻¹Fᵀy/σ².
    """
    (B, M), s2 = F.shape, noise_variance
    L, failed = cholesky_ex(torch.eye(M, dtype=F.dtype) + F.T @ F / s2)
    if failed:
        return None
    with torch.no_grad():  # v is fixed, because it minimises the loss
        v = torch.cholesky_solve(F.T @ y[:, None], L)[:, 0] / s2
    quadratic = (y - F @ v).square().sum() / s2 + v.square().sum()
    log_determinant = 2 * L.diagonal().log().sum() + B * s2.log()
    return (quadratic + log_determinant + B * math.log(2 * math.pi)) / (2 * B)


def pseudo_loss(covariance: Tensor, y: Tensor, probes: Tensor) -> Tensor:
    """Return (−aᵀDa + (1/S) Σ_s (D⁻¹p_s)ᵀ D p_s)/2B with a = D⁻¹y; D⁻¹ is held fixed.

    Its gradient is that of −log N(y; 0, D)/B, on average over probes p_s. Its value has no meaning.
    """
    with torch.no_grad():
        solved = torch.linalg.solve(covariance, torch.cat([y[:, None], probes], dim=1))
    a, V = solved[:, 0], solved[:, 1:]
    trace = (V * (covariance @ probes)).sum() / probes.shape[1]
    return (trace - a @ covariance @ a) / (2 * len(y))


def _raw(value: Tensor) -> Tensor:
    """Return a leaf whose softplus is `value`."""
    return value.expm1().log().requires_grad_()


def _distances(A: Tensor, B: Tensor) -> Tensor:
    """Return distances without matrix products, which are inaccurate in float32."""
    return torch.cdist(A, B, compute_mode="donot_use_mm_for_euclid_dist")


def _factor(K: Tensor, tries: int) -> tuple[Tensor | None, Tensor]:
    """Return L and K + jI = LLᵀ for the smallest jitter j that suffices, or None."""
    for jitter in (0.0, *(JITTER * 10.0**n for n in range(tries))):
        shifted = K + jitter * torch.eye(len(K), dtype=K.dtype)
        L, failed = cholesky_ex(shifted)
        if not failed:
            return L, shifted
    return None, K


def softki(name: str, size: int) -> dict:
    """Fit split 0 of a UCI set in mini-batches, solve with all rows, and return test scores."""
    torch.manual_seed(0)
    raw = load_raw(name, 0)
    inputs, targets = data.Standardiser.fit(raw.X), data.Standardiser.fit(raw.y)
    X, X_test = (torch.as_tensor(inputs.transform(part, np.float32)) for part in (raw.X, raw.X_test))
    y, y_test = torch.as_tensor(targets.transform(raw.y, np.float32)), targets.transform(raw.y_test)
    model = SoftKI(X[np.random.default_rng(0).permutation(len(X))[:size]], math.sqrt(X.shape[1]))
    begun = time.perf_counter()
    found = _learn(model, X, y, begun + SECONDS)
    posterior = model.posterior(X, y)
    found |= {"fit_seconds": time.perf_counter() - begun, "peak_bytes": peak_resident()}
    moments = posterior.predict(model.weights(X_test).detach())
    mean, variance = (part.numpy().astype(np.float64) for part in moments)
    given = y_test, mean, np.sqrt(variance)
    return found | {
        "rmse": metrics.rmse(y_test, mean),
        "nlpd": metrics.nlpd(*given),
        "coverage95": metrics.coverage(*given),
    }


def _learn(model: SoftKI, X: Tensor, y: Tensor, until: float) -> dict:
    """Take steps until the time is over, after comparing numbers of threads."""
    batches = _row_batches(len(y), min(BATCH, len(y)))

    def step() -> None:
        rows = next(batches)
        model.step(X[rows], y[rows])

    trials = {}
    for threads in (1, 2):
        torch.set_num_threads(threads)
        step()
        begun = time.perf_counter()
        for _ in range(TRIAL):
            step()
        trials[threads] = time.perf_counter() - begun
    threads = min(trials, key=lambda threads: trials[threads])
    torch.set_num_threads(threads)
    tried, since = model.steps, time.perf_counter()
    while time.perf_counter() < until:
        step()
    seconds = (time.perf_counter() - since) / max(model.steps - tried, 1)
    found = {"step_seconds": seconds, "threads": threads}
    return found | {"steps": model.steps, "pseudo_steps": model.pseudo_steps}


def _row_batches(n_rows: int, batch: int) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)
    while True:
        yield from torch.randperm(n_rows, generator=generator)[: n_rows // batch * batch].split(batch)
