"""Other solvers of (K + λI)W = B for `solver_systems`: PyTorch, HiGP and GPyTorch.

Except for HiGP, they store K in float64. They stop at the tolerance or at the time limit, and evaluating K
counts. Trials for step sizes do not count. Each solver takes K + λI, λ, B and `until`, and returns W, the
passes over K, and the seconds that do not count.
"""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.linalg import cholesky_ex, eigh

HIGP_KERNELS = {"RBF": 1, "Matern32": 2, "Matern52": 3}
HIGP_RANK = 200  # rank of the adaptive Nyström preconditioner
BLOCK_OF_PROJECTIONS, BLOCK_OF_SDD, RANK, SHIFT = 1_000, 512, 100, 1e-12
NEAR = 128  # number of rows of a local regression
EIGENPRO_ROWS, EIGENPRO_RANK = 2_000, 160


class Until(NamedTuple):
    """The end of a run: a relative residual, and a time."""

    tolerance: float
    clock: float

    def is_over(self, residual: float) -> bool:
        return residual <= self.tolerance or time.perf_counter() > self.clock


Solver = Callable[[Tensor, float, Tensor, Until], tuple[Tensor, float, float]]


def kernel_matrix(X: Tensor, Z: Tensor, name: str, length: float) -> Tensor:
    """Return k(X, Z) with unit variance and one lengthscale, computed in place."""
    K = torch.cdist(X, Z, compute_mode="donot_use_mm_for_euclid_dist").div_(length)
    for part in K.split(1024):
        if name == "RBF":
            part.square_().mul_(-0.5).exp_()
            continue
        part.mul_(math.sqrt(float(name[-2])))
        polynomial = 1 + part if name == "Matern32" else 1 + part + part**2 / 3
        part.neg_().exp_().mul_(polynomial)
    return K


def _residual(A: Tensor, W: Tensor, B: Tensor) -> float:
    """Return the largest relative residual over columns."""
    return float(((A @ W - B).norm(dim=0) / B.norm(dim=0)).max())


def alternating_projections(A: Tensor, share: float, B: Tensor, until: Until) -> tuple[Tensor, float, float]:
    """Project on the block of the largest residual (Wu, Lin, Hernández-Lobato et al. 2024)."""
    W, R, n = torch.zeros_like(B), B.clone(), len(B)
    blocks = [slice(i, min(i + BLOCK_OF_PROJECTIONS, n)) for i in range(0, n, BLOCK_OF_PROJECTIONS)]
    factors = [cholesky_ex(A[b, b]).L for b in blocks]
    norms, epochs = B.norm(dim=0), 0.0
    while not until.is_over(float((R.norm(dim=0) / norms).max())):
        worst = int(torch.stack([(R[b].norm(dim=0) / norms).square().sum() for b in blocks]).argmax())
        rows = blocks[worst]
        step = torch.cholesky_solve(R[rows], factors[worst])
        W[rows] += step
        R -= A[rows].T @ step
        epochs += len(step) / n
    return W, epochs, 0.0


