"""The collapsed bound of sparse GPs and SGPR, against dense algebra and the exact likelihood."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from grams import matrix
from numpy.testing import assert_allclose
from toy import KEY

from stochgp.data.memory import MemorySource
from stochgp.kernels import Matern32
from stochgp.learners import SGPR
from stochgp.learners.svgp import without_gaussian
from stochgp.learning import fit
from stochgp.models import KernelGP, SparseGP
from stochgp.numerics.arrays import packed, unpacked
from stochgp.objectives import bound_of_all
from stochgp.objectives import collapsed as module
from stochgp.objectives.collapsed import lower_bound, lower_bound_and_gradient
from stochgp.objectives.kernel import nlml_and_gradient
from stochgp.variational import InducingPoints

N, D, M, NOISE, JITTER = 30, 2, 4, 0.2, 1e-12
_generator = np.random.default_rng(0)
X = _generator.normal(size=(N, D))
Z = _generator.normal(size=(M, D))
y = np.sin(2 * X[:, 0]) + 0.3 * _generator.normal(size=N)

pytestmark = pytest.mark.usefixtures("double")


def model(points=Z):
    kernel = Matern32(jnp.asarray([0.7, 1.5]), jnp.asarray(1.3))
    return SparseGP(kernel, InducingPoints.of(jnp.asarray(points), jitter=JITTER), jnp.asarray(NOISE))


def source(S=slice(None), count=None):
    return MemorySource(X[S], y[S], count, dtype=jnp.float64)


def exact(gp):
    return nlml_and_gradient(KernelGP(gp.kernel, gp.noise), source().on_host(np.arange(N)))


def test_it_is_titsias_bound():
    gp = model()
    k = lambda a, b: np.asarray(matrix(gp.kernel, jnp.asarray(a), jnp.asarray(b)))
    Q = k(X, Z) @ np.linalg.solve(k(Z, Z), k(Z, X))
    A = Q + NOISE * np.eye(N)
    bound = -0.5 * (y @ np.linalg.solve(A, y) + np.linalg.slogdet(2 * np.pi * A)[1])
    bound -= np.trace(k(X, X) - Q) / (2 * NOISE)
    assert_allclose(lower_bound(gp, source())[0], bound, rtol=1e-9)


def test_points_at_the_rows_make_the_bound_exact():
    gp = model(X)
    assert_allclose(lower_bound(gp, source())[0], -N * exact(gp).nlml, rtol=1e-7)
    found = lower_bound_and_gradient(gp, source())[1]
    wanted = exact(gp).gradient
    for mine, theirs in zip(jax.tree.leaves((found.kernel, found.noise)), jax.tree.leaves((wanted.kernel, wanted.noise)), strict=True):  # fmt: skip
        assert_allclose(mine, -theirs, rtol=1e-5, atol=1e-8)


def test_the_gradient_is_that_of_finite_differences(monkeypatch):
    """By chunks of 8 rows, the last one padded."""
    monkeypatch.setattr(module, "_pass_rows", lambda gp: 8)
    gp = model()
    theta, rest = without_gaussian(gp)
    x = packed(theta)
    value = lambda x: lower_bound(eqx.combine(unpacked(x, theta), rest), source())[0] / N
    bound, gradient, _ = lower_bound_and_gradient(gp, source(), without_gaussian)
    assert_allclose(bound, value(x), rtol=1e-12)
    h = 1e-5
    differences = [(value(x + h * e) - value(x - h * e)) / (2 * h) for e in np.eye(len(x))]
    assert_allclose(packed(gradient), differences, rtol=1e-5, atol=1e-8)


def test_chunks_change_nothing(monkeypatch):
    whole = lower_bound_and_gradient(model(), source(), without_gaussian)
    monkeypatch.setattr(module, "_pass_rows", lambda gp: 16)
    parts = lower_bound_and_gradient(model(), source(), without_gaussian)
    assert_allclose(parts[0], whole[0], rtol=1e-12)
    assert_allclose(packed(parts[1]), packed(whole[1]), rtol=1e-9, atol=1e-12)


def test_a_row_of_weight_two_is_two_rows():
    twice, count = [*range(N), 3], np.ones(N)
    count[3] = 2.0
    gp = model()
    mine, theirs = (
        lower_bound_and_gradient(gp, s, without_gaussian) for s in (source(count=count), source(twice))
    )
    assert_allclose(mine[0], theirs[0], rtol=1e-11)
    assert_allclose(packed(mine[1]), packed(theirs[1]), rtol=1e-8, atol=1e-11)


def test_sgpr_ends_where_the_bound_has_no_slope():
    found = fit(SGPR(tolerance=1e-9), model(), source(), key=KEY)
    assert found.converged
    assert found.loss < -lower_bound(model(), source())[0] / N
    bound, gradient, _ = lower_bound_and_gradient(found.gp, source(), without_gaussian)
    assert_allclose(-bound, found.loss, rtol=1e-9)
    assert np.abs(packed(gradient)).max() < 1e-3
    assert_allclose(bound_of_all(found.gp, source()), bound, rtol=1e-7)
