"""Fast compilation of JAX programs, and work in threads."""

import contextlib
import contextvars
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import equinox as eqx
import jax
from jax._src import xla_bridge
from jax._src.core import trace_state_clean
from threadpoolctl import ThreadpoolController

QUICK = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
_STATE = {"is_fork": False}  # True if this process was forked after JAX had started
_LOCK, _LIMITS = threading.Lock(), list[Any]()  # a limit for each block of `one_blas_thread`
T = TypeVar("T")
R = TypeVar("R")


def _note_fork() -> None:
    _STATE["is_fork"] = bool(xla_bridge._backends)  # noqa: SLF001  # avoids a lock


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def require_jax() -> None:
    """Raise RuntimeError if JAX has no device, or if this process was forked after JAX began."""
    if _STATE["is_fork"]:
        raise RuntimeError(
            "this process was forked after JAX had started, so JAX cannot compute here: load the model in each worker (gunicorn without "
            '--preload), or start the workers with the multiprocessing method "spawn"'
        )
    try:
        jax.local_devices()
    except (AssertionError, RuntimeError) as error:
        platforms = os.environ.get("JAX_PLATFORMS")
        raise RuntimeError(
            f"JAX finds no device for computations: JAX_PLATFORMS is {platforms!r} ({str(error) or 'no device'})"
        ) from error


@functools.cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Use one thread of BLAS in this block.

    Products and factors of small matrices on several threads are slow: while they wait, the threads of BLAS
    occupy the cores, which JAX, another library with BLAS, or the other threads of `in_threads` need.
    """
    with _LOCK:  # the number of threads of BLAS is a setting of the process
        _LIMITS.append(_LIMITS[0] if _LIMITS else _libraries().limit(limits=1, user_api="blas"))
    try:
        yield
    finally:
        with _LOCK:
            limit = _LIMITS.pop()
            if not _LIMITS:
                limit.restore_original_limits()


def in_threads(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Call `work` on every item, using one thread per core; return the results in order.

    `work` should give the same result in every thread. If there are several items, it uses one thread of
    BLAS. An error or Ctrl-C cancels waiting items. Do not use `in_threads` for factorisations under `vmap`
    (see `linalg.one_by_one`).
    """
    if len(items) == 1:
        return [work(items[0])]
    wide = jax.dtypes.canonicalize_dtype(float) == "float64"  # new threads do not inherit this setting

    def alike(item: T) -> R:
        with jax.enable_x64(wide):
            return work(item)

    pool = ThreadPoolExecutor(min(cores(), max(1, len(items))))
    try:
        with one_blas_thread():
            begun = [pool.submit(contextvars.copy_context().run, alike, item) for item in items]
            return [future.result() for future in begun]
    finally:
        pool.shutdown(cancel_futures=True)


def quick_jit(function: Callable[..., R]) -> Callable[..., R]:
    """Compile `function` like `eqx.filter_jit`, with options that make compilation fast.

    Use `quick_jit` for programs that run rarely. Inside a traced program, `function` is not compiled.
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
