"""Is leave-one-out as good as its rivals? (N1 of the acceptance experiments.)

Matérn-3/2 (flights: Matérn-1/2), standardised rows. θ comes from leave-one-out as it is by default, learned on by likelihoods where left-out rows gain
(`selection.polish`; beyond 100,000 rows that is leave-one-out alone), from leave-one-out alone, from Vecchia densities of 48 neighbours, from sgGP (batches of neighbours, as
the library has them), from the exact likelihood of 3,000 random rows, and from the published hyperparameters where there are any. Each then predicts by the same local
posterior from 128 neighbours with constant Gaussian noise, its variances scaled by 500 left-out rows. NLPD is of unit-variance targets, of the flights in minutes.
"less" is NLPD less that of the default on the same rows; its standard error is the larger of that over rows and that by boxes of inputs. Seconds are the
processor's, of one core, for learning with compilation and the search of neighbours: only those of one set compare. Accepted: the default is on no set worse than a rival by more than two standard errors, and
on the flights within the limits of RMSE and NLPD.
"""

import time
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.problems import ROWS, SETS, Problem, load, standardised
from measuring import tables
from measuring.acceptance import DEFAULT, FLIGHTS, error_of, learner_kept
from measuring.store import Cell, Record, select

USUAL = ("elevators", "pol", "protein")
ALONE = "leave-one-out"
METHODS = (DEFAULT, ALONE, "Vecchia", "sgGP", "3,000 rows", "published")
CENTRES, ALL_CENTRES = 4096, 16_384
TEST_ROWS = 2000
ONE_CORE = True


def cells(quick: bool, slow: bool) -> list[Cell]:
    if quick:
        return [{"set": "synthetic", "centres": 64, "seed": 0}]
    found = [{"set": name, "centres": CENTRES, "seed": 0} for name in USUAL]
    if slow:
        found += [{"set": name, "centres": CENTRES, "seed": 0} for name in SETS if name not in USUAL]
        found += [{"set": name, "centres": ALL_CENTRES, "seed": 0} for name in (*SETS, *FLIGHTS)]
    return found


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return ROWS.get(cell["set"], 250_000) * cell["centres"]


def run(cell: Cell) -> dict:
    from experiments import kernel_fits
    from stochgp.selection.choices import LOCAL_ROWS

    problem = _problem(cell)
    unit = problem.scale if cell["set"] in FLIGHTS else 1.0
    truth = kernel_fits.some_tests(problem, None if cell["set"] in FLIGHTS else TEST_ROWS)
    found, predicted = {}, {}
    many = len(problem.y) > LOCAL_ROWS  # where leave-one-out alone is the default
    ours, methods = (ALONE, METHODS[1:]) if many else (DEFAULT, METHODS)
    for method in methods:
        begun = time.process_time()
        gp, converged = _learned(method, cell, problem)
        if gp is None:
            continue
        seconds = time.process_time() - begun
        predicted[method] = kernel_fits.locally(gp, problem, truth)
        scores = kernel_fits.scores(predicted[method], truth)
        found[method] = scores | {
            "rmse": unit * scores["rmse"],
            "nlpd": float(np.log(unit)) + scores["nlpd"],
            "noise_variance": float(gp.noise_variance),
            "seconds": round(seconds, 1),
            "converged": str(converged),
            "less": kernel_fits.paired(predicted[method], predicted[ours], truth),
        }
    return {"methods": found, "test_rows": len(truth.y)}


def _problem(cell: Cell) -> Problem:
    if cell["set"] not in FLIGHTS:
        return load(cell["set"], 0)
    from benchmarks.datasets import load as load_named

    raw = load_named(cell["set"], seed=cell["seed"])
    return standardised(raw.X, raw.y, raw.X_test, raw.y_test)


def _learned(method: str, cell: Cell, problem: Problem):
    """(The model, whether its learner converged); (None, ...) where nothing was published."""
    import jax

    from experiments import kernel_fits
    from stochgp import learners

    if method == "published":
        return kernel_fits.published(cell["set"], 0), ""
    alone = learners.LeaveOneOut(n_centres=cell["centres"])
    made = {
        DEFAULT: alone,
        ALONE: alone,
        "Vecchia": learners.Vecchia(n_centres=cell["centres"]),
        "sgGP": learners.BSGD(),
        "3,000 rows": learners.FullBatch(subset_rows=3000, spread=1.0, warm_rows=500),
    }[method]
    kernel = "matern12" if cell["set"] in FLIGHTS else "matern32"
    first = kernel_fits.start(problem.X.shape[1], kernel)
    found = learners.fit(made, first, problem.source, key=jax.random.key(cell["seed"]))
    if method == DEFAULT:
        found = _learned_on(found, alone, problem, jax.random.key(cell["seed"]))
    return found.gp, bool(found.converged)


def _learned_on(found: Any, learner: Any, problem: Problem, key: Any) -> Any:
    """By likelihoods, where left-out rows gain."""
    from stochgp.budget import Budget
    from stochgp.selection.polish import with_polish
    from stochgp.training_data.run import Run

    run = Run(key, key, key, Budget.of("6GB"), None, None, None)
    return with_polish(True, found, found, learner, problem.source, run, lambda entry: None)[0]


def page(records: list[Record]) -> list[str]:
    headings = ["set", "centres", "θ by", "RMSE", "NLPD", "less", "its error", "95 % coverage", "scale", "seconds", "converged"]  # fmt: skip
    rows = []
    for record in records:
        for method, found in record["results"]["methods"].items():
            less = found["less"]
            error = error_of(less)
            numbers = [
                *(tables.number(found[field], 4) for field in ("rmse", "nlpd")),
                *(tables.number(value, 4) for value in (less["nlpd"], error)),
                *(tables.number(found[field], 3) for field in ("coverage95", "scale")),
                tables.number(found["seconds"], 0),
            ]
            cell = record["settings"]
            rows.append([cell["set"], cell["centres"], method, *numbers, found["converged"]])
    verdicts = [_verdict(records, centres) for centres in (CENTRES, ALL_CENTRES)]
    return [tables.table(headings, rows), *(text for text in verdicts if text)]


def _verdict(records: list[Record], centres: int) -> str:
    found = {r["settings"]["set"]: learner_kept(r) for r in select(records, centres=centres)}
    if not found:
        return ""
    lost = [name for name, kept in found.items() if not kept]
    where = f"not on {', '.join(lost)}" if lost else "on all of them"
    return f"{centres:,} centres: the default accepted on {len(found) - len(lost)} of {len(found)} sets, {where}."


def figure(records: list[Record]) -> Figure:
    """NLPD less that of the default, two standard errors to each side."""
    drawing = Figure(figsize=(7, 3.2), layout="constrained")
    panel = drawing.subplots()
    names = [f"{r['settings']['set']}\n{r['settings']['centres']}" for r in records]
    for i, method in enumerate(METHODS[1:]):
        found = [(j, r["results"]["methods"].get(method)) for j, r in enumerate(records)]
        places = [j + 0.15 * (i - 1.5) for j, got in found if got]
        less = [got["less"] for _, got in found if got]
        errors = [2 * error_of(d) for d in less]
        panel.errorbar(places, [d["nlpd"] for d in less], errors, fmt="o", ms=3, label=method)
    panel.axhline(0, color="k", lw=0.5)
    panel.set_xticks(range(len(names)), names, fontsize=7)
    panel.set_yscale("symlog", linthresh=0.05)
    panel.set(ylabel="NLPD less the default's")
    panel.legend(fontsize=7)
    return drawing
