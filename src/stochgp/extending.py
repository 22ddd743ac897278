"""Parts of a user's own, by name: for estimators, for the command line and for saved models."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from stochgp.names import REGISTERED, class_of

Part = TypeVar("Part", bound=type)
AS_VALUES = ("likelihood", "solver", "learner")  # whose names stand for values
PART = "part"  # of something else, such as a network: it has no setting of its own, but can be saved


def register(name: str | None = None) -> Callable[[Part], Part]:
    """Makes a class known by a name, which is its own unless another is given: `@stochgp.register("cosine")` before `class Cosine(…)`.

    | a class of | is then | and is made as |
    |---|---|---|
    | `kernels.AbstractKernel` | `kernel="cosine"` | `Cosine(lengthscale=…, variance=…)`, with those of the two that it takes |
    | `features.AbstractFeatureMap` | `features="cosine"` | `Cosine.init(n_inputs, n_features, key=…, dtype=…)` |
    | `likelihoods.AbstractLikelihood` | `likelihood="cosine"` | `Cosine()` |
    | `solvers.AbstractSolver` | `solver="cosine"` | `Cosine()` |
    | `learners.AbstractLearner` | `learner="cosine"` | `Cosine()` |
    | `estimators.GPEstimator` | `stochgp fit --model cosine` | `Cosine(**settings)` |

    Models that hold such a part, or any other dataclass or Equinox module that was registered, can be saved. Where they are loaded, the same class is
    to be registered before; the command line does so with `--with FILE.py`. Raises ValueError for a name that another class has.

    Parameters
    ----------
    name : str or None
        By which the class is known; None: its own.
    """

    def registered(part: Part) -> Part:
        known = part.__name__ if name is None else name
        what = _kind_of(part)
        table = REGISTERED.setdefault(what, {})
        if (before := class_of(table.get(known))) is not None and before.__qualname__ != part.__qualname__:
            raise ValueError(f"the {what} {known!r} is registered already: {before.__qualname__}")
        table[known] = part() if what in AS_VALUES else part
        return part

    return registered


def load_code(sources: Sequence[str] | None) -> None:
    """Runs Python files, or imports modules, in which parts are registered. Raises ValueError where there is none of that name.

    Parameters
    ----------
    sources : sequence of str or None
        Paths that end in .py, or names of modules. A file that ran already is not run again; None does nothing.
    """
    for source in sources or ():
        if not source.endswith(".py"):
            if importlib.util.find_spec(source) is None:
                raise ValueError(f"--with {source}: there is no such file or module")
            importlib.import_module(source)
            continue
        path = Path(source).resolve()
        if not path.exists():
            raise ValueError(f"--with {source}: there is no such file or module")
        if not any(getattr(module, "__file__", None) == str(path) for module in list(sys.modules.values())):
            _run(path)


def _run(path: Path) -> None:
    """As a module that is named by its whole path, which no other module is."""
    spec: Any = importlib.util.spec_from_file_location(str(path), path)
    module = sys.modules[str(path)] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _kind_of(part: type) -> str:
    """The word for what it is in messages of `names.lookup`."""
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
