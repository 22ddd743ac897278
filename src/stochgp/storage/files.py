"""Files that are replaced whole; models and checkpoints as safetensors files with a JSON header.

A model file holds the SHA-256 digest of its JSON and arrays, which reading compares. Reading runs no code of the file: no pickle,
and classes and functions only of this package, `equinox.nn`, `jax.nn` and `jax.numpy`.
"""

import contextlib
import errno
import hashlib
import json
import os
import secrets
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors
import safetensors.numpy

from stochgp.storage.codec import as_numbers, decode, encode, is_key
from stochgp.version import __version__

FORMAT = 2
_HEADER = "stochgp"
_DIGEST = ', "sha256": "'  # the last entry of the JSON header
_START = b'{"__metadata__":{"stochgp":'  # of every such file, after eight bytes with the length of the header


def _new_file(path: str | os.PathLike) -> Generator[Path, None, None]:
    """Yield an empty file with a unique name in the folder of `path`; it replaces `path` if the block ends without an error.

    Symbolic links stay, and their target is replaced. The new file has the permissions of the old one, else those of the umask. Raises
    ValueError if `path` is a folder, a device, a pipe or in no folder; OSError, with `path` as its file, if writing fails.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        kind = "is a folder, not a file" if target.is_dir() else "is a device or a pipe, not a regular file"
        raise ValueError(f"{path}: {kind}")
    if not target.parent.is_dir():
        raise ValueError(f"{path}: cannot be written, there is no folder {target.parent}")
    partial = target.with_name(f".stochgp-{secrets.token_hex(8)}.tmp")
    try:
        if target.exists():
            os.close(os.open(target, os.O_WRONLY))  # raises for a file without permission to write
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
        with contextlib.suppress(OSError):  # raised by a read-only file system even if there is no file
            partial.unlink()


replacing = contextlib.contextmanager(_new_file)


def check_can_write(path: str | os.PathLike, inputs: Iterable[str | os.PathLike | None] = ()) -> None:
    """Raise what `replacing` would raise, and ValueError if `path` is an input file, or a file in an input folder."""
    target = Path(os.path.realpath(path))
    for source in filter(None, inputs):
        there = os.path.exists(source) and target.exists()
        if there and (os.path.samefile(source, target) or Path(os.path.realpath(source)) in target.parents):
            raise ValueError(f"{path}: is read as an input ({source}); name another file for the output")
    made = _new_file(path)
    next(made)
    made.close()  # removes the file


def save_tree(path: str | os.PathLike, tree: Any, metadata: Mapping[str, Any]) -> None:
    """Write `tree` and `metadata` (JSON values with text keys) to a file, which stays as it was if anything fails.

    A tree is made of what `codec` lists. Raises ValueError, with the place in the tree, for anything else, such as a user's function.
    """
    tensors: dict[str, np.ndarray] = {}
    structure = encode(tree, tensors)
    _write(path, tensors, {"kind": "tree", "structure": structure, "metadata": dict(metadata)})


def load_tree(path: str | os.PathLike) -> tuple[Any, dict[str, Any]]:
    """The tree and the metadata of a file of `save_tree`: the same classes, dtypes and bits.

    float64 arrays keep their dtype also outside of an x64 context. Raises ValueError in one line if the file is not of stochgp,
    truncated, changed since it was written, or of a newer format.
    """
    header, tensors = _read(path, "tree")
    try:
        return decode(header["structure"], tensors), header["metadata"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} cannot be read by stochgp {__version__} (it was written by {header.get('version')}): {error}"
        ) from error


def save_arrays(path: str | os.PathLike, leaves: Iterable[Any], metadata: Mapping[str, Any]) -> None:
    """Write a list of arrays and numbers and `metadata` (JSON values) to a file; PRNG keys as their `key_data`."""
    raw = (jax.random.key_data(leaf) if is_key(leaf) else leaf for leaf in leaves)
    tensors = {f"{i:06d}": as_numbers(leaf, f"leaf {i}") for i, leaf in enumerate(raw)}
    _write(path, tensors, {"kind": "arrays", "metadata": dict(metadata)})


def load_arrays(path: str | os.PathLike) -> tuple[list[np.ndarray], dict[str, Any]]:
    """The NumPy arrays and the metadata of a file of `save_arrays`. Raises ValueError as `load_tree` does."""
    header, tensors = _read(path, "arrays")
    return [tensors[name] for name in sorted(tensors)], header["metadata"]


def _write(path: str | os.PathLike, tensors: dict[str, np.ndarray], header: dict[str, Any]) -> None:
    text = json.dumps({"format": FORMAT, "version": __version__} | header)
    text = f'{text[:-1]}{_DIGEST}{_digest(text, tensors)}"}}'
    with replacing(path) as partial:
        try:
            safetensors.numpy.save_file(tensors, partial, metadata={_HEADER: text})
        except safetensors.SafetensorError as error:
            raise OSError(f"cannot be written: {error}") from error


def _read(path: str | os.PathLike, kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    with Path(path).open("rb") as file:
        start = file.read(8 + len(_START))[8:]
    if start != _START[: len(start)] or not start:
        raise ValueError(f"{path} is {'not' if start else 'too short to be'} a file of stochgp")
    try:
        with safetensors.safe_open(path, "np") as file:
            text = file.metadata()[_HEADER]
            header = json.loads(text)
            if header["format"] > FORMAT:
                raise ValueError(
                    f"{path} was written by format {header['format']} (stochgp {header['version']}); "
                    f"this version reads up to {FORMAT}: upgrade stochgp"
                )
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a dict
    except (safetensors.SafetensorError, json.JSONDecodeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is truncated or damaged ({error})") from error
    body, _, digest = text.rpartition(_DIGEST)
    if digest != _digest(body + "}", tensors) + '"}':
        raise ValueError(
            f"{path} is damaged: its content is not what was written (the SHA-256 digest differs)"
        )
    if header["kind"] != kind:
        names = {"tree": "a model", "arrays": "a checkpoint"}
        raise ValueError(f"{path} holds {names[header['kind']]}, not {names[kind]}")
    return header, tensors


def _digest(text: str, tensors: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of the JSON and of the names, types, shapes and bytes of the arrays."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        digest.update(f"{name} {array.dtype} {tensors[name].shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
