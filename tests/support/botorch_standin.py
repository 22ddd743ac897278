"""As much of torch, GPyTorch and BoTorch as the bridge takes, on NumPy arrays: the bridge's own arithmetic is tested where they are not installed.

It has no automatic differentiation: `backward` of the bridge's functions is called as torch would. The real packages are in `make test-all`.
"""

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator
from unittest import mock

import numpy as np


class Size(tuple):
    """torch.Size."""


class Tensor:
    """An array with the methods that the bridge calls."""

    def __init__(self, values):
        self.values = np.asarray(values)
        self.shape, self.ndim = Size(self.values.shape), self.values.ndim

    def detach(self):
        return self

    cpu = detach

    def double(self):
        return Tensor(self.values.astype(np.float64))

    def numpy(self):
        return self.values

    def to(self, like):
        return Tensor(self.values.astype(like.values.dtype))

    def new_zeros(self, shape):
        return Tensor(np.zeros(shape, self.values.dtype))

    def squeeze(self, dim):
        return Tensor(self.values.squeeze(dim))

    def expand(self, shape):
        return Tensor(np.broadcast_to(self.values, shape))

    def diagonal(self, *, dim1, dim2):
        return Tensor(np.diagonal(self.values, axis1=dim1, axis2=dim2))

    def amax(self, dim, keepdim):
        return Tensor(self.values.max(axis=dim, keepdims=keepdim))

    def __getitem__(self, index):
        return Tensor(self.values[index])

    def __add__(self, other):
        return Tensor(self.values + other.values)

    def __mul__(self, factor):
        return Tensor(self.values * factor)

    __rmul__ = __mul__


class Context:
    """What `forward` leaves for `backward`."""

    saved_tensors: tuple[Tensor, ...] = ()

    def save_for_backward(self, *tensors):
        self.saved_tensors = tensors


class Function:
    """torch.autograd.Function, without a graph."""

    @classmethod
    def apply(cls, *arguments):
        return cls.forward(Context(), *arguments)


class Model:
    def transform_inputs(self, X):
        return X


class MultivariateNormal:
    def __init__(self, mean, covariance):
        self.mean, self.covariance_matrix = mean, covariance


class GPyTorchPosterior:
    def __init__(self, distribution):
        self.mvn = distribution


class UnsupportedError(Exception):
    pass


def diag_embed(diagonal):
    return Tensor(diagonal.values[..., None] * np.eye(diagonal.shape[-1]))


MODULES = {
    "torch": {
        "Tensor": Tensor,
        "Size": Size,
        "as_tensor": Tensor,
        "diag_embed": diag_embed,
        "autograd": types.SimpleNamespace(Function=Function),
    },
    "gpytorch": {},
    "gpytorch.distributions": {"MultivariateNormal": MultivariateNormal},
    "botorch": {},
    "botorch.exceptions": {},
    "botorch.exceptions.errors": {"UnsupportedError": UnsupportedError},
    "botorch.models": {},
    "botorch.models.deterministic": {"DeterministicModel": Model},
    "botorch.models.model": {"Model": Model},
    "botorch.posteriors": {"GPyTorchPosterior": GPyTorchPosterior},
}


@contextlib.contextmanager
def bridge() -> Iterator[types.ModuleType]:
    """`stochgp.contrib.botorch` on the stand-ins; everything is as before afterwards."""
    from stochgp import contrib

    made = {}
    for name, things in MODULES.items():
        made[name] = types.ModuleType(name)
        vars(made[name]).update(things)
    real = vars(contrib).get("botorch")
    with mock.patch.dict(sys.modules, made):
        sys.modules.pop("stochgp.contrib.botorch", None)
        yield importlib.import_module("stochgp.contrib.botorch")
    vars(contrib).pop("botorch", None)
    if real is not None:
        contrib.botorch = real
