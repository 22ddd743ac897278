"""Several devices, and several processes: the one place that knows meshes.

Rows are spread over the devices in equal shards, everything else is on all of them. In a run of several processes every process calls the same
functions in the same order; what a host decides (times, files, choices) is what process 0 found.
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from stochgp import deadline
from stochgp.numerics.arrays import on_device

AXIS = "rows"
SHARDS = 8  # virtual ones, over which ordered sums are taken: the same bits for any number of devices that divides it
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Devices:
    """Devices over which the rows of a computation are spread.

    mesh    of one axis, "rows"; None = one device, on which arrays lie as they do without this class
    shards  L: how many parts an ordered sum has, whatever the number of devices
    steps   whether the steps of learners and of solvers are shared too; else every process takes whole ones, as one device does
    """

    mesh: Mesh | None = None
    shards: int = SHARDS
    steps: bool = False

    @classmethod
    def of(cls, devices: Any) -> "Devices":
        """None = one device; "all"; a number G = the first G, of several processes G/H of each; or a list of JAX's devices or of their numbers.

        Raises ValueError for more devices than there are, for none, for 3, 5, 6 or 7 of them, which have no equal parts of 8 virtual shards, and
        for a list that names one twice or leaves a process out; TypeError for anything else.
        """
        if devices is None or isinstance(devices, Devices):
            return ONE if devices is None else devices
        chosen = _chosen(devices)
        shards = max(SHARDS, len(chosen))
        if shards % len(chosen):
            raise ValueError(f"devices: {len(chosen)} were given; there must be 1, 2, 4, 8 or more than 8")
        return cls(
            jax.make_mesh((len(chosen),), (AXIS,), axis_types=(AxisType.Auto,), devices=chosen), shards
        )

    @property
    def count(self) -> int:
        """G."""
        return 1 if self.mesh is None else self.mesh.size

    @property
    def processes(self) -> int:
        """H: over how many processes they are."""
        return 1 if self.mesh is None else len({device.process_index for device in self.mesh.devices.flat})

    @property
    def workers(self) -> int:
        """How many compute at the same time: CPU devices of one process share its cores."""
        return self.processes if self._on_processors else self.count

    @property
    def in_one_memory(self) -> int:
        """How many of them have their arrays in the same memory."""
        return -(-self.count // self.processes) if self._on_processors else 1

    @property
    def share_work(self) -> bool:
        """Whether several devices should share the work of a step: they compute at the same time, or `steps` is set."""
        return self.count > 1 and (self.steps or self.workers > 1)

    @property
    def _on_processors(self) -> bool:
        return self.mesh is None or self.mesh.devices.flat[0].platform == "cpu"

    @property
    def is_writer(self) -> bool:
        """Whether this process writes files and speaks: of several, process 0."""
        return self.processes == 1 or jax.process_index() == 0

    @property
    def parts(self) -> int:
        """Into how many parts each chunk of a pass over rows is cut."""
        return 1 if self.mesh is None else self.shards

    def padded(self, n_rows: int) -> int:
        """The least number of rows, at least `n_rows`, that has equal shards on every device and in an ordered sum."""
        return n_rows if self.mesh is None else -(-n_rows // self.shards) * self.shards

    def place(self, rows: T, axis: int = 0) -> T:
        """The arrays of a tree, with this axis spread over the devices. Every process gives the same numbers, and keeps its own part of them.

        Raises ValueError for a length that the number of devices does not divide.
        """
        spread = lambda leaf: self._put(leaf, PartitionSpec(*[None] * (axis % np.ndim(leaf)), AXIS))
        return jax.tree.map(spread, rows)

    def replicate(self, tree: T) -> T:
        """The arrays of a tree, on every device; other leaves as they are."""
        if self.mesh is None:
            return tree
        return jax.tree.map(
            lambda leaf: self._put(leaf, PartitionSpec()) if eqx.is_array(leaf) else leaf, tree
        )

    def fetch(self, tree: T) -> T:
        """The arrays of a tree on the host of every process, put together from all devices; other leaves as they are."""
        return jax.tree.map(lambda leaf: _on_host(leaf) if eqx.is_array(leaf) else leaf, tree)

    def local(self, tree: T) -> T:
        """The arrays of a tree that are the same on all devices, back on this process's first one as if it were alone."""
        if self.mesh is None:
            return tree
        return jax.tree.map(
            lambda leaf: on_device(_on_host(leaf)) if isinstance(leaf, jax.Array) else leaf, tree
        )

    def broadcast(self, tree: T) -> T:
        """The arrays and numbers of a tree as process 0 has them, bit for bit; every process gives the same shapes. Other leaves as they are."""
        if self.processes == 1:
            return tree
        numbers, rest = eqx.partition(tree, eqx.is_array_like)
        leaves, structure = jax.tree.flatten(numbers)
        arrays = [np.asarray(leaf) for leaf in leaves]
        sent = np.frombuffer(_broadcast(b"".join(array.tobytes() for array in arrays)), np.uint8)
        parts = np.split(sent, np.cumsum([array.nbytes for array in arrays])[:-1]) if arrays else []
        found = [
            _alike(np.frombuffer(part.tobytes(), array.dtype).reshape(array.shape), leaf)
            for part, array, leaf in zip(parts, arrays, leaves, strict=True)
        ]
        return eqx.combine(jax.tree.unflatten(structure, found), rest)

    def agree(self, value: Any) -> Any:
        """A JSON value of process 0, on every process."""
        if self.processes == 1:
            return value
        text = json.dumps(value).encode() if self.is_writer else b""
        length = int(self.broadcast(np.int64(len(text))))
        return json.loads(_broadcast(text.ljust(length, b" ")))

    def gathered(self, values: Sequence[float]) -> np.ndarray:
        """[H, …]: a few numbers of every process, on every process."""
        own = np.asarray(values, np.float64)
        if self.processes == 1:
            return own[None]
        with jax.enable_x64(True):
            return np.asarray(multihost_utils.process_allgather(own))

    def least(self, value: float) -> float:
        """The smallest of what the processes give."""
        return value if self.processes == 1 else float(self.gathered([value]).min())

    @contextlib.contextmanager
    def as_one(self) -> Iterator[None]:
        """What is inside decides alike in every process: it goes by the seconds of process 0."""
        if self.processes == 1 or deadline.is_agreed():
            yield
            return
        with deadline.agreeing(lambda seconds: float(self.gathered([seconds])[0, 0])):
            yield

    def _put(self, leaf: Any, spec: PartitionSpec) -> Any:
        if self.mesh is None:
            return on_device(leaf)
        length = np.shape(leaf)[len(spec) - 1] if spec else 0
        if length % self.count:
            raise ValueError(f"{length} rows have no equal parts on {self.count} devices")
        sharding = NamedSharding(self.mesh, spec)
        if self.processes == 1:
            return jax.device_put(leaf, sharding)
        if isinstance(leaf, jax.Array) and leaf.sharding.is_equivalent_to(sharding, leaf.ndim):
            return leaf
        host = _on_host(leaf)
        return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


