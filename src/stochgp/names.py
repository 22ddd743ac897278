"""Lookup of option names with suggestions, and registration of user-defined classes."""

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
Part = TypeVar("Part", bound=type)
_LISTED = 8
AS_VALUES = ("likelihood", "solver", "learner")  # kinds whose registered classes are instantiated
PART = "part"  # kind of registered classes that no setting names, such as networks
REGISTERED: dict[str, dict[str, Any]] = {}  # kind → name → the registered class or value


def lookup(name: str, table: Mapping[str, T], what: str) -> T:
    """Return `table[name]` or a registered part. Unknown names raise ValueError with a hint."""
    table = {**table, **REGISTERED.get(what, {})}
    if name in table:
        return table[name]
    near = nearest(name, table)
    hint = f"; did you mean {near!r}?" if near is not None else ""
    raise ValueError(f"unknown {what} {name!r}{hint} (valid: {', '.join(map(repr, table))})")


def class_of(registered: Any) -> type | None:
    """Return the class of an entry of `REGISTERED`."""
    return registered if isinstance(registered, type | None) else type(registered)


def nearest(word: str, options: Iterable[str]) -> str | None:
    """Return the option with the most similar spelling, ignoring case, or None."""
    folded = {str(option).casefold(): str(option) for option in reversed(list(options))}
    close = difflib.get_close_matches(str(word).casefold(), list(folded), n=1, cutoff=0.5)
    return folded[close[0]] if close else None


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """Return a hint for an error message: "did you mean 'count'?", or the valid names."""
    names = [str(option) for option in options]
    near = nearest(word, names)
    if near is not None:
        return f"did you mean {near!r}?"
    return f"valid: {quoted(names)}" if names else "there are no valid names"


def printable(text: str) -> str:
    """Replace characters that the standard output cannot show with question marks."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def quoted(names: Iterable[str]) -> str:
    """Return at most eight quoted names, and the number of further names."""
    names = list(names)
    listed = ", ".join(repr(name) for name in names[:_LISTED])
    return listed if len(names) <= _LISTED else f"{listed} and {len(names) - _LISTED} more"


def register(name: str | None = None) -> Callable[[Part], Part]:
    """Register a class under a name: `@stochgp.register("cosine")` before `class Cosine(…)`.

    | base class | setting | instance |
    |---|---|---|
    | `kernels.AbstractKernel` | `kernel="cosine"` | `Cosine(lengthscale=…, variance=…)` |
    | `features.AbstractFeatureMap` | `features="cosine"` | `Cosine.init(n_inputs, n_features, **options)` |
    | `likelihoods.AbstractLikelihood` | `likelihood="cosine"` | `Cosine()` |
    | `solvers.AbstractSolver` | `solver="cosine"` | `Cosine()` |
    | `learners.AbstractLearner` | `learner="cosine"` | `Cosine()` |
    | `estimators.GPEstimator` | `stochgp fit --model cosine` | `Cosine(**settings)` |

    The options of `init` are `key` and `dtype`. Models with registered classes can be saved; the classes may
    also be other dataclasses and Equinox modules. Register the class again before you load such a model (on
    the command line: `--with FILE.py`). Raises ValueError if another class has the name.

    Parameters
    ----------
    name : str or None
        The name of the class. None means `__name__`.
    """

    def registered(part: Part) -> Part:
        known = part.__name__ if name is None else name
        what = _kind_of(part)
        table = REGISTERED.setdefault(what, {})
        if (before := class_of(table.get(known))) is not None and before.__qualname__ != part.__qualname__:
            raise ValueError(f"the name {known!r} is already registered for the {what} {before.__qualname__}")
        table[known] = part() if what in AS_VALUES else part
        return part

    return registered


def load_code(sources: Sequence[str] | None) -> None:
    """Run Python files (.py) once, or import modules. Raises ValueError for a missing source."""
    for source in sources or ():
        path = Path(source).resolve()
        if not (path.exists() if source.endswith(".py") else importlib.util.find_spec(source)):
            raise ValueError(f"--with {source}: there is no such file or module")
        if not source.endswith(".py"):
            importlib.import_module(source)
        elif not any(getattr(module, "__file__", None) == str(path) for module in list(sys.modules.values())):
            spec: Any = importlib.util.spec_from_file_location(str(path), path)
            module = sys.modules[str(path)] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)


def _kind_of(part: type) -> str:
    """Return the kind of a class, such as "kernel", "model" or "part"."""
    from stochgp import features, kernels, learners, likelihoods, solvers
    from stochgp.estimators.base import GPEstimator

    kinds = {
        "kernel": kernels.AbstractKernel,
        "features": features.AbstractFeatureMap,
        "likelihood": likelihoods.AbstractLikelihood,
        "solver": solvers.AbstractSolver,
        "learner": learners.AbstractLearner,
        "model": GPEstimator,
    }
    return next((what for what, kind in kinds.items() if issubclass(part, kind)), PART)
