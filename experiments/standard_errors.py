"""Do the standard errors of leave-one-out and Vecchia parameters hold? (N3 of the acceptance experiments.)

Rows uniform on a square (5 inputs: a cube), targets drawn from a Matérn-3/2 GP whose lengthscales, variance and noise variance are known. Each
simulation is learned anew, without a prior: of 1,000 rows with 16 neighbours, all of them centres, the rows new each time; of 20,000 rows, as many in a unit of
volume, with 48 neighbours and 4,096 centres, the rows the same each time. z = (log θ̂ − log θ)/standard error, and the 95 % interval that of Student's t with the degrees of freedom that the fit names. Accepted: 92 to 98 % in it, a bias below
one standard error of its mean over the simulations for each kind of parameter. Beside it the interval of the inverse curvature alone, (H N)^(−½), which holds for a
likelihood of independent rows and not for leave-one-out.
"""

import itertools
from collections.abc import Callable

import numpy as np
from matplotlib.figure import Figure
from scipy.stats import norm
from scipy.stats import t as student

from measuring import tables
from measuring.store import Cell, Record, select

SMALL, LARGE = 1_000, 20_000
WIDTH = {2: 12.0, 5: 4.0}  # of the cube of 1,000 rows, in lengthscales
LENGTHSCALE, VARIANCE, NOISE = 1.0, 1.0, 0.1
START = (1.5, 0.7, 0.2)
REPETITIONS, BLOCKS = 20, 10  # simulations of a cell, cells of a kind
KINDS, NAMES = ("loo", "vecchia"), ("lengthscale", "variance", "noise variance")
SIZES = {SMALL: (16, SMALL), LARGE: (48, 4_096)}  # neighbours, centres
LEVEL, ACCEPTED = 0.975, (0.92, 0.98)
ONE_CORE = True


def cells(quick: bool, slow: bool) -> list[Cell]:
    blocks = range(1 if quick else BLOCKS)
    small = [
        {"kind": kind, "inputs": d, "block": block, "simulations": 2 if quick else REPETITIONS}
        for block in blocks
        for d in WIDTH
        for kind in KINDS
    ]
    return small if quick else [*small, *(cell | {"rows": LARGE} for cell in small)]


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def _rows(cell: Cell) -> int:
    return cell.get("rows", SMALL)


def cost(cell: Cell) -> float:
    return cell["simulations"] * _rows(cell) * (2.0 if cell["inputs"] == 5 else 1.0)


def run(cell: Cell) -> dict:
    """z of each simulation and parameter, by both kinds of errors."""
    import jax

    with jax.enable_x64(True):
        draw = _drawn(cell)
        found = [_simulated(cell, seed, *draw(seed)) for seed in _seeds(cell)]
    both = np.array([parts for *parts, _, _ in found])
    return {
        "z": np.round(both[:, 0], 4).tolist(),
        "z_curvature": np.round(both[:, 1], 4).tolist(),
        "degrees_of_freedom": [df for *_, df in found],
        "converged": int(sum(converged for *_, converged, _ in found)),
    }


def _seeds(cell: Cell) -> range:
    first = REPETITIONS * cell["block"]
    return range(first, first + cell["simulations"])


