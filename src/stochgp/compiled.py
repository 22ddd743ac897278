"""Compiled code that outlives the process, and threads that share work: a large part of a small fit is compiling."""

import contextlib
import contextvars
import functools
import hashlib
import logging
import os
import platform
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import equinox as eqx
import jax
from jax._src import config, xla_bridge  # settings of `config` are also context managers, each of one thread
from jax._src.core import trace_state_clean
from jax.experimental.compilation_cache.compilation_cache import reset_cache

FOLDER = "JAX_COMPILATION_CACHE_DIR"
QUICK = {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
LARGEST = 1_000_000_000  # bytes; from a larger folder the least recently read half is removed

_log = logging.getLogger("stochgp")


_LOCK = threading.Lock()
_STATE = {
    "inside": 0,
    "warned": False,
    "is_fork": False,
}  # blocks of all threads; folder named in the log; forked after JAX had started
_FOLDER: ContextVar[Path | None] = ContextVar("folder", default=None)  # of the surrounding blocks
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


@contextlib.contextmanager
def kept_on_disk() -> Iterator[None]:
    """Return a context, around every fit and prediction, in which JAX keeps compiled code in the user's cache folder. Settings change in this thread alone.

    Nothing is changed if JAX_COMPILATION_CACHE_DIR is set (an empty one keeps nothing), if the program has set a folder or switched JAX's cache off, or
    if the folder cannot be written. Raises RuntimeError as `require_jax` does.
    """
    require_jax()
    if (folder := _FOLDER.get() or _folder()) is None:
        yield
        return
    token = _FOLDER.set(folder)
    with _LOCK:
        _STATE["inside"] += 1
    try:
        with config.compilation_cache_dir(str(folder)), config.persistent_cache_min_compile_time_secs(0.0):
            yield
    finally:
        _FOLDER.reset(token)
        with _LOCK:
            _STATE["inside"] -= 1
            if not _STATE["inside"]:
                reset_cache()  # else JAX would go on with the folder, whatever its settings say


@functools.cache
def compiled_folder() -> Path:
    """Return a folder for each set of instructions: machines of other processors may share the user's files."""
    import platformdirs  # not needed if the user names the folder

    instructions = platform.processor()
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        instructions = next(line for line in lines if line.startswith(("flags", "Features")))
    kind = f"{platform.machine()}-{hashlib.sha256(instructions.encode()).hexdigest()[:8]}"
    return Path(platformdirs.user_cache_dir("stochgp")) / "compiled" / kind


def _folder() -> Path | None:
    """Return the folder for compiled code; None if the settings of the user or of the program decide, or if it cannot be written.

    At its first use it is named in the log, and made smaller if it has grown too large.
    """
    if FOLDER in os.environ or config.compilation_cache_dir.value is not None:
        return None
    with _LOCK:
        if not config.enable_compilation_cache.value:
            return None
        folder = compiled_folder()
        if not os.access(next(place for place in (folder, *folder.parents) if place.exists()), os.W_OK):
            return None
        if not _STATE["warned"]:
            _STATE["warned"] = True
            _log.info("compiled code is kept in %s; %s= (empty) keeps none", folder, FOLDER)
            _make_room(folder)
        return folder


def _make_room(folder: Path, largest: int = LARGEST) -> None:
    """Remove the least recently read files of a too large folder, until half of `largest` is left; another process may remove the same."""
    with contextlib.suppress(OSError):
        found = [(path.stat(), path) for path in folder.iterdir()]
        total = sum(facts.st_size for facts, _ in found)
        for facts, path in sorted(found, key=lambda item: item[0].st_atime) if total > largest else ():
            if total <= largest // 2:
                break
            path.unlink(missing_ok=True)
            total -= facts.st_size


def in_threads(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """`work` of every item, in their order, on a thread for each core.

    For pieces that keep one core busy, without matrix products that BLAS divides among threads, and that make the same numbers on any thread. An error, or
    Ctrl-C, cancels the pieces that have not begun. Not for programs with factorisations under `vmap` (see `linalg.one_by_one`).
    """
    if len(items) == 1:
        return [work(items[0])]
    wide = jax.dtypes.canonicalize_dtype(float) == "float64"  # a setting of this thread

    def alike(item: T) -> R:
        with jax.enable_x64(wide), kept_on_disk():
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
