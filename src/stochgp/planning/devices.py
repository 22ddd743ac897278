"""When mini-batches are worth spreading over devices: a step also has work that every device repeats, and sums that they exchange."""

from typing import NamedTuple

from stochgp.devices import Devices

GAIN = 0.8  # a spread step must take at most so much of the time of a whole one
NUMBER = 4  # bytes


class Rates(NamedTuple):
    """Of one device, or of the processor that several CPU devices share."""

    operations: float  # per second, of products in float32
    fixed: float  # seconds of a step whatever its size: launches, small matrices


class Link(NamedTuple):
    """Between devices."""

    seconds: float  # of the shortest exchange
    bytes: float  # per second


RATES = {"cpu": Rates(1.5e11, 9e-4), "gpu": Rates(4e13, 7.5e-4), "tpu": Rates(4e13, 7.5e-4)}
INSIDE, ACROSS = Link(3e-5, 4.5e11), Link(1e-4, 1e10)  # a process, processes: NVLink; Ethernet of 100 Gb/s


class StepSizes(NamedTuple):
    """What a step of a learner costs."""

    batch_size: int
    work_of_row: float  # operations that devices can share, for each row; 0 = the step cannot be shared
    numbers: int  # that devices exchange to add their gradients up


def with_steps(devices: Devices, sizes: StepSizes) -> tuple[Devices, str]:
    """(The devices, which share mini-batches too where that pays; why or why not). A setting `steps` is kept."""
    if devices.mesh is None or devices.count == 1:
        return devices, "one device"
    if devices.steps:
        return devices, "mini-batches are spread, as asked"
    pays, why = step_pays(sizes, devices.mesh.devices.flat[0].platform, devices.count, devices.processes)
    return Devices(devices.mesh, devices.shards, pays), why


def step_pays(sizes: StepSizes, platform: str, n_devices: int, n_processes: int) -> tuple[bool, str]:
    """(Whether a step is predicted to take at most 0.8 of its time where its mini-batch is spread; why or why not)."""
    if sizes.work_of_row == 0:
        return False, "the learner's steps are those of one device; passes over the rows are shared"
    if sizes.batch_size % n_devices:
        return (
            False,
            f"batches of {sizes.batch_size} rows have no equal parts; passes over the rows are shared",
        )
    one, several = step_seconds(sizes, platform, n_devices, n_processes)
    told = f"predicted seconds of a step: {one:.2g} on one device, {several:.2g} on {n_devices}"
    if several <= GAIN * one:
        return True, f"{told}, so mini-batches are spread too"
    return False, f"{told}, so only passes over the rows are shared, and every device takes the same steps"


def step_seconds(
    sizes: StepSizes, platform: str, n_devices: int, n_processes: int = 1
) -> tuple[float, float]:
    """Predicted seconds of a step (on one device, on all): the fixed part, the rows' work, an exchange of 2(G − 1)/G numbers of each.

    Devices of one CPU process share its cores: they count as one.
    """
    rates = RATES.get(platform, RATES["gpu"])
    workers = n_processes if platform == "cpu" else n_devices
    link = ACROSS if n_processes > 1 else INSIDE
    work = sizes.batch_size * sizes.work_of_row / rates.operations
    share = 2 * (n_devices - 1) / n_devices
    sent = link.seconds + share * NUMBER * sizes.numbers / link.bytes if n_devices > 1 else 0.0
    return rates.fixed + work, rates.fixed + work / workers + sent
