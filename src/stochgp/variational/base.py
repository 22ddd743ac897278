"""What a variational approximation is: a Gaussian process q(f) in the place of the posterior."""

import abc
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float, PRNGKeyArray


class AbstractProcess(eqx.Module):
    """q(f) at one value of the kernel's parameters: what is computed once for many rows.

    There are L latent functions, independent under q and of the same prior GP(0, k).
    """

    @abc.abstractmethod
    def moments(self, X: Float[Array, "N D"]) -> tuple[Float[Array, "N L"], Float[Array, "N L"]]:
        """(Mean, variance) of each latent function at each row; variances above 0."""

    @abc.abstractmethod
    def mean(self, X: Float[Array, "N D"]) -> Float[Array, "N L"]:
        """Means alone."""

    @abc.abstractmethod
    def covariance_parts(
        self, X: Float[Array, "N D"]
    ) -> tuple[Float[Array, "N N"], Float[Array, "R N"], Float[Array, "L Q N"]]:
        """(K, W, V) with cov(f_l(X)) = K − WᵀW + V_lᵀV_l: the prior, what inducing variables explain of it, what q knows not of these."""

    @abc.abstractmethod
    def divergence(self) -> Float[Array, ""]:
        """KL(q ‖ p), the sum over the latent functions; at least 0."""

    @abc.abstractmethod
    def correction(self, prior: Any, n_samples: int, *, key: PRNGKeyArray) -> Any:
        """The function X ↦ [N, S] that makes of `prior`, S draws X ↦ [N, S] from GP(0, k), draws of the first latent function."""


class AbstractApproximation(eqx.Module):
    """The parameters of q(f). Every floating array trains that is not frozen, apart from those that a learner moves in its own way."""

    @property
    @abc.abstractmethod
    def n_inducing(self) -> int:
        """M, of the covariance."""

    @property
    @abc.abstractmethod
    def n_latent(self) -> int:
        """L."""

    @abc.abstractmethod
    def process(self, kernel: Any) -> AbstractProcess:
        """q(f) with this kernel. Pure: losses differentiate through it."""
