"""Fits of kernel and sparse models on forced devices, in a process of its own, for `estimators/test_devices.py`: prints one JSON object.

The arguments are the names of what is asked, separated by commas, and of several processes the port, their number and which one this is.
"""

import hashlib
import json
import os
import sys
import warnings

import jax
import numpy as np

from stochgp import KernelGPRegressor, SparseGPClassifier, SparseGPRegressor, kernels
from stochgp.data.memory import MemorySource
from stochgp.devices import mesh_of
from stochgp.likelihoods import constant_noise
from stochgp.models import SparseGP
from stochgp.numerics.arrays import packed
from stochgp.objectives import bound_of_all
from stochgp.objectives.collapsed import lower_bound, lower_bound_and_gradient
from stochgp.parameters import cast
from stochgp.solvers import CG, SDD, SGD
from stochgp.variational import InducingPoints

GENERATOR = np.random.default_rng(0)
N, D = 90, 2
X = GENERATOR.uniform(-2, 2, size=(N, D))
Y = np.sin(2 * X[:, 0]) + 0.1 * GENERATOR.normal(size=N)
NEW = GENERATOR.uniform(-2, 2, size=(37, D))
SOLVERS = {
    "cg": CG(epochs=12, check_every=12),
    "sdd": SDD(batch_size=16, epochs=6, check_every=3),
    "sgd": SGD(batch_size=16, epochs=2, n_features=20, check_every=4),
}


COUNTS = {"cg": (1, 4), "sdd": (1, 2, 4), "sgd": (1, 4)}  # of devices


def digest(*arrays: np.ndarray) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


def solved(**settings) -> KernelGPRegressor:
    given = {"learner": None, "noise_variance": 0.05, "dtype": "float64", "n_samples": 4, "random_state": 0}
    return KernelGPRegressor("rbf", **given | settings).fit(X, Y)


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
    for name, settings in {"cholesky": {}, "local": {"prediction": "local"}}.items():
        alone, given = solved(**settings), solved(**settings, devices=4)
        told = given.plan_.pop("devices")
        found[name] = {
            "same": digest(*alone.predict(NEW, return_std=True))
            == digest(*given.predict(NEW, return_std=True)),
            "told": told,
            "rest": sorted(alone.plan_) == sorted(given.plan_) and "devices" not in alone.plan_,
        }
    return found


def counts() -> list[int]:
    """Of devices to compare: of several processes all of them."""
    n = jax.device_count()
    return [n] if jax.process_count() > 1 else [1, 2, 4]


def bounds() -> list[float]:
    """How far bounds of all rows, their gradient and the optimal q(u) are from those of one device, with every number of them."""
    points, count = X[:5], GENERATOR.integers(1, 3, N).astype(float)
    with jax.enable_x64(True):
        source = MemorySource(X, Y, count, dtype=np.float64)
        Z = InducingPoints.of(jax.numpy.asarray(points))
        gp = cast(SparseGP(kernels.Matern32(0.7), Z, constant_noise(0.1)), np.float64)

        def computed(mesh) -> np.ndarray:
            source.mesh = mesh
            slope, gradient, _ = lower_bound_and_gradient(gp, source)
            gaussian, bound = lower_bound(gp, source)[1], bound_of_all(gp, source).value
            return np.concatenate([[slope, bound], packed(gradient), *map(np.ravel, gaussian)])

        wanted = computed(None)
        made = [computed(mesh_of(G)) for G in counts()]
        return [float(np.max(np.abs(one - wanted) / (np.abs(wanted) + 1))) for one in made]


SPARSE = {
    "sgpr": lambda **more: SparseGPRegressor(approximation="sgpr", n_inducing=8, epochs=4, **more),
    "svgp": lambda **more: SparseGPRegressor(
        n_inducing=8, batch_size=16, epochs=2, learning_rate=0.01, **more
    ),
    "classes": lambda **more: SparseGPClassifier(
        n_inducing=8, batch_size=16, epochs=2, learning_rate=0.01, **more
    ),
}


def sparse() -> dict:
    """Of whole fits: digests of what they predict for every number of devices, how far they are from those without, and what the plan says."""
    found = {}
    for name, make in SPARSE.items():
        y = np.where(Y > 0, "high", "low") if name == "classes" else Y
        answers, told = [], []
        for devices in [None, *counts()]:
            model = make(random_state=0, devices=devices).fit(X, y)
            answers.append(
                model.predict_proba(NEW)
                if name == "classes"
                else np.stack(model.predict(NEW, return_std=True))
            )
            told.append(model.plan_.get("devices"))
        far = [float(np.max(np.abs(one - answers[0]))) for one in answers[1:]]
        found[name] = {"bits": digest(*answers[1:]), "far": far, "told": told}
    return found


def refused() -> dict:
    """What is said of a kernel GP in several processes."""
    try:
        solved(devices="all")
    except ValueError as error:
        return {"said": str(error)}
    return {"said": ""}


ASKED = {one.__name__: one for one in (kernel, kept, bounds, sparse, refused)}


def main(names: str, port: str = "", processes: str = "1", process: str = "0") -> None:
    out = os.dup(1)
    os.dup2(2, 1)  # gloo writes to the standard output
    warnings.simplefilter("ignore")  # solvers that were not given enough epochs
    if port:
        jax.distributed.initialize(f"localhost:{port}", int(processes), int(process))
    found = {name: ASKED[name]() for name in names.split(",")}
    os.write(out, json.dumps(found).encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
