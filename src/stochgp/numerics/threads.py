"""Work shared among threads. The number of threads of BLAS is a setting of the whole process, which belongs to the program, and stays as it is."""

import contextvars
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from stochgp.compiled import kept_on_disk

T = TypeVar("T")
R = TypeVar("R")


def in_threads(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """`work` of every item, in their order, on a thread for each core; on an accelerator on this thread alone.

    For pieces that keep one core busy, and make the same numbers on any thread. The first is done before the others, so that what has to be
    compiled is compiled once. An error, or Ctrl-C, ends what has not begun.

    Not for programs with factorisations under `vmap`: JAX shares such a batch among the threads of one pool and waits for them on one of these
    threads, so that two programs at once can wait for each other for ever (JAX 0.10.2). Under `lax.map` they are single ones.
    """
    done, rest = [work(item) for item in items[:1]], items[1:]
    n_threads = min(cores(), len(rest)) if jax.default_backend() == "cpu" else 1
    if n_threads <= 1:
        return done + [work(item) for item in rest]
    wide = jax.dtypes.canonicalize_dtype(float) == "float64"  # which a thread does not take over from another

    def alike(item: T) -> R:
        with jax.enable_x64(wide), kept_on_disk():
            return work(item)

    pool = ThreadPoolExecutor(n_threads)
    try:
        begun = [pool.submit(contextvars.copy_context().run, alike, item) for item in rest]
        return done + [one.result() for one in begun]
    finally:
        pool.shutdown(cancel_futures=True)


def after(key: PRNGKeyArray, last: Array | None) -> PRNGKeyArray:
    """The same key, known no sooner than `last`, which holds no NaN; None: at once.

    JAX shares a batch of factorisations among the threads of one pool, and waits for them on one of these threads. Two batches of one program, neither of
    which needs the other, then wait for each other for ever where there are two threads (JAX 0.10.2): the second is to begin after the first.
    """
    return key if last is None else jnp.where(jnp.isnan(last.ravel()[0]), jax.random.fold_in(key, 1), key)


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
