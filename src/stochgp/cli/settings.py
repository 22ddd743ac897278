"""`--set name=value` as typed settings of an estimator."""

import inspect
import types
import typing
from collections.abc import Sequence
from typing import Any

from stochgp.names import did_you_mean


def parse_settings(pairs: Sequence[str], estimator: type) -> dict[str, Any]:
    """{name: value} of texts name=value, each value of the type that the estimator's parameter has.

    Raises ValueError for an unknown name, with the nearest valid one, for a value of another type, and for a name given twice.
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
        found[name] = parse_value(name, text, parameters[name].annotation)
    return found


def parse_value(name: str, text: str, annotation: Any) -> Any:
    """`text` as the first of None, bool, int, float, str that the annotation allows; "none" in any case is None."""
    allowed = _types(annotation)
    if text.lower() == "none" and type(None) in allowed:
        return None
    if bool in allowed and text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        if kind in allowed:
            try:
                return kind(text)
            except ValueError:
                continue
    if str in allowed:
        return text
    words = {type(None): "none", bool: "true or false", int: "a whole number", float: "a number"}
    wanted = " or ".join(words[kind] for kind in words if kind in allowed)
    raise ValueError(f"--set {name}={text}: {name} takes {wanted}")


def _types(annotation: Any) -> tuple[Any, ...]:
    if annotation is Any:
        return (type(None), int, float, str)
    union = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    return typing.get_args(annotation) if union else (annotation,)
