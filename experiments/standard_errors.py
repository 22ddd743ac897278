"""Do the standard errors of leave-one-out and Vecchia parameters hold? (N3 of the acceptance experiments.)

Rows uniform on a square (5 inputs: a cube), targets drawn from a Matérn-3/2 GP whose lengthscales, variance and noise variance are known. Each
simulation is learned anew, without a prior, from all rows as centres. z = (log θ̂ − log θ)/standard error. Accepted: 92 to 98 % of |z| below 1.96, a bias below
one standard error of its mean over the simulations for each kind of parameter. Beside it the interval of the inverse curvature alone, (H N)^(−½), which holds for a
likelihood of independent rows and not for leave-one-out.
"""

import numpy as np
from matplotlib.figure import Figure

from measuring import tables
from measuring.store import Cell, Record, select

N, NEIGHBOURS = 1000, 16
WIDTH = {2: 12.0, 5: 4.0}  # of the cube of rows, in lengthscales
LENGTHSCALE, VARIANCE, NOISE = 1.0, 1.0, 0.1
START = (1.5, 0.7, 0.2)
REPETITIONS, BLOCKS = 20, 10  # simulations of a cell, cells of a kind
KINDS, NAMES = ("loo", "vecchia"), ("lengthscale", "variance", "noise variance")
QUANTILE, ACCEPTED = 1.96, (0.92, 0.98)
ONE_CORE = True


def cells(quick: bool, slow: bool) -> list[Cell]:
    blocks = range(1 if quick else BLOCKS)
    return [
        {"kind": kind, "inputs": d, "block": block, "simulations": 2 if quick else REPETITIONS}
        for block in blocks
        for d in WIDTH
        for kind in KINDS
    ]


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return cell["simulations"] * (2.0 if cell["inputs"] == 5 else 1.0)


def run(cell: Cell) -> dict:
    """z of each simulation and parameter, by both kinds of errors."""
    import jax

    with jax.enable_x64(True):
        found = [_simulated(cell, seed) for seed in _seeds(cell)]
    both = np.array([parts for *parts, _ in found])
    return {
        "z": np.round(both[:, 0], 4).tolist(),
        "z_curvature": np.round(both[:, 1], 4).tolist(),
        "converged": int(sum(converged for *_, converged in found)),
    }


def _seeds(cell: Cell) -> range:
    first = REPETITIONS * cell["block"]
    return range(first, first + cell["simulations"])


def _simulated(cell: Cell, seed: int) -> tuple[np.ndarray, np.ndarray, bool]:
    import jax

    from stochgp.data.streams import DeviceRows
    from stochgp.learners import LeaveOneOut, Vecchia, fit
    from stochgp.numerics.arrays import packed
    from stochgp.parameters import partition

    D, generator = cell["inputs"], np.random.default_rng((cell["inputs"], seed))
    X = generator.uniform(0, WIDTH[D], size=(N, D))
    truth = _model(D, LENGTHSCALE, VARIANCE, NOISE)
    A = np.asarray(truth.covariance(jax.numpy.asarray(X), jax.numpy.ones(N)))
    y = np.linalg.cholesky(A) @ generator.normal(size=N)
    learner = {"loo": LeaveOneOut, "vecchia": Vecchia}[cell["kind"]](n_neighbours=NEIGHBOURS, spread=None)
    source = DeviceRows(X, y, dtype=jax.numpy.float64)
    found = fit(learner, _model(D, *START), source, key=jax.random.key(seed))
    theta = [packed(partition(gp)[0]) for gp in (found.gp, truth)]
    errors = [packed(found.standard_errors[0]), _by_curvature(learner, found.gp, source)]
    z = [(theta[0] - theta[1]) / error for error in errors]
    return z[0], z[1], found.converged


def _by_curvature(learner, gp, source) -> np.ndarray:
    """√diag((H N)⁻¹)."""
    from stochgp.learners import ByLoss
    from stochgp.objectives.conditionals import curvature

    plan = learner.plan(source.size, source.n_inputs, ByLoss())
    prepared = learner.prepare(gp, source, plan, (0,))
    near = learner.neighbours(gp, prepared, NEIGHBOURS)
    near = np.concatenate([near, prepared.centres[:, None]], axis=1)
    H = curvature(gp, source, near, True, learner.joint).hessian
    return np.sqrt(np.diagonal(np.linalg.inv(H)) / source.size)


def _model(D: int, lengthscale: float, variance: float, noise: float):
    from stochgp.kernels import Matern32
    from stochgp.models import KernelGP
    from stochgp.parameters import positive

    make = lambda value: positive(value, dtype=np.float64)
    return KernelGP(Matern32(make(np.full(D, lengthscale)), make(variance)), make(noise))


def _of(records: list[Record], kind: str, D: int, field: str) -> np.ndarray:
    """[simulations, parameters]."""
    found = [record["results"][field] for record in select(records, kind=kind, inputs=D)]
    return np.concatenate([np.array(part) for part in found]) if found else np.empty((0, D + 2))


def page(records: list[Record]) -> list[str]:
    headings = ["learner", "inputs", "parameter", "simulations", "mean z", "its error", "|z| < 1.96", "by curvature alone", "accepted"]  # fmt: skip
    rows = []
    for kind in KINDS:
        for D in WIDTH:
            z, plain = (_of(records, kind, D, field) for field in ("z", "z_curvature"))
            for name, columns in zip(NAMES, (slice(0, D), slice(D, D + 1), slice(D + 1, D + 2)), strict=True):
                if len(z):
                    rows.append([kind, D, name, len(z), *_row(z[:, columns], plain[:, columns])])
    return [tables.table(headings, rows)]


def _row(z: np.ndarray, plain: np.ndarray) -> list[str]:
    error = float(np.std(z.mean(axis=1)) / len(z) ** 0.5)
    inside, without = (float(np.mean(np.abs(part) < QUANTILE)) for part in (z, plain))
    kept = ACCEPTED[0] <= inside <= ACCEPTED[1]
    numbers = [tables.number(value, 3) for value in (float(z.mean()), error, inside, without)]
    return [*numbers, "yes" if kept else "no"]


def figure(records: list[Record]) -> Figure:
    """Quantiles of z against those of a normal distribution."""
    drawing = Figure(figsize=(7, 3.2), layout="constrained")
    for panel, D in zip(drawing.subplots(1, 2, sharey=True), WIDTH, strict=True):
        for kind in KINDS:
            z = np.sort(_of(records, kind, D, "z").ravel())
            panel.plot(z, (np.arange(len(z)) + 0.5) / max(len(z), 1), label=kind)
        grid = np.random.default_rng(0).normal(size=20_000)
        panel.plot(np.sort(grid), np.linspace(0, 1, len(grid)), "k:", label="normal")
        panel.set(title=f"{D} inputs", xlabel="z", xlim=(-4, 4))
        panel.legend()
    return drawing
