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

from stochgp.estimators import FunctionDraws, PosteriorRegressor
from stochgp.estimators.joint_predictions import JointPredictions
from stochgp.numerics.arrays import by_blocks

JITTER = 1e-8  # of the largest variance of a set, on the diagonal of its covariance: points that come twice
ROWS = 512  # points at which functions are evaluated at a time


class PosteriorModel(Model):
    """A fitted estimator with one output: `posterior(X)` at points X [b, q, D] is Gaussian, jointly over the q points of each set.

    Mean and covariance of f are those of `predict` (`estimators.joint_predictions`). With an iterative solver the covariance is estimated from
    `n_samples` function samples, or 64, with a relative standard error of √(2/S); otherwise it is exact.

    Raises TypeError unless the estimator is a regressor, ValueError for a posterior without covariances, encoded inputs, and targets that are
    transformed or counts.

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
        """The posterior of f, or with `observation_noise` of observations: True adds their variance by `predict`, a tensor [… q, 1] is added."""
        _check_outputs(output_indices, 1)
        X = self.transform_inputs(X)
        _check_points(X, self._joint.n_inputs)
        mean, covariance = _Moments.apply(X, self)  # pyright: ignore[reportGeneralTypeIssues]
        noise = self._noise(X, observation_noise)
        jitter = JITTER * covariance.detach().diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True)
        covariance = covariance + torch.diag_embed(noise + jitter)
        found = GPyTorchPosterior(MultivariateNormal(mean, covariance))
        return found if posterior_transform is None else posterior_transform(posterior=found, X=X)

    def subset_output(self, idcs: list[int]) -> "PosteriorModel":
        """The model itself, which has one output. Raises UnsupportedError for another one."""
        _check_outputs(idcs, 1)
        return self

    def condition_on_observations(self, X: Tensor, Y: Tensor, **kwargs: Any) -> Model:
        raise UnsupportedError(
            "a PosteriorModel takes in no observations: call `update` of the estimator and wrap it again"
        )

    def fantasize(self, *args: Any, **kwargs: Any) -> Model:
        raise UnsupportedError(
            "a PosteriorModel has no fantasies: acquisition functions that look ahead need another model"
        )

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
    outputs : list of int, optional
        Which of the functions are outputs, counted from 0; None = all S.
    """

    def __init__(self, functions: FunctionDraws, outputs: list[int] | None = None):
        super().__init__()
        if functions.encoder is not None and not getattr(functions.encoder, "is_plain", False):
            raise ValueError(
                "the functions are of a table whose columns are encoded: draw them from a model of numbers alone"
            )
        self.functions = functions
        self.outputs = list(range(functions.n_samples)) if outputs is None else outputs

    @property
    def num_outputs(self) -> int:
        return len(self.outputs)

    @property
    def batch_shape(self) -> torch.Size:
        return torch.Size([])

    def forward(self, X: Tensor) -> Tensor:
        """f_s(x) [… q, S] at X [… q, D]."""
        _check_points(X, len(self.functions.center))
        return _Values.apply(X, self.functions)[..., self.outputs]  # pyright: ignore[reportOptionalSubscript]

    def subset_output(self, idcs: list[int]) -> "FunctionModel":
        """Some of the functions."""
        _check_outputs(idcs, len(self.outputs))
        return FunctionModel(self.functions, [self.outputs[i] for i in idcs])


class _Moments(torch.autograd.Function):
    """X [… q, D] ↦ (mean [… q], covariance [… q, q]) in the units of the targets."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, model: PosteriorModel) -> tuple[Tensor, Tensor]:
        mean, covariance = model._joint.value(_numbers(X).reshape(-1, *X.shape[-2:]))
        ctx.model = model
        ctx.save_for_backward(X)
        return _tensor(mean.reshape(X.shape[:-1]), X), _tensor(
            covariance.reshape(*X.shape[:-1], X.shape[-2]), X
        )

    @staticmethod
    def backward(ctx: Any, *pulls: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (X,), q = ctx.saved_tensors, pulls[0].shape[-1]
        by_mean, by_covariance = (_numbers(pull) for pull in pulls)
        sets = _numbers(X).reshape(-1, *X.shape[-2:])
        slope = ctx.model._joint.pull(sets, by_mean.reshape(-1, q), by_covariance.reshape(-1, q, q))
        return _tensor(slope.reshape(X.shape), X), None


class _Values(torch.autograd.Function):
    """X [… q, D] ↦ the values [… q, S] of functions."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, functions: FunctionDraws) -> Tensor:
        ctx.functions = functions
        ctx.save_for_backward(X)
        values = _by_rows(
            lambda x: _evaluated(functions, x), functions.dtype, _numbers(X).reshape(-1, X.shape[-1])
        )
        return _tensor(values.reshape(*X.shape[:-1], -1), X)

    @staticmethod
    def backward(ctx: Any, *pulls: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (X,), functions = ctx.saved_tensors, ctx.functions
        rows, pull = _numbers(X).reshape(-1, X.shape[-1]), _numbers(pulls[0])
        slope = _by_rows(
            lambda x, v: _pulled(functions, x, v), functions.dtype, rows, pull.reshape(len(rows), -1)
        )
        return _tensor(slope.reshape(X.shape), X), None


@eqx.filter_jit
def _evaluated(functions: FunctionDraws, X: Any) -> Any:
    return functions(X)


@eqx.filter_jit
def _pulled(functions: FunctionDraws, X: Any, by_value: Any) -> Any:
    return jax.vjp(lambda X: functions(X), X)[1](by_value)[0]


def _by_rows(evaluate: Callable, dtype: str, *arrays: Float[np.ndarray, "n _"]) -> Float[np.ndarray, "n _"]:
    """In blocks of `ROWS` rows, the last one filled up to a power of two."""
    with jax.enable_x64(True):
        (found,) = by_blocks(
            lambda *rows: (evaluate(*(jnp.asarray(part, dtype) for part in rows)),), ROWS, *arrays
        )
    return found


def _numbers(X: Tensor) -> Float[np.ndarray, "..."]:
    return X.detach().cpu().double().numpy()


def _tensor(values: Float[np.ndarray, "..."], like: Tensor) -> Tensor:
    return torch.as_tensor(np.ascontiguousarray(values)).to(like)


def _check_points(X: Tensor, n_inputs: int) -> None:
    if X.ndim < 2 or X.shape[-1] != n_inputs:
        raise ValueError(f"X must be [… q, {n_inputs}], but got {tuple(X.shape)}")


def _check_outputs(indices: list[int] | None, n_outputs: int) -> None:
    if indices is not None and not all(-n_outputs <= i < n_outputs for i in indices):
        raise UnsupportedError(f"outputs {indices} were asked for, but the model has {n_outputs}")
