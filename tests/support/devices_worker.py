"""Computations on forced devices, in a process of its own, for `test_devices.py`: prints one JSON object.

The arguments are the names of what is asked, separated by commas, and of several processes the port, their number and which one this is.
"""

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
from stochgp.devices import (
    agreed,
    from_first,
    is_writer,
    mesh_around,
    mesh_of,
    n_processes,
    on_all,
    on_one,
    spread,
    together,
)  # fmt: skip
from stochgp.learners import SCGD, ByEvidence, Minimax, Problem, base
from stochgp.learners.base import _scan
from stochgp.models import FeatureGP, split
from stochgp.numerics.arrays import packed
from stochgp.objectives.moments import add_up
from stochgp.parameters import cast


def placing() -> dict:
    """What is spread, whole on all devices, sent from process 0 and fetched again."""
    mesh, process = mesh_of("all"), jax.process_index()
    rows = np.arange(48, dtype=np.float64).reshape(16, 3)
    there, sums = spread(rows, mesh), jax.jit(lambda a: a.sum(axis=0))
    stack = spread(np.zeros((2, 16)), mesh, axis=-1)
    sent = {
        "a": np.array([np.nan, -0.0, 1e-300 * process]),
        "n": 3 + process,
        "text": "as it is",
        "none": None,
    }
    with together(mesh):
        found, writes = agreed(sent), is_writer()
        decided = from_first({"seconds": 0.1, "process": process})
    whole = on_one({"w": on_all(jax.numpy.ones(3), mesh), "rows": there})
    return {
        "count": mesh.size,
        "processes": n_processes(mesh),
        "writes": writes,
        "own_rows": sorted({shard.data.shape[0] for shard in there.addressable_shards}),
        "stack": list(stack.sharding.spec),
        "fetched": bool(np.array_equal(np.asarray(whole["rows"]), rows)),
        "sum": np.asarray(sums(there)).tolist(),
        "local": all(mesh_around(part) is None for part in whole.values()),
        "bytes": found["a"].tobytes().hex(),
        "rest": [found["n"], found["text"], found["none"]],
        "agreed": decided,
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
    """How far the sums of every number of devices are from those of one device without a mesh."""
    gp, errors = cast(model("float64"), "float64"), {}
    for n in (N, 100, 5):
        source = MemorySource(X[:n], Y[:n], COUNT[:n], dtype=jnp.float64)
        sums = lambda mesh, source=source: add_up(gp, chunks_of(source, mesh))
        alone = sums(None)
        for G in counts():
            pairs = zip(alone, sums(mesh_of(G)), strict=True)
            errors[f"{n} {G}"] = max(
                float(np.max(np.abs(one - other)) / np.max(np.abs(one) + 1)) for one, other in pairs
            )
    return errors


def chunks_of(source, mesh):
    source.mesh = mesh
    return source.blocks(20)


def stepped(learner: Any, mesh: Any, dtype: str) -> tuple[Any, Any]:
    """(What two steps of `_scan` take on these devices, the state before)."""
    gp, source = cast(model(dtype), dtype), MemorySource(X, Y, COUNT, dtype=dtype)
    plan = learner.plan(N, D, ByEvidence())
    problem = Problem(source, plan, learner.prepare(gp, source, plan, (0, 0)))
    state = learner.init(gp, problem, key=jax.random.key(1))
    rows = (
        np.arange(4 * B).reshape((2, 2, B))
        if isinstance(learner, Minimax)
        else np.arange(2 * B).reshape(2, B)
    )
    batch, placed = source.take(rows), state
    if mesh is not None:
        batch, placed = spread(batch, mesh, axis=rows.ndim - 1), on_all(state, mesh)
    return (learner, placed, batch, np.asarray(0), np.zeros(2, np.uint32)), state


def steps() -> dict:
    """How far two steps by gradient descent on all devices are from those of one, in θ and in w, relative to how far they go."""
    found = {}
    moved = lambda state: [packed(part) for part in (state.gp, state.weights)]
    for name, learner in LEARNERS.items():
        after = []
        for mesh in (None, mesh_of("all")):
            arguments, before = stepped(learner, mesh, "float64")
            after.append(moved(on_one(_scan(*arguments)[0])))
        found[name] = [
            float(np.max(np.abs(one - other)) / np.max(np.abs(one - start)))
            for one, other, start in zip(*after, moved(before), strict=True)
        ]
    return found


def collectives() -> dict:
    """Of a compiled float32 step: kind and numbers of each exchange between devices."""
    found = {}
    for name, learner in LEARNERS.items():
        text = _scan.lower(*stepped(learner, mesh_of("all"), "float32")[0]).compile().compiled.as_text()
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
    """What whole fits predict with every number of devices, and at the end with mini-batches spread over all of them."""
    y = np.sin(X[:, 0]) + 0.1 * Y
    found = {"means": [], "nlml": [], "told": []}
    for G, least in [*((G, 4096) for G in counts()), (jax.device_count(), 32)]:
        base.MIN_SHARED_BATCH = least
        settings = {"batch_size": 32, "epochs": 4, "learning_rate": 0.01, "random_state": 0, "devices": G}
        fitted = FeatureGPRegressor(n_features=M, **settings).fit(X, y)
        found["means"].append(np.concatenate(fitted.predict(X[:20], return_std=True)).tolist())
        found["nlml"].append(float(fitted.nlml_))
        found["told"].append(fitted.plan_["devices"]["choice"])
    return found


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
