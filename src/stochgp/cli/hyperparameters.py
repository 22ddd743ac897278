"""`--hyperparameters FILE.json`: a kernel, and for kernel models the noise, in units of the standardised data."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
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
_PLAIN = ("kernel", "lengthscale", "variance")
_LEARNING = ("learner", "batch_size", "epochs", "learning_rate")  # settings that ask for learning


def with_hyperparameters(settings: Mapping[str, Any], path: str, estimator: type) -> dict[str, Any]:
    """The settings of an estimator with those that the file gives: `kernel`, and for a kernel model `noise_variance`.

    A kernel model that is given its noise, and nothing about learning, gets `learner=None`: the values are kept.
    Raises ValueError, in one line, for a file that cannot be used, and for what is given twice.
    """
    given = read_hyperparameters(path, estimator)
    for name in given:
        if name in settings:
            raise ValueError(f"the {name} is given twice, by --set {name} and by {path}")
    if "noise_variance" in given and not any(name in settings for name in _LEARNING):
        given["learner"] = None
    return dict(settings) | given


def read_hyperparameters(path: str, estimator: type) -> dict[str, Any]:
    """{"kernel": …} and, where the file gives it, {"noise_variance": …}.

    The file is {"kernel": name, "lengthscale": number or list, "variance": number, "noise_variance": number}, each of which may be
    left out. Only kernel models take a noise.
    """
    content, is_kernel_model = _read(path), estimator is KernelGPRegressor
    if "noise_variance" in content and not is_kernel_model:
        raise ValueError(f"{path}: noise_variance is for --model kernel; a feature model learns it")
    _check_names(content, (*_PLAIN, *(("noise_variance",) if is_kernel_model else ())), path)
    kind = lookup(str(content.get("kernel", "matern32" if is_kernel_model else "rbf")), _KERNELS, "kernel")
    values = {"lengthscale": _lengthscale, "variance": _positive}
    try:
        found = {
            "kernel": kind(
                **{name: check(content, name, path) for name, check in values.items() if name in content}
            )
        }
    except TypeError as error:  # no such parameter
        raise ValueError(f"{path}: {error}") from error
    if "noise_variance" in content:
        found["noise_variance"] = _positive(content, "noise_variance", path)
    return found


def _read(path: str) -> dict[str, Any]:
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a JSON file ({error})") from error
    if not isinstance(content, dict):
        raise ValueError(
            f'{path}: expected an object such as {{"kernel": "rbf", "lengthscale": 1.0, "variance": 1.0}}'
        )
    return content


def _check_names(content: Mapping[str, Any], valid: Iterable[str], where: str) -> None:
    valid = tuple(valid)
    for name in content:
        if name not in valid:
            raise ValueError(f"{where}: no hyperparameter is called {name!r}; {did_you_mean(name, valid)}")


def _positive(content: Mapping[str, Any], name: str, where: str) -> float:
    if not _is_positive(content[name]):
        raise ValueError(f"{where}: {name} is {content[name]!r}; it must be a positive number")
    return float(content[name])


def _lengthscale(content: Mapping[str, Any], name: str, where: str) -> float | list[float]:
    value = content[name]
    if not isinstance(value, list):
        return _positive(content, name, where)
    bad = [part for part in value if not _is_positive(part)]
    if bad or not value:
        what = f"contains {bad[0]!r}" if bad else "is empty"
        raise ValueError(f"{where}: {name} {what}; it must be a positive number, or one for every input")
    return [float(part) for part in value]


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
