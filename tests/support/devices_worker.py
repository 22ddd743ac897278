"""Computations on forced devices, in a process of its own, for `test_devices.py`: prints one JSON object.

The arguments are the names of what is asked, separated by commas, and of several processes the port, their number and which one this is. Arrays of JAX
are made inside functions: no earlier than `jax.distributed` begins.
"""

import hashlib
import json
import os
import sys
import warnings
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import lowering
import numpy as np

import stochgp
from stochgp import features, kernels, learners
from stochgp.data.memory import MemorySource
from stochgp.likelihoods import Gaussian, constant_noise
from stochgp.likelihoods.noise import known_noise
from stochgp.models import FeatureGP, SparseGP
from stochgp.numerics.arrays import packed
from stochgp.objectives import bound_of_all
from stochgp.objectives.collapsed import lower_bound, lower_bound_and_gradient
from stochgp.objectives.moments import add_up
from stochgp.operators import KernelOperator
from stochgp.parameters import cast
from stochgp.sharding import (
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
)
from stochgp.solvers import CG, SDD, Cholesky, solve
from stochgp.solvers.solve import _take_steps
from stochgp.variational import InducingPoints

sys.path.insert(0, str(Path(__file__).parents[2]))


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
N, D, M = 256, 3, 10
X, Y = GENERATOR.normal(size=(N, D)), GENERATOR.normal(size=N)
COUNT = GENERATOR.integers(1, 3, N).astype(float)


def model(dtype: str) -> FeatureGP:
    given = {"n_inputs": D, "X_sample": jnp.asarray(X), "dtype": dtype}
    return FeatureGP(cast(features.resolve("mlp", None, M, key=jax.random.key(0), **given), dtype), 0.1, 1.0)


def counts() -> list[int]:
    """Numbers of devices to compare: of several processes all of them."""
    n = jax.device_count()
    return [n] if jax.process_count() > 1 else [G for G in (1, 2, 4, 8) if n >= G]


def moments() -> dict:
    """How far the sums of all devices are from those of one device without a mesh."""
    gp, errors = cast(model("float64"), "float64"), {}
    for n in (N, 5):
        source = MemorySource(X[:n], Y[:n], COUNT[:n], dtype=jnp.float64)
        sums = lambda mesh, source=source: add_up(gp, chunks_of(source, mesh))
        alone = sums(None)
        pairs = zip(alone, sums(mesh_of(counts()[-1])), strict=True)
        errors[n] = max(float(np.max(np.abs(one - other)) / np.max(np.abs(one) + 1)) for one, other in pairs)
    return errors


def chunks_of(source, mesh):
    source.mesh = mesh
    return source.blocks(20)


def fits() -> dict:
    """What whole fits predict with every number of devices."""
    y = np.sin(X[:, 0]) + 0.1 * Y
    found = {"means": [], "nlml": [], "told": []}
    for G in counts():
        learner = learners.SCGD(batch_size=32, epochs=4, learning_rate=0.01)
        settings = {"learner": learner, "random_state": 0, "devices": G}
        fitted = stochgp.FeatureGPRegressor(n_features=M, **settings).fit(X, y)
        found["means"].append(np.concatenate(fitted.predict(X[:20], return_std=True)).tolist())
        found["nlml"].append(float(fitted.nlml_))
        found["told"].append(fitted.plan_["devices"]["choice"])
    return found


# Operators and solvers, in float64

PRODUCTS = (("rbf", 3), ("tanimoto", 13))  # kernels and rows


def distance(found, wanted) -> float:
    """The largest, relative to the largest number wanted."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    return float(np.max(np.abs(found - wanted)) / np.max(np.abs(wanted)))


def both():
    """The system of `systems` on one device and on four, 40 rows in 3 tiles and in 12."""
    import systems

    given = systems.KERNEL, jnp.asarray(systems.X), systems.NOISE
    many = KernelOperator.of(*given, mesh=mesh_of(4), tile=4)
    return KernelOperator.of(*given, tile=14), many


def products() -> dict:
    """Each way's distance from the dense product, also of fewer rows than devices."""
    from tests.kernels.test_contract import KERNELS

    multiply = eqx.filter_jit(lambda ops, V: [op.unpad(op.matvec(op.pad(V), n_rows=3)) for op in ops])
    found = {}
    for name, n in PRODUCTS:
        kernel, X, V = (
            KERNELS[name](),
            jnp.asarray(GENERATOR.normal(size=(n, 3))),
            GENERATOR.normal(size=(n, 2)),
        )
        noise = GENERATOR.uniform(0.1, 0.3, size=n)
        wanted = np.asarray(eqx.filter_jit(lambda k, X: k.matrix(X, X))(kernel, X)) @ V + noise[:, None] * V
        operators = [KernelOperator.of(kernel, X, noise, mesh=mesh_of(4), tile=3)]
        found[f"{name} {n}"] = [distance(one, wanted) for one in multiply(operators, jnp.asarray(V))]
    return found


