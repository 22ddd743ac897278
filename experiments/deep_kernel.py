"""A deep kernel on bike: RBF on a network of two tanh layers of 64 and 4 outputs, `KernelGPRegressor` as it comes.

Mini-batches for the network, the exact likelihood of a subset for the kernel on it, the posterior of all rows. Split 0 and the network's
seed vary; NLPD and RMSE of unit-variance targets, the NLPD includes the noise. GPyTorch's deep SVGP (32 inducing points) reaches 0.035 and
−1.84 there.
"""

import time

import numpy as np
from matplotlib.figure import Figure

from experiments.problems import unit_scores
from measuring import tables
from measuring.sets import load_raw
from measuring.store import Cell, Record

WIDTHS, SEEDS = (64, 64, 4), 3
ONE_CORE = False


def cells(quick: bool, slow: bool) -> list[Cell]:
    return [{"set": "bike", "split": 0, "seed": seed} for seed in range(1 if quick else SEEDS)]


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return 1.0


def run(cell: Cell) -> dict:
    import jax

    from stochgp import KernelGPRegressor, kernels, networks

    raw = load_raw(cell["set"], cell["split"])
    network = networks.mlp(
        raw.X.shape[1],
        WIDTHS,
        key=jax.random.key(cell["seed"]),
        activation=jax.numpy.tanh,
        final_activation=False,
    )
    kernel = kernels.Warped(kernels.RBF(np.ones(WIDTHS[-1], np.float32)), network)
    begun = time.perf_counter()
    model = KernelGPRegressor(kernel, random_state=cell["seed"]).fit(raw.X, raw.y)
    seconds = time.perf_counter() - begun
    mean, std = model.predict(raw.X_test, return_std=True, include_noise=True)
    scale = float(np.std(raw.y))
    return {
        **unit_scores(raw.y_test, mean, std, scale),
        "fit_seconds": round(seconds, 1),
        "solver": model.plan_["solver"]["choice"],
        "noise_variance": model.noise_variance_ / scale**2,
        "converged": str(model.converged_),
    }


def page(records: list[Record]) -> list[str]:
    fields = ("rmse", "nlpd", "coverage95", "fit_seconds", "solver", "noise_variance", "converged")
    rows = [[r["settings"]["seed"], *(r["results"][name] for name in fields)] for r in records]
    rounded = [[round(v, 6) if isinstance(v, float) else v for v in row] for row in rows]
    return [tables.table(["seed", *fields], rounded)]


def figure(records: list[Record]) -> Figure | None:
    return None
