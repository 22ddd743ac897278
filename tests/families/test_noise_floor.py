"""The noise variance that a solver can cope with: unchanged where it can, raised no further than predictions allow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stochgp import kernels
from stochgp.budget import Budget
from stochgp.data import Standardiser
from stochgp.data.rows import Data
from stochgp.data.training import TrainingData
from stochgp.families.kernel_posterior import NOISE_ROUNDINGS, NOISE_SHARE, noise_floor
from stochgp.families.left_out import some_left_out
from stochgp.models import KernelGP
from stochgp.operators import KernelOperator
from stochgp.parameters import cast
from stochgp.solvers import CG, solve

N = 3_100


pytestmark = pytest.mark.usefixtures("double")


def make_rows(n=N, dtype=jnp.float32):
    generator = np.random.default_rng(0)
    X = generator.uniform(-2, 2, (n, 4))
    y = np.sin(2 * X[:, 0]) + np.cos(3 * X[:, 1]) * X[:, 2]
    plain = Standardiser(np.zeros(4), np.ones(4)), Standardiser(np.zeros(()), np.ones(()))
    return TrainingData(Data(X, y), *plain, jnp.dtype(dtype).name)


def left_out(gp, data):
    """Rows predicted from their neighbours."""
    return some_left_out(gp, data, Budget(10**11))  # whatever the process holds


def floor(gp, data):
    return noise_floor(gp, data, left_out(gp, data), data.X.dtype.name)


def test_noise_that_can_be_solved_for_stays():
    gp = KernelGP(kernels.Matern32(2.0, 1.0), 0.1)
    found, growth, _ = floor(gp, make_rows())
    assert found is gp and growth == 0


def test_standard_deviations_hardly_change():
    data, gp = make_rows(), KernelGP(kernels.Matern32(2.0, 1.0), 1e-5)
    found, growth, why = floor(gp, data)
    assert "raised from the learned 1e-05" in why
    variances = [left_out(model, data).variance for model in (gp, found)]
    assert 1 < np.median(variances[1]) / np.median(variances[0]) < 1 + 2 * NOISE_SHARE
    # Variances of f grow too, so that growth is the smaller part of it.
    assert 0 < growth < np.median(variances[1]) / np.median(variances[0]) - 1


def test_rounding_sets_a_bound_that_goes_with_the_signal():
    data, gp = make_rows(), KernelGP(kernels.RBF(20.0, 1e4), 1e-5)
    least = NOISE_ROUNDINGS * np.finfo(np.float32).eps * N**0.5 * 1e4
    assert float(floor(gp, data)[0].noise_variance) == pytest.approx(least, rel=1e-4)
    wide = floor(gp, make_rows(dtype=jnp.float64))[0]
    assert float(wide.noise_variance) < least / 1000


@pytest.mark.long
def test_a_rough_kernel_needs_no_noise_against_rounding():
    """What its rows leave uncertain of one another is above rounding: a solver in float32 reaches 0.01 with less noise than rounding alone would ask for."""
    data, gp = make_rows(), KernelGP(kernels.Matern32(10.0, 1e3), 1e-3)
    found, growth, _ = floor(gp, data)
    assert 0 < growth < NOISE_SHARE
    assert float(found.noise_variance) < 0.25 * NOISE_ROUNDINGS * np.finfo(np.float32).eps * N**0.5 * 1e3
    X, noise = jnp.asarray(data.X, jnp.float32), jnp.asarray(found.noise_variance, jnp.float32)
    operator = KernelOperator.of(cast(found.kernel, "float32"), X, noise)
    assert solve(operator, data.y[:, None], CG(), key=jax.random.key(0), tolerance=1e-2).converged
