"""Which solver is taken: the one of the least typical costs within the memory limit, the same on every machine."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

import jax

from stochgp.budget import Budget, format_bytes
from stochgp.choosing import AS_ASKED
from stochgp.names import lookup
from stochgp.operators import GPU_TILE, TILE
from stochgp.planning.devices import GAIN, Shared, Team, may_share, shared_bytes, shared_seconds, way_of
from stochgp.planning.memory import HEADROOM, plannable, room_for_rows
from stochgp.planning.solve_plan import SolvePlan, variance_by
from stochgp.solvers import ADASAP, CG, SDD, SGD, AbstractSolver, Cholesky, Layout, SystemSize
from stochgp.solvers.base import AbstractIterativeSolver
from stochgp.solvers.sizes import SMALL, TYPICAL

TILES = (TILE, 1024, 512, 256)
SHARE_OF_TEST = 0.1  # rows whose standard deviations are expected to be wanted, per training row
NAMES = {solver.name: solver for solver in (Cholesky(), CG(), SDD(), ADASAP(), SGD())}
# With so little noise beside k(x, x) the epochs of an iterative solver depend on how fast the eigenvalues of K fall, which nobody has looked at: a direct one
# is taken that lasts at most 1.5 times as long. Of 20,000 rows and a noise of 1e-6 conjugate gradients were predicted to take 28 and 35 s beside 31 s of a factor:
# they took 64 s for a Matérn 5/2 kernel and 105 s for an RBF kernel, the factor 41 s on that day (`benchmarks solver_systems`).
UNSURE, SURER = 1e-5, 1.5
AUTOMATIC = ("cholesky", "cg", "sdd")  # SGD needs many times the epochs of any of them


class Candidate(NamedTuple):
    """One way to solve, with what it needs and takes."""

    solver: AbstractSolver
    size: SystemSize  # without samples where the solver gives exact variances
    layout: Layout
    seconds: float
    need: int
    way: str | None = None  # in which devices share it; None = on one

    @property
    def rank(self) -> float:
        """Seconds; more where devices share it, as they are to save some; fewer where they are sure and those of others are not."""
        seconds = self.seconds if self.way is None else self.seconds / GAIN
        is_surer = self.solver.exact_variances and self.size.noise_ratio < UNSURE
        return seconds / SURER if is_surer else seconds


class Aim(NamedTuple):
    """What is planned for."""

    tolerance: float  # relative residual of the mean
    n_test: int  # rows whose standard deviations are expected to be wanted
    team: Team | None = None  # devices that may share the solve; None = none were given
    workspace: float = 1.0  # as in `Layout`: a property of the kernel


def choose(
    size: SystemSize,
    budget: Budget,
    *,
    solver: str | AbstractSolver = "auto",
    tolerance: float = 0.02,
    n_test: int | None = None,
    team: Team | None = None,
    workspace: float = 1.0,
) -> SolvePlan:
    """The fastest of the candidates that fit, by typical costs.

    They are all solvers for "auto" (up to 3,000 rows a direct one, if it fits), one for a name, and the given one with its own settings.
    `tolerance` is the relative residual that the mean is solved to; `n_test` the rows whose standard deviations are expected to be wanted
    (None = a tenth of the training rows). To fit, tiles are made smaller, and solvers take their `variants`; rows of K are kept where
    memory is left. Devices, a `team`, may share an iterative solve; they keep no rows, and find no neighbours.
    `workspace` is that of the kernel, see `planning.memory.workspace_of`.

    Raises ValueError, with both numbers, where nothing fits.
    """
    aim = Aim(tolerance, _test_rows(size, n_test), team, workspace)
    return _chosen(size, budget, plannable(budget), solver, aim)


def _test_rows(size: SystemSize, n_test: int | None) -> int:
    return max(1, round(SHARE_OF_TEST * size.n_rows)) if n_test is None else n_test


def _chosen(size: SystemSize, budget: Budget, free: int, solver: str | AbstractSolver, aim: Aim) -> SolvePlan:
    found = {
        kind.name: list(_candidates(kind, planned, size, free, aim)) for kind, planned in _solvers(solver)
    }
    best = {
        name: min((c for c in cs if c.need <= free), key=lambda c: c.rank, default=None)
        for name, cs in found.items()
    }
    fitting = [c for c in best.values() if c is not None]
    if not fitting:
        least = min((c for cs in found.values() for c in cs), key=lambda c: c.need)
        _refuse(least, size.n_columns, budget)
    direct = [c for c in fitting if c.solver.exact_variances]
    if solver == "auto" and size.n_rows <= SMALL and direct:
        fitting = direct
    chosen = min(fitting, key=lambda c: c.rank)
    alternatives = {name: None if c is None else c.seconds for name, c in best.items()}
    made = _plan(chosen, _reason(chosen, best, free, solver), alternatives)
    return made._replace(shared=_shared(chosen, found[chosen.solver.name], aim.team))


def _refuse(least: Candidate, n_columns: int, budget: Budget) -> NoReturn:
    """Raises ValueError with both numbers."""
    what = f"solving for {least.size.n_rows} rows and {n_columns} right-hand sides by {least.solver.name}"
    budget.keeping(HEADROOM * budget.limit).refuse(least.need, what)


def _solvers(solver: str | AbstractSolver) -> list[tuple[AbstractSolver, bool]]:
    """(Solver, whether its settings are the planner's)."""
    if isinstance(solver, AbstractSolver):
        return [(solver, False)]
    if solver == "auto":
        return [(NAMES[name], True) for name in AUTOMATIC]
    named: dict[str, Any] = {"auto": None, **NAMES}  # "auto" for the message alone
    return [(lookup(solver, named, "solver"), True)]


def _candidates(
    kind: AbstractSolver, planned: bool, size: SystemSize, free: int, aim: Aim
) -> Iterator[Candidate]:
    """Every way in which a solver could be run; with its `variants` if its settings are the planner's."""
    if aim.team is not None and may_share(kind, aim.team):
        yield from _shared_candidates(kind, planned, size, free, aim, aim.team)
        if aim.team.as_asked:
            return
    for solver in kind.variants(size) if planned else (kind,):
        for tile in _tiles():
            layout = Layout(min(tile, size.n_rows), 0, aim.workspace)
            yield _candidate(solver, layout, size, aim)
            if solver.keeps_rows:
                keep_rows = room_for_rows(solver, layout, size, free)
                if keep_rows > 0:
                    yield _candidate(solver, layout._replace(keep_rows=keep_rows), size, aim)
            if tile >= size.n_rows:
                break


def _shared_candidates(
    kind: AbstractIterativeSolver,
    planned: bool,
    size: SystemSize,
    free: int,
    aim: Aim,
    team: Team,
) -> Iterator[Candidate]:
    """By devices together: no rows of K are kept, and no neighbours are found."""
    size = size._replace(has_neighbours=False)
    way = way_of(size, team, free)
    for solver in kind.variants(size) if planned else (kind,):
        for tile in _tiles():
            layout = Layout(min(tile, size.n_rows), 0, aim.workspace, solver.itemsize_for(size))
            seconds = shared_seconds(solver, size, layout, TYPICAL, aim.tolerance, aim.n_test, team)
            need = shared_bytes(solver, size, layout, way, team)
            yield Candidate(solver, size, layout, seconds, need, way)
            if tile >= size.n_rows:
                break


def _tiles() -> tuple[int, ...]:
    """Columns of a tile that may be planned, the most first."""
    return TILES if jax.default_backend() == "cpu" else (GPU_TILE, GPU_TILE // 4, *TILES)


def _shared(chosen: Candidate, same: list[Candidate], team: Team | None) -> Shared | None:
    """What `plan_` says of the devices given. `same` are the candidates of the solver that was chosen."""
    if team is None:
        return None
    if team.count == 1:
        return Shared(1, chosen.way, "one device")
    if chosen.solver.exact_variances:
        return Shared(team.count, None, f"{chosen.solver.name} factorises on one device")
    if team.as_asked:
        return Shared(team.count, chosen.way, AS_ASKED)
    if team.workers == 1:
        return Shared(team.count, None, "devices of one processor share its cores: they would save no time")
    one, all_ = (
        min((c.seconds for c in same if (c.way is None) == alone), default=math.inf)
        for alone in (True, False)
    )
    why = f"by typical costs {_seconds(one)} on one device, {_seconds(all_)} on {team.count}"
    return Shared(team.count, chosen.way, why)


def _candidate(solver: AbstractSolver, layout: Layout, size: SystemSize, aim: Aim) -> Candidate:
    layout = layout._replace(factor_itemsize=solver.itemsize_for(size))
    if solver.exact_variances:
        size = size._replace(n_samples=0)
    seconds = solver.expected_seconds(size, layout, TYPICAL, aim.tolerance, aim.n_test)
    return Candidate(solver, size, layout, seconds, solver.need_bytes(size, layout))


def _plan(chosen: Candidate, reason: str, alternatives: dict[str, float | None]) -> SolvePlan:
    return SolvePlan(
        solver=chosen.solver,
        tile=chosen.layout.tile,
        keep_rows=chosen.layout.keep_rows,
        n_samples=chosen.size.n_samples,
        variance=variance_by(chosen.solver, chosen.size.n_samples),
        dtype="float64" if chosen.layout.factor_itemsize == 8 else "float32",
        seconds=chosen.seconds,
        need=chosen.need,
        reason=reason,
        alternatives=alternatives,
    )


def _reason(
    chosen: Candidate, best: dict[str, Candidate | None], free: int, asked: str | AbstractSolver
) -> str:
    memory = f"it needs {format_bytes(chosen.need)} of the {format_bytes(free)} that are free"
    if asked != "auto":
        return f"as asked; {memory}"
    if chosen.size.n_rows <= SMALL and chosen.solver.exact_variances:
        return f"up to {SMALL} rows a direct solve takes hardly any time"
    others = [
        f"{name} {'does not fit' if c is None else _seconds(c.seconds)}"
        for name, c in best.items()
        if name != chosen.solver.name
    ]
    shortest = min(c.seconds for c in best.values() if c is not None)
    which = "the shortest" if chosen.seconds <= shortest else "sure, as of so little noise others are not"
    return f"{_seconds(chosen.seconds)} by typical costs, {which} ({', '.join(others)}); {memory}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 100 else f"{seconds:,.0f} s"
