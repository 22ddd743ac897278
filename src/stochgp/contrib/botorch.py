"""Fitted estimators as models of BoTorch (`pip install stochgp[botorch]`), so that its acquisition functions run on them with gradients.

Values are in the units of the targets given to `fit`, points in those of the inputs; results have the dtype and the device of the points. JAX computes
them on the host's default device; a custom autograd function passes the gradients on.
"""
# pyright: reportMissingImports=false
# torch, gpytorch and botorch are an extra.

from collections.abc import Callable
from typing import Any

import equinox as eqx
import numpy as np
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.deterministic import DeterministicModel
from botorch.models.model import Model
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultivariateNormal
from jaxtyping import Float
from torch import Tensor

from stochgp.contrib.joint_predictions import draws_at, joint_moments, pull, refuse_encoded, values
from stochgp.estimators import FunctionDraws, PosteriorRegressor

JITTER = 1e-8  # of the largest variance of a set, on the diagonal of its covariance: points that come twice


class PosteriorModel(Model):
    """A fitted estimator with one output: `posterior(X)` at points X [b, q, D] is Gaussian, jointly over the q points of each set.

    Mean and covariance of f are those of `predict` (`contrib.joint_predictions`). With an iterative solver the covariance is estimated from
    64 function samples, with a relative standard error of √(2/S); otherwise it is exact.

    Parameters
    ----------
    estimator : PosteriorRegressor
        A fitted regressor of this package.
    """

    num_outputs = 1
    batch_shape = torch.Size([])

    def __init__(self, estimator: PosteriorRegressor):
        super().__init__()
        self._moments = joint_moments(estimator)
        self.estimator = estimator

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: Any = None,
    ) -> Any:
        """Return the posterior of f, or with `observation_noise` of observations: True adds their variance by `predict`, a tensor [… q, 1] is added."""
        if output_indices not in (None, [0], [-1]):
            raise UnsupportedError(f"outputs {output_indices} were asked for, but the model has one")
        X = self.transform_inputs(X)
        mean, covariance = _call(self._moments, X, len(self.estimator._fitted.inputs.mean))
        jitter = JITTER * covariance.detach().diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True)
        covariance = covariance + torch.diag_embed(self._noise(X, observation_noise) + jitter)
        found = GPyTorchPosterior(MultivariateNormal(mean, covariance))
        return found if posterior_transform is None else posterior_transform(posterior=found, X=X)

    def condition_on_observations(self, X: Tensor, Y: Tensor, **kwargs: Any) -> Model:
        raise UnsupportedError(
            "a PosteriorModel takes in no observations: `update` the estimator and wrap it again"
        )

    def fantasize(self, *args: Any, **kwargs: Any) -> Model:
        raise UnsupportedError(
            "a PosteriorModel has no fantasies: acquisition functions that look ahead need another model"
        )

    def _noise(self, X: Tensor, observation_noise: bool | Tensor) -> Tensor:
        """Return the variance of an observation minus that of f, at least 0, or the given one."""
        if isinstance(observation_noise, Tensor):
            return observation_noise.squeeze(-1).expand(X.shape[:-1])  # pyright: ignore[reportAttributeAccessIssue]
        if not observation_noise:
            return X.new_zeros(X.shape[:-1])
        rows, of = _numbers(X).reshape(-1, X.shape[-1]), self.estimator._fitted.mean_and_std
        noisy, of_f = (of(rows, include_noise=given)[1] for given in (True, False))
        return _tensor(np.maximum(noisy**2 - of_f**2, 0.0).reshape(X.shape[:-1]), X)


class FunctionModel(DeterministicModel):
    """Functions drawn from a posterior as a deterministic model, each an output.

    Raises ValueError for functions of a table whose columns are encoded.

    Parameters
    ----------
    functions : FunctionDraws
        The result of `estimator.sample_functions(S)`: S functions, in the units of the targets.
    """

    batch_shape = torch.Size([])

    def __init__(self, functions: FunctionDraws):
        super().__init__()
        refuse_encoded(functions.encoder)
        self.functions = functions

    @property
    def num_outputs(self) -> int:
        return self.functions.n_samples

    def forward(self, X: Tensor) -> Tensor:
        """f_s(x) [… q, S] at X [… q, D]."""
        return _call(eqx.Partial(draws_at, self.functions), X, len(self.functions.center))[0]


def _call(function: Callable, X: Tensor, n_inputs: int) -> tuple[Tensor, ...]:
    if X.ndim < 2 or X.shape[-1] != n_inputs:
        raise ValueError(f"X must be [… q, {n_inputs}], but got {tuple(X.shape)}")
    found: Any = _Call.apply(X.reshape(-1, *X.shape[-2:]), function)
    return tuple(part.reshape(*X.shape[:-2], *part.shape[1:]) for part in found)


class _Call(torch.autograd.Function):
    """X ↦ `function(X)`, a tuple, by JAX, with the slopes of X."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, function: Callable) -> tuple[Tensor, ...]:
        ctx.function = function
        ctx.save_for_backward(X)
        return tuple(_tensor(found, X) for found in values(function, _numbers(X)))

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (X,) = ctx.saved_tensors
        return _tensor(pull(ctx.function, _numbers(X), *map(_numbers, slopes)), X), None


def _numbers(X: Tensor) -> Float[np.ndarray, "..."]:
    return X.detach().cpu().double().numpy()


def _tensor(values: Float[np.ndarray, "..."], like: Tensor) -> Tensor:
    return torch.as_tensor(np.ascontiguousarray(values)).to(like)
