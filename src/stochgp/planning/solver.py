"""The solver that is predicted to be the fastest within the memory limit."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from stochgp.budget import Budget, format_bytes, release
from stochgp.operators import TILE
from stochgp.planning.effort import solve_seconds
from stochgp.planning.machine import TYPICAL, Costs, calibrate
from stochgp.planning.memory import SMALL, Layout, Problem, direct_itemsize, padded, solve_bytes
from stochgp.planning.prediction import ROWS
from stochgp.solvers import CG, SDD, SGD, AbstractSolver, Cholesky

TILES = (TILE, 4096, 2048, 1024, 512, 256)
BATCHES = (2048, 1024, 512, 256, 128, 64, 32)
RANKS = (1.0, 0.5, 0.25, 0.1, 0.03)  # shares of CG's default rank
KEPT_ROWS = 512  # kept rows come in blocks of so many
HEADROOM = 0.04  # of the limit, for what is loaded and compiled around the solve
SHARE_FOR_KEPT = 0.9  # of what is free: with more the plan leaves rows of K to be evaluated
SHARE_OF_TEST = 0.1  # rows whose standard deviations are expected to be wanted, per training row
NAMES = {"cholesky": Cholesky(), "cg": CG(), "sdd": SDD(), "sgd": SGD()}
AUTOMATIC = ("cholesky", "cg", "sdd")  # SGD needs many times the epochs of any of them


class SolvePlan(NamedTuple):
    """How (K + Σ) α = b is solved, and what that is expected to cost."""

    solver: AbstractSolver
    tile: int  # columns of a tile, for `KernelOperator.of`
    keep_rows: int  # rows of K to keep, for `KernelOperator.of`
    n_samples: int  # function samples solved with the mean
    variance: str  # "exact" | "samples" | "none"
    variance_error: float  # expected relative standard error of a variance
    dtype: str  # of the solve
    predict_rows: int  # rows of a prediction at a time
    seconds: float  # predicted, from right-hand sides to predictions, compilation included
    need: int  # bytes on top of what was in use
    reason: str
    alternatives: dict[str, float | None]  # solver → predicted seconds; None = does not fit
    measured: bool  # on this machine, or typical costs

    def described(self) -> dict[str, Any]:
        """For `plan_`: name → {choice, why}, JSON values only."""
        origin = "predicted from costs measured on this machine" if self.measured else "by typical costs"
        settings = dataclasses.asdict(self.solver)
        return {
            "solver": _choice(type(self.solver).__name__, self.reason),
            "solver_settings": _choice(settings, "the solver's own, or as given or shrunk to fit"),
            "tile": _choice(self.tile, "columns of K evaluated at a time"),
            "keep_rows": _choice(self.keep_rows, _why_kept(self.keep_rows)),
            "n_samples": _choice(self.n_samples, "function samples solved together with the mean"),
            "variance": _choice(self.variance, _why_variance(self)),
            "solve_seconds": _choice(self.seconds, origin),
            "solver_seconds": _choice(
                self.alternatives, f"{origin}; null = does not fit, or was not to be chosen"
            ),
            "solve_memory": _choice(self.need, "bytes needed beyond those in use"),
        }


class Candidate(NamedTuple):
    """One way to solve, with what it needs and takes."""

    name: str
    solver: AbstractSolver
    layout: Layout
    itemsize: int
    seconds: float
    need: int


class Aim(NamedTuple):
    """What is planned for."""

    tolerance: float  # relative residual of the mean
    n_test: int  # rows whose standard deviations are expected to be wanted


def plan(
    operator: Any,
    problem: Problem,
    budget: Budget,
    *,
    solver: str | AbstractSolver = "auto",
    tolerance: float = 0.02,
    n_test: int | None = None,
) -> SolvePlan:
    """`choose` with costs measured on this machine, where the set is large enough for that to pay (above 3,000 rows).

    `operator` is one of the rows of `problem`, in any tiles. What cannot fit is refused before anything is measured.
    """
    release()
    free = _plannable(budget)
    first = choose(problem, budget, solver=solver, tolerance=tolerance, n_test=n_test)
    if problem.n_rows <= SMALL:
        return first
    costs = calibrate(operator, problem.n_columns)
    release()
    aim = Aim(tolerance, _test_rows(problem, n_test))
    return _chosen(problem, budget, free, costs, solver, aim)  # what measuring left is in COMPILER_BYTES


def choose(
    problem: Problem,
    budget: Budget,
    *,
    costs: Costs = TYPICAL,
    solver: str | AbstractSolver = "auto",
    tolerance: float = 0.02,
    n_test: int | None = None,
) -> SolvePlan:
    """The fastest of the candidates that fit: all solvers for "auto" (up to 3,000 rows Cholesky, if it fits), one for a name, the given one
    with its own settings.

    `tolerance` is the relative residual that the mean is solved to; `n_test` the rows whose standard deviations are expected to be wanted
    (None = a tenth of the training rows). To fit, tiles, then SDD's batches and CG's rank are made smaller, and rows of K are kept where
    memory is left.

    Raises ValueError, with both numbers, where nothing fits.
    """
    aim = Aim(tolerance, _test_rows(problem, n_test))
    return _chosen(problem, budget, _plannable(budget), costs, solver, aim)


def _plannable(budget: Budget) -> int:
    """What is free but for the headroom."""
    return max(budget.free() - int(HEADROOM * budget.limit), 0)


def _test_rows(problem: Problem, n_test: int | None) -> int:
    return max(1, round(SHARE_OF_TEST * problem.n_rows)) if n_test is None else n_test


def _chosen(
    problem: Problem, budget: Budget, free: int, costs: Costs, solver: str | AbstractSolver, aim: Aim
) -> SolvePlan:
    found = {
        name: list(_candidates(given, problem, costs, free, aim)) for name, given in _solvers(solver).items()
    }
    best = {
        name: min((c for c in cs if c.need <= free), key=lambda c: c.seconds, default=None)
        for name, cs in found.items()
    }
    fitting = [c for c in best.values() if c is not None]
    if not fitting:
        least = min((c for cs in found.values() for c in cs), key=lambda c: c.need)
        what = f"solving for {problem.n_rows} rows and {problem.n_columns} right-hand sides by {least.name}"
        budget.require(max(least.need, budget.free() + 1), what)
    if solver == "auto" and problem.n_rows <= SMALL and best["cholesky"] is not None:
        fitting = [best["cholesky"]]
    chosen = min(fitting, key=lambda c: c.seconds)
    return _plan(problem, chosen, best, free, costs, solver)


def _solvers(solver: str | AbstractSolver) -> dict[str, tuple[AbstractSolver, bool]]:
    """Name → (solver, whether its settings are the planner's)."""
    if isinstance(solver, AbstractSolver):
        return {type(solver).__name__.lower(): (solver, False)}
    if solver == "auto":
        return {name: (NAMES[name], True) for name in AUTOMATIC}
    if solver not in NAMES:
        raise ValueError(f"solver is {solver!r}; it must be 'auto', one of {', '.join(NAMES)}, or a solver")
    return {solver: (NAMES[solver], True)}


def _candidates(
    given: tuple[AbstractSolver, bool], problem: Problem, costs: Costs, free: int, aim: Aim
) -> Iterator[Candidate]:
    """Every way in which a solver could be run."""
    for solver in _settings(*given, problem.n_rows):
        for tile in TILES:
            layout = Layout(min(tile, problem.n_rows), 0, costs.workspace)
            yield _candidate(solver, layout, problem, costs, aim)
            if not isinstance(solver, Cholesky):
                keep_rows = room_for_rows(solver, layout, problem, free)
                if keep_rows > 0:
                    yield _candidate(solver, layout._replace(keep_rows=keep_rows), problem, costs, aim)
            if tile >= problem.n_rows:
                break


def _settings(solver: AbstractSolver, free: bool, n_rows: int) -> Iterator[AbstractSolver]:
    """The solver; if its settings are free, also with smaller batches or a lower rank."""
    if free and isinstance(solver, SDD):
        yield from (dataclasses.replace(solver, batch_size=size) for size in BATCHES)
    elif free and isinstance(solver, CG):
        rank = solver.rank_for(n_rows)
        yield from (
            solver if share == 1 else dataclasses.replace(solver, rank=int(share * rank)) for share in RANKS
        )
    else:
        yield solver


def room_for_rows(solver: AbstractSolver, layout: Layout, problem: Problem, free: int) -> int:
    """How many rows of K fit beside everything else: all of them, or whole blocks."""
    P = padded(problem.n_rows, layout.tile)
    least = (
        solve_bytes(problem, solver, layout._replace(keep_rows=KEPT_ROWS)) - problem.itemsize * KEPT_ROWS * P
    )
    rows = int((SHARE_FOR_KEPT * free - least) // (problem.itemsize * P))
    return P if rows >= P else max(rows // KEPT_ROWS * KEPT_ROWS, 0)


def _candidate(solver: AbstractSolver, layout: Layout, problem: Problem, costs: Costs, aim: Aim) -> Candidate:
    name, itemsize = type(solver).__name__.lower(), problem.itemsize
    if isinstance(solver, Cholesky):
        itemsize = direct_itemsize(problem, solver)
        problem = problem._replace(n_samples=0)
        if itemsize > problem.itemsize:
            costs = _twice(costs)
    seconds = solve_seconds(problem, solver, layout, costs, aim.tolerance, aim.n_test)
    return Candidate(name, solver, layout, itemsize, seconds, solve_bytes(problem, solver, layout, itemsize))


def _twice(costs: Costs) -> Costs:
    """Costs in float64, given those in float32."""
    doubled = {name: 2 * getattr(costs, name) for name in ("evaluate", "multiply", "read", "factor", "solve")}
    return costs._replace(**doubled)


def _plan(
    problem: Problem,
    chosen: Candidate,
    best: dict[str, Candidate | None],
    free: int,
    costs: Costs,
    asked: str | AbstractSolver,
) -> SolvePlan:
    direct = isinstance(chosen.solver, Cholesky)
    n_samples = 0 if direct else problem.n_samples
    variance = "exact" if direct else "samples" if n_samples else "none"
    error = 0.0 if direct else math.sqrt(2 / n_samples) if n_samples else 1.0
    return SolvePlan(
        solver=chosen.solver,
        tile=chosen.layout.tile,
        keep_rows=chosen.layout.keep_rows,
        n_samples=n_samples,
        variance=variance,
        variance_error=error,
        dtype="float64" if chosen.itemsize == 8 else "float32",
        predict_rows=ROWS,
        seconds=chosen.seconds,
        need=chosen.need,
        reason=_reason(chosen, best, free, problem, asked),
        alternatives={name: None if c is None else c.seconds for name, c in best.items()},
        measured=costs.measured,
    )


def _reason(
    chosen: Candidate,
    best: dict[str, Candidate | None],
    free: int,
    problem: Problem,
    asked: str | AbstractSolver,
) -> str:
    memory = f"it needs {format_bytes(chosen.need)} of the {format_bytes(free)} that are free"
    if asked != "auto":
        return f"as asked; {memory}"
    if problem.n_rows <= SMALL and chosen.name == "cholesky":
        return f"direct solves of up to {SMALL} rows take less time than choosing"
    others = [
        f"{name} {'does not fit' if c is None else _seconds(c.seconds)}"
        for name, c in best.items()
        if name != chosen.name
    ]
    return f"predicted {_seconds(chosen.seconds)}, the shortest ({', '.join(others)}); {memory}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 100 else f"{seconds:,.0f} s"


def _why_kept(keep_rows: int) -> str:
    return (
        "there is memory for them, and reading is faster" if keep_rows else "no memory for them, or no gain"
    )


def _why_variance(plan: SolvePlan) -> str:
    match plan.variance:
        case "exact":
            return "from the Cholesky factor; expected relative error 0"
        case "samples":
            return f"from {plan.n_samples} samples; expected relative error {plan.variance_error:.3g}"
    return "no samples were asked for"


def _choice(choice: Any, why: str) -> dict[str, Any]:
    return {"choice": choice, "why": why}
