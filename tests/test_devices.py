"""Several devices and several processes, forced on the processor of this machine: the same numbers as on one."""

import functools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from stochgp.devices import ONE, Devices

SCRIPT = Path(__file__).with_name("devices_worker.py")


def begin(names, n_devices, *processes):
    return subprocess.Popen(
        [sys.executable, SCRIPT, names, *map(str, processes)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(n_devices)},
    )


def answers(begun):
    """What each of the processes printed."""
    found = [process.communicate(timeout=250) for process in begun]
    for process, (_, errors) in zip(begun, found, strict=True):
        assert process.returncode == 0, errors
    return [json.loads(out) for out, _ in found]


def free_port():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


@functools.cache
def alone():
    """One process of 8 devices."""
    return answers([begin("placing", 8)])[0]


@functools.cache
def together():
    """Two processes of 2 devices each."""
    port = free_port()
    return answers([begin("placing", 2, port, 2, i) for i in range(2)])


def test_one_device_is_as_without():
    rows = {"X": np.ones((3, 2)), "y": np.zeros(3)}
    placed = ONE.place(rows)
    assert Devices.of(None) is ONE and ONE.count == ONE.processes == 1 and ONE.is_writer
    assert isinstance(placed["X"].sharding, jax.sharding.SingleDeviceSharding) and placed["X"].shape == (3, 2)
    for method in (ONE.replicate, ONE.local, ONE.broadcast, ONE.agree):
        assert method(rows) is rows
    assert ONE.padded(13) == 13 and np.array_equal(ONE.fetch(placed)["X"], rows["X"])


def test_one_device_of_a_mesh_has_eight_virtual_shards():
    one = Devices.of(1)
    assert (one.count, one.shards, one.padded(13)) == (1, 8, 16) and Devices.of(one) is one
    assert Devices.of(jax.devices()[:1]) == one and hash(one) == hash(Devices.of(1))


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (0, ValueError, "positive multiple of the 1 processes"),
        (1000, ValueError, "devices is 1000, but there are"),
        ([], ValueError, "one device at least"),
        ("two", TypeError, "a list of JAX's devices, not 'two'"),
        (True, TypeError, "not True"),
        ([1], TypeError, r"not \[1\]"),
    ],
)
def test_what_names_no_devices_is_refused(given, error, said):
    with pytest.raises(error, match=said):
        Devices.of(given)
    with pytest.raises(ValueError, match="none twice"):
        Devices.of(jax.devices()[:1] * 2)


def test_rows_are_spread_in_equal_parts_and_come_back():
    found = alone()["placing"]
    assert (found["count"], found["processes"], found["writes"], found["own_rows"]) == (8, 1, True, [2])
    assert found["fetched"] and found["local"] and found["stack"] == [None, "rows"]
    assert found["sum"] == np.arange(48.0).reshape(16, 3).sum(axis=0).tolist()


def test_two_processes_see_the_same_and_what_process_0_decides():
    first, second = (found["placing"] for found in together())
    assert (first["writes"], second["writes"]) == (True, False)
    assert (first["count"], first["processes"], first["own_rows"]) == (4, 2, [4])
    same = first.keys() - {"writes"}
    assert {name: first[name] for name in same} == {name: second[name] for name in same}
    assert first["bytes"] == np.array([np.nan, -0.0, 0.0]).tobytes().hex()
    assert first["rest"] == [3, "as it is", None] and first["agreed"] == {"seconds": 0.1, "process": 0}
    assert first["gathered"] == [[0.0, 2.5], [1.0, 2.5]] and first["fetched"] and first["local"]
