"""X8: a toy with few and many inducing functions (Cheng and Boots 2017, figure 1): 500 noisy observations of sinc.

Three models of one kernel: `small`, 6 functions for mean and covariance; `decoupled`, 40 for the mean and 6 for the covariance; `large`, 40 for
both. Sizes, noise (0.1) and range (−15 to 15) are ours: the paper has them in the figure alone. The claim: the decoupled model has the mean of
the large one, and a variance that is never too small. Scores are against the exact posterior at the same hyperparameters, which are those of
the exact likelihood; `mean` and `std` are root mean squares of differences on a grid, `least` the lowest of std/exact std there.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

from measuring import tables
from measuring.store import Cell, Record, select
from stochgp.data.streams import DeviceRows
from stochgp.kernels import RBF
from stochgp.learners import IVSGPR, SVDGP, fit
from stochgp.models import SparseGP
from stochgp.parameters import frozen
from stochgp.variational import Decoupled

ROWS, NOISE, EDGE, GRID = 500, 0.1, 15.0, 200
LENGTHSCALE, VARIANCE = 1.6, 0.12
SIZES = {"small": (6, None), "decoupled": (40, 6), "large": (40, None)}
STEPS, QUICK_STEPS = 4_000, 200
RATE = 0.02


def cells(quick: bool, slow: bool) -> list[Cell]:
    return [{"model": name, "steps": QUICK_STEPS if quick else STEPS, "seed": 0} for name in SIZES]


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return SIZES[cell["model"]][0] * cell["steps"]


def rows(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs in random order, and targets."""
    generator = np.random.default_rng(seed)
    X = generator.uniform(-EDGE, EDGE, (ROWS, 1))
    return X, np.sinc(X[:, 0] / np.pi) + NOISE * generator.normal(size=ROWS)


def run(cell: Cell) -> dict:
    X, y = rows(cell["seed"])
    n_mean, n_covariance = SIZES[cell["model"]]
    q = Decoupled.of(n_mean, n_covariance, 1)
    kernel = frozen(RBF(np.float32(LENGTHSCALE), np.float32(VARIANCE)))
    gp = SparseGP(kernel, q, frozen(NOISE**2))
    settings = {"batch_size": ROWS // 2, "epochs": cell["steps"] // 2, "growth": 2, "learning_rate": RATE}
    learner = (
        IVSGPR(**settings) if n_covariance is None else SVDGP(**settings, optimizer=optax.adam, slowing=0.02)
    )
    found = fit(learner, gp, DeviceRows(X, y), key=jax.random.key(cell["seed"]))
    at = np.linspace(-EDGE, EDGE, GRID)[:, None]
    with jax.enable_x64(True):
        process = found.gp.process()
        mean, variance = (
            np.asarray(part, np.float64)[:, 0] for part in process.moments(jnp.asarray(at, jnp.float32))
        )
        points = process.alpha.points[:, 0], process.beta.points[:, 0]
    exact_mean, exact_std = exact(X, y, at)
    std = np.sqrt(variance)
    return {
        "mean": float(np.sqrt(np.mean((mean - exact_mean) ** 2))),
        "std": float(np.sqrt(np.mean((std - exact_std) ** 2))),
        "least": float(np.min(std / exact_std)),
        "loss": found.loss,
        "curve": [[round(float(v), 5) for v in values] for values in (at[:, 0], mean, std)],
        "functions": [[round(float(v), 3) for v in values] for values in points],
    }


def exact(X: np.ndarray, y: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(Mean, standard deviation) of the exact posterior."""
    k = lambda A, B: VARIANCE * np.exp(-0.5 * ((A - B.T) / LENGTHSCALE) ** 2)
    solved = np.linalg.solve(k(X, X) + NOISE**2 * np.eye(len(X)), np.column_stack([y, k(X, at)]))
    across = k(at, X)
    return across @ solved[:, 0], np.sqrt(VARIANCE - np.sum(across * solved[:, 1:].T, axis=1))


def page(records: list[Record]) -> list[str]:
    fields = ("mean", "std", "least", "loss")
    lines = [[r["settings"]["model"], *(tables.number(r["results"][f], 4) for f in fields)] for r in records]
    return [tables.table(["model", *fields], lines)]


def figure(records: list[Record]) -> Figure:
    """Mean and two standard deviations of each model, the exact ones dashed."""
    drawing = Figure(figsize=(11, 3.5), layout="constrained")
    panels = drawing.subplots(1, len(SIZES), sharey=True)
    X, y = rows(0)
    for panel, name in zip(panels, SIZES, strict=True):
        panel.plot(X[:, 0], y, ".", color="0.8", markersize=2)
        for record in select(records, model=name)[:1]:
            at, mean, std = (np.asarray(part) for part in record["results"]["curve"])
            exact_mean, exact_std = exact(X, y, at[:, None])
            panel.plot(at, mean, color="C0")
            panel.fill_between(at, mean - 2 * std, mean + 2 * std, color="C0", alpha=0.3)
            for values in (exact_mean, exact_mean - 2 * exact_std, exact_mean + 2 * exact_std):
                panel.plot(at, values, color="black", linestyle="--", linewidth=0.6)
            for place, points, colour in zip(
                (-0.55, -0.62), record["results"]["functions"], ("C1", "C2"), strict=True
            ):
                panel.plot(points, np.full(len(points), place), "|", color=colour)
        panel.set_title(name)
    return drawing
