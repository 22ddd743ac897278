"""sgGP in eager PyTorch, as a competent user would write it: RBF kernel with a lengthscale per input, rows resident, Adam.

θ = (log lengthscales, log variance, log(σ² − floor)). The gradient of the NLML per datum of a batch is there twice: by automatic
differentiation through the Cholesky factor, and `by_hand`, where the cotangent of K, (K⁻¹ − K⁻¹yyᵀK⁻¹)/2m, is written out and only the
kernel is differentiated automatically.
"""

import math

import torch
from torch import Tensor
from torch.linalg import cholesky_ex

FLOOR = 1e-6


class SgGP:
    """One step per call, on the rows of a batch."""

    def __init__(
        self, n_inputs: int, *, by_hand: bool, dtype: torch.dtype = torch.float32, rate: float = 0.01
    ):
        self.by_hand = by_hand
        self.lengthscale = torch.full((n_inputs,), 0.5 * math.log(n_inputs), dtype=dtype).requires_grad_()
        self.variance = torch.zeros((), dtype=dtype).requires_grad_()
        self.noise = torch.tensor(0.1 - FLOOR, dtype=dtype).log().requires_grad_()
        # one foreach call for all parameters: the fused kernel is no faster for three small ones
        self.optimiser = torch.optim.Adam(self.parameters, lr=rate, foreach=True)

    @property
    def parameters(self) -> list[Tensor]:
        return [self.lengthscale, self.variance, self.noise]

    def covariance(self, X: Tensor) -> Tensor:
        """k(X, X) + σ²I."""
        Z = X * (-self.lengthscale).exp()
        norms = Z.square().sum(1)
        squares = torch.addmm(norms[:, None] + norms, Z, Z.t(), alpha=-2).clamp_min(0)
        K = self.variance.exp() * (-0.5 * squares).exp()
        return K + torch.diag((self.noise.exp() + FLOOR).expand(len(X)))

    def gradient(self, X: Tensor, y: Tensor) -> None:
        """Fill `.grad` of every parameter."""
        K = self.covariance(X)
        if self.by_hand:
            K.backward(_cotangent(K.detach(), y))
            return
        L = cholesky_ex(K)[0]
        half = torch.linalg.solve_triangular(L, y[:, None], upper=False)
        ((0.5 * half.square().sum() + L.diagonal().log().sum()) / len(y)).backward()

    def step(self, X: Tensor, y: Tensor) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        self.gradient(X, y)
        self.optimiser.step()


@torch.no_grad()
def _cotangent(K: Tensor, y: Tensor) -> Tensor:
    Q = torch.cholesky_inverse(cholesky_ex(K)[0])
    weights = Q @ y
    return torch.addr(Q, weights, weights, alpha=-1) / (2 * len(y))
