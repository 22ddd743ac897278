"""A plan of a kernel solve: a value, and as what `plan_` says of it."""

import dataclasses
import math
import typing
from collections.abc import Mapping
from typing import Any, NamedTuple

from stochgp.choosing import choice
from stochgp.planning.devices import WAYS, Shared
from stochgp.solvers import ADASAP, CG, SDD, SGD, AbstractSolver, Cholesky

KINDS = {kind.__name__: kind for kind in (Cholesky, CG, SDD, ADASAP, SGD)}
DTYPES = ("float32", "float64")
_MEASURED, _TYPICAL = "predicted from costs measured on this machine", "by typical costs"


class SolvePlan(NamedTuple):
    """How (K + Σ) α = b is solved, and what that is expected to cost.

    The posterior depends on `solver`, `tile`, `keep_rows`, `n_samples`, `variance`, `n_neighbours` and `dtype`, on nothing else here but, by rounding
    and by a preconditioner without neighbours, on the way in which devices share it.
    """

    solver: AbstractSolver
    tile: int  # columns of a tile, for `KernelOperator.of`
    keep_rows: int  # rows of K to keep, for `KernelOperator.of`
    n_samples: int  # function samples solved with the mean
    variance: str  # "exact" | "samples" | "none"
    dtype: str  # of the solve
    workspace: float  # as in `Layout`: a property of the kernel
    seconds: float  # predicted, from right-hand sides to predictions, compilation included
    need: int  # bytes on top of what was in use
    reason: str
    alternatives: dict[str, float | None]  # solver → predicted seconds; None = does not fit
    measured: bool  # on this machine, or typical costs
    shared: Shared | None = None  # None = no devices were given
    n_neighbours: int = 0  # nearest rows that variances from samples begin with

    @property
    def way(self) -> str | None:
        """In which devices divide products with K; None = one solves."""
        return None if self.shared is None else self.shared.way

    @property
    def variance_error(self) -> float:
        """The expected relative standard error of a variance: that where the rows say much of f."""
        if self.variance == "exact":
            return 0.0
        return math.sqrt(2 / self.n_samples) if self.n_samples else 1.0

    def described(self) -> dict[str, Any]:
        """For `plan_`: name → {choice, why}, JSON values only."""
        origin = _MEASURED if self.measured else _TYPICAL
        return {
            "solver": choice(name_of(self.solver), self.reason),
            "solver_settings": choice(
                _settings(self.solver), "the solver's own, or as given or shrunk to fit"
            ),
            "tile": choice(self.tile, "columns of K evaluated at a time"),
            "keep_rows": choice(self.keep_rows, _why_kept(self.keep_rows)),
            "n_samples": choice(self.n_samples, "function samples solved together with the mean"),
            "variance": choice(self.variance, _why_variance(self)),
            "variance_neighbours": choice(self.n_neighbours, _why_neighbours(self)),
            "solve_dtype": choice(
                self.dtype, "float64 where asked for, or where rounding in float32 may count beside the noise"
            ),
            "workspace": choice(
                self.workspace, f"numbers that a product holds for an entry of its tile, {origin}"
            ),
            "solve_seconds": choice(self.seconds, origin),
            "solver_seconds": choice(
                self.alternatives, f"{origin}; null = does not fit, or was not to be chosen"
            ),
            "solve_memory": choice(self.need, "bytes needed beyond those in use"),
            **_described(self.shared),
        }

    @classmethod
    def of(cls, described: Mapping[str, Any], *, solver: AbstractSolver | None = None) -> "SolvePlan":
        """The plan that `described` tells of. Its names may be among others, as in a fit's `plan_`.

        A solver of a class of the user's own is not made from JSON: it has to be given again, as `solver`, with the settings it had.

        Raises ValueError, naming it, for what is missing, malformed or contradictory.
        """
        solver = _solver(described, solver)
        n_samples = _whole(described, "n_samples", 0)
        variance = variance_by(solver, n_samples)
        if _read(described, "variance") != variance:
            raise ValueError(
                f"the plan's 'variance' is {_read(described, 'variance')!r}; with {name_of(solver)} and {n_samples} samples it is {variance!r}"
            )
        dtype = _read(described, "solve_dtype")
        if dtype not in DTYPES:
            raise ValueError(f"the plan's 'solve_dtype' is {dtype!r}; it must be one of {', '.join(DTYPES)}")
        return cls(
            solver=solver,
            tile=_whole(described, "tile", 1),
            keep_rows=_whole(described, "keep_rows", 0),
            n_samples=n_samples,
            variance=variance,
            dtype=dtype,
            workspace=_positive("workspace", _read(described, "workspace")),
            seconds=_positive("solve_seconds", _read(described, "solve_seconds")),
            need=_whole(described, "solve_memory", 0),
            reason=str(described["solver"].get("why", "")),
            alternatives=_alternatives(described),
            measured=described["solve_seconds"].get("why") == _MEASURED,
            shared=_shared(described),
            n_neighbours=_whole(described, "variance_neighbours", 0),
        )


