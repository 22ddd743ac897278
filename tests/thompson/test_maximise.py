"""How functions are maximised: own rows, padding, proposals, and the maximum found against a grid."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_allclose
from sweeps import some_of

from stochgp.data.rows import Data
from stochgp.thompson.maximise import (
    ladder,
    maximise,
    padded,
    proposed,
    values_at,
)
from tests.posteriors.test_contract import D, made

pytestmark = pytest.mark.usefixtures("double")
BOX = np.array([[-2.0, -1.5], [2.0, 1.0]])
_generator = np.random.default_rng(0)
OBSERVED = Data(_generator.uniform(*BOX, (30, D)), _generator.normal(size=30))
NEARBY = np.array([0.35, 0.75])
GRID = np.stack(np.meshgrid(*(np.linspace(a, b, 81) for a, b in BOX.T)), axis=-1).reshape(-1, 2)


def functions(name, n_samples=6):
    return made(name).functions(n_samples, key=jax.random.key(3))


@pytest.mark.parametrize("name", ["feature", "kernel exact", "kernel by solving"])
@pytest.mark.parametrize("n_samples", some_of([1, 6], [6]))
def test_values_at_own_rows_are_those_of_all_functions(name, n_samples):
    f = functions(name, n_samples)
    Z = jnp.asarray(_generator.uniform(-2, 2, (n_samples, 5, D)))
    own, whole, slope, of_one = jax.jit(
        lambda Z: (
            f.at_own(Z),
            jnp.stack([f(Z[s])[:, s] for s in range(n_samples)]),
            jax.grad(lambda Z: f.at_own(Z)[0, 2])(Z),
            jax.grad(lambda z: f(z[None])[0, 0])(Z[0, 2]),
        )
    )(Z)
    assert_allclose(own, whole, rtol=1e-9, atol=1e-9)
    assert_allclose(slope[0, 2], of_one, rtol=1e-7, atol=1e-8)
    assert not np.any(np.asarray(slope)[1:]) and not np.any(np.delete(slope[0], 2, axis=0))


def test_padding_changes_no_value_and_few_sizes_occur():
    f = functions("kernel exact")
    rows = jnp.asarray(OBSERVED.X)
    assert_allclose(padded(f)(rows), f(rows), rtol=1e-10, atol=1e-10)
    sizes = [ladder(n) for n in range(1, 3000)]
    assert all(n <= size <= 1.125 * n + 1 for n, size in zip(range(1, 3000), sizes, strict=True))
    assert len(set(sizes[1023:2047])) == 8 + 1


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_maximum_is_not_below_that_of_a_grid(sign):
    f = functions("kernel exact")
    best = np.max(sign * np.asarray(values_at(f, jnp.asarray(GRID))), axis=0)
    settings = {"rounds": 8, "proposals": 200, "steps": 100, "generator": np.random.default_rng(1)}
    found = maximise(f, BOX, OBSERVED, NEARBY, sign=sign, **settings)
    assert np.all((found >= BOX[0]) & (found <= BOX[1]))
    values = np.diagonal(np.asarray(f(jnp.asarray(found))))
    assert np.all(sign * values > best - 1e-3 * np.ptp(best))


def test_proposals_are_drawn_around_rows_in_proportion_to_what_they_are_better_by():
    how = (4, 5000)
    X, y = np.array([[-1.0, -1.0], [0.0, 0.0], [1.0, 0.5]]), np.array([1.0, 2.0, 4.0])  # shifted: 0, 1, 3
    found = proposed(how, BOX, Data(X, y), np.full(2, 1e-3), generator=np.random.default_rng(0))
    near = found[:, 500:].reshape(-1, 2)  # the first tenth is uniform
    counts = [np.sum(np.abs(near - x).max(axis=1) < 0.01) for x in X]
    assert counts[0] == 0 and sum(counts) == len(near)
    assert abs(counts[2] / len(near) - 0.75) < 4 * np.sqrt(0.75 * 0.25 / len(near))
    spread = (near - X[np.argmin(np.abs(near[:, :1] - X[:, 0]), axis=1)]).std(axis=0) / 1e-3
    assert_allclose(spread, 1, atol=4 / np.sqrt(2 * len(near)))
    anywhere = found[:, :500].reshape(-1, 2)
    error = np.ptp(BOX, axis=0) / np.sqrt(12 * len(anywhere))
    assert np.all(np.abs(anywhere.mean(axis=0) - (BOX[0] + BOX[1]) / 2) < 4 * error)
    wide = proposed(how, BOX, Data(X, y), np.full(2, 5.0), generator=np.random.default_rng(0))
    assert np.all((wide >= BOX[0]) & (wide <= BOX[1]))
