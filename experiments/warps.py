"""Are targets transformed where it helps, and left alone where it does not? (N8 of the acceptance experiments.)

`KernelGPRegressor` with constant Gaussian noise, plain and with `Warped("gaussian", "auto")`, which takes a transform only if rows held out of the training rows clearly prefer it; of the bikes
rented in an hour also with target="count". 2,000 training rows; NLPD of all test rows, of unit-variance targets by density, of the bikes by the probability of the whole number. "gain" is plain
NLPD less warped, its standard error over test rows. The traps are simulators without noise, whose targets a transform could bend, and the same with Gaussian noise, where none is right. Accepted: where
a transform is chosen the gain is above two standard errors. A trap is refused where none is chosen.
"""

import time
import warnings
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from measuring import tables
from measuring.sets import bike_counts, load_raw
from measuring.store import Cell, Record

COUNTS, SETS = "bike counts", ("protein", "keggdirected")
FUNCTIONS, NOISES = ("griewank", "levy", "borehole", "otl", "wing"), ("none", "usual")
ROWS, TEST_ROWS = 2000, 4000
PLAIN, WARPED, COUNT = "plain", "auto", "count"
ONE_CORE = True


def cells(quick: bool, slow: bool) -> list[Cell]:
    if quick:
        return [{"set": "borehole", "noise": "usual", "rows": 200, "seed": 0}]
    seeds = range(3 if slow else 1)
    sets = [{"set": name, "rows": ROWS, "seed": seed} for name in (COUNTS, *SETS) for seed in seeds]
    traps = [
        {"set": name, "noise": noise, "rows": ROWS, "seed": seed}
        for name in (FUNCTIONS if slow else FUNCTIONS[:3])
        for noise in NOISES
        for seed in seeds
    ]
    return sets + traps


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return cell["rows"] * (2.0 if cell["set"] == COUNTS else 1.0)


def run(cell: Cell) -> dict:
    from stochgp import KernelGPRegressor
    from stochgp.likelihoods import Warped

    rows = _rows(cell)
    kept = np.random.default_rng(cell["seed"]).permutation(len(rows.y))[: cell["rows"]]
    tested = np.random.default_rng(1).permutation(len(rows.y_test))[:TEST_ROWS]
    X, y, X_test, y_test = rows.X[kept], rows.y[kept], rows.X_test[tested], rows.y_test[tested]
    settings: dict[str, dict[str, Any]] = {
        PLAIN: {"likelihood": "gaussian"},
        WARPED: {"likelihood": Warped("gaussian", "auto")},
    }
    if cell["set"] == COUNTS:
        settings[COUNT] = {"likelihood": "gaussian", "target": "count"}
    found, losses = {}, {}
    for method, more in settings.items():
        begun = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = KernelGPRegressor("matern32", random_state=cell["seed"], **more).fit(X, y)
            law = model.predict_distribution(X_test)
        losses[method] = _losses(law, y_test, cell, float(np.std(y)))
        found[method] = {
            "nlpd": float(np.mean(losses[method])),
            "transform": str(model.plan_.get("transform", {}).get("choice")),
            "seconds": round(time.process_time() - begun, 1),
        }
    for method, lost in losses.items():
        d = losses[PLAIN] - lost
        found[method] |= {"gain": float(np.mean(d)), "error": float(np.std(d)) / len(d) ** 0.5}
    return {"methods": found}


def _rows(cell: Cell) -> Any:
    from benchmarks.datasets import load

    if cell["set"] in SETS:
        return load_raw(cell["set"], cell["seed"])
    if cell["set"] == COUNTS:
        return bike_counts(cell["seed"])
    noise = {"noise_std": 0.0} if cell["noise"] == "none" else {}
    name = f"fun:{cell['set']}:{2 * cell['rows']}"
    return load(name, seed=cell["seed"], test_fraction=0.5, **noise)


def _losses(law: Any, y: np.ndarray, cell: Cell, scale: float) -> np.ndarray:
    return -law.log_mass(y) if cell["set"] == COUNTS else -law.logpdf(y) - np.log(scale)


def chose(found: dict) -> bool:
    return found["transform"] != "None"


def gained(found: dict) -> bool:
    return found["gain"] > 2 * found["error"]


def page(records: list[Record]) -> list[str]:
    rows, chosen, traps = [], [], []
    for record in records:
        cell, methods = record["settings"], record["results"]["methods"]
        for method, found in methods.items():
            numbers = [tables.number(found[field], 4) for field in ("nlpd", "gain", "error")]
            name = (
                cell["set"]
                if "noise" not in cell
                else f"{cell['set']}, {'no' if cell['noise'] == 'none' else 'Gaussian'} noise"
            )
            transform = found["transform"] if method != PLAIN else ""
            rows.append([name, cell["seed"], method, transform, *numbers, tables.number(found["seconds"], 0)])
        chosen += [methods[WARPED]] if chose(methods[WARPED]) else []
        traps += [methods[WARPED]] if "noise" in cell else []
    verdict = (
        f"Of {len(chosen)} transforms that were chosen, {sum(map(gained, chosen))} gain more than two standard errors. "
        f"In {sum(not chose(found) for found in traps)} of {len(traps)} traps none was chosen."
    )
    headings = ["set", "seed", "targets", "transform", "NLPD", "gain", "its error", "seconds"]
    return [tables.table(headings, rows), verdict]


def figure(records: list[Record]) -> Figure:
    """The gain of "auto", two standard errors to each side."""
    drawing = Figure(figsize=(7, 3), layout="constrained")
    panel = drawing.subplots()
    found = [r["results"]["methods"][WARPED] for r in records]
    names = [f"{r['settings']['set']}\n{r['settings'].get('noise', '')}" for r in records]
    panel.errorbar(range(len(found)), [f["gain"] for f in found], [2 * f["error"] for f in found], fmt="o")
    panel.axhline(0, color="k", lw=0.5)
    panel.set_xticks(range(len(names)), names, fontsize=6)
    panel.set(ylabel="NLPD gained")
    return drawing
