"""An operator spread over four devices, forced on the processor of this machine, against one on one device."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sharded_worker import FEW_ROWS, SIZES

from tests.kernels.test_contract import KERNELS

SCRIPT = Path(__file__).parents[1] / "support" / "sharded_worker.py"
N, D, S, B, G = (SIZES[name] for name in "NDSBG")
PRODUCT = 2 * N * N * (D + S)  # operations of a product of an RBF kernel


@functools.cache
def answers(names, optimised):
    """What a worker says of these, separated by spaces."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(G)}
    environment |= {"JAX_DISABLE_MOST_OPTIMIZATIONS": "0", "XLA_FLAGS": ""} if optimised else {}
    found = subprocess.run(
        [sys.executable, SCRIPT, *names.split()], capture_output=True, text=True, env=environment, timeout=280
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def worker(name):
    """What one process says of this; of most kernels another, and of the programs a third with all of XLA's optimisations."""
    names = name if name in ("programs", "others") else "products sums parts solves steps refused"
    return answers(names, optimised=name == "programs")[name]


@pytest.mark.parametrize(
    ("part", "kernels"),
    [("products", FEW_ROWS), pytest.param("others", set(KERNELS) - set(FEW_ROWS), marks=pytest.mark.long)],
)
def test_products_are_the_dense_ones(part, kernels):
    """13 rows on 4 devices, for some kernels also 3, in tiles of at most 3."""
    distances = worker(part)
    assert {name.rpartition(" ")[0] for name in distances} == set(kernels)
    assert {name for name, found in distances.items() if len(found) != 1 or max(found) > 1e-12} == set()


def test_wide_products_are_summed_in_float64_on_every_device_and_between_them():
    found = worker("sums")
    assert max(found["float64"]) < 1e-6 and min(found["float32"]) > 1e-3


def test_parts_of_the_operator_are_those_of_one_device():
    assert {name: far for name, far in worker("parts").items() if far > 1e-12} == {}


def test_solves_go_the_same_way_as_on_one_device():
    for name, found in worker("solves").items():
        assert found["steps"][0] == found["steps"][1] >= 10, name
        assert found["value"] < 1e-10 and found["residual"] < 1e-10, (name, found)


def test_ten_steps_are_those_of_one_device():
    assert {name: far for name, far in worker("steps").items() if max(far) > 1e-10} == {}


def test_a_factorisation_is_refused():
    assert "Cholesky factorises on one device, but the rows lie on 4" in worker("refused")["said"]


@pytest.mark.long
def test_products_send_rows_and_vectors_once_and_outside_of_tiles():
    """(G − 1)/G of N (D + 1 + S) numbers. Each device does its share of the work."""
    programs = worker("programs")
    assert programs["one"] == {"flops": PRODUCT, "sent": {}, "depth": {}}
    rows, vectors = ((G - 1) * N * each * 4 // G for each in (D + 1, S))
    gather = programs["gather"]
    assert gather["sent"] == {"all-gather": rows + vectors} and gather["depth"] == {"all-gather": 0}
    assert gather["flops"] == PRODUCT // G


@pytest.mark.long
def test_steps_send_what_their_rows_need_and_divide_their_products():
    """In float32, two steps each; CG's two branches both count. SGD: rows, noise and z twice, b, K z; features of 20 columns; a norm, a mean."""
    programs, m, R = worker("programs"), 20, 10
    sdd, cg, sgd = (programs[name] for name in ("sdd", "cg", "sgd"))
    assert sdd["sent"] == {"all-reduce": 2 * 4 * B * (D + 2 + 4 * S)}
    assert sdd["flops"] == 2 * (2 * B * N * (D + S) // G + 2 * 2 * B * B * S)
    branches = ((D + 1 + S), (D + 1 + 2 * S))
    assert cg["sent"]["all-gather"] == 2 * sum((G - 1) * N * 4 // G * numbers for numbers in branches)
    assert cg["sent"]["all-reduce"] <= 2 * 8 * S * (R + 8)
    assert cg["flops"] == 2 * (2 * N * N * (2 * D + 3 * S) + 2 * 2 * R * N * S) // G
    assert sgd["sent"]["all-reduce"] <= 2 * 4 * (B * (D + 3 + 4 * S) + m * S + S + 1)
    work = 2 * B * N * (D + 2 * S) + 2 * N * (D * m // 2 + 2 * m * S)
    assert sgd["flops"] <= 1.1 * 2 * work / G
    assert all(max(one["depth"].values()) <= 1 for one in (sdd, cg, sgd))  # in the loop of steps alone
