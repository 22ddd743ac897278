"""Computations on forced devices, in a process of its own, for `test_devices.py`: prints one JSON object.

The arguments are the names of what is asked, separated by commas, and of several processes the port, their number and which one this is.
"""

import hashlib
import json
import math
import os
import re
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from stochgp import FeatureGPRegressor, features
from stochgp.data.memory import MemorySource
from stochgp.devices import ONE, Devices
from stochgp.learners import SCGD, ByEvidence, Minimax, Problem
from stochgp.learners.base import _scan
from stochgp.models import FeatureGP, split
from stochgp.numerics.arrays import packed
from stochgp.objectives.moments import add_up, pass_rows
from stochgp.parameters import cast


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


GENERATOR = np.random.default_rng(0)
N, D, M, B = 256, 3, 10, 64
X, Y = GENERATOR.normal(size=(N, D)), GENERATOR.normal(size=N)
COUNT = GENERATOR.integers(1, 3, N).astype(float)
SLOW: dict[str, Any] = {"learning_rate": 1e-5, "optimizer": optax.sgd}
LEARNERS = {
    "scgd": SCGD(B, **SLOW),
    "tracking": SCGD(B, tracking=0.1, **SLOW),
    "minimax": Minimax(B, **SLOW),
}


def model(dtype: str) -> FeatureGP:
    given = {"n_inputs": D, "X_sample": jnp.asarray(X), "dtype": dtype}
    return FeatureGP(cast(features.resolve("mlp", None, M, key=jax.random.key(0), **given), dtype), 0.1, 1.0)


def counts() -> list[int]:
    """Numbers of devices to compare: of several processes all of them."""
    n = jax.device_count()
    return [n] if jax.process_count() > 1 else [G for G in (1, 2, 4, 8) if n >= G]


def moments() -> dict:
    """The sums of every number of devices, and how far they are from those of one device without shards."""
    gp, bits, errors = cast(model("float64"), "float64"), {}, []
    for n in (N, 100, 5):
        source = MemorySource(X[:n], Y[:n], COUNT[:n], dtype=jnp.float64)
        sums = lambda devices, source=source: add_up(gp, source.blocks(pass_rows(M, devices)), devices)
        alone = sums(ONE)
        for G in counts():
            found = sums(Devices.of(G))
            digest = hashlib.sha256(b"".join(np.asarray(part).tobytes() for part in found)).hexdigest()
            bits.setdefault(str(n), []).append(digest)
            errors += [
                float(np.max(np.abs(one - other)) / np.max(np.abs(one) + 1))
                for one, other in zip(alone, found, strict=True)
            ]
    return {"bits": bits, "error": max(errors)}


def stepped(learner: Any, devices: Devices, dtype: str) -> tuple[Any, Any]:
    """(What two steps of `_scan` take on these devices, the state before)."""
    gp, source = cast(model(dtype), dtype), MemorySource(X, Y, COUNT, dtype=dtype)
    plan = learner.plan(N, D, ByEvidence())
    problem = Problem(source, plan, learner.prepare(gp, source, plan, (0, 0)), None, devices)
    state = learner.init(gp, problem, key=jax.random.key(1))
    rows = (
        np.arange(4 * B).reshape((2, 2, B))
        if isinstance(learner, Minimax)
        else np.arange(2 * B).reshape(2, B)
    )
    batch = devices.place(source.take(rows), axis=rows.ndim - 1)
    return (learner, devices.replicate(state), batch, np.asarray(0), np.zeros(2, np.uint32)), state


def steps() -> dict:
    """How far two steps by gradient descent on all devices are from those of one, in θ and in w, relative to how far they go."""
    found, everywhere = {}, Devices(Devices.of("all").mesh, steps=True)
    moved = lambda state: [packed(part) for part in (state.gp, state.weights)]
    for name, learner in LEARNERS.items():
        after = []
        for devices in (ONE, everywhere):
            arguments, before = stepped(learner, devices, "float64")
            after.append(moved(devices.local(_scan(*arguments)[0])))
        found[name] = [
            float(np.max(np.abs(one - other)) / np.max(np.abs(one - start)))
            for one, other, start in zip(*after, moved(before), strict=True)
        ]
    return found


def collectives() -> dict:
    """Of a compiled float32 step: kind and numbers of each exchange between devices."""
    found, devices = {}, Devices(Devices.of("all").mesh, steps=True)
    for name, learner in LEARNERS.items():
        text = _scan.lower(*stepped(learner, devices, "float32")[0]).compile().compiled.as_text()
        exchanges = []
        for line in re.sub(r"/\*index=\d+\*/", "", text).splitlines():
            if match := EXCHANGE.search(line):
                shapes = re.findall(r"(\w+)\[([\d,]*)\]", match[1])
                numbers = [math.prod(int(n) for n in shape.split(",") if n) for _, shape in shapes]
                exchanges.append([match[2], sorted({kind for kind, _ in shapes}), sum(numbers)])
        found[name] = exchanges
    theta = split(model("float32"), hold_variances=True)[0]
    return found | {"parameters": packed(theta).size}


EXCHANGE = re.compile(
    r"= (.*?) (all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute|collective-broadcast)(?:-start)?\("
)


def fits() -> dict:
    """What whole fits predict: of every number of devices, and in one process on all of them with mini-batches spread."""
    y = np.sin(X[:, 0]) + 0.1 * Y
    chosen = [Devices.of(G) for G in counts()]
    chosen += [Devices(Devices.of("all").mesh, steps=True)] if jax.process_count() == 1 else []
    digests, scores, told = [], [], []
    for devices in chosen:
        settings = {
            "batch_size": 32,
            "epochs": 4,
            "learning_rate": 0.01,
            "random_state": 0,
            "devices": devices,
        }
        model = FeatureGPRegressor(n_features=M, **settings).fit(X, y)
        mean, std = model.predict(X[:20], return_std=True)
        digests.append(hashlib.sha256(mean.tobytes() + std.tobytes()).hexdigest())
        scores.append(float(model.nlml_))
        told.append(model.plan_["devices"])
    return {"bits": digests, "nlml": scores, "told": told}


ASKED = {one.__name__: one for one in (placing, moments, steps, collectives, fits)}


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
