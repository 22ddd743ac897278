"""Compiled code that outlives the process: a large part of a small fit is compiling."""

import contextlib
import functools
import hashlib
import logging
import os
import platform
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

import jax
from jax._src import config, xla_bridge  # settings of `config` are also context managers, each of one thread
from jax.experimental.compilation_cache.compilation_cache import reset_cache

FOLDER = "JAX_COMPILATION_CACHE_DIR"
LARGEST = (
    1_000_000_000  # bytes; a folder that has grown beyond is emptied by half, what was read longest ago first
)

_log = logging.getLogger("stochgp")


class _Keeping:
    """How many blocks of all threads are inside, whether the folder was named in the log, and whether JAX was started before a fork."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = 0
        self.warned = False
        self.is_fork = False

    def note_fork(self) -> None:
        self.is_fork = bool(xla_bridge._backends)  # noqa: SLF001  # its function would take a lock


_KEEPING = _Keeping()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_KEEPING.note_fork)
_FOLDER: ContextVar[Path | None] = ContextVar("folder", default=None)  # of the blocks around


def require_jax() -> None:
    """Raises RuntimeError where JAX has no device, and in a process that was forked after JAX had started: without its threads a computation never ends."""
    if _KEEPING.is_fork:
        raise RuntimeError(
            "this process was forked after JAX had started, and JAX cannot compute in it: load the model in each worker (gunicorn without "
            '--preload), or start the workers by the method "spawn" of multiprocessing'
        )
    try:
        jax.local_devices()
    except (AssertionError, RuntimeError) as error:
        asked = f"JAX_PLATFORMS is {os.environ.get('JAX_PLATFORMS')!r}"
        raise RuntimeError(
            f"JAX finds no device to compute on: {asked} ({str(error) or 'there is none'})"
        ) from error


@contextlib.contextmanager
def kept_on_disk() -> Iterator[None]:
    """Inside, JAX takes compiled code from the user's cache folder and keeps it there. Its settings change in this thread alone.

    Raises RuntimeError as `require_jax` does: every fit and prediction is inside of such a block.

    Nothing is changed where JAX_COMPILATION_CACHE_DIR is set (an empty one keeps nothing), where the program has set a folder or switched JAX's
    cache off, or where the folder cannot be written.
    """
    require_jax()
    if (folder := _FOLDER.get() or _folder()) is None:
        yield
        return
    token = _FOLDER.set(folder)
    with _KEEPING.lock:
        _KEEPING.inside += 1
    try:
        with config.compilation_cache_dir(str(folder)), config.persistent_cache_min_compile_time_secs(0.0):
            yield
    finally:
        _FOLDER.reset(token)
        with _KEEPING.lock:
            _KEEPING.inside -= 1
            if not _KEEPING.inside:
                reset_cache()  # else JAX would go on with the folder, whatever its settings say


def compiled_folder() -> Path:
    """A folder for each set of instructions: machines of other processors may share the user's files."""
    import platformdirs  # not needed where the user names the folder

    instructions = hashlib.sha256(_instructions().encode()).hexdigest()[:8]
    return Path(platformdirs.user_cache_dir("stochgp")) / "compiled" / f"{platform.machine()}-{instructions}"


def _folder() -> Path | None:
    """Where compiled code is kept, None where the settings of the user or of the program decide."""
    if FOLDER in os.environ or config.compilation_cache_dir.value is not None:
        return None
    with _KEEPING.lock:
        return _ready(_KEEPING) if config.enable_compilation_cache.value else None


def _ready(keeping: _Keeping) -> Path | None:
    """The folder, None where it cannot be written; at its first use it is named in the log, and made smaller where it has grown too large."""
    folder = compiled_folder()
    if not os.access(next(place for place in (folder, *folder.parents) if place.exists()), os.W_OK):
        return None
    if not keeping.warned:
        keeping.warned = True
        _log.info("compiled code is kept in %s; %s= (empty) keeps none", folder, FOLDER)
        _make_room(folder)
    return folder


def _make_room(folder: Path, largest: int = LARGEST) -> None:
    """Removes the files that were read longest ago, until half of `largest` is left; another process may remove the same."""
    with contextlib.suppress(OSError):
        found = [(path.stat(), path) for path in folder.iterdir()]
        total = sum(facts.st_size for facts, _ in found)
        for facts, path in sorted(found, key=lambda item: item[0].st_atime) if total > largest else ():
            if total <= largest // 2:
                break
            path.unlink(missing_ok=True)
            total -= facts.st_size


@functools.cache
def _instructions() -> str:
    """Of this processor; a file of some hundred kilobytes on a large machine, and every prediction asks."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
