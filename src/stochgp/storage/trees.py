"""Trees of modules in safetensors files.

Loading runs no code from the file. Classes and functions are from stochgp, `equinox.nn`, `jax.nn` and
`jax.numpy`, or registered. A SHA-256 digest detects changes. The JSON header contains:

None, bool, int, text, finite float   themselves
other float                           {"float": "inf"}
list, tuple, dict                     {"list": […]}, {"tuple": […]}, {"dict": {key: …}}
array, NumPy scalar, random key       {"array": name, "kind": …}, {"key": name, "implementation": …}
function                              {"function": "jax.nn:relu"}, {"default": …, "argument": …}
module, dataclass, named tuple        {"class": "stochgp.kernels:RBF", "fields": {name: …}}
registered class                      {"class": "registered kernel:cosine", "fields": {name: …}}
"""

import contextlib
import dataclasses
import hashlib
import importlib
import inspect
import json
import math
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy

from stochgp.compiled import require_jax
from stochgp.names import REGISTERED, class_of
from stochgp.storage.writing import replacing
from stochgp.version import __version__

_CLASSES = ("stochgp", "equinox.nn")  # allowed packages, with their submodules
_FUNCTIONS = ("jax.nn", "jax.numpy")  # further allowed modules
_ALL = (*_FUNCTIONS, *_CLASSES)
_REGISTERED = "registered "
FORMAT = 2
_HEADER = "stochgp"
_DIGEST = ', "sha256": "'  # the last entry of the JSON header
_START = b'{"__metadata__":{"stochgp":'  # the start of a file after 8 bytes with the length of the header


def save_tree(path: Any, tree: Any, metadata: Mapping[str, Any]) -> None:
    """Write `tree` and `metadata` (JSON values) to a file; an error keeps the old file."""
    tensors: dict[str, np.ndarray] = {}
    structure = encode(tree, tensors)
    _write(path, tensors, {"structure": structure, "metadata": dict(metadata)})


def load_tree(path: Any) -> tuple[Any, dict[str, Any]]:
    """Return the tree and the metadata from a file that `save_tree` wrote.

    Raises ValueError if the file is damaged, has a newer format, or was not written by stochgp.
    """
    header, tensors = _read(path)
    try:
        return decode(header["structure"], tensors), header["metadata"]
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        what = f"cannot be read by stochgp {__version__} (it was written by {header.get('version')})"
        raise ValueError(f"{path} {what}: {error}") from error


def _write(path: Any, tensors: dict[str, np.ndarray], header: dict[str, Any]) -> None:
    text = json.dumps({"format": FORMAT, "version": __version__} | header)
    text = f'{text[:-1]}{_DIGEST}{_digest(text, tensors)}"}}'
    if hasattr(path, "write"):
        path.write(safetensors.numpy.save(tensors, metadata={_HEADER: text}))
        return
    with replacing(path) as partial:
        try:
            safetensors.numpy.save_file(tensors, partial, metadata={_HEADER: text})
        except safetensors.SafetensorError as error:
            raise OSError(f"cannot be written: {error}") from error


