"""When devices are worth sharing the solve of a kernel GP, and how they divide its products with K."""

from typing import NamedTuple, TypeGuard

from stochgp.operators import AbstractProduct, Gather, Ring, Scatter
from stochgp.planning.devices import Team
from stochgp.solvers import AbstractSolver, Layout, SystemSize
from stochgp.solvers.base import CHECKS, AbstractIterativeSolver
from stochgp.solvers.costs import Costs, epoch_seconds

WAYS: dict[str, AbstractProduct] = {"gather": Gather(), "ring": Ring(), "scatter": Scatter()}
SHARE_GATHERED = 0.1  # of what is free, for the rows and vectors that lie on every device


class Shared(NamedTuple):
    """What a plan says of devices that were given."""

    count: int
    way: str | None  # in which they divide a product with K, of `WAYS`; None = one of them solves
    why: str


def may_share(solver: AbstractSolver, team: Team) -> TypeGuard[AbstractIterativeSolver]:
    """Whether the devices could make this solver faster, or were told to share its work."""
    iterative = team.count > 1 and isinstance(solver, AbstractIterativeSolver)
    return iterative and (team.as_asked or team.workers > 1)


def way_of(size: SystemSize, team: Team, free: int) -> str:
    """ "gather" where rows and vectors may lie on every device, else "ring"; "scatter" sends as many bytes as "gather", and holds as many."""
    return "gather" if team.in_one_memory * _gathered(size) <= SHARE_GATHERED * free else "ring"


def shared_bytes(solver: AbstractSolver, size: SystemSize, layout: Layout, way: str, team: Team) -> int:
    """Bounded by what a device needs that solves alone, and by what is sent to it. Devices of one processor have it in one memory."""
    sent = _gathered(size) if way == "gather" else 2 * -(-_gathered(size) // team.count)
    return team.in_one_memory * (solver.need_bytes(size, layout) + sent)


def shared_seconds(
    solver: AbstractIterativeSolver,
    size: SystemSize,
    layout: Layout,
    costs: Costs,
    tolerance: float,
    n_test: int,
    team: Team,
) -> float:
    """Those of one device, but that products with K in the epochs are divided, and that each epoch sends something."""
    alone = solver.expected_seconds(size, layout, costs, tolerance, n_test)
    epochs = solver.expected_epochs(size.n_rows, tolerance) + CHECKS
    saved = epoch_seconds(size, layout, costs) * (1 - 1 / team.workers)
    return alone + epochs * (exchange_seconds(solver, size, team) - saved)


def exchange_seconds(solver: AbstractIterativeSolver, size: SystemSize, team: Team) -> float:
    """Of an epoch. A product with all of K sends (G − 1)/G of N (D + 1 + S) numbers to a device; a step on B rows adds up B (D + 2 + 4 S)

    of them in two messages, which sends each twice.
    """
    n_steps, S, link = solver.steps_per_epoch(size.n_rows), size.n_columns, team.link
    seconds = (team.count - 1) / team.count * size.itemsize / link.bytes  # of a number that every device gets
    if n_steps == 1:
        return link.seconds + seconds * size.n_rows * (size.n_inputs + 1 + S)
    return n_steps * (2 * link.seconds + 2 * seconds * solver.step_rows * (size.n_inputs + 2 + 4 * S))


def _gathered(size: SystemSize) -> int:
    """Bytes of all rows and of all vectors."""
    return size.n_rows * (size.row_bytes + size.itemsize * size.n_columns)
