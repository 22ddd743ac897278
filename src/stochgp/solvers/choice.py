"""The rule that chooses the solver of a kernel GP, its tiles and its kept rows.

The rule depends on the number of rows, on the memory limit and on the devices, never on the clock.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from stochgp.budget import Budget, format_bytes
from stochgp.choosing import AS_ASKED
from stochgp.devices import ONE, Devices
from stochgp.names import lookup
from stochgp.operators import GPU_TILE, TILE
from stochgp.solvers.adasap import ADASAP
from stochgp.solvers.base import AbstractIterativeSolver, AbstractSolver
from stochgp.solvers.cg import CG
from stochgp.solvers.cholesky import Cholesky
from stochgp.solvers.sdd import SDD
from stochgp.solvers.sgd import SGD
from stochgp.solvers.sizes import HEADROOM, Layout, SystemSize, padded, plannable

TILES = (TILE, 1024, 512, 256)
NAMES = {solver.name: solver for solver in (Cholesky(), CG(), SDD(), ADASAP(), SGD())}
MAX_CHOLESKY_ROWS = (
    20_000  # measured: faster than CG and SDD on three UCI sets, and on five of six systems of 20,000 rows
)
KEPT_ROWS = 512  # kept rows come in blocks of so many
SHARE_FOR_KEPT = 0.9  # of what is free: with more the plan leaves rows of K to be evaluated
MAX_CG_VARIANTS = 2  # "auto" takes CG with its default rank or half of it: with less, SDD is faster


class SolvePlan(NamedTuple):
    """How (K + Σ) α = b is solved.

    The posterior depends on `solver`, `tile`, `keep_rows`, `n_samples` and `dtype`.
    It depends on `is_shared` by rounding, and by a preconditioner without neighbours.
    """

    solver: AbstractSolver
    tile: int  # columns of a tile, for `KernelOperator.of`
    keep_rows: int  # rows of K to keep, for `KernelOperator.of`
    n_samples: int  # function samples solved with the mean
    dtype: str  # of the solve
    need: int  # bytes on top of what was in use
    reason: str
    is_shared: bool = False  # whether devices share products with K
    n_devices: int = 0  # 0 = none were given

    def record(self, record: Callable[[str, Any, str], None]) -> None:
        """Record the decisions (`FitContext.record`)."""
        record("solver", name_of(self.solver), self.reason)
        if self.n_devices:
            shared = {"count": self.n_devices, "solve": "shared" if self.is_shared else "one device"}
            record("devices", shared, _why_devices(self))


def choose_solver(
    size: SystemSize,
    budget: Budget,
    *,
    solver: str | AbstractSolver = "auto",
    devices: Devices = ONE,
    workspace: float = 1.0,
) -> SolvePlan:
    """Return the first solver in the order of the rule that fits into the memory limit.

    "auto" tries Cholesky up to 20,000 rows, then CG with at least half of its default rank, then SDD. A name
    means this solver with smaller and smaller settings (`variants`), a value this solver with its own settings.
    Each is tried with the widest tiles first. Rows of K are kept in memory that is left.

    Devices share an iterative solver if they work at the same time, or as `Devices.steps` demands. They keep no
    rows of K and find no neighbours. `workspace` belongs to the kernel, see `workspace_of`.

    Raises ValueError with the need and the limit if nothing fits.
    """
    free = plannable(budget)
    if devices.share_work:
        size = size._replace(has_neighbours=False)
    least: tuple[int, str] | None = None
    for candidate, tile in itertools.product(_solvers(solver, size), _tiles(size.n_rows)):
        plan = _plan(candidate, size, tile, free, devices, workspace)
        if plan.need <= free:
            memory = f"it needs {format_bytes(plan.need)} of the {format_bytes(free)} that are free"
            return plan._replace(reason=f"{_reason(candidate, size, solver)}; {memory}")
        least = min(least or (plan.need, candidate.name), (plan.need, candidate.name))
    assert least is not None  # every name has a solver
    what = f"solving for {size.n_rows} rows and {size.n_columns} right-hand sides by {least[1]}"
    budget.keeping(HEADROOM * budget.limit).refuse(least[0], what)


def _solvers(solver: str | AbstractSolver, size: SystemSize) -> Iterator[AbstractSolver]:
    """Yield the solvers to try, in order."""
    if isinstance(solver, AbstractSolver):
        yield solver
    elif solver != "auto":
        named: dict[str, Any] = {"auto": None, **NAMES}  # "auto" for the message alone
        yield from lookup(solver, named, "solver").variants(size)
    else:
        if size.n_rows <= MAX_CHOLESKY_ROWS:
            yield Cholesky()
        yield from itertools.islice(CG().variants(size), MAX_CG_VARIANTS)
        yield from SDD().variants(size)


def _tiles(n_rows: int) -> list[int]:
    """Return the numbers of columns of a tile to try, the largest first, each once."""
    tiles = TILES if jax.default_backend() == "cpu" else (GPU_TILE, GPU_TILE // 4, *TILES)
    return list(dict.fromkeys(min(tile, n_rows) for tile in tiles))


def _plan(
    solver: AbstractSolver, size: SystemSize, tile: int, free: int, devices: Devices, workspace: float
) -> SolvePlan:
    """Return the plan for one solver and one width of tiles, whether it fits or not."""
    layout = Layout(tile, 0, workspace, solver.itemsize_for(size))
    if solver.exact_variances:
        size = size._replace(n_samples=0)
    is_shared = devices.share_work and isinstance(solver, AbstractIterativeSolver)
    if is_shared:
        need = shared_bytes(solver, size, layout, devices)
    else:
        if solver.keeps_rows:
            layout = layout._replace(keep_rows=room_for_rows(solver, layout, size, free))
        need = solver.need_bytes(size, layout)
    return SolvePlan(
        solver=solver,
        tile=tile,
        keep_rows=layout.keep_rows,
        n_samples=size.n_samples,
        dtype="float64" if layout.factor_itemsize == 8 else "float32",
        need=need,
        reason="",
        is_shared=is_shared,
        n_devices=0 if devices.mesh is None else devices.count,
    )


def room_for_rows(solver: AbstractSolver, layout: Layout, size: SystemSize, free: int) -> int:
    """How many rows of K fit beside everything else that `solver` needs: all of them, or whole blocks."""
    row_bytes = size.itemsize * padded(size.n_rows, layout.tile)
    block = solver.need_bytes(size, layout._replace(keep_rows=KEPT_ROWS))
    rows = int((SHARE_FOR_KEPT * free - (block - KEPT_ROWS * row_bytes)) // row_bytes)
    P = padded(size.n_rows, layout.tile)
    return P if rows >= P else max(rows // KEPT_ROWS * KEPT_ROWS, 0)


def shared_bytes(solver: AbstractSolver, size: SystemSize, layout: Layout, devices: Devices) -> int:
    """Return a bound: the need of a device that solves alone, and all rows and vectors, which are sent to it.

    Devices with one memory need as many times more.
    """
    sent = size.n_rows * (size.row_bytes + size.itemsize * size.n_columns)
    return devices.in_one_memory * (solver.need_bytes(size, layout) + sent)


def name_of(solver: AbstractSolver) -> str:
    """Return the name of the solver's class, with its module if a user defined it."""
    kind = type(solver)
    known = kind.__module__.startswith("stochgp.")
    return kind.__name__ if known else f"{kind.__module__}.{kind.__qualname__}"


def _reason(solver: AbstractSolver, size: SystemSize, asked: str | AbstractSolver) -> str:
    if asked != "auto":
        return AS_ASKED
    if solver.exact_variances:
        return f"up to {MAX_CHOLESKY_ROWS} rows a factorisation is quick"
    if not isinstance(solver, CG):
        return "the preconditioner of CG does not fit"
    few = size.n_rows <= MAX_CHOLESKY_ROWS
    return "a factor does not fit" if few else f"more than {MAX_CHOLESKY_ROWS} rows"


def _why_devices(plan: SolvePlan) -> str:
    if plan.is_shared:
        return "the devices share products with K"
    if plan.n_devices == 1:
        return "one device"
    if plan.solver.exact_variances:
        return f"{plan.solver.name} factorises on one device"
    return "devices of one processor share its cores: they would save no time"
