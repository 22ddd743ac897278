"""Programs that are compiled quickly, and threads that share work."""

import contextvars
import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import equinox as eqx
import jax
from jax._src import xla_bridge
from jax._src.core import trace_state_clean

QUICK = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
_STATE = {"is_fork": False}  # of a process that had started JAX
T = TypeVar("T")
R = TypeVar("R")


def _note_fork() -> None:
    _STATE["is_fork"] = bool(xla_bridge._backends)  # noqa: SLF001  # its function would take a lock


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def require_jax() -> None:
    """Raise RuntimeError if JAX has no device, or if the process was forked after JAX had started: without JAX's threads a computation never ends."""
    if _STATE["is_fork"]:
        raise RuntimeError(
            "this process was forked after JAX had started, and JAX cannot compute in it: load the model in each worker (gunicorn without "
            '--preload), or start the workers by the method "spawn" of multiprocessing'
        )
    try:
        jax.local_devices()
    except (AssertionError, RuntimeError) as error:
        platforms = os.environ.get("JAX_PLATFORMS")
        raise RuntimeError(
            f"JAX finds no device to compute on: JAX_PLATFORMS is {platforms!r} ({str(error) or 'there is none'})"
        ) from error


def in_threads(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """`work` of every item, in their order, on a thread for each core.

    For pieces that keep one core busy, without matrix products that BLAS divides among threads, and that make the same numbers on any thread. An error, or
    Ctrl-C, cancels the pieces that have not begun. Not for programs with factorisations under `vmap` (see `linalg.one_by_one`).
    """
    if len(items) == 1:
        return [work(items[0])]
    wide = jax.dtypes.canonicalize_dtype(float) == "float64"  # a setting of this thread

    def alike(item: T) -> R:
        with jax.enable_x64(wide):
            return work(item)

    pool = ThreadPoolExecutor(min(cores(), max(1, len(items))))
    try:
        begun = [pool.submit(contextvars.copy_context().run, alike, item) for item in items]
        return [future.result() for future in begun]
    finally:
        pool.shutdown(cancel_futures=True)


def quick_jit(function: Callable[..., R]) -> Callable[..., R]:
    """`eqx.filter_jit` of a program that runs seldom: compiled in half of the time, and slower by a third where it evaluates functions entry by entry.

    Within another program it is a part of that one.
    """

    @functools.cache
    def program(is_quick: bool) -> Callable[..., R]:
        options: Any = {"compiler_options": QUICK} if is_quick else {}
        return eqx.filter_jit(function, **options)

    is_quick = True

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> R:
        nonlocal is_quick
        if not trace_state_clean():
            return function(*args, **kwargs)
        try:
            return program(is_quick)(*args, **kwargs)
        except jax.errors.JaxRuntimeError as error:
            if not is_quick or "compile option" not in str(error):
                raise
            is_quick = False  # this version of XLA does not know the options
            return program(is_quick)(*args, **kwargs)

    return call


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