def _read(path: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    if hasattr(path, "read"):
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "model"
            copy.write_bytes(path.read())
            return _read(copy)
    with Path(path).open("rb") as file:
        start = file.read(8 + len(_START))[8:]
    if start != _START[: len(start)] or not start:
        raise ValueError(f"{path} is {'not' if start else 'too short to be'} a file of stochgp")
    try:
        with safetensors.safe_open(path, "np") as file:
            text = file.metadata()[_HEADER]
            header = json.loads(text)
            if header["format"] > FORMAT:
                what = f"was written in format {header['format']} by stochgp {header['version']}"
                raise ValueError(f"{path} {what}; this version reads formats up to {FORMAT}: upgrade stochgp")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a dict
    except (safetensors.SafetensorError, json.JSONDecodeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is truncated or damaged ({error})") from error
    body, _, digest = text.rpartition(_DIGEST)
    if digest != _digest(body + "}", tensors) + '"}':
        raise ValueError(f"{path} is damaged: its content was changed (the SHA-256 digest differs)")
    return header, tensors


def _digest(text: str, tensors: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        array = np.ascontiguousarray(tensors[name])
        digest.update(f"{name} {array.dtype} {tensors[name].shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def encode(value: Any, tensors: dict[str, np.ndarray], where: str = "model") -> Any:
    """Return `value` as JSON and add its arrays to `tensors`. ValueError if unsupported."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        return _encode_array(value, tensors, where)
    if kind in (list, tuple):
        items = [encode(item, tensors, f"{where}[{i}]") for i, item in enumerate(value)]
        return {kind.__name__: items}
    if isinstance(value, dict) and all(type(key) is str for key in value):
        return {"dict": {key: encode(item, tensors, f"{where}[{key!r}]") for key, item in value.items()}}
    names = None if isinstance(value, type) else _field_names(kind)
    if names is not None and (known := _public_name(kind, _CLASSES)) is not None:
        fields = {}
        for name in names:
            item = getattr(value, name)
            if callable(item) and _public_name(item, _ALL) is None and item is _default(kind, name):
                fields[name] = {"default": known, "argument": name}  # equinox.nn has defaults without a name
            else:
                fields[name] = encode(item, tensors, f"{where}.{name}")
        return {"class": known, "fields": fields}
    if names is None and callable(value) and (known := _public_name(value, _ALL)) is not None:
        return {"function": known}
    what, remedy = (
        f"an object of {kind.__module__}.{kind.__qualname__}",
        "use modules of stochgp and equinox.nn",
    )
    if callable(value) and hasattr(value, "__name__"):
        what, remedy = f"the function or class {value.__name__!r}", "use a function of jax.nn or jax.numpy"
    remedy += (
        ", register its class (`stochgp.register`), or save the arrays with equinox.tree_serialise_leaves"
    )
    raise ValueError(f"{where} is {what}, but files of stochgp do not contain code: {remedy}")


def _encode_array(value: Any, tensors: dict[str, np.ndarray], where: str) -> dict[str, str]:
    name = f"{len(tensors):04d} {where}"  # the number makes names unique
    if is_key(value):
        tensors[name] = np.asarray(jax.random.key_data(value))
        return {"key": name, "implementation": str(jax.random.key_impl(value))}
    array = np.asarray(value, order="C")
    if not any(jnp.issubdtype(array.dtype, of) for of in (np.bool_, jnp.integer, jnp.floating)):
        raise ValueError(f"{where} has the dtype {array.dtype}; only booleans and real numbers can be saved")
    tensors[name] = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    scalar = "scalar" if isinstance(value, np.generic) else "jax"
    return {"array": name, "kind": "numpy" if isinstance(value, np.ndarray) else scalar}


def decode(node: Any, tensors: dict[str, np.ndarray]) -> Any:
    """Return the value from the result of `encode`; arrays are removed from `tensors`."""
    match node:
        case None | bool() | int() | float() | str():
            return node
        case {"float": str(text)}:
            return float(text)
        case {"list": list(items)} | {"tuple": list(items)}:
            found = [decode(item, tensors) for item in items]
            return found if "list" in node else tuple(found)
        case {"dict": dict(items)}:
            return {key: decode(item, tensors) for key, item in items.items()}
        case {"array": str(name), "kind": "numpy" | "scalar" as kind}:
            return tensors.pop(name) if kind == "numpy" else tensors.pop(name)[()]
        case {"array": str(name), "kind": "jax"}:
            require_jax()
            with jax.enable_x64(True):  # keeps 64-bit arrays
                return jax.device_put(np.array(tensors.pop(name)))  # a copy frees the buffer of the file
        case {"key": str(name), "implementation": str(implementation)}:
            return jax.random.wrap_key_data(jnp.asarray(tensors.pop(name)), impl=implementation)
        case {"function": str(name)}:
            return _find(name, _ALL)
        case {"default": str(name), "argument": str(argument)}:
            if callable(default := _default(_find(name, _CLASSES), argument)):
                return default
        case {"class": str(name), "fields": dict(fields)}:
            values = {field: decode(item, tensors) for field, item in fields.items()}
            return _make(_find(name, _CLASSES), name, values)
    raise ValueError(f"the file contains an unknown entry {str(node)[:60]!r}")


def is_key(value: Any) -> bool:
    """Return True for a typed random key or an array of keys."""
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def _field_names(kind: Any) -> list[str] | None:
    """Return field names of a dataclass, Equinox module or named tuple; None for others."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    return list(getattr(kind, "_fields", ())) if issubclass(kind, tuple) else None


def _make(kind: Any, name: str, values: dict[str, Any]) -> Any:
    """Return an instance with these fields, without calling its constructor."""
    names = _field_names(kind) if isinstance(kind, type) else None
    if names is None or set(names) != set(values):
        found, wanted = ", ".join(sorted(values)), ", ".join(sorted(names or ()))
        raise ValueError(f"the fields of {name} are ({found}) in the file, but ({wanted}) in this version")
    if issubclass(kind, tuple):
        return tuple.__new__(kind, [values[field] for field in names])
    made = object.__new__(kind)
    for field, value in values.items():
        object.__setattr__(made, field, value)
    return made


def _default(kind: Any, argument: str) -> Any:
    parameter = inspect.signature(kind.__init__).parameters.get(argument)
    return None if parameter is None or parameter.default is parameter.empty else parameter.default


def _public_name(thing: Any, allowed: tuple[str, ...]) -> str | None:
    """Return "module:name" or "registered kind:name" for an allowed object, else None."""
    for what, table in REGISTERED.items() if isinstance(thing, type) else ():
        for known, entry in table.items():
            if class_of(entry) is thing:
                return f"{_REGISTERED}{what}:{known}"
    name: Any = getattr(thing, "__name__", None)
    modules: list[Any] = [getattr(thing, "__module__", None), *_FUNCTIONS]
    for module in modules:
        known = isinstance(module, str) and isinstance(name, str) and _allows(allowed, module)
        if known and getattr(sys.modules.get(module), name, None) is thing:
            return f"{module}:{name}"
    return None


def _find(name: str, allowed: tuple[str, ...]) -> Any:
    """Return the class or function "module:name". ValueError if it is not allowed."""
    module, _, attribute = name.partition(":")
    if module.startswith(_REGISTERED):
        what = module.removeprefix(_REGISTERED)
        if (own := class_of(REGISTERED.get(what, {}).get(attribute))) is not None:
            return own
        remedy = "register its class first (`stochgp.register`, or `--with` on the command line)"
        raise ValueError(f"the file contains the registered {what} {attribute!r}: {remedy}")
    if _allows(allowed, module) and "__" not in name:
        with contextlib.suppress(ModuleNotFoundError):
            found = getattr(importlib.import_module(module), attribute, None)
            if callable(found) and _public_name(found, allowed) == name:
                return found
    raise ValueError(f"the file refers to {name!r}, which this version of stochgp cannot load")


def _allows(allowed: tuple[str, ...], module: str) -> bool:
    inside = tuple(f"{package}." for package in allowed if package in _CLASSES)
    return module in allowed or module.startswith(inside)
