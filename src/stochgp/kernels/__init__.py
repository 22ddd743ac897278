"""Kernels: covariance functions k(x, z) of pairs of rows."""

from stochgp.kernels.base import AbstractKernel as AbstractKernel
from stochgp.kernels.base import Product as Product
from stochgp.kernels.base import Sum as Sum
from stochgp.kernels.build import resolve as resolve
from stochgp.kernels.linear import Constant as Constant
from stochgp.kernels.linear import Linear as Linear
from stochgp.kernels.periodic import Periodic as Periodic
from stochgp.kernels.stationary import RBF as RBF
from stochgp.kernels.stationary import AbstractStationary as AbstractStationary
from stochgp.kernels.stationary import Matern12 as Matern12
from stochgp.kernels.stationary import Matern32 as Matern32
from stochgp.kernels.stationary import Matern52 as Matern52
from stochgp.kernels.stationary import RationalQuadratic as RationalQuadratic
from stochgp.kernels.tanimoto import Tanimoto as Tanimoto
from stochgp.kernels.warped import Warped as Warped