ONE = Devices()


def _chosen(devices: Any) -> list[Any]:
    """JAX's devices that a setting means."""
    there, n_processes = jax.devices(), jax.process_count()
    if isinstance(devices, str) and devices == "all":
        return there
    if isinstance(devices, int | np.integer) and not isinstance(devices, bool):
        return _first(there, int(devices), n_processes)
    if isinstance(devices, str | bytes) or not isinstance(devices, Sequence):
        raise TypeError(f'devices must be None, "all", a number or a list of JAX\'s devices, not {devices!r}')
    by_number = {device.id: device for device in there}
    chosen = [by_number.get(one, one) if isinstance(one, int) else one for one in devices]
    if not all(isinstance(device, jax.Device) for device in chosen):
        raise ValueError(f"devices is {devices!r}; there are {_named(there)}")
    if not chosen or len(set(chosen)) < len(chosen):
        raise ValueError("devices: a list must name one device at least, and none twice")
    missing = set(range(n_processes)) - {device.process_index for device in chosen}
    if missing and n_processes > 1:
        raise ValueError(f"devices: none of process {min(missing)} is in the list; every process takes part")
    return chosen


def _first(there: Sequence[Any], count: int, n_processes: int) -> list[Any]:
    """The first `count` devices, equally many of every process."""
    if count < 1 or count % n_processes:
        raise ValueError(f"devices is {count}; it must be a positive multiple of the {n_processes} processes")
    each = count // n_processes
    found = [
        device
        for process in range(n_processes)
        for device in [one for one in there if one.process_index == process][:each]
    ]
    if len(found) < count:
        raise ValueError(f"devices is {count}, but there are {len(there)}: {_named(there)}")
    return found


def _named(devices: Sequence[Any]) -> str:
    return ", ".join(map(str, devices[:8])) + (", …" if len(devices) > 8 else "")


def _on_host(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
        return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))
    return np.asarray(leaf)


def _broadcast(content: bytes) -> bytes:
    """The bytes of process 0; all processes give as many. They are no numbers, so that none is rounded or changes its type."""
    if not content:
        return content
    sent = multihost_utils.broadcast_one_to_all(np.frombuffer(content, np.uint8))
    return np.asarray(sent, np.uint8).tobytes()


def _alike(new: np.ndarray, old: Any) -> Any:
    """`new` as the kind of thing that `old` is."""
    if isinstance(old, jax.Array):
        return on_device(new, old.dtype)
    return new.copy() if isinstance(old, np.ndarray) else type(old)(new)
