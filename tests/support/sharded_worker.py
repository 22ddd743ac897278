"""Operators, solvers and predictions on four forced devices, in a process of its own, for the tests of them: prints one JSON object.

The arguments are the names of what is asked.
"""

import functools
import json
import sys
from pathlib import Path

import equinox as eqx
import exchanges as compiled
import jax
import jax.numpy as jnp
import numpy as np
import systems

from stochgp import kernels
from stochgp.devices import mesh_of
from stochgp.operators import KernelOperator, wide

sys.path.insert(0, str(Path(__file__).parents[2]))
from stochgp.solvers import CG, SDD, SGD, Cholesky, solve
from stochgp.solvers.solve import _take_steps
from tests.kernels.test_contract import KERNELS


@functools.cache
def mesh():
    return mesh_of(4)


SIZES = {"N": 4096, "D": 8, "S": 3, "B": 64, "G": 4}  # of the compiled programs
FEW_ROWS = ("rbf", "tanimoto", "warped-sum")
RNG = np.random.default_rng(0)


def distance(found, wanted) -> float:
    """The largest, relative to the largest number wanted."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    return float(np.max(np.abs(found - wanted)) / np.max(np.abs(wanted)))


def both():
    """The system of `systems` on one device and on four, 40 rows in 3 tiles and in 12."""
    given = systems.KERNEL, jnp.asarray(systems.X), systems.NOISE
    many = KernelOperator.of(*given, mesh=mesh(), tile=4)
    return KernelOperator.of(*given, tile=14), many


def products() -> dict:
    """Each way's distance from the dense product: of 13 rows, and of 3, fewer than devices."""
    return distances(FEW_ROWS, (13, 3))


def sums() -> dict:
    """Of products summed in float64 that cancel: each way's distance from one device's, and that of sums in float32."""
    rows, W = systems.cancelling()
    given = systems.KERNEL, jnp.asarray(rows), 0.0
    ops = [KernelOperator.of(*given, tile=14)]
    ops.append(KernelOperator.of(*given, mesh=mesh(), tile=4))
    product = eqx.filter_jit(lambda ops, V, *read: [op.unpad(op.matvec(op.pad(V), 3, *read)) for op in ops])
    ops = [op.astype(jnp.float32) for op in ops]
    one, *found = product(ops, jnp.asarray(W), wide)
    return {
        "float64": [distance(many, one) for many in found],
        "float32": [distance(many, one) for many in product(ops, jnp.asarray(W))],
    }


def others() -> dict:
    """The same of 13 rows, for the other kernels."""
    return distances([name for name in KERNELS if name not in FEW_ROWS], (13,))


def distances(names, sizes) -> dict:
    multiply = eqx.filter_jit(lambda ops, V: [op.unpad(op.matvec(op.pad(V), n_rows=3)) for op in ops])
    found = {}
    for name in names:
        for N in sizes:
            kernel, X, V = KERNELS[name](), jnp.asarray(RNG.normal(size=(N, 3))), RNG.normal(size=(N, 2))
            noise = RNG.uniform(0.1, 0.3, size=N)
            wanted = np.asarray(KernelOperator.of(kernel, X, noise).dense()) @ V
            operators = [KernelOperator.of(kernel, X, noise, mesh=mesh(), tile=3)]
            found[f"{name} {N}"] = [distance(one, wanted) for one in multiply(operators, jnp.asarray(V))]
    return found


def parts() -> dict:
    """How far everything else that an operator gives is from what one device gives; nothing else of it may matter."""
    V, Z = jnp.asarray(RNG.normal(size=(systems.N, 2))), jnp.asarray(RNG.normal(size=(6, 2)))
    order, few = jnp.asarray(RNG.permutation(systems.N)), jnp.array([39, 0, 7, 39])

    @eqx.filter_jit
    def of(op):
        W, rows = op.pad(V), op.prepare(Z)
        moved, change = op.reordered(order), jnp.ones((4, 2))
        read = lambda part: part[0] - 0.3 * part[1]
        given = {
            "padded": op.unpad(W),
            "slice": op.slice(W, 9, 15),
            "pick": op.pick(op.noise, few),
            "add": op.unpad(op.add(W, change, few)),
            "add_slice": op.unpad(op.add_slice(W, change, 10)),
            "cleared": op.unpad(op.cleared(W + 1)),
            "times": op.times(rows, W),
            "own_times": op.own_times(rows, W),
            "block_times": op.block_times(8, 9, (W, 2 * W), read),
            "rows_times": op.rows_times(few, W),
            "features": op.unpad(op.features_times(jnp.sin, W)),
            "matrix_rows": op.matrix_rows(few)[:, : systems.N],
            "diagonal": op.diagonal(),
            "columns": op.columns(few),
            "dense": op.dense(),
            "reordered": moved.unpad(moved.matvec(moved.pad(V))),
            "astype": op.astype(jnp.float32).pick(op.noise, few),
        }
        slope = jax.grad(lambda Z: jnp.sum(jnp.sin(op.times(op.prepare(Z), W))))(Z)
        return given | {"slope": slope}, op.matvec(W)[op.size :]

    (wanted, _), (found, beyond) = (of(op) for op in both())
    distances = {name: distance(found[name], wanted[name]) for name in wanted}
    return distances | {"beyond": float(jnp.abs(beyond).max())}


