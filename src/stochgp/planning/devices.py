"""When devices are worth sharing mini-batches or the solve of a kernel GP, and how they divide its products with K.

A step also has work that every device repeats, and sums that devices exchange.
"""

from typing import NamedTuple, TypeGuard

from stochgp.devices import Devices
from stochgp.operators import Product, gather, ring, scatter
from stochgp.solvers import AbstractSolver, Layout, SystemSize
from stochgp.solvers.base import CHECKS, AbstractIterativeSolver
from stochgp.solvers.sizes import Costs, epoch_seconds

GAIN = 0.8  # a spread step must take at most so much of the time of a whole one
NUMBER = 4  # bytes


class Speed(NamedTuple):
    """What is done at once takes `fixed` seconds whatever its size, and a second more for every `per_second` of it."""

    fixed: float
    per_second: float


# Of operations in float32, the fixed part launches and small matrices: of one device, or of the processor that several CPU devices share.
STEP = {"cpu": Speed(9e-4, 1.5e11), "gpu": Speed(7.5e-4, 4e13), "tpu": Speed(7.5e-4, 4e13)}
# Of bytes between devices, inside a process and across processes: NVLink; Ethernet of 100 Gb/s.
INSIDE, ACROSS = Speed(3e-5, 4.5e11), Speed(1e-4, 1e10)


class StepSizes(NamedTuple):
    """What a step of a learner costs."""

    batch_size: int
    work_of_row: float  # operations that devices can share, for each row; 0 = the step cannot be shared
    numbers: int  # that devices exchange to add their gradients up


class Team(NamedTuple):
    """What the planner knows of some devices."""

    platform: str  # "cpu", "gpu", …
    count: int
    processes: int = 1
    as_asked: bool = False  # whether they are to share steps, whether it pays or not

    @classmethod
    def of(cls, devices: Devices) -> "Team":
        """Of `Devices()`, which have no mesh, one device."""
        platform = "cpu" if devices.mesh is None else devices.mesh.devices.flat[0].platform
        return cls(platform, devices.count, devices.processes, devices.steps)

    @property
    def workers(self) -> int:
        """How many work at the same time: devices of one CPU process share its cores, and count as one."""
        return self.processes if self.platform == "cpu" else self.count

    @property
    def in_one_memory(self) -> int:
        """How many of them have their numbers in the same memory."""
        return -(-self.count // self.processes) if self.platform == "cpu" else 1

    @property
    def link(self) -> Speed:
        return ACROSS if self.processes > 1 else INSIDE


def with_steps(devices: Devices, sizes: StepSizes) -> tuple[Devices, str]:
    """(The devices, which share mini-batches too where that pays; why or why not). A setting `steps` is kept."""
    if devices.mesh is None or devices.count == 1:
        return devices, "one device"
    if devices.steps and sizes.work_of_row > 0:
        return devices, "mini-batches are spread, as asked"
    pays, why = step_pays(sizes, Team.of(devices))
    return Devices(devices.mesh, devices.shards, pays), why


def step_pays(sizes: StepSizes, team: Team) -> tuple[bool, str]:
    """(Whether a step is predicted to take at most 0.8 of its time where its mini-batch is spread; why or why not)."""
    if sizes.work_of_row == 0:
        return False, "the learner's steps are those of one device; passes over the rows are shared"
    if sizes.batch_size % team.count:
        return (
            False,
            f"batches of {sizes.batch_size} rows have no equal parts; passes over the rows are shared",
        )
    one, several = step_seconds(sizes, team)
    predicted = f"predicted seconds of a step: {one:.2g} on one device, {several:.2g} on {team.count}"
    if several <= GAIN * one:
        return True, f"{predicted}, so mini-batches are spread too"
    return (
        False,
        f"{predicted}, so only passes over the rows are shared, and every device takes the same steps",
    )


def step_seconds(sizes: StepSizes, team: Team) -> tuple[float, float]:
    """Predicted seconds of a step (on one device, on all): the fixed part, the rows' work, an exchange of 2(G − 1)/G numbers of each.

    Devices of one CPU process share its cores: they count as one.
    """
    step = STEP.get(team.platform, STEP["gpu"])
    work = sizes.batch_size * sizes.work_of_row / step.per_second
    share = 2 * (team.count - 1) / team.count
    sent = team.link.fixed + share * NUMBER * sizes.numbers / team.link.per_second if team.count > 1 else 0.0
    return step.fixed + work, step.fixed + work / team.workers + sent


WAYS: dict[str, Product] = {"gather": gather, "ring": ring, "scatter": scatter}
SHARE_GATHERED = 0.1  # of what is free, for the rows and vectors that lie on every device


class Shared(NamedTuple):
    """What a plan says of devices that were given."""

    count: int
    way: str | None  # in which they divide a product with K, of `WAYS`; None = one of them solves
    why: str


def may_share(solver: AbstractSolver, team: Team) -> TypeGuard[AbstractIterativeSolver]:
    """Whether the devices could make this solver faster, or were asked to share its work."""
    iterative = team.count > 1 and isinstance(solver, AbstractIterativeSolver)
    return iterative and (team.as_asked or team.workers > 1)


def way_of(size: SystemSize, team: Team, free: int) -> str:
    """How products are divided: "gather" where rows and vectors may lie on every device, else "ring"; "scatter" sends as many bytes as "gather", and holds as many."""
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
    """Seconds in which G devices exchange the numbers of one epoch.

    A product with all of K sends (G − 1)/G of N (D + 1 + S) numbers to a device. A step on B rows adds up B (D + 2 + 4 S) numbers in two
    messages, which sends each number twice.
    """
    n_steps, S, link = solver.steps_per_epoch(size.n_rows), size.n_columns, team.link
    seconds = (
        (team.count - 1) / team.count * size.itemsize / link.per_second
    )  # of a number that every device gets
    if n_steps == 1:
        return link.fixed + seconds * size.n_rows * (size.n_inputs + 1 + S)
    return n_steps * (2 * link.fixed + 2 * seconds * solver.step_rows * (size.n_inputs + 2 + 4 * S))


def _gathered(size: SystemSize) -> int:
    """Bytes of all rows and of all vectors."""
    return size.n_rows * (size.row_bytes + size.itemsize * size.n_columns)
