"""Learning from a stream: rows in any portions, steps on full batches, constant memory."""

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

from stochgp.data.rows import Data
from stochgp.learners.base import BatchState, Problem
from stochgp.learners.decoupled import AbstractGrowing
from stochgp.learners.evaluators import StepPlan
from stochgp.models import SparseGP
from stochgp.numerics.seeds import fold_in, words_of


class Stream(eqx.Module):
    """A model that has learned from a part of a stream, with everything needed to continue.

    A saved stream continues with the same bits. Rows wait until there are B of them. Then the learner takes `passes` steps on this batch,
    with N the number of rows seen so far, and drops them. The model depends on the rows and their order, but not on the portions in which they
    come. Build it with `begin_stream`.

    Parameters
    ----------
    state : BatchState
        The learner's state: the model, its descent, and the number of rows learned from, without the waiting rows.
    waiting, n_waiting : Data, int
        Inputs [B, D], targets [B] and weights [B], with rows in the first `n_waiting` places.
    n_steps, seed : int, array of words
        Steps taken; the seed of their random draws.
    """

    state: BatchState
    waiting: Data
    n_waiting: np.int64
    n_steps: np.int64
    seed: UInt32[Any, " words"]

    @property
    def gp(self) -> SparseGP:
        """The model after the full batches so far."""
        return self.state.gp

    @property
    def n_rows(self) -> int:
        """The number of rows that it has learned from."""
        return int(self.state.n_rows)


def begin_stream(
    learner: AbstractGrowing,
    start: SparseGP | BatchState,
    n_inputs: int,
    *,
    n_steps: int = 0,
    key: PRNGKeyArray,
    dtype: Any = jnp.float32,
) -> Stream:
    """Return the stream before its first row, or the stream that continues a run of `fit`.

    It continues with the rows of the run as those seen so far, and the learning rate from step `n_steps` of its rule; the `decay` of a finite
    run no longer applies. Raises the errors of the learner's `init`.

    Parameters
    ----------
    learner, start, n_steps : AbstractGrowing, SparseGP or BatchState, int
        `IVSGPR` or `SVDGP`, whose `batch_size` is B; the model before the first row, or `FitResult.state` of a run; the run's steps.
    n_inputs, dtype : int, dtype
        D, the inputs of a row; the dtype of the rows in steps.
    key : JAX key
        Used for the first state and the steps.
    """
    if not isinstance(start, BatchState):
        none: Any = SimpleNamespace(size=0, count=0.0)
        start = learner.init(start, Problem(none, StepPlan(learner.batch_size, 1, 1, 1), None), key=key)
    waiting = Data(*(jnp.zeros((learner.batch_size, *s), dtype) for s in ((n_inputs,), (), ())))
    seed = np.asarray(words_of(fold_in(key, 1)), np.uint32)
    return Stream(learner.decaying(start, None), waiting, np.int64(0), np.int64(n_steps), seed)


def feed(
    learner: AbstractGrowing,
    stream: Stream,
    X: Float[np.ndarray, "N D"],
    y: Float[np.ndarray, " any"],
    count: Float[np.ndarray, " other"] | None = None,
    *,
    passes: int | Callable[[int], int] = 1,
) -> tuple[Stream, list[float]]:
    """Return the stream after these rows, and the loss of every step.

    Call it with x64 enabled. Raises ValueError for rows of another shape.

    Parameters
    ----------
    learner, stream : AbstractGrowing, Stream
        The learner with which the stream began; the stream before these rows, which is not changed.
    X, y, count : array [N, D], array [N], array [N] or None
        The rows, their targets and their weights ρ; None = 1.
    passes : int or function
        Steps on each full batch: a number, or a function of the number of steps so far.
    """
    rho = np.ones(len(y)) if count is None else count
    if X.ndim != 2 or X.shape[1] != stream.waiting.X.shape[1] or len(X) != len(y) or len(rho) != len(y):
        raise ValueError(
            f"expected rows [N, {stream.waiting.X.shape[1]}] with N targets and weights, but got {X.shape}, {np.shape(y)}, {np.shape(rho)}"
        )
    given, B, losses, start = Data(X, y, rho), len(stream.waiting.y), [], 0
    compiled = learner.compiled()
    while start < len(y):
        at = int(stream.n_waiting)
        n = min(B - at, len(y) - start)
        part = given.take(slice(start, start + n))
        stream = dataclasses.replace(
            stream, waiting=_put(stream.waiting, part, at), n_waiting=np.int64(at + n)
        )
        start += n
        if at + n == B:
            n_passes = passes(int(stream.n_steps)) if callable(passes) else passes
            stream, found = _learned(compiled, stream, n_passes)
            losses += found
    return stream, losses


def _put(waiting: Data, rows: Data, at: int) -> Data:
    """Return the waiting rows with more rows from place `at`."""

    def put(old: Any, new: Any) -> Array:
        found = np.array(old)
        found[at : at + len(new)] = new
        return jnp.asarray(found)

    return jax.tree.map(put, waiting, rows)


def _learned(learner: AbstractGrowing, stream: Stream, passes: int) -> tuple[Stream, list[float]]:
    """Return the stream after the steps on a full batch, with no waiting rows."""
    batch, state, losses, step = stream.waiting, stream.state, [], int(stream.n_steps)
    more = jnp.asarray(len(batch.y), state.n_rows.dtype), jnp.sum(batch.weight).astype(state.count.dtype)
    state = dataclasses.replace(state, n_rows=state.n_rows + more[0], count=state.count + more[1])
    for i in range(passes):
        state, loss = _step(learner, state, batch, stream.seed, np.uint32(step + i))
        losses.append(float(loss))
    return Stream(state, batch, np.int64(0), np.int64(step + passes), stream.seed), losses


@eqx.filter_jit
def _step(learner: Any, state: Any, batch: Data, seed: Any, number: Any) -> tuple[Any, Array]:
    key = jax.random.fold_in(jax.random.wrap_key_data(seed), number)
    state, info = learner.step(state, batch, key=key)
    return state, info["loss"]
