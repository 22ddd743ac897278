"""The rival of the benchmark computes the gradient that the library computes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the rivals of the benchmarks need PyTorch (extra bench)")

from benchmarks.problem import make_problem  # noqa: E402
from benchmarks.rivals_sggp import SgGP  # noqa: E402
from stochgp.data.streams import Batch  # noqa: E402
from stochgp.kernels import resolve  # noqa: E402
from stochgp.learners.bsgd import batch_gradient  # noqa: E402
from stochgp.models import KernelGP  # noqa: E402
from stochgp.parameters import partition, positive  # noqa: E402


@pytest.mark.parametrize("by_hand", [False, True])
def test_the_rival_has_the_same_gradient(by_hand):
    problem = make_problem(12, 3, 4)
    rival = SgGP(3, by_hand=by_hand, dtype=torch.float64)
    rival.gradient(*(torch.tensor(part, dtype=torch.float64) for part in (problem.X, problem.y)))
    with jax.enable_x64(True):
        rows = Batch(*(jnp.asarray(part, jnp.float64) for part in (problem.X, problem.y, np.ones(12))))
        gp = KernelGP(resolve("rbf", 3, dtype=jnp.float64), positive(0.1, lower=1e-6, dtype=jnp.float64))
        _, wanted = batch_gradient(*partition(gp), rows)
    found = (part.grad.numpy() for part in rival.parameters)
    parts = wanted.kernel.lengthscale.raw, wanted.kernel.variance.raw, wanted.noise_variance.raw
    for a, b in zip(found, parts, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-7)
