"""Models and checkpoints as files: one safetensors file, whose arrays any safetensors reader shows, and a JSON header.

A file is written by `writing.replacing`, so a file that has the right name is whole. It holds the SHA-256 digest of its JSON and arrays,
which reading compares. Reading
runs no code of the file: no pickle, and classes and functions only of this package, `equinox.nn`, `jax.nn` and `jax.numpy`.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import safetensors
import safetensors.numpy

from stochgp.storage.codec import as_numbers, decode, encode, is_key
from stochgp.storage.writing import replacing
from stochgp.version import __version__

FORMAT = 2  # the first that ends with a digest
_HEADER = "stochgp"
_DIGEST = ', "sha256": "'  # the last entry of the JSON header
_START = b'{"__metadata__":{"stochgp":'  # of every such file, after the eight bytes that give the length of its header


def save_tree(path: str | os.PathLike, tree: Any, metadata: Mapping[str, Any]) -> None:
    """Writes `tree` and `metadata` (JSON values with text keys) to the file `path`, which stays as it was if anything fails.

    A tree is made of Equinox modules, dataclasses and named tuples of this package, modules of `equinox.nn`, lists, tuples, dicts with
    text keys, JAX and NumPy arrays, typed PRNG keys, functions of `jax.nn`, `jax.numpy` and this package, numbers, text and None.
    Raises ValueError, saying where in the tree, for anything else, such as a class or a function of the user's.
    """
    tensors: dict[str, np.ndarray] = {}
    structure = encode(tree, tensors)
    _write(path, tensors, {"kind": "tree", "structure": structure, "metadata": dict(metadata)})


def load_tree(path: str | os.PathLike) -> tuple[Any, dict[str, Any]]:
    """(tree, metadata) of a file of `save_tree`: the same classes, and the same bits in every array.

    Arrays keep their dtype and are again of JAX or of NumPy, as they were; float64 ones also outside of an x64 context, in which
    they can be cast. Raises ValueError in one line when the file is not of stochgp, truncated, changed since it was written, or of a
    newer format.
    """
    header, tensors = _read(path, "tree")
    try:
        return decode(header["structure"], tensors), header["metadata"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} cannot be read by stochgp {__version__} (it was written by {header.get('version')}): {error}"
        ) from error


def save_arrays(path: str | os.PathLike, leaves: Iterable[Any], metadata: Mapping[str, Any]) -> None:
    """Writes a flat list of arrays and numbers, in order, and `metadata` (JSON values with text keys) to the file `path`.

    For checkpoints, where the reader knows the structure. Typed PRNG keys are stored as their `jax.random.key_data`.
    """
    tensors = {f"{i:06d}": _raw(leaf, f"leaf {i}") for i, leaf in enumerate(leaves)}
    _write(path, tensors, {"kind": "arrays", "metadata": dict(metadata)})


def load_arrays(path: str | os.PathLike) -> tuple[list[np.ndarray], dict[str, Any]]:
    """(arrays, metadata) of a file of `save_arrays`: NumPy arrays in their order, with their dtype and bits.

    Raises ValueError as `load_tree` does. The caller compares their number, shapes and dtypes with what it expects.
    """
    header, tensors = _read(path, "arrays")
    return [tensors[name] for name in sorted(tensors)], header["metadata"]


def _raw(leaf: Any, where: str) -> np.ndarray:
    return as_numbers(jax.random.key_data(leaf) if is_key(leaf) else leaf, where)


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
            _check_header(path, header, kind)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a dict
    except (safetensors.SafetensorError, json.JSONDecodeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is truncated or damaged ({error})") from error
    body, _, digest = text.rpartition(_DIGEST)
    if header["format"] > 1 and digest != _digest(body + "}", tensors) + '"}':
        raise ValueError(
            f"{path} is damaged: its content is not what was written (the SHA-256 digest differs)"
        )
    return header, tensors


def _digest(text: str, tensors: Mapping[str, np.ndarray]) -> str:
    """SHA-256 of the JSON and of the names, types, shapes and bytes of the arrays."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        digest.update(f"{name} {array.dtype} {tensors[name].shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _check_header(path: str | os.PathLike, header: Any, kind: str) -> None:
    if header["format"] > FORMAT:
        raise ValueError(
            f"{path} was written by format {header['format']} (stochgp {header['version']}); "
            f"this version reads up to {FORMAT}: upgrade stochgp"
        )
    if header["kind"] != kind:
        names = {"tree": "a model", "arrays": "a checkpoint"}
        raise ValueError(f"{path} holds {names.get(header['kind'], 'something else')}, not {names[kind]}")
    if not isinstance(header["metadata"], dict) or kind == "tree" and "structure" not in header:
        raise TypeError("its header lacks what it describes")
