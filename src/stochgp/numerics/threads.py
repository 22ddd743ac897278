"""How many threads the linear algebra of the host uses, and work shared among threads."""

import contextvars
import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray
from threadpoolctl import ThreadpoolController

T = TypeVar("T")
R = TypeVar("R")
SMALL = 512  # on two cores a step with one factorisation of 512 × 512 was 1.3 times faster on one thread, of 128 × 128 1.2 to 1.5 times


def one_blas_thread() -> AbstractContextManager:
    """One thread for each BLAS and LAPACK call made inside, by NumPy and by JAX on a CPU.

    Many small factorisations are several times faster so: a library's threads wait for one another longer than they work.
    """
    return _controller().limit(limits=1, user_api="blas")


def few_blas_threads(size: int) -> AbstractContextManager:
    """`one_blas_thread` where the matrices are at most `SMALL` wide."""
    return one_blas_thread() if size <= SMALL else nullcontext()


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
        with jax.enable_x64(wide):
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


@functools.cache
def _controller() -> ThreadpoolController:
    return ThreadpoolController()  # looks at all libraries loaded, which takes milliseconds
