"""Fitted estimators as BoTorch models with gradients (`pip install stochgp[botorch]`).

Points and values are in the original units of inputs and targets. Results have the dtype and device of the
points; JAX computes them on its default device.
"""

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

JITTER = 1e-8  # relative jitter of covariances, for repeated points


class PosteriorModel(Model):
    """A BoTorch model with one output and a joint Gaussian posterior over q points.

    X contains b sets of q points with D inputs, as an array of shape [b, q, D]. `posterior` returns the same
    means and covariances as `predict`. With an iterative solver, the covariance is estimated from 64 sampled
    functions, and the relative standard error of a variance is 0.18.

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
        """Return the posterior of f, plus learned noise (True) or noise variances (a tensor)."""
        if output_indices not in (None, [0], [-1]):
            raise UnsupportedError(f"output_indices is {output_indices}, but the model has only one output")
        X = self.transform_inputs(X)
        mean, covariance = _call(self._moments, X, len(self.estimator._fitted.inputs.mean))
        jitter = JITTER * covariance.detach().diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True)
        covariance = covariance + torch.diag_embed(self._noise(X, observation_noise) + jitter)
        found = GPyTorchPosterior(MultivariateNormal(mean, covariance))
        return found if posterior_transform is None else posterior_transform(posterior=found, X=X)

    def condition_on_observations(self, X: Tensor, Y: Tensor, **kwargs: Any) -> Model:
        raise UnsupportedError(
            "a PosteriorModel cannot be conditioned: call `update` on the estimator and create a new model"
        )

    def fantasize(self, *args: Any, **kwargs: Any) -> Model:
        raise UnsupportedError(
            "a PosteriorModel has no fantasies, so look-ahead acquisition functions do not support it"
        )

    def _noise(self, X: Tensor, observation_noise: bool | Tensor) -> Tensor:
        """Return the noise variance at each point: learned, from the tensor, or 0."""
        if isinstance(observation_noise, Tensor):
            return observation_noise.squeeze(-1).expand(X.shape[:-1])
        if not observation_noise:
            return X.new_zeros(X.shape[:-1])
        rows, of = _numbers(X).reshape(-1, X.shape[-1]), self.estimator._fitted.mean_and_std
        noisy, of_f = (of(rows, include_noise=given)[1] for given in (True, False))
        return _tensor(np.maximum(noisy**2 - of_f**2, 0.0).reshape(X.shape[:-1]), X)


class FunctionModel(DeterministicModel):
    """A deterministic BoTorch model whose outputs are functions drawn from a posterior.

    Raises ValueError if the inputs of the functions need encoding.

    Parameters
    ----------
    functions : FunctionDraws
        The result of `estimator.sample_functions(S)`.
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
        """Return the values [… q, S] of all functions at X [… q, D]."""
        return _call(eqx.Partial(draws_at, self.functions), X, len(self.functions.center))[0]


def _call(function: Callable, X: Tensor, n_inputs: int) -> tuple[Tensor, ...]:
    if X.ndim < 2 or X.shape[-1] != n_inputs:
        raise ValueError(f"X must have the shape […, q, {n_inputs}], but has the shape {tuple(X.shape)}")
    found: Any = _Call.apply(X.reshape(-1, *X.shape[-2:]), function)
    return tuple(part.reshape(*X.shape[:-2], *part.shape[1:]) for part in found)


class _Call(torch.autograd.Function):
    """A call of a JAX function, with gradients in X."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, function: Callable) -> tuple[Tensor, ...]:
        ctx.function = function
        ctx.save_for_backward(X)
        return tuple(_tensor(found, X) for found in values(function, _numbers(X)))

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:
        (X,) = ctx.saved_tensors
        return _tensor(pull(ctx.function, _numbers(X), *map(_numbers, slopes)), X), None


def _numbers(X: Tensor) -> Float[np.ndarray, "..."]:
    return X.detach().cpu().double().numpy()


def _tensor(values: Float[np.ndarray, "..."], like: Tensor) -> Tensor:
    return torch.as_tensor(np.ascontiguousarray(values)).to(like)