def _drawn(cell: Cell) -> Callable[[int], tuple[np.ndarray, np.ndarray]]:
    """Seed ↦ (X, y): rows of their own for each seed; of many rows one factor serves all seeds."""
    from stochgp.kernels.dense import block
    from stochgp.numerics.dense_factor import factorised

    D, n = cell["inputs"], _rows(cell)
    width = WIDTH[D] * (n / SMALL) ** (1 / D)

    def factor(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        X = generator.uniform(0, width, size=(n, D))
        A = block(_model(D, LENGTHSCALE, VARIANCE, NOISE).kernel, X, X)
        A[np.diag_indices(n)] += NOISE
        return X, np.tril(factorised(lambda: A).L)

    if n == SMALL:

        def draw(seed: int) -> tuple[np.ndarray, np.ndarray]:
            generator = np.random.default_rng((D, seed))
            X, L = factor(generator)
            return X, L @ generator.normal(size=n)

        return draw
    X, L = factor(np.random.default_rng((D, n)))
    return lambda seed: (X, L @ np.random.default_rng((D, n, seed)).normal(size=n))


def _simulated(
    cell: Cell, seed: int, X: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray, bool, int]:
    import jax

    from stochgp.data.streams import DeviceRows
    from stochgp.learners import LeaveOneOut, Vecchia, fit
    from stochgp.numerics.arrays import packed
    from stochgp.parameters import partition

    D, (neighbours, centres) = cell["inputs"], SIZES[_rows(cell)]
    truth = _model(D, LENGTHSCALE, VARIANCE, NOISE)
    kind = {"loo": LeaveOneOut, "vecchia": Vecchia}[cell["kind"]]
    learner = kind(n_neighbours=neighbours, n_centres=centres, spread=None)
    source = DeviceRows(X, y, dtype=jax.numpy.float64)
    found = fit(learner, _model(D, *START), source, key=jax.random.key(seed))
    theta = [packed(partition(gp)[0]) for gp in (found.gp, truth)]
    errors = [packed(found.standard_errors[0]), _by_curvature(learner, found.gp, source)]
    z = [(theta[0] - theta[1]) / error for error in errors]
    return z[0], z[1], found.converged, found.standard_errors.degrees_of_freedom


def _by_curvature(learner, gp, source) -> np.ndarray:
    """√diag((H N)⁻¹), N the rows that are centres."""
    from stochgp.learners import ByLoss
    from stochgp.objectives.conditionals import curvature

    plan = learner.plan(source.size, source.n_inputs, ByLoss())
    prepared = learner.prepare(gp, source, plan, (0,))
    near, n_scored = learner.around(gp, prepared), prepared.n_scored
    H = curvature(gp, source, near, True, learner.joint, n_scored=n_scored).hessian
    return np.sqrt(np.diagonal(np.linalg.inv(H)) / (n_scored * len(near)))


def _model(D: int, lengthscale: float, variance: float, noise: float):
    from stochgp.kernels import Matern32
    from stochgp.models import KernelGP
    from stochgp.parameters import positive

    make = lambda value: positive(value, dtype=np.float64)
    return KernelGP(Matern32(make(np.full(D, lengthscale)), make(variance)), make(noise))


def _of(records: list[Record], kind: str, n: int, D: int, field: str) -> np.ndarray:
    """[simulations, parameters]."""
    found = [record["results"][field] for record in _selected(records, kind, n, D)]
    return np.concatenate([np.array(part) for part in found]) if found else np.empty((0, D + 2))


def _selected(records: list[Record], kind: str, n: int, D: int) -> list[Record]:
    of_size = [record for record in records if _rows(record["settings"]) == n]
    return select(of_size, kind=kind, inputs=D)


def _limits(records: list[Record], kind: str, n: int, D: int) -> np.ndarray:
    """[simulations, 1]: the quantile of Student's t."""
    found = [record["results"]["degrees_of_freedom"] for record in _selected(records, kind, n, D)]
    return student.ppf(LEVEL, np.concatenate(found))[:, None] if found else np.empty((0, 1))


def page(records: list[Record]) -> list[str]:
    headings = ["rows", "learner", "inputs", "parameter", "simulations", "mean z", "its error", "in the interval", "by curvature alone", "accepted"]  # fmt: skip
    rows = []
    for n, kind, D in itertools.product((SMALL, LARGE), KINDS, WIDTH):
        z, plain = (_of(records, kind, n, D, field) for field in ("z", "z_curvature"))
        for name, columns in zip(NAMES, (slice(0, D), slice(D, D + 1), slice(D + 1, D + 2)), strict=True):
            if len(z):
                limits = _limits(records, kind, n, D)
                rows.append([n, kind, D, name, len(z), *_row(z[:, columns], plain[:, columns], limits)])
    return [tables.table(headings, rows)]


def _row(z: np.ndarray, plain: np.ndarray, limits: np.ndarray) -> list[str]:
    error = float(np.std(z.mean(axis=1)) / len(z) ** 0.5)
    inside, without = float(np.mean(np.abs(z) < limits)), float(np.mean(np.abs(plain) < norm.ppf(LEVEL)))
    kept = ACCEPTED[0] <= inside <= ACCEPTED[1]
    numbers = [tables.number(value, 3) for value in (float(z.mean()), error, inside, without)]
    return [*numbers, "yes" if kept else "no"]


def figure(records: list[Record]) -> Figure:
    """Quantiles of z against those of a normal distribution, of the larger simulations."""
    n = LARGE if any(_rows(record["settings"]) == LARGE for record in records) else SMALL
    drawing = Figure(figsize=(7, 3.2), layout="constrained")
    for panel, D in zip(drawing.subplots(1, 2, sharey=True), WIDTH, strict=True):
        for kind in KINDS:
            z = np.sort(_of(records, kind, n, D, "z").ravel())
            panel.plot(z, (np.arange(len(z)) + 0.5) / max(len(z), 1), label=kind)
        grid = np.random.default_rng(0).normal(size=20_000)
        panel.plot(np.sort(grid), np.linspace(0, 1, len(grid)), "k:", label="normal")
        panel.set(title=f"{D} inputs", xlabel="z", xlim=(-4, 4))
        panel.legend()
    return drawing