def sums() -> dict:
    """Of products summed in float64 that cancel: each way's distance from one device's, and that of sums in float32."""
    import systems

    rows, W = systems.cancelling()
    given = systems.KERNEL, jnp.asarray(rows), 0.0
    ops = [KernelOperator.of(*given, tile=14)]
    ops.append(KernelOperator.of(*given, mesh=mesh_of(4), tile=4))
    product = eqx.filter_jit(
        lambda ops, V, wide=False: [op.unpad(op.matvec(op.pad(V), 3, wide=wide)) for op in ops]
    )
    ops = [op.astype(jnp.float32) for op in ops]
    one, *found = product(ops, jnp.asarray(W), True)
    return {
        "float64": [distance(many, one) for many in found],
        "float32": [distance(many, one) for many in product(ops, jnp.asarray(W))],
    }


def parts() -> dict:
    """How far everything else that an operator gives is from what one device gives; nothing else of it may matter."""
    import systems

    V, Z = jnp.asarray(GENERATOR.normal(size=(systems.N, 2))), jnp.asarray(GENERATOR.normal(size=(6, 2)))
    few = jnp.array([39, 0, 7, 39])

    @eqx.filter_jit
    def of(op):
        W, rows = op.pad(V), op.prepare(Z)
        given = {
            "padded": op.unpad(W),
            "pick": op.noise[few],
            "add": op.unpad(W.at[few].add(1.0)),
            "times": op.times(rows, W),
            "rows_times": op.rows_times(few, W),
            "diagonal": op.diagonal(),
            "columns": op.columns(few),
            "dense": op.dense(),
            "astype": op.astype(jnp.float32).noise[few],
        }
        slope = jax.grad(lambda Z: jnp.sum(jnp.sin(op.times(op.prepare(Z), W))))(Z)
        return given | {"slope": slope}, op.matvec(W)[op.size :]

    (wanted, _), (found, beyond) = (of(op) for op in both())
    distances = {name: distance(found[name], wanted[name]) for name in wanted}
    return distances | {"beyond": float(jnp.abs(beyond).max())}


def solves(names: tuple[str, ...] = ("cg",)) -> dict:
    """Of solutions after ten steps or some more, and of their residuals: how far those of four devices are from those of one."""
    import systems

    runs = {"cg": CG(rank=5, epochs=10), "sdd": SDD(batch_size=8, epochs=3)}
    found = {}
    for name in names:
        solver = runs[name]
        one, many = (solve(op, systems.B, solver, key=jax.random.key(0), tolerance=1e-14) for op in both())
        found[name] = {
            "value": distance(many.value, one.value),
            "residual": distance(many.residual_norms, one.residual_norms),
            "steps": [one.n_steps, many.n_steps],
        }
    return found


def batch_solves() -> dict:
    """The same of a solver by mini-batches."""
    return solves(("sdd",))


def solver_steps() -> dict:
    """The same of what ten steps of other solvers reach from a start that is not 0."""
    import systems

    solvers = {
        "sdd of random rows": SDD(batch_size=8, step_size=0.02, averaging=0.1),
    }
    found = {}
    for name, solver in solvers.items():
        reached = []
        for op in both():
            b, start = op.pad(jnp.asarray(systems.B)), op.pad(jnp.asarray(systems.EXACT + 0.1))
            batches = np.concatenate([solver.batches(systems.N, epoch, (0, 0)) for epoch in range(2)])
            _, state = solver.adapted(op, None, solver.init(op, None, b, start), 0, 0)
            state, squares, _ = _take_steps(solver, op, None, b, state, batches)
            reached.append((op.unpad(solver.value(state)), squares))
        found[name] = [distance(many, one) for one, many in zip(*reached, strict=True)]
    return found


def refused() -> list[str]:
    """What is said of a factorisation on several devices, and of a kernel GP in several processes."""
    import systems

    several = jax.process_count() > 1
    calls = {
        False: lambda: solve(both()[1], systems.B, Cholesky(), key=jax.random.key(0)),
        True: lambda: solved(devices="all"),
    }
    try:
        calls[several]()
    except ValueError as error:
        return [str(error)]
    return []


# Whole fits of kernel and sparse models

FIT_X = GENERATOR.uniform(-2, 2, size=(90, 2))
FIT_Y = np.sin(2 * FIT_X[:, 0]) + 0.1 * GENERATOR.normal(size=90)
NEW = GENERATOR.uniform(-2, 2, size=(37, 2))
SOLVERS = {
    "cg": CG(epochs=12, check_every=12),
    "sdd": SDD(batch_size=16, epochs=6, check_every=3),
}


COUNTS = {"cg": (1, 4), "sdd": (1, 2, 4)}  # of devices


def digest(*arrays: np.ndarray) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


def solved(**settings) -> "stochgp.KernelGPRegressor":
    given = {
        "learner": None,
        "likelihood": Gaussian(known_noise(0.05)),
        "dtype": "float64",
        "random_state": 0,
    }
    return stochgp.KernelGPRegressor("rbf", **given | settings).fit(FIT_X, FIT_Y)