def name_of(solver: AbstractSolver) -> str:
    """The solver's class, as in `stochgp.solvers`; with its module for one of the user's own."""
    kind = type(solver)
    return kind.__name__ if _is_known(solver) else f"{kind.__module__}.{kind.__qualname__}"


def variance_by(solver: AbstractSolver, n_samples: int) -> str:
    """Where variances come from."""
    return "exact" if solver.exact_variances else "samples" if n_samples else "none"


def _is_known(solver: AbstractSolver) -> bool:
    return KINDS.get(type(solver).__name__) is type(solver)


def _settings(solver: AbstractSolver) -> dict[str, Any]:
    found = dataclasses.asdict(solver)
    return found if _is_known(solver) else {name: _plain(value) for name, value in found.items()}


def _plain(value: Any) -> Any:
    """A JSON value: `value`, or what it looks like."""
    finite = isinstance(value, float) and math.isfinite(value)
    return value if value is None or finite or type(value) in (bool, int, str) else repr(value)


def _why_kept(keep_rows: int) -> str:
    return (
        "there is memory for them, and reading is faster" if keep_rows else "no memory for them, or no gain"
    )


def _why_variance(plan: SolvePlan) -> str:
    match plan.variance:
        case "exact":
            return "from the Cholesky factor; expected relative error 0"
        case "samples":
            return f"from {plan.n_samples} samples; expected relative error at most {plan.variance_error:.3g}"
    return "no samples were asked for"


def _why_neighbours(plan: SolvePlan) -> str:
    if plan.n_neighbours:
        return "nearest training rows, given which the variance of f is exact; samples say how much less it is given all rows"
    return (
        "no trees find them for this kernel, or there is no memory for them"
        if plan.variance == "samples"
        else "variances are not from samples"
    )


def _described(shared: Shared | None) -> dict[str, Any]:
    """Nothing where no devices were given."""
    if shared is None:
        return {}
    return {"devices": choice({"count": shared.count, "solve": shared.way or "one device"}, shared.why)}


def _shared(described: Mapping[str, Any]) -> Shared | None:
    if "devices" not in described:
        return None
    found = _read(described, "devices")
    way = found.get("solve") if isinstance(found, Mapping) else None
    if way not in (*WAYS, "one device"):
        raise ValueError(
            f"the plan's 'devices' are {found!r}; 'solve' must be one of {', '.join(WAYS)}, or 'one device'"
        )
    return Shared(found["count"], None if way == "one device" else way, described["devices"].get("why", ""))


def _read(described: Mapping[str, Any], name: str) -> Any:
    """The choice of this name."""
    if name not in described:
        raise ValueError(f"the plan has no {name!r}; give it as a fit's `plan_` holds it")
    entry = described[name]
    if not isinstance(entry, Mapping) or "choice" not in entry:
        raise ValueError(f"the plan's {name!r} must be {{'choice': …, 'why': …}}, but is {entry!r}")
    return entry["choice"]


def _whole(described: Mapping[str, Any], name: str, least: int) -> int:
    value = _read(described, name)
    if type(value) is not int or value < least:
        raise ValueError(f"the plan's {name!r} is {value!r}; it must be a whole number of at least {least}")
    return value


def _positive(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0 < value < math.inf:
        raise ValueError(f"the plan's {name!r} is {value!r}; it must be a positive, finite number")
    return float(value)


def _alternatives(described: Mapping[str, Any]) -> dict[str, float | None]:
    name, found = "solver_seconds", _read(described, "solver_seconds")
    if not isinstance(found, Mapping):
        raise ValueError(f"the plan's {name!r} is {found!r}; it must hold seconds, or null, for each solver")
    return {
        str(key): None if value is None else _positive(f"{name}: {key}", value)
        for key, value in found.items()
    }


def _solver(described: Mapping[str, Any], given: AbstractSolver | None) -> AbstractSolver:
    """The solver that the plan describes, or the given one, if it is of that class."""
    name, settings = _read(described, "solver"), _read(described, "solver_settings")
    if given is not None:
        if name_of(given) != name or _settings(given) != settings:
            raise ValueError(f"the plan was made with the solver {name} {settings}, but {given!r} was given")
        return given
    if name not in KINDS:
        raise ValueError(
            f"the plan's solver {name!r} is not one of {', '.join(KINDS)}: a solver of your own has to be given with the plan again"
        )
    return _made(KINDS[name], settings)


def _made(kind: type[AbstractSolver], settings: Any) -> AbstractSolver:
    """A solver with these settings; all of its fields must be among them."""
    types = {field.name: field.type for field in dataclasses.fields(kind)}
    if not isinstance(settings, Mapping) or set(settings) != set(types):
        raise ValueError(
            f"the plan's 'solver_settings' must be {', '.join(types)} of {kind.__name__}, but are {settings!r}"
        )
    for name, value in settings.items():
        wanted = typing.get_args(types[name]) or (types[name],)
        if type(value) not in wanted and not (type(value) is int and float in wanted):
            raise ValueError(
                f"the plan's 'solver_settings' have {name}={value!r}, which {kind.__name__} cannot take"
            )
    try:
        return kind(**settings)
    except ValueError as error:
        raise ValueError(f"the plan's 'solver_settings' are refused by {kind.__name__}: {error}") from None
