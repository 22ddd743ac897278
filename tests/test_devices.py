"""Several devices and several processes, forced on the processor of this machine: the same numbers as on one."""

import functools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sweeps import some_of

from stochgp.sharding import (
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
DEFAULT = "placing,moments,products,solves,refused"
MORE = "bounds,sparse,sums,parts,batch_solves,kept"
pytestmark = pytest.mark.timeout(300)


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
def alone(names=DEFAULT):
    """One process of 4 devices."""
    return answers([begin(names, 4)])[0]


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
    assert (one.size, n_processes(one)) == (1, 1)
    placed = spread(rows, one)
    assert mesh_around(placed["X"]) == one and mesh_around(on_one(placed)["X"]) is None
    with together(one):
        assert agreed(rows) is rows


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        (0, ValueError, "positive multiple of the number of processes"),
        (1000, ValueError, "devices is 1000; .* and at most"),
        ("two", TypeError, "a number, not 'two'"),
        ([0], TypeError, "a number"),
        (True, TypeError, "not True"),
    ],
)
def test_what_names_no_devices_is_refused(given, error, said):
    with pytest.raises(error, match=said):
        mesh_of(given)


def test_rows_are_spread_in_equal_parts_and_come_back():
    found = alone()["placing"]
    assert (found["count"], found["processes"], found["writes"], found["own_rows"]) == (4, 1, True, [4])
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
    """Moments of 256 and 5 rows in chunks of 20 on 4 devices, and in two processes of two devices each."""
    found = [process["moments"] for process in (alone(), *together_())]
    assert [len(errors) for errors in found] == [2, 2, 2]
    assert max(max(errors.values()) for errors in found) < 1e-14


@pytest.mark.long
def test_whole_fits_predict_the_same_on_any_number_of_devices_and_processes():
    """To the rounding of float32 in some hundred steps; processes agree to the last bit."""
    found = [alone("fits")["fits"], *(process["fits"] for process in together_("fits"))]
    means = np.array([mean for process in found for mean in process["means"]])
    assert len(means) == 5 and np.max(np.abs(means - means[0])) < 1e-3
    assert np.ptp([nlml for process in found for nlml in process["nlml"]]) < 1e-3
    told = found[0]["told"]
    assert [entry["count"] for entry in told] == [1, 2, 4]
    assert found[1] == found[2]


# Operators and solvers


def test_products_are_the_dense_ones():
    """13 rows, and 3, on 4 devices, in tiles of at most 3."""
    distances = alone()["products"]
    assert len(distances) == 2
    assert {name for name, found in distances.items() if len(found) != 1 or max(found) > 1e-12} == set()


@pytest.mark.long
def test_wide_products_are_summed_in_float64_on_every_device_and_between_them():
    found = alone(MORE)["sums"]
    assert max(found["float64"]) < 1e-6 and min(found["float32"]) > 1e-3


@pytest.mark.long
def test_parts_of_the_operator_are_those_of_one_device():
    assert {name: far for name, far in alone(MORE)["parts"].items() if far > 1e-12} == {}


@pytest.mark.parametrize("solves", some_of(["solves", "batch_solves"], ["solves"]))
def test_solves_go_the_same_way_as_on_one_device(solves):
    """Of CG, and of SDD."""
    (found,) = (alone() if solves == "solves" else alone(MORE))[solves].values()
    assert found["steps"][0] == found["steps"][1] >= 10
    assert found["value"] < 1e-10 and found["residual"] < 1e-10


@pytest.mark.long
def test_ten_steps_are_those_of_one_device():
    assert {
        name: far for name, far in alone("solver_steps")["solver_steps"].items() if max(far) > 1e-10
    } == {}


def test_a_factorisation_is_refused():
    assert "Cholesky needs one device, but the rows are on 4" in alone()["refused"][0]


# Whole fits


@pytest.mark.parametrize("solver", ["cg", "sdd"])
@pytest.mark.long
def test_shared_solves_predict_what_one_device_predicts(solver):
    """In float64, to rounding: twelve steps of CG, some epochs of SDD, with four samples, on 1, 2 and 4 devices or on 1 and 4."""
    found = alone("kernel")["kernel"][solver]
    n = len(found["far"])
    assert found["far"][0] == 0 and 0 < max(found["far"][1:]) < 1e-11
    assert len({told["choice"]["count"] for told in found["told"]}) == n
    assert found["converged"][0] == found["converged"][1] and found["on_one"]


@pytest.mark.long
def test_what_no_device_shares_has_the_bits_of_one():
    found = alone(MORE)["kept"]
    assert all(one["same"] and one["rest"] for one in found.values())


@pytest.mark.long
def test_bounds_of_sparse_models_are_those_of_one_device():
    """The lower bound, its gradient, the optimal q(u) and the bound at any q(u), of weighted rows."""
    found = alone(MORE)["bounds"]
    assert max(found) < 1e-12


@pytest.mark.parametrize("name", ["sgpr", "svgp", "classes"])
@pytest.mark.long
def test_sparse_fits_predict_the_same_on_several_devices(name):
    found = alone(MORE)["sparse"][name] if name == "sgpr" else alone("classes")["classes"][name]
    assert max(found["far"]) < 1e-9
    none, *told = found["told"]
    assert none is None and [one["choice"]["count"] for one in told] == [4]


@pytest.mark.long
def test_two_processes_share_sparse_fits_and_refuse_kernel_ones():
    """Of two devices each: both find the same bits, and what one process finds."""
    first, second = together_("bounds,sparse,refused")
    assert first == second
    assert first["refused"] == [
        "KernelGPRegressor can be fitted in one process only, but there are 2 processes"
    ]
    assert max(first["bounds"]) < 1e-12
    for found in first["sparse"].values():
        assert max(found["far"]) < 1e-9 and found["told"][1]["choice"]["processes"] == 2
