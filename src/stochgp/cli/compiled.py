"""Compiled code that outlives the process: a large part of a small command is compiling."""

import hashlib
import os
import platform
from pathlib import Path

_FOLDER = "JAX_COMPILATION_CACHE_DIR"


def keep_compiled_code() -> None:
    """JAX of this process keeps what it compiles in the user's cache folder; to be called before JAX is loaded.

    Nothing is changed where JAX_COMPILATION_CACHE_DIR is set (an empty one keeps nothing), or where the folder cannot be written.
    """
    if _FOLDER in os.environ:
        return
    folder = compiled_folder()
    if os.access(next(place for place in folder.parents if place.exists()), os.W_OK):
        os.environ[_FOLDER] = str(folder)
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def compiled_folder() -> Path:
    """A folder for each set of instructions: machines of other processors may share the user's files."""
    import platformdirs  # not needed where the user names the folder

    instructions = hashlib.sha256(_instructions().encode()).hexdigest()[:8]
    return Path(platformdirs.user_cache_dir("stochgp")) / "compiled" / f"{platform.machine()}-{instructions}"


def _instructions() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
