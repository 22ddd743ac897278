"""Computations on forced devices, in a process of its own, for `test_devices.py`: prints one JSON object.

The arguments are the names of what is asked, separated by commas, and of several processes the port, their number and which one this is.
"""

import json
import os
import sys

import jax
import numpy as np

from stochgp.devices import Devices


def placing() -> dict:
    """What is spread, replicated, sent from process 0 and fetched again."""
    devices, process = Devices.of("all"), jax.process_index()
    rows = np.arange(48, dtype=np.float64).reshape(16, 3)
    there, sums = devices.place(rows), jax.jit(lambda a: a.sum(axis=0))
    stack = devices.place(np.zeros((2, 16)), axis=-1)
    sent = {
        "a": np.array([np.nan, -0.0, 1e-300 * process]),
        "n": 3 + process,
        "text": "as it is",
        "none": None,
    }
    found = devices.broadcast(sent)
    return {
        "count": devices.count,
        "processes": devices.processes,
        "writes": devices.is_writer,
        "own_rows": sorted({shard.data.shape[0] for shard in there.addressable_shards}),
        "stack": list(stack.sharding.spec),
        "fetched": bool(np.array_equal(devices.fetch(there), rows)),
        "sum": np.asarray(sums(there)).tolist(),
        "local": devices.local(devices.replicate({"w": jax.numpy.ones(3)}))["w"].is_fully_addressable,
        "bytes": found["a"].tobytes().hex(),
        "rest": [found["n"], found["text"], found["none"]],
        "agreed": devices.agree({"seconds": 0.1, "process": process}),
        "gathered": devices.gathered([process, 2.5]).tolist(),
    }


ASKED = {"placing": placing}


def main(names: str, port: str = "", processes: str = "1", process: str = "0") -> None:
    out = os.dup(1)
    os.dup2(2, 1)  # gloo writes to the standard output
    if port:
        jax.distributed.initialize(f"localhost:{port}", int(processes), int(process))
    with jax.enable_x64(True):
        found = {name: ASKED[name]() for name in names.split(",")}
    os.write(out, json.dumps(found).encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
