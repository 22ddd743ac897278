"""`--set name=value` and `--hyperparameters FILE.json` as settings of an estimator."""

import inspect
import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stochgp import KernelGPRegressor, kernels
from stochgp.names import did_you_mean, lookup

_KERNELS: dict[str, Callable[..., Any]] = {
    "rbf": kernels.RBF,
    "matern12": kernels.Matern12,
    "matern32": kernels.Matern32,
    "matern52": kernels.Matern52,
    "linear": kernels.Linear,
}
_LEARNING = ("learner", "batch_size", "epochs", "learning_rate")  # settings that ask for learning


def parse_settings(pairs: Sequence[str], estimator: type) -> dict[str, Any]:
    """{name: value} of texts name=value, each value of the type that the estimator's parameter has.

    Raises ValueError for an unknown name, for a value of another type, and for a name given twice.
    """
    parameters = dict(list(inspect.signature(estimator.__init__).parameters.items())[1:])
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"--set {pair}: expected name=value")
        if name not in parameters:
            raise ValueError(
                f"--set {pair}: {estimator.__name__} has no setting {name!r}; {did_you_mean(name, parameters)}"
            )
        if name in found:
            raise ValueError(f"--set {name} is given twice")
        found[name] = _parse_value(name, text, parameters[name].annotation)
    return found


def _parse_value(name: str, text: str, annotation: Any) -> Any:
    """`text` as the first of None, bool, int, float, str that the annotation allows."""
    union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    allowed = typing.get_args(annotation) if union else (annotation,)
    allowed = (type(None), int, float, str) if annotation is Any else allowed
    words = {"none": None, "true": True, "false": False}
    if text.lower() in words and type(words[text.lower()]) in allowed:
        return words[text.lower()]
    for kind in (int, float, str):
        if kind in allowed:
            try:
                return kind(text)
            except ValueError:
                continue
    names = {type(None): "none", bool: "true or false", int: "a whole number", float: "a number"}
    wanted = " or ".join(names[kind] for kind in names if kind in allowed)
    raise ValueError(f"--set {name}={text}: {name} takes {wanted}")


def with_hyperparameters(settings: Mapping[str, Any], path: str, estimator: type) -> dict[str, Any]:
    """The settings with those of the file: `kernel`, and for a kernel model `noise_variance`.

    A kernel model with a noise and no setting of learning gets `learner=None`: the values are kept.
    Raises ValueError for a file that cannot be used, and for a value that is given twice.
    """
    given = read_hyperparameters(path, estimator)
    for name in given:
        if name in settings:
            raise ValueError(f"the {name} is given twice, by --set {name} and by {path}")
    if "noise_variance" in given and not any(name in settings for name in _LEARNING):
        given["learner"] = None
    return dict(settings) | given


def read_hyperparameters(path: str, estimator: type) -> dict[str, Any]:
    """{"kernel": …} and, for kernel models, {"noise_variance": …}, of a JSON file; each entry may be left out."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a JSON file ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(
            f'{path}: expected an object such as {{"kernel": "rbf", "lengthscale": 1.0, "variance": 1.0}}'
        )
    of_kernel = estimator is KernelGPRegressor
    if "noise_variance" in content and not of_kernel:
        raise ValueError(f"{path}: noise_variance is for --model kernel; a feature model learns it")
    valid = ("kernel", "lengthscale", "variance", *(("noise_variance",) if of_kernel else ()))
    for name in content:
        if name not in valid:
            raise ValueError(f"{path}: no hyperparameter is called {name!r}; {did_you_mean(name, valid)}")
    kind = lookup(str(content.pop("kernel", "matern32" if of_kernel else "rbf")), _KERNELS, "kernel")
    values = {name: _positive(value, name, path) for name, value in content.items()}
    noise = {name: values.pop(name) for name in ("noise_variance",) if name in values}
    try:
        return {"kernel": kind(**values)} | noise
    except TypeError as error:  # no such parameter
        raise ValueError(f"{path}: {error}") from error


def _positive(value: Any, name: str, path: str) -> float | list[float]:
    """A positive number; of lengthscales also a list."""
    is_list = name == "lengthscale" and isinstance(value, list)
    parts: list[Any] = value if is_list else [value]
    is_number = lambda part: isinstance(part, int | float) and not isinstance(part, bool)
    bad = [part for part in parts if not (is_number(part) and 0 < part < math.inf)]
    if is_list and (bad or not parts):
        what = f"contains {bad[0]!r}" if bad else "is empty"
        raise ValueError(f"{path}: {name} {what}; it must be a positive number, or one for every input")
    if bad:
        raise ValueError(f"{path}: {name} is {value!r}; it must be a positive number")
    return [float(part) for part in parts] if is_list else float(parts[0])
