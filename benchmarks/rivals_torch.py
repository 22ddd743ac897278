"""SCGD, MINIMAX and BSGD in eager PyTorch, for `feature_steps`.

Features are φ(x) = relu(relu(xW₁ + b₁)W₂ + b₂) [M], with a linear kernel and σ² = σ²_min + exp(β). Data stay
on the device, and small matrices are factorised without checks (`cholesky_ex`). Each gradient is that of a
scalar with the inverses held fixed.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.linalg import cholesky_ex

from benchmarks.feature_steps import Problem

MakeOptimiser = Callable[[list[Tensor]], torch.optim.Optimizer]


OPTIMISERS: dict[str, MakeOptimiser] = {  # with foreach=True
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-4, foreach=True),
    "adadelta": lambda parameters: torch.optim.Adadelta(parameters, lr=0.1, foreach=True),
}


class Model:
    """A network, w [M] and β as trainable leaves, with N and the minimum of σ²."""

    def __init__(self, problem: Problem, dtype: torch.dtype):
        raw = torch.tensor(problem.noise_variance - problem.noise_floor, dtype=dtype).log()
        self.network = [torch.tensor(part, dtype=dtype).requires_grad_() for part in problem.weights]
        self.beta = raw.requires_grad_()
        self.w = torch.zeros(problem.weights[-1].shape[0], dtype=dtype).requires_grad_()
        self.floor = problem.noise_floor
        self.n_rows = len(problem.y)

    @property
    def n_features(self) -> int:
        return len(self.w)

    def features(self, X: Tensor) -> Tensor:
        W1, b1, W2, b2 = self.network
        return torch.relu(torch.addmm(b2, torch.relu(torch.addmm(b1, X, W1)), W2))

    def noise_variance(self) -> Tensor:
        return self.beta.exp() + self.floor


class SCGD:
    """F̃ ← (1−b)F̃ + bF̂, then G = ∇[(N/B)(‖r‖²/σ² + Σφᵢᵀ P φᵢ) + ‖w‖² + (N−M) log σ² + σ² tr P].

    r = Φw − y and P = F̃⁻¹, held fixed in the gradient.
    """

    streams = 1

    def __init__(
        self,
        problem: Problem,
        optimiser: MakeOptimiser,
        *,
        tracking: float = 0.9,
        dtype: torch.dtype = torch.float32,
    ):
        self.model = Model(problem, dtype)
        self.tracking = tracking
        self.tracker = torch.eye(self.model.n_features, dtype=dtype) * problem.noise_variance
        self.optimiser = optimiser([*self.model.network, self.model.w, self.model.beta])

    @torch.no_grad()
    def track(self, Phi: Tensor, s2: Tensor) -> Tensor:
        """Update the tracker in place, and return its inverse [M, M]."""
        scale = self.model.n_rows / len(Phi)
        torch.addmm(
            self.tracker, Phi.t(), Phi, beta=1 - self.tracking, alpha=self.tracking * scale, out=self.tracker
        )
        self.tracker.diagonal().add_(s2, alpha=self.tracking)
        return torch.cholesky_inverse(cholesky_ex(self.tracker)[0])

    def gradient(self, X: Tensor, y: Tensor) -> None:
        """Fill `.grad` of every parameter."""
        Phi, s2 = self.model.features(X), self.model.noise_variance()
        inverse = self.track(Phi, s2)
        self._scalar(Phi, y, s2, inverse).backward()

    def _scalar(self, Phi: Tensor, y: Tensor, s2: Tensor, inverse: Tensor) -> Tensor:
        model, scale = self.model, self.model.n_rows / len(y)
        fit = (Phi @ model.w - y).square().sum() / s2 + (Phi @ inverse * Phi).sum()
        complexity = (model.n_rows - model.n_features) * s2.log() + s2 * inverse.trace()
        return scale * fit + model.w.square().sum() + complexity

    def step(self, *batches: tuple[Tensor, Tensor]) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        self.gradient(*batches[0])
        self.optimiser.step()


class BSGD:
    """∇[yᵀQy + log|K|] on the batch, K = ΦΦᵀ + σ²I, Q = K⁻¹.

    It equals ∇ tr(CK) with C = Q − QyyᵀQ held fixed.
    """

    streams = 1

    def __init__(self, problem: Problem, optimiser: MakeOptimiser, *, dtype: torch.dtype = torch.float32):
        self.model = Model(problem, dtype)
        self.optimiser = optimiser([*self.model.network, self.model.beta])

    @torch.no_grad()
    def coefficients(self, Phi: Tensor, y: Tensor, s2: Tensor) -> Tensor:
        """C = Q − QyyᵀQ [B, B]."""
        K = Phi @ Phi.t()
        K.diagonal().add_(s2)
        Q = torch.cholesky_inverse(cholesky_ex(K)[0])
        weights = Q @ y
        return torch.addr(Q, weights, weights, alpha=-1)

    def gradient(self, X: Tensor, y: Tensor) -> None:
        """Fill `.grad` of every parameter."""
        Phi, s2 = self.model.features(X), self.model.noise_variance()
        C = self.coefficients(Phi, y, s2)
        ((C @ Phi * Phi).sum() + s2 * C.trace()).backward()

    def step(self, *batches: tuple[Tensor, Tensor]) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        self.gradient(*batches[0])
        self.optimiser.step()


class Minimax:
    """Alternating projected descent in (θ, A) and ascent in B on g(θ) + log|A| + μ⟨B, A − F(θ)⟩/‖A‖.

    Two Cholesky factorisations only check the projection onto σ²I ⪯ A ⪯ a_max I. `violations` counts the
    steps that would have needed it. A₀ is F̂(θ₀) of the first rows + 0.1 of its mean diagonal.
    """

    streams = 2

    def __init__(
        self,
        problem: Problem,
        optimiser: MakeOptimiser,
        *,
        penalty: float = 1.0,
        box: float = 1e3,
        dtype: torch.dtype = torch.float32,
    ):
        self.model = Model(problem, dtype)
        self.penalty, self.box = penalty, box
        self.A = self._start(torch.tensor(problem.X[:4096], dtype=dtype)).requires_grad_()
        self.B = torch.zeros_like(self.A).requires_grad_()
        self.ceiling = 100 * self.A.detach().trace() * torch.eye(self.model.n_features, dtype=dtype)
        self.violations = torch.zeros((), dtype=torch.int32)
        self.theta = [*self.model.network, self.model.w, self.model.beta]
        self.descent = optimiser([*self.theta, self.A])
        self.ascent = optimiser([self.B])

    @torch.no_grad()
    def _start(self, X: Tensor) -> Tensor:
        A = self.moment(self.model.features(X), self.model.noise_variance())
        A.diagonal().add_(0.1 * A.diagonal().mean())
        return A

    @torch.no_grad()
    def moment(self, Phi: Tensor, s2: Tensor) -> Tensor:
        """F̂ = (N/B)ΦᵀΦ + σ²I."""
        F = Phi.t() @ Phi
        F.mul_(self.model.n_rows / len(Phi))
        F.diagonal().add_(s2)
        return F

    def gradient(self, X: Tensor, y: Tensor) -> None:
        """Fill `.grad` of θ and of A."""
        Phi, s2 = self.model.features(X), self.model.noise_variance()
        self._gradient_A(Phi, s2)
        with torch.no_grad():
            pull = self.B * (self.penalty / torch.linalg.matrix_norm(self.A))  # μB/‖A‖
        self._scalar(Phi, y, s2, pull).backward()

    @torch.no_grad()
    def _gradient_A(self, Phi: Tensor, s2: Tensor) -> None:
        """∂A = A⁻¹ + μ[B/‖A‖ − ⟨B, A − F̂⟩ A/‖A‖³]."""
        norm = torch.linalg.matrix_norm(self.A)
        slope = (self.B * (self.A - self.moment(Phi, s2))).sum() * (self.penalty / norm**3)
        inverse = torch.cholesky_inverse(cholesky_ex(self.A)[0])
        self.A.grad = inverse.addcmul_(self.B, self.penalty / norm).sub_(self.A * slope)

    def _scalar(self, Phi: Tensor, y: Tensor, s2: Tensor, pull: Tensor) -> Tensor:
        model, scale = self.model, self.model.n_rows / len(y)
        fit = (Phi @ model.w - y).square().sum() / s2 - (Phi @ pull * Phi).sum()
        complexity = (model.n_rows - model.n_features) * s2.log() - s2 * pull.trace()
        return scale * fit + model.w.square().sum() + complexity

    @torch.no_grad()
    def project(self) -> None:
        """Clip θ, and count a violation if A − σ²I or a_max I − A has no Cholesky factor."""
        for part in self.theta:
            part.clamp_(-self.box, self.box)
        low = self.A.detach().clone()
        low.diagonal().sub_(self.model.noise_variance())
        failed = cholesky_ex(low)[1] + cholesky_ex(self.ceiling - self.A)[1]
        self.violations += failed != 0

    @torch.no_grad()
    def ascend(self, X: Tensor) -> None:
        """B ← proj(B + b μ(A − F̂)/‖A‖), at the new θ and A, on the second batch."""
        F = self.moment(self.model.features(X), self.model.noise_variance())
        self.B.grad = (F - self.A).mul_(self.penalty / torch.linalg.matrix_norm(self.A))
        self.ascent.step()
        self.B.div_(torch.linalg.matrix_norm(self.B).clamp_min(1.0))

    def step(self, *batches: tuple[Tensor, Tensor]) -> None:
        first, second = batches
        self.descent.zero_grad(set_to_none=True)
        self.gradient(*first)
        self.descent.step()
        self.project()
        self.ascend(second[0])


METHODS: dict[str, type] = {"scgd": SCGD, "minimax": Minimax, "bsgd": BSGD}


def run_steps(
    rival: Any, X: Tensor, y: Tensor, batch_size: int, n_steps: int, generator: torch.Generator
) -> None:
    """Take at most ⌊N/B⌋ steps on shuffled batches without replacement."""
    streams = [shuffled(X, y, batch_size, n_steps, generator) for _ in range(rival.streams)]
    for batches in zip(*streams, strict=True):
        rival.step(*batches)


def shuffled(
    X: Tensor, y: Tensor, batch_size: int, n_steps: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the first `n_steps` batches of one shuffle."""
    order = torch.randperm(len(y), generator=generator)[: batch_size * n_steps]
    for rows in order.split(batch_size):
        yield X.index_select(0, rows), y.index_select(0, rows)
