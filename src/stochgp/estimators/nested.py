"""Fields of kernels, learners and solvers as nested parameters of scikit-learn: `kernel__lengthscale`, `kernel__left__variance`."""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

from stochgp.names import did_you_mean
from stochgp.parameters import AbstractParameter, Frozen, frozen

BETWEEN_NAMES = "__"


def fields_of(value: Any) -> dict[str, Any]:
    """By name what a value is made of, those of its fields included: {} of one that is not made of its fields, and of parameters."""
    own = _own(value)
    found = dict(own)
    for name, part in own.items():
        found |= {f"{name}{BETWEEN_NAMES}{inner}": field for inner, field in fields_of(part).items()}
    return found


def with_fields(value: Any, changes: Mapping[str, Any], where: str) -> Any:
    """The value made again with these fields; names as in `fields_of`. A number in place of what is frozen is frozen too. Raises ValueError, naming it, for one that it has not."""
    own, inner = _own(value), {}
    for name, change in changes.items():
        first, _, rest = name.partition(BETWEEN_NAMES)
        if first not in own:
            raise ValueError(
                f"{where} of {type(value).__name__} has no {first!r}; {did_you_mean(first, own)}"
            )
        if rest:
            inner.setdefault(first, {})[rest] = change
        else:
            stays = isinstance(own[first], Frozen) and not isinstance(change, AbstractParameter)
            own[first] = frozen(change) if stays else change
    for first, more in inner.items():
        own[first] = with_fields(own[first], more, f"{where}{BETWEEN_NAMES}{first}")
    return type(value)(**own)


def _own(value: Any) -> dict[str, Any]:
    if isinstance(value, type | AbstractParameter) or not dataclasses.is_dataclass(value):
        return {}
    names = [field.name for field in dataclasses.fields(value) if field.init]
    if not set(names) <= set(inspect.signature(type(value)).parameters):
        return {}  # made by an `__init__` of its own
    return {name: getattr(value, name) for name in names}
