"""Compiled code that outlives the process: a large part of a small fit is compiling."""

import contextlib
import functools
import hashlib
import logging
import os
import platform
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from jax.experimental.compilation_cache.compilation_cache import reset_cache

FOLDER = "JAX_COMPILATION_CACHE_DIR"
LARGEST = (
    1_000_000_000  # bytes; a folder that has grown beyond is emptied by half, what was read longest ago first
)

_log = logging.getLogger("stochgp")


class _Keeping:
    """Who is inside, in all threads, and what the settings of JAX were before the first of them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.inside = 0
        self.before: dict[str, Any] = {}
        self.warned = False


_KEEPING = _Keeping()


@contextlib.contextmanager
def kept_on_disk() -> Iterator[None]:
    """Inside, JAX takes compiled code from the user's cache folder and keeps it there; outside, its settings are as they were.

    Nothing is changed where JAX_COMPILATION_CACHE_DIR is set (an empty one keeps nothing), where the program has set a folder or switched JAX's
    cache off, or where the folder cannot be written.
    """
    entered = _enter()
    try:
        yield
    finally:
        if entered:
            _leave()


def compiled_folder() -> Path:
    """A folder for each set of instructions: machines of other processors may share the user's files."""
    import platformdirs  # not needed where the user names the folder

    instructions = hashlib.sha256(_instructions().encode()).hexdigest()[:8]
    return Path(platformdirs.user_cache_dir("stochgp")) / "compiled" / f"{platform.machine()}-{instructions}"


def _enter() -> bool:
    with _KEEPING.lock:
        if not _KEEPING.inside:
            if FOLDER in os.environ or _setting(FOLDER.lower()) is not None:
                return False
            if not _setting("jax_enable_compilation_cache") or (folder := _ready(_KEEPING)) is None:
                return False
            settings = {
                "jax_compilation_cache_dir": str(folder),
                "jax_persistent_cache_min_compile_time_secs": 0.0,
            }
            _KEEPING.before = {name: _setting(name) for name in settings}
            _set(settings)
        _KEEPING.inside += 1
        return True


def _leave() -> None:
    with _KEEPING.lock:
        _KEEPING.inside -= 1
        if not _KEEPING.inside:
            _set(_KEEPING.before)
            reset_cache()  # else JAX would go on with the folder, whatever its settings say


def _setting(name: str) -> Any:
    return getattr(jax.config, name)


def _set(settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        jax.config.update(name, value)


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