def sketch_and_project(A: Tensor, share: float, B: Tensor, until: Until) -> tuple[Tensor, float, float]:
    """Run accelerated sketch-and-project (arXiv 2505.13723, algorithm 1, one worker)."""
    n, draw = len(B), torch.Generator().manual_seed(0)
    b = max(n // 100, RANK)
    W, V, Y = (torch.zeros_like(B) for _ in range(3))
    nu = n / b
    mu = min(share, 1 / nu)
    beta, gamma = 1 - math.sqrt(mu / nu), 1 / math.sqrt(mu * nu)
    alpha, steps, checks = 1 / (1 + gamma * nu), 0, 0
    residual = math.inf
    while not until.is_over(residual):
        rows = torch.randperm(n, generator=draw)[:b]
        block = A[rows]
        own = block[:, rows] - share * torch.eye(b, dtype=A.dtype)
        preconditioned, eta = _of_block(own, share, draw)
        d = preconditioned(block @ Y - B[rows])
        W, V = Y.clone(), beta * V + (1 - beta) * Y
        W[rows] -= eta * d
        V[rows] -= eta * gamma * d
        Y = alpha * V + (1 - alpha) * W
        steps += 1
        if steps % math.ceil(nu) == 0:
            residual, checks = _residual(A, W, B), checks + 1
    return W, steps * b / n + checks, 0.0


def _of_block(own: Tensor, share: float, draw: torch.Generator) -> tuple[Callable[[Tensor], Tensor], float]:
    """Return P⁻¹ of the block and η = 1/λ_max(P⁻¹(K_BB + λI)), from ten power iterations."""
    b = len(own)
    omega = torch.linalg.qr(torch.randn(b, RANK, generator=draw, dtype=own.dtype)).Q
    S = own @ omega
    shift = SHIFT * float(own.diagonal().sum())
    S = S + shift * omega
    L = cholesky_ex(omega.T @ S).L
    U, s, _ = torch.linalg.svd(torch.linalg.solve_triangular(L, S.T, upper=False).T, full_matrices=False)
    s = (s.square() - shift).clamp(min=0)
    rho = share + float(s[-1])

    def inverse(x: Tensor) -> Tensor:
        inside = U.T @ x
        return U @ (inside / (s + rho)[:, None]) + (x - U @ inside) / rho

    x = torch.randn(b, 1, generator=draw, dtype=own.dtype)
    for _ in range(10):
        x = x / x.norm()
        x = inverse(own @ x + share * x)
    return inverse, 1 / float(x.norm())


def sdd(A: Tensor, share: float, B: Tensor, until: Until) -> tuple[Tensor, float, float]:
    """Run stochastic dual descent (Lin et al. 2024, algorithm 1) with momentum and averages.

    β n is the largest of 50, 25, … at which 200 steps do not diverge.
    """
    n, rate, begun = len(B), 50.0 / len(B), time.perf_counter()
    while not math.isfinite(_sdd(A, B, rate, 200, math.inf)[1]):
        rate /= 2
    again = time.perf_counter()
    _sdd(A, B, rate, 200, math.inf)
    now = time.perf_counter()
    clock, per_step = until.clock + now - begun, (now - again) / 200
    W, _, steps = _sdd(A, B, rate, max(200, int((clock - now) / per_step)), clock)
    return W, steps * BLOCK_OF_SDD / n, now - begun


def _sdd(A: Tensor, B: Tensor, rate: float, steps: int, clock: float) -> tuple[Tensor, float, int]:
    """Return the averaged W, the relative residual, and the number of steps."""
    n, draw = len(B), torch.Generator().manual_seed(0)
    W, V, average = (torch.zeros_like(B) for _ in range(3))
    r, done = min(1.0, 100 / steps), 0
    for _ in range(steps):
        rows = torch.randperm(n, generator=draw)[:BLOCK_OF_SDD]
        gradient = A[rows] @ (W + 0.9 * V) - B[rows]
        V *= 0.9
        V[rows] -= rate * n / BLOCK_OF_SDD * gradient
        W += V
        average.lerp_(W, r)
        done += 1
        if done % 50 == 0 and time.perf_counter() > clock:
            break
    left = _residual(A, W, B)
    return average, left if left < 10 else math.inf, done


def eigenpro(A: Tensor, share: float, B: Tensor, until: Until) -> tuple[Tensor, float, float]:
    """Run EigenPro 2 (Ma and Belkin 2019), preconditioned by eigenvectors of 2,000 rows."""
    n, draw = len(B), torch.Generator().manual_seed(0)
    some = torch.randperm(n, generator=draw)[:EIGENPRO_ROWS]
    values, vectors = eigh(A[some][:, some])
    values, vectors = values.flip(0), vectors.flip(1)
    top, E, tail = values[:EIGENPRO_RANK], vectors[:, :EIGENPRO_RANK], float(values[EIGENPRO_RANK])
    share_of_top = (1 - tail / top) / top
    # The largest diagonal entry and the leading eigenvalue of the preconditioned kernel.
    peak = float((1 - (E.square() * (top - tail)).sum(dim=1)).max())
    bend = tail / len(some)
    batch = max(1, int(peak / bend)) if bend > 0 else n
    batch = min(batch, 2_000)
    eta = 1.5 * batch / (peak + (batch - 1) * bend)
    W, residual, steps = torch.zeros_like(B), math.inf, 0
    while not until.is_over(residual):
        for rows in torch.randperm(n, generator=draw).split(batch):
            block = A[rows]
            g = (eta / len(rows)) * (block @ W - B[rows])
            W[rows] -= g
            W[some] += E @ (share_of_top[:, None] * (E.T @ (block[:, some].T @ g)))
            steps += len(rows)
        residual = _residual(A, W, B)
    return W, 2 * steps / n, 0.0


SOLVERS: dict[str, Solver] = {
    "torch alternating projections": alternating_projections,
    "torch sketch and project": sketch_and_project,
    "torch sdd": sdd,
    "eigenpro": eigenpro,
}


def solved(
    side: str,
    X: np.ndarray,
    B: np.ndarray,
    name: str,
    length: float,
    share: float,
    until: tuple[float, float],
) -> tuple[np.ndarray, dict[str, float | None]]:
    """Return W, and the seconds and epochs of one solver."""
    begun, uncounted = time.perf_counter(), 0.0
    end = Until(until[0], begun + until[1])
    if side == "higp":
        W, epochs = _by_higp(X, B, name, length, share, end)
    elif side == "gpytorch cg":
        W, epochs = _by_gpytorch(X, B, name, length, share, until[0]), None
    else:
        rows, sides = torch.tensor(X), torch.tensor(B)
        A = kernel_matrix(rows, rows, name, length)
        A.diagonal().add_(share)
        with torch.no_grad():
            found, epochs, uncounted = SOLVERS[side](
                A, share, sides[:, :1] if side == "eigenpro" else sides, end
            )
        W = found.numpy()
    return W, {"seconds": time.perf_counter() - begun - uncounted, "epochs": epochs}


def _by_higp(
    X: np.ndarray, B: np.ndarray, name: str, length: float, share: float, until: Until
) -> tuple[np.ndarray, float]:
    """Solve all columns with HiGP's products and its adaptive Nyström preconditioner."""
    import higp  # pyrefly: ignore[missing-import]

    given = {
        "data": np.ascontiguousarray(X.T),
        "kernel_type": HIGP_KERNELS[name],
        "l": length,
        "f": 1.0,
        "s": share,
    }
    matrix, preconditioner = (
        higp.krnlmat.setup(**given, use_h2=0),
        higp.precond.setup_afn(**given, rank=HIGP_RANK),
    )

    def applied(of, V):
        rows = np.ascontiguousarray(V.T)
        return np.asarray(of.matmul(rows)).reshape(rows.shape).T

    W, R, norms, passes = np.zeros_like(B), B.copy(), np.linalg.norm(B, axis=0), 0
    Z = applied(preconditioner, R)
    P, rz = Z.copy(), np.sum(R * Z, axis=0)
    while not until.is_over(float((np.linalg.norm(R, axis=0) / norms).max())):
        AP = applied(matrix, P)
        step = rz / np.sum(P * AP, axis=0)
        W, R = W + step * P, R - step * AP
        Z = applied(preconditioner, R)
        rz, before = np.sum(R * Z, axis=0), rz
        P = Z + rz / before * P
        passes += 1
    return W, float(passes)


def _by_gpytorch(
    X: np.ndarray, B: np.ndarray, name: str, length: float, share: float, tolerance: float
) -> np.ndarray:
    """Solve with GPyTorch's CG and a pivoted Cholesky preconditioner; K is stored."""
    import gpytorch
    from linear_operator import settings, to_linear_operator

    base = (
        gpytorch.kernels.RBFKernel() if name == "RBF" else gpytorch.kernels.MaternKernel(float(name[-2]) / 2)
    )
    base = base.double()
    base.lengthscale = length
    with (
        torch.no_grad(), settings.max_cholesky_size(0), settings.cg_tolerance(tolerance),
        settings.max_cg_iterations(200), settings.max_preconditioner_size(100),
    ):  # fmt: skip
        K = to_linear_operator(base(torch.tensor(X)).to_dense()).add_diagonal(torch.tensor(share).double())
        W = K.solve(torch.tensor(B)).numpy()
    return W


def locally(
    X: np.ndarray, y: np.ndarray, Z: np.ndarray, name: str, length: float, share: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return means, variances and seconds, with the 128 nearest rows (Muyskens et al. 2021)."""
    from sklearn.neighbors import NearestNeighbors

    begun = time.perf_counter()
    near = NearestNeighbors(n_neighbors=NEAR).fit(X).kneighbors(Z, return_distance=False)
    rows, new, targets = torch.tensor(X[near]), torch.tensor(Z)[:, None], torch.tensor(y[near])[:, :, None]
    means, variances = [], []
    for x, z, t in zip(rows.split(100), new.split(100), targets.split(100), strict=True):
        A, k = kernel_matrix(x, x, name, length), kernel_matrix(x, z, name, length)
        A.diagonal(dim1=1, dim2=2).add_(share)
        w = torch.linalg.solve(A, k)
        means.append((w * t).sum(dim=(1, 2)))
        variances.append(1 - (w * k).sum(dim=(1, 2)))
    found = [torch.cat(parts).numpy() for parts in (means, variances)]
    return found[0], np.maximum(found[1], 0), time.perf_counter() - begun
