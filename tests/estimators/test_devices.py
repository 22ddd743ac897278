"""Kernel and sparse models on forced devices of one processor, against those without devices."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_devices import answers, free_port

SCRIPT = Path(__file__).parents[1] / "support" / "shared_fits_worker.py"


@functools.cache
def alone(names):
    """What one process of four devices says of these."""
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "4"}
    found = subprocess.run(
        [sys.executable, SCRIPT, names],
        capture_output=True, text=True, env=environment, timeout=280,
    )  # fmt: skip
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def worker(name):
    """What it says of this."""
    return alone("kernel" if name == "kernel" else "kept,bounds,sparse")[name]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("solver", ["cg", "sdd", "sgd"])
@pytest.mark.long
def test_shared_solves_predict_what_one_device_predicts(solver):
    """In float64, to rounding: twelve steps of CG, some epochs of SDD and SGD, with four samples, on 1, 2 and 4 devices or on 1 and 4."""
    found = worker("kernel")[solver]
    n = len(found["far"])
    assert found["far"][0] == 0 and 0 < max(found["far"][1:]) < 1e-11
    assert [told["choice"]["solve"] for told in found["told"]] == ["one device", *["shared"] * (n - 1)]
    shared = "the devices share products with K"
    assert [told["why"] for told in found["told"]] == ["one device", *[shared] * (n - 1)]
    assert found["converged"][0] == found["converged"][1] and found["on_one"]


def test_what_no_device_shares_has_the_bits_of_one():
    found = worker("kept")
    assert all(one["same"] and one["rest"] for one in found.values())
    assert {one["told"]["choice"]["solve"] for one in found.values()} == {"one device"}
    assert found["cholesky"]["told"]["why"] == "cholesky factorises on one device"
    assert found["local"]["told"]["why"] == "local prediction is computed on the host"


@pytest.mark.timeout(300)
def test_bounds_of_sparse_models_are_those_of_one_device():
    """The lower bound, its gradient, the optimal q(u) and the bound at any q(u), of weighted rows, on 1, 2 and 4 devices."""
    found = worker("bounds")
    assert len(found) == 3 and max(found) < 1e-12


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["sgpr", "svgp", "classes"])
def test_sparse_fits_predict_the_same_on_any_number_of_devices(name):
    found = worker("sparse")[name]
    assert max(found["far"]) < 1e-9
    none, *told = found["told"]
    assert none is None and [one["choice"]["count"] for one in told] == [1, 2, 4]
    assert {one["choice"]["batches"] for one in told} == {"whole"}
    assert told[-1]["why"] == "they share passes over the rows"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_two_processes_share_sparse_fits_and_refuse_kernel_ones():
    """Of two devices each: both find the same bits, and what one process finds."""
    port, names = free_port(), "bounds,sparse,refused"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"}
    begun = [
        subprocess.Popen(
            [sys.executable, SCRIPT, names, *map(str, (port, 2, i))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for i in range(2)
    ]
    first, second = answers(begun)
    assert first == second
    assert first["refused"]["said"] == "KernelGPRegressor is fitted in one process, not in 2"
    assert max(first["bounds"]) < 1e-12
    for found in first["sparse"].values():
        assert max(found["far"]) < 1e-9 and found["told"][1]["choice"]["processes"] == 2
