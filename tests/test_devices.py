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

from stochgp.devices import (
    agreed,
    from_first,
    is_writer,
    mesh_around,
    mesh_of,
    n_processes,
    on_one,
    spread,
    together,
)

SCRIPT = Path(__file__).parent / "support" / "devices_worker.py"
QUICK = ("JAX_DISABLE_MOST_OPTIMIZATIONS", "XLA_FLAGS")  # by which tests compile quickly


def begin(names, n_devices, *processes, environment=os.environ):
    return subprocess.Popen(
        [sys.executable, SCRIPT, names, *map(str, processes)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(n_devices)},
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
def alone(names="placing,moments,steps"):
    """One process of 8 devices."""
    return answers([begin(names, 8)])[0]


@functools.cache
def together_(names="placing,moments"):
    """Two processes of 2 devices each."""
    port = free_port()
    return answers([begin(names, 2, port, 2, i) for i in range(2)])


def test_without_several_processes_everything_stays_as_it_is():
    rows = {"X": np.ones((3, 2)), "y": np.zeros(3)}
    assert mesh_of(None) is None and n_processes(None) == 1 and is_writer()
    assert agreed(rows) is rows and from_first(rows) is rows
    one = mesh_of(1)
    assert (one.size, n_processes(one)) == (1, 1) and mesh_of(jax.devices()[:1]) == mesh_of([0]) == one
    placed = spread(rows, one)
    assert mesh_around(placed["X"]) == one and mesh_around(on_one(placed)["X"]) is None
    with together(one):
        assert agreed(rows) is rows


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (0, ValueError, "positive multiple of the 1 processes"),
        (1000, ValueError, "devices is 1000, but there are"),
        ([], ValueError, "one device at least"),
        ("two", TypeError, "a list of JAX's devices, not 'two'"),
        (True, TypeError, "not True"),
        ([0, 99], ValueError, r"devices is \[0, 99\]; there are "),
    ],
)
def test_what_names_no_devices_is_refused(given, error, said):
    with pytest.raises(error, match=said):
        mesh_of(given)
    with pytest.raises(ValueError, match="none twice"):
        mesh_of(jax.devices()[:1] * 2)


def test_rows_are_spread_in_equal_parts_and_come_back():
    found = alone()["placing"]
    assert (found["count"], found["processes"], found["writes"], found["own_rows"]) == (8, 1, True, [2])
    assert found["fetched"] and found["local"] and found["stack"] == [None, "rows"]
    assert found["sum"] == np.arange(48.0).reshape(16, 3).sum(axis=0).tolist()


def test_two_processes_see_the_same_and_what_process_0_decides():
    first, second = (found["placing"] for found in together_())
    assert (first["writes"], second["writes"]) == (True, False)
    assert (first["count"], first["processes"], first["own_rows"]) == (4, 2, [4])
    same = first.keys() - {"writes"}
    assert {name: first[name] for name in same} == {name: second[name] for name in same}
    assert first["bytes"] == np.array([np.nan, -0.0, 0.0]).tobytes().hex()
    assert first["rest"] == [3, "as it is", None] and first["agreed"] == {"seconds": 0.1, "process": 0}
    assert first["fetched"] and first["local"]


def test_sums_over_rows_are_those_of_one_device():
    """Moments of 256, 100 and 5 rows in chunks of 20 on 1, 2, 4 and 8 devices, and in two processes of two devices each."""
    found = [process["moments"] for process in (alone(), *together_())]
    assert [len(errors) for errors in found] == [12, 3, 3]
    assert max(max(errors.values()) for errors in found) < 1e-14


@pytest.mark.parametrize("learner", ["scgd", "tracking", "minimax"])
def test_the_gradient_of_a_spread_batch_is_that_of_one_device(learner):
    """In float64: θ and w after two steps of gradient descent, relative to the steps."""
    assert np.max(alone()["steps"][learner]) < 1e-12


@pytest.mark.long
def test_a_step_exchanges_sums_of_its_gradients_alone():
    """Numbers, all float32: of θ, w, what the noise sees and Σρ log s; M² more for a tracker, M² and two for the second batch of MINIMAX."""
    plain = {name: value for name, value in os.environ.items() if name not in QUICK}
    found, M = answers([begin("collectives", 4, environment=plain)])[0]["collectives"], 10
    P = found["parameters"]
    assert found["scgd"] == [["all-reduce", ["f32"], P + M + 2]]
    assert {(kind, *types) for name in ("scgd", "tracking", "minimax") for kind, types, _ in found[name]} == {
        ("all-reduce", "f32")
    }
    assert sum(numbers for *_, numbers in found["tracking"]) == P + M + 2 + M**2
    assert sum(numbers for *_, numbers in found["minimax"]) == P + M + 1 + M**2 + 2


@pytest.mark.long
def test_whole_fits_predict_the_same_on_any_number_of_devices_and_processes():
    """To the rounding of float32 in some hundred steps; processes agree to the last bit."""
    found = [alone("fits")["fits"], *(process["fits"] for process in together_("fits"))]
    means = np.array([mean for process in found for mean in process["means"]])
    assert len(means) == 9 and np.max(np.abs(means - means[0])) < 1e-3
    assert np.ptp([nlml for process in found for nlml in process["nlml"]]) < 1e-3
    told = found[0]["told"]
    assert [entry["count"] for entry in told] == [1, 2, 4, 8, 8]
    assert [entry["batches"] for entry in told] == ["whole"] * 4 + ["spread"]
    assert found[1] == found[2]
