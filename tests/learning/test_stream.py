"""Streams: the portions do not matter to the last bit, a file goes on to the same bits, memory stays as it is."""

import dataclasses
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toy import KEY

from stochgp.data.rows import Data
from stochgp.kernels import RBF
from stochgp.learners import IVSGPR, SVDGP
from stochgp.learning import begin_stream, feed
from stochgp.models import SparseGP
from stochgp.storage.trees import load_tree, save_tree
from stochgp.variational import Decoupled

pytestmark = pytest.mark.usefixtures("double")

_generator = np.random.default_rng(0)
X = _generator.uniform(-2, 2, size=(70, 2))
y = np.sin(2 * X[:, 0]) + 0.1 * _generator.normal(size=70)
COUNT = _generator.integers(1, 3, 70).astype(float)
LEARNERS = {
    "svdgp": (SVDGP(8, learning_rate=0.03, growth=3), Decoupled.of(14, 5, 2, spread=True)),
    "ivsgpr": (IVSGPR(8, learning_rate=0.03, growth=3), Decoupled.of(9, None, 2)),
}


def begun(name):
    learner, q = LEARNERS[name]
    return learner, begin_stream(learner, SparseGP(RBF([1.0, 1.0]), q, 0.1), 2, key=KEY)


def fed(name, cuts, stream=None):
    learner, fresh = begun(name)
    stream = fresh if stream is None else stream
    for a, b in itertools.pairwise(cuts):
        stream, _ = feed(learner, stream, X[a:b], y[a:b], COUNT[a:b])
    return stream


def assert_same(a, b):
    held = lambda s: jax.tree.leaves((s.gp, s.state.descent.optimizer_state, s.state.n_rows, s.state.count))
    for left, right in zip(held(a), held(b), strict=True):
        np.testing.assert_array_equal(left, right)
    n = int(a.n_waiting)
    assert n == int(b.n_waiting) and int(a.n_steps) == int(b.n_steps)
    np.testing.assert_array_equal(a.waiting.X[:n], b.waiting.X[:n])


@pytest.mark.parametrize("name", LEARNERS)
def test_portions_files_and_memory(name, tmp_path):
    whole, cut = fed(name, [0, 70]), fed(name, [0, 5, 6, 30, 41])
    assert (whole.n_rows, int(whole.n_waiting), int(whole.n_steps)) == (64, 6, 8)
    save_tree(tmp_path / "stream", cut, {})
    loaded, _ = load_tree(tmp_path / "stream")
    assert_same(fed(name, [41, 70], loaded), whole)
    assert_same(fed(name, [41, 60, 70], cut), whole)
    size = lambda s: sum(leaf.nbytes for leaf in jax.tree.leaves(s) if hasattr(leaf, "nbytes"))
    assert size(whole) == size(begun(name)[1])
    assert int(whole.gp.approximation.mean_functions.used) == whole.gp.approximation.mean_functions.capacity
    assert float(whole.state.count) == COUNT[:64].sum()


def test_a_stream_learns_and_says_its_loss():
    learner, stream = begun("svdgp")
    generator, losses = np.random.default_rng(1), []
    for _ in range(15):
        Z = generator.uniform(-2, 2, (40, 2))
        stream, found = feed(learner, stream, Z, np.sin(2 * Z[:, 0]), passes=2)
        losses += found
    assert len(losses) == 2 * 75 and np.mean(losses[-20:]) < np.mean(losses[:20]) - 0.3
    mean = stream.gp.process().mean(jnp.asarray(X, jnp.float32))[:, 0]
    assert np.mean((np.asarray(mean) - np.sin(2 * X[:, 0])) ** 2) < np.var(np.sin(2 * X[:, 0])) / 3


def test_every_pass_over_a_batch_draws_columns_of_its_own():
    """The steps of a plain loop, with the stream's seed folded by the number of the step."""
    learner = dataclasses.replace(LEARNERS["svdgp"][0], n_columns=2)
    stream = begin_stream(learner, SparseGP(RBF([1.0, 1.0]), LEARNERS["svdgp"][1], 0.1), 2, key=KEY)
    found, _ = feed(learner, stream, X[:16], y[:16], passes=3)
    state, step = stream.state, eqx.filter_jit(learner.step)
    for i in range(6):
        at = slice(8 * (i // 3), 8 * (i // 3) + 8)
        batch = Data(jnp.float32(X[at]), jnp.float32(y[at]), jnp.ones(8, jnp.float32))
        seen = (jnp.float32(at.stop), jnp.float32(at.stop))
        state = eqx.tree_at(lambda s: (s.n_rows, s.count), state, seen)
        key = jax.random.fold_in(jax.random.wrap_key_data(stream.seed), np.uint32(i))
        state, _ = step(state, batch, key=key)
    assert eqx.tree_equal(found.gp, state.gp)


def test_rows_of_another_shape_are_refused():
    learner, stream = begun("svdgp")
    with pytest.raises(ValueError, match=r"expected rows \[N, 2\]"):
        feed(learner, stream, X[:, :1], y)
    with pytest.raises(ValueError, match="targets and weights"):
        feed(learner, stream, X, y[:3])