def kernel() -> dict:
    """Of each solver on devices that share it: how far predictions are from those without devices, and what the plan says."""
    found = {}
    for name, solver in SOLVERS.items():
        alone = solved(solver=solver)
        wanted = alone.predict(NEW, return_std=True)
        far, told = [], []
        for G in COUNTS[name]:
            model = solved(solver=solver, devices=G)
            pairs = zip(model.predict(NEW, return_std=True), wanted, strict=True)
            far.append(max(float(np.max(np.abs(one - other))) for one, other in pairs))
            told.append(model.plan_["devices"])
        found[name] = {
            "far": far,
            "told": told,
            "converged": [alone.converged_, model.converged_],
            "on_one": len(model._fitted.posterior.weights.devices()) == 1,
        }
    return found


def kept() -> dict:
    """Fits that devices do not share: bits and plan of a fit without them."""
    found = {}
    for name, settings in {"cholesky": {}, "local": {"solver": "local"}}.items():
        alone, given = solved(**settings), solved(**settings, devices=4)
        told = given.plan_.pop("devices")
        found[name] = {
            "same": digest(*alone.predict(NEW, return_std=True))
            == digest(*given.predict(NEW, return_std=True)),
            "told": told,
            "rest": sorted(alone.plan_) == sorted(given.plan_) and "devices" not in alone.plan_,
        }
    return found


def bounds() -> list[float]:
    """How far bounds of all rows, their gradient and the optimal q(u) are from those of one device, on all devices."""
    points, count = FIT_X[:5], GENERATOR.integers(1, 3, len(FIT_Y)).astype(float)
    with jax.enable_x64(True):
        source = MemorySource(FIT_X, FIT_Y, count, dtype=np.float64)
        Z = InducingPoints.of(jax.numpy.asarray(points))
        gp = cast(SparseGP(kernels.Matern32(0.7), Z, constant_noise(0.1)), np.float64)

        def computed(mesh) -> np.ndarray:
            source.mesh = mesh
            slope, gradient, _ = lower_bound_and_gradient(gp, source)
            gaussian, bound = lower_bound(gp, source)[1], bound_of_all(gp, source)
            return np.concatenate([[slope, bound], packed(gradient), *map(np.ravel, gaussian)])

        wanted = computed(None)
        made = [computed(mesh_of(G)) for G in counts()[-1:]]
        return [float(np.max(np.abs(one - wanted) / (np.abs(wanted) + 1))) for one in made]


SPARSE = {
    "sgpr": lambda **more: stochgp.SparseGPRegressor(learner=learners.SGPR(epochs=4), n_inducing=8, **more),
    "svgp": lambda **more: stochgp.SparseGPRegressor(
        n_inducing=8, learner=learners.SVGP(batch_size=16, epochs=2, learning_rate=0.01), **more
    ),
    "classes": lambda **more: stochgp.SparseGPClassifier(
        n_inducing=8, learner=learners.SVGP(batch_size=16, epochs=2, learning_rate=0.01), **more
    ),
}


def sparse(names: tuple[str, ...] = ("sgpr",)) -> dict:
    """Of whole fits: digests of what they predict with all devices, how far they are from those without, and what the plan says."""
    found = {}
    for name in names:
        y = np.where(FIT_Y > 0, "high", "low") if name == "classes" else FIT_Y
        answers, told = [], []
        for devices in [None, counts()[-1]]:
            model = SPARSE[name](random_state=0, devices=devices).fit(FIT_X, y)
            answers.append(
                model.predict_proba(NEW)
                if name == "classes"
                else np.stack(model.predict(NEW, return_std=True))
            )
            told.append(model.plan_.get("devices"))
        far = [float(np.max(np.abs(one - answers[0]))) for one in answers[1:]]
        found[name] = {"bits": digest(*answers[1:]), "far": far, "told": told}
    return found


def classes() -> dict:
    """The same of fits by mini-batches, one of them of classes."""
    return sparse(("svgp", "classes"))


WIDE = (
    placing,
    moments,
    fits,
    products,
    sums,
    parts,
    solves,
    batch_solves,
    solver_steps,
    refused,
)  # in float64
ASKED = {one.__name__: one for one in (*WIDE, kernel, kept, bounds, sparse, classes)}


def main(names: str, port: str = "", processes: str = "1", process: str = "0") -> None:
    out = os.dup(1)
    os.dup2(2, 1)  # gloo writes to the standard output
    lowering.share_contexts()
    warnings.simplefilter("ignore")  # solvers that were not given enough epochs
    if port:
        jax.distributed.initialize(f"localhost:{port}", int(processes), int(process))
    found = {}
    for name in names.split(","):
        with jax.enable_x64(ASKED[name] in WIDE):
            found[name] = ASKED[name]()
    os.write(out, json.dumps(found).encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
