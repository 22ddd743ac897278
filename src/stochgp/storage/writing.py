"""Atomic writing of files. This module does not load JAX."""

import contextlib
import errno
import os
import secrets
from collections.abc import Generator, Iterable
from pathlib import Path


def _new_file(path: str | os.PathLike) -> Generator[Path, None, None]:
    """Yield a temporary file, which replaces `path` if the block ends without an error."""
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        kind = "is a folder, not a file" if target.is_dir() else "is a device or a pipe, not a regular file"
        raise ValueError(f"{path}: {kind}")
    if not target.parent.is_dir():
        raise ValueError(f"{path}: cannot be written, because there is no folder {target.parent}")
    partial = target.with_name(f".stochgp-{secrets.token_hex(8)}.tmp")
    try:
        if target.exists():
            os.close(os.open(target, os.O_WRONLY))  # raises an error if the file is not writable
        os.close(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        mode = (target if target.exists() else partial).stat().st_mode & 0o7777
        yield partial
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.chmod(mode)
        partial.replace(target)
    except OSError as error:
        if error.filename not in (None, str(partial), str(target)):
            raise
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), os.fspath(path)) from error
    finally:
        with contextlib.suppress(OSError):  # read-only file systems raise even without a file
            partial.unlink()


replacing = contextlib.contextmanager(_new_file)


def check_can_write(path: str | os.PathLike, inputs: Iterable[str | os.PathLike | None] = ()) -> None:
    """Raise an error if `path` is not writable, is an input, or is in an input folder."""
    target = Path(os.path.realpath(path))
    for source in filter(None, inputs):
        there = os.path.exists(source) and target.exists()
        if there and (os.path.samefile(source, target) or Path(os.path.realpath(source)) in target.parents):
            raise ValueError(f"{path} is read as an input ({source}); choose another file for the output")
    made = _new_file(path)
    next(made)
    made.close()  # removes the file
