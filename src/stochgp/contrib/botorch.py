"""Fitted estimators as models of BoTorch (`pip install stochgp[botorch]`), so that its acquisition functions run on them with gradients.

Values are in the units of the targets given to `fit`, points in those of the inputs; results have the dtype and the device of the points. JAX computes
them on the host's default device; a custom autograd function passes the gradients on.
"""
# pyright: reportMissingImports=false
# torch, gpytorch and botorch are an extra.

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.deterministic import DeterministicModel
from botorch.models.model import Model
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultivariateNormal
from jaxtyping import Float
from torch import Tensor

from stochgp.contrib.joint_predictions import JointPredictions
from stochgp.estimators import FunctionDraws, PosteriorRegressor
from stochgp.numerics.arrays import by_blocks

JITTER = 1e-8  # of the largest variance of a set, on the diagonal of its covariance: points that come twice
ROWS = 512  # points at which functions are evaluated at a time
Numbers = Float[np.ndarray, "..."]


class PosteriorModel(Model):
    """A fitted estimator with one output: `posterior(X)` at points X [b, q, D] is Gaussian, jointly over the q points of each set.

    Mean and covariance of f are those of `predict` (`contrib.joint_predictions`). With an iterative solver the covariance is estimated from
    64 function samples, with a relative standard error of √(2/S); otherwise it is exact.

    Parameters
    ----------
    estimator : PosteriorRegressor
        A fitted regressor of this package.
    """

    def __init__(self, estimator: PosteriorRegressor):
        super().__init__()
        self._joint = JointPredictions(estimator)
        self.estimator = estimator

    @property
    def num_outputs(self) -> int:
        return 1

    @property
    def batch_shape(self) -> torch.Size:
        return torch.Size([])

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
        _check_points(X, self._joint.n_inputs)
        mean, covariance = _Call.apply(X, self._value, self._pull)  # pyright: ignore[reportGeneralTypeIssues]
        noise = self._noise(X, observation_noise)
        jitter = JITTER * covariance.detach().diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True)
        covariance = covariance + torch.diag_embed(noise + jitter)
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

    def _value(self, X: Numbers) -> tuple[Numbers, Numbers]:
        """Return (Mean [… q], covariance [… q, q]) at X [… q, D], in the units of the targets."""
        mean, covariance = self._joint.value(X.reshape(-1, *X.shape[-2:]))
        return mean.reshape(X.shape[:-1]), covariance.reshape(*X.shape[:-1], X.shape[-2])

    def _pull(self, X: Numbers, by_mean: Numbers, by_covariance: Numbers) -> Numbers:
        q = X.shape[-2]
        sets, by_covariance = X.reshape(-1, *X.shape[-2:]), by_covariance.reshape(-1, q, q)
        return self._joint.pull(sets, by_mean.reshape(-1, q), by_covariance).reshape(X.shape)

    def _noise(self, X: Tensor, observation_noise: bool | Tensor) -> Tensor:
        if isinstance(observation_noise, Tensor):
            return observation_noise.squeeze(-1).expand(X.shape[:-1])  # pyright: ignore[reportAttributeAccessIssue]
        if not observation_noise:
            return X.new_zeros(X.shape[:-1])
        rows = _numbers(X).reshape(-1, X.shape[-1])
        return _tensor(self._joint.noise(rows).reshape(X.shape[:-1]), X)


class FunctionModel(DeterministicModel):
    """Functions drawn from a posterior as a deterministic model, each an output.

    Raises ValueError for functions of a table whose columns are encoded.

    Parameters
    ----------
    functions : FunctionDraws
        The result of `estimator.sample_functions(S)`: S functions, in the units of the targets.
    """

    def __init__(self, functions: FunctionDraws):
        super().__init__()
        if functions.encoder is not None and not getattr(functions.encoder, "is_plain", False):
            raise ValueError(
                "the functions are of a table whose columns are encoded: draw them from a model of numbers alone"
            )
        self.functions = functions

    @property
    def num_outputs(self) -> int:
        return self.functions.n_samples

    @property
    def batch_shape(self) -> torch.Size:
        return torch.Size([])

    def forward(self, X: Tensor) -> Tensor:
        """f_s(x) [… q, S] at X [… q, D]."""
        _check_points(X, len(self.functions.center))
        (values,) = _Call.apply(X, self._value, self._pull)  # pyright: ignore[reportGeneralTypeIssues]
        return values

    def _value(self, X: Numbers) -> tuple[Numbers]:
        values = self._by_rows(_evaluated, X.reshape(-1, X.shape[-1]))
        return (values.reshape(*X.shape[:-1], -1),)

    def _pull(self, X: Numbers, by_value: Numbers) -> Numbers:
        rows = X.reshape(-1, X.shape[-1])
        return self._by_rows(_pulled, rows, by_value.reshape(len(rows), -1)).reshape(X.shape)

    def _by_rows(self, evaluate: Callable, *arrays: Numbers) -> Numbers:
        """In blocks of `ROWS` rows, the last one filled up to a power of two."""
        own = lambda *rows: (
            evaluate(self.functions, *(jnp.asarray(part, self.functions.dtype) for part in rows)),
        )
        with jax.enable_x64(True):
            return by_blocks(own, ROWS, *arrays)[0]


class _Call(torch.autograd.Function):
    """X ↦ `value(X)`, a tuple, whose slopes are `pull(X, slopes in each value)`; both are functions of NumPy arrays."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, value: Callable, pull: Callable) -> tuple[Tensor, ...]:
        ctx.pull = pull
        ctx.save_for_backward(X)
        return tuple(_tensor(found, X) for found in value(_numbers(X)))

    @staticmethod
    def backward(ctx: Any, *pulls: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (X,) = ctx.saved_tensors
        return _tensor(ctx.pull(_numbers(X), *map(_numbers, pulls)), X), None, None


@eqx.filter_jit
def _evaluated(functions: FunctionDraws, X: Any) -> Any:
    return functions(X)


@eqx.filter_jit
def _pulled(functions: FunctionDraws, X: Any, by_value: Any) -> Any:
    return jax.vjp(lambda X: functions(X), X)[1](by_value)[0]


def _numbers(X: Tensor) -> Numbers:
    return X.detach().cpu().double().numpy()


def _tensor(values: Numbers, like: Tensor) -> Tensor:
    return torch.as_tensor(np.ascontiguousarray(values)).to(like)


def _check_points(X: Tensor, n_inputs: int) -> None:
    if X.ndim < 2 or X.shape[-1] != n_inputs:
        raise ValueError(f"X must be [… q, {n_inputs}], but got {tuple(X.shape)}")