def solves() -> dict:
    """Of solutions after ten steps or some more, and of their residuals: how far those of four devices are from those of one."""
    runs = {
        "cg": CG(rank=5, epochs=10),
        "sdd": SDD(batch_size=8, epochs=3),
    }
    found = {}
    for name, solver in runs.items():
        one, many = (solve(op, systems.B, solver, key=jax.random.key(0), tolerance=1e-14) for op in both())
        found[name] = {
            "value": distance(many.value, one.value),
            "residual": distance(many.residual_norms, one.residual_norms),
            "steps": [one.n_steps, many.n_steps],
        }
    return found


def steps() -> dict:
    """The same of what ten steps of other solvers reach from a start that is not 0."""
    solvers = {
        "sdd of random rows": SDD(batch_size=8, step_size=0.02, averaging=0.1),
        "sgd": SGD(batch_size=8, n_features=20, step_size=0.02),
    }
    found = {}
    for name, solver in solvers.items():
        reached = []
        for op in both():
            arranged = solver.arrange(op, key=jax.random.key(0))
            b, start = op.pad(jnp.asarray(systems.B)), op.pad(jnp.asarray(systems.EXACT + 0.1))
            batches = jax.tree.map(lambda leaf: leaf[None], solver.batches(systems.N, 0, 10, (0, 0)))
            state = solver.at_epoch(arranged, solver.init(arranged, b, start), 0, 0)
            state, info = _take_steps(solver, arranged, b, state, batches)
            reached.append((op.unpad(solver.value(state)), info.residual_squares))
        found[name] = [distance(many, one) for one, many in zip(*reached, strict=True)]
    return found


def refused() -> dict:
    try:
        solve(both()[1], systems.B, Cholesky(), key=jax.random.key(0))
    except ValueError as error:
        return {"said": str(error)}
    return {"said": ""}


def programs() -> dict:
    """What the compiled products and steps of a system in float32 send, and how much they multiply; see SIZES."""
    N, D, S, B = (SIZES[name] for name in "NDSB")
    X, b = (
        jnp.asarray(RNG.normal(size=(N, D)), jnp.float32),
        jnp.asarray(RNG.normal(size=(N, S)), jnp.float32),
    )
    kernel = kernels.RBF(2.0)
    many = [KernelOperator.of(kernel, X, 0.1, mesh=mesh(), tile=512)]
    multiply = eqx.filter_jit(lambda op, V: op.matvec(V, n_rows=256))
    found = {}
    for op in (KernelOperator.of(kernel, X, 0.1, tile=512), *many):
        name = "one" if op.mesh is None else "gather"
        found[name] = described(multiply.lower(op, op.pad(b)))
    with jax.enable_x64(True):
        for solver in (
            SDD(batch_size=B, epochs=1),
            CG(rank=10),
            SGD(batch_size=B, n_features=20, step_size=0.1),
        ):
            arranged = solver.arrange(many[0], key=jax.random.key(0))
            padded = many[0].pad(b)
            batches = jax.tree.map(lambda leaf: leaf[None], solver.batches(N, 0, 2, (0, 0)))
            state = solver.at_epoch(arranged, solver.init(arranged, padded, None), 0, 0)
            found[solver.name] = described(_take_steps.lower(solver, arranged, padded, state, batches))
    return found


def described(lowered) -> dict:
    program = compiled.read(lowered.compile().compiled.as_text())
    kinds = sorted({exchange.kind for exchange in program.exchanges})
    return {
        "flops": program.flops,
        "sent": {kind: compiled.sent(program, kind, SIZES["G"]) for kind in kinds},
        "depth": {kind: max(e.depth for e in program.exchanges if e.kind == kind) for kind in kinds},
    }


def main(names: list[str]) -> dict:
    found = {}
    for name in names:
        with jax.enable_x64(name != "programs"):
            found[name] = globals()[name]()
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
