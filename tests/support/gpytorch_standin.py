"""Stand-ins of GPyTorch's kernels: the names and the attributes that `from_gpytorch` reads, and no formula."""

from typing import ClassVar

import numpy as np


class Tensor:
    def __init__(self, values, requires_grad=True):
        self.values, self.requires_grad = np.asarray(values), requires_grad

    def detach(self):
        return Tensor(self.values, requires_grad=False)

    def cpu(self):
        return self

    def numpy(self):
        if self.requires_grad:
            raise RuntimeError(
                "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
            )
        return self.values

    def requires_grad_(self, requires_grad):
        self.requires_grad = requires_grad


class Kernel:
    """A value that is set to `lengthscale` trains by `raw_lengthscale`."""

    shapes: ClassVar = {}

    def __init__(self, ard_num_dims=None, batch_shape=(), active_dims=None, nu=None):
        self.nu, self.batch_shape = nu, batch_shape
        self.active_dims = None if active_dims is None else Tensor(active_dims, requires_grad=False)
        for name, shape in self.shapes.items():
            wide = tuple(ard_num_dims or 1 if size is None else size for size in shape)
            self.__dict__[f"raw_{name}"] = Tensor(np.zeros((*batch_shape, *wide)))
            setattr(self, name, 0.6931)

    def __setattr__(self, name, value):
        if name in self.shapes:
            shape = self.__dict__[f"raw_{name}"].values.shape
            value = Tensor(np.broadcast_to(np.asarray(getattr(value, "values", value), np.float64), shape))
        self.__dict__[name] = value


LENGTHSCALE = {"lengthscale": (1, None)}


class RBFKernel(Kernel):
    shapes = LENGTHSCALE


class MaternKernel(Kernel):
    shapes = LENGTHSCALE


class RQKernel(Kernel):
    shapes = LENGTHSCALE | {"alpha": (1,)}


class PeriodicKernel(Kernel):
    shapes = LENGTHSCALE | {"period_length": (1, None)}


class LinearKernel(Kernel):
    shapes: ClassVar = {"variance": (1, None)}


class ConstantKernel(Kernel):
    shapes: ClassVar = {"constant": (1,)}


class CosineKernel(Kernel):
    pass


class ScaleKernel(Kernel):
    shapes: ClassVar = {"outputscale": ()}

    def __init__(self, base_kernel, active_dims=None):
        super().__init__(active_dims=active_dims)
        self.base_kernel = base_kernel
        if base_kernel.active_dims is not None:
            self.active_dims = base_kernel.active_dims


class AdditiveKernel(Kernel):
    def __init__(self, *kernels):
        super().__init__()
        self.kernels = kernels


class ProductKernel(AdditiveKernel):
    pass
