"""What the tables of UCI sets have in common: rates tuned on split 0, scores, wins over the published numbers."""

import math
from typing import Any

import jax
from matplotlib.figure import Figure

from experiments import inducing
from experiments.methods import METHODS, STEP_COST
from experiments.problems import ROWS, SETS, curve, deep_gp, load, score
from measuring import papers, tables
from measuring.store import Cell, Record, select
from stochgp import learners

TUNED = "tuned"


def tuned_cells(name: str, splits: tuple[int, ...], batch: int, method: str, epochs: int) -> list[Cell]:
    """One cell per rate on split 0, and one per later split, at the rate of lowest NLML of those."""
    cells = []
    for split in splits:
        rates = METHODS[method].rates if split == 0 else (TUNED,)
        cells += [
            {"set": name, "split": split, "batch": batch, "method": method, "epochs": epochs, "rate": rate}
            for rate in rates
        ]
    return cells


def depends(cell: Cell, records: list[Record]) -> dict | None:
    """The tuned rate; nothing where the cell has one; None while the trials of split 0 are not all there."""
    if cell["rate"] != TUNED:
        return {}
    best = tuned(records, {k: cell[k] for k in ("set", "batch", "method", "epochs")})
    return None if best is None else {"rate": best["settings"]["rate"]}


def tuned(records: list[Record], which: dict[str, Any]) -> Record | None:
    """The record of split 0 of lowest NLML, once all of the rates have been tried."""
    trials = [
        r
        for r in select(records, split=0, **which)
        if r["settings"]["rate"] in METHODS[which["method"]].rates
    ]
    if len(trials) < len(METHODS[which["method"]].rates):
        return None
    return min(trials, key=_nlml)


def run(cell: Cell, kernel: str | None = None) -> dict:
    """One fit and its scores."""
    method, problem = METHODS[cell["method"]], load(cell["set"], cell["split"])
    gp = method.prepared(deep_gp(problem, cell["split"], kernel))
    learner = method.learner(cell["batch"], cell["epochs"], cell["rate"])
    if method.sparse:
        return inducing.run(gp, problem, learner, cell["split"]) | {"rate": cell["rate"]}
    result = learners.fit(learner, gp, problem.source, key=jax.random.key(cell["split"]))
    return score(result, problem) | {"rate": cell["rate"], "curve": curve(result, problem)}


def cost(cell: Cell, features: int = 128) -> float:
    """Seconds, roughly: longest cells go first."""
    fixed, per_row = STEP_COST[cell["method"]]
    steps = cell["epochs"] * max(1, ROWS[cell["set"]] // cell["batch"])
    width = features / 128
    moments = cell["epochs"] * ROWS[cell["set"]] * 1.6 * width**2
    return 1e-6 * (steps * (fixed + (per_row + width**2) * cell["batch"]) + moments)


def summaries(records: list[Record], batch: int, epochs: int) -> list[dict]:
    """A line per set and method: its records over splits 0, 1, …, split 0 at its best rate."""
    found = []
    for name in sorted({r["settings"]["set"] for r in records}, key=(*SETS, "synthetic").index):
        for method in METHODS:
            which = {"set": name, "batch": batch, "method": method, "epochs": epochs}
            first = tuned(records, which)
            if first is None:
                continue
            later = select(records, rate=TUNED, **which)
            runs = [first, *sorted(later, key=lambda r: r["settings"]["split"])]
            found.append({**which, "runs": runs, "rate": first["settings"]["rate"]})
    return found


def page(records: list[Record], kernel: str) -> list[str]:
    """The tables of every batch size and number of epochs that have results."""
    published, parts = papers.nlml(kernel), []
    for batch, epochs in sizes(records):
        if lines := summaries(records, batch, epochs):
            parts += [
                f"## Batch {batch}, {epochs} epochs",
                score_table(lines, published),
                "Best variant of each family: mean NLML over the splits run, less the better of the published SCGD and MINIMAX.",
                win_table(lines, published, batch),
            ]
    return parts


def sizes(records: list[Record]) -> list[tuple[int, int]]:
    """(batch size, epochs) of the records."""
    return sorted({(r["settings"]["batch"], r["settings"]["epochs"]) for r in records})


def score_table(lines: list[dict], published: dict) -> str:
    """Every line with all of its scores, beside the published NLML."""
    headings = [
        "set", "method", "splits", "rate", "NLML", "published SCGD", "published MINIMAX", "RMSE", "held-out NLPD",
        "the same, raw", "95 % coverage", "seconds",
    ]  # fmt: skip
    rows = []
    for line in lines:
        get = lambda field, runs=line["runs"]: [r["results"][field] for r in runs]
        ours = [published.get((line["set"], line["batch"], m), math.nan) for m in ("SCGD", "MINIMAX")]
        rows.append(
            [
                line["set"], line["method"], len(line["runs"]), f"{line['rate']:g}", tables.spread(get("nlml")),
                *map(tables.number, ours), tables.spread(get("rmse"), 4), tables.spread(get("nlpd")),
                tables.spread(get("nlpd_raw")), tables.spread(get("coverage95")), tables.spread(get("fit_seconds"), 0),
            ]
        )  # fmt: skip
    return tables.table(headings, rows)


def win_table(lines: list[dict], published: dict, batch: int) -> str:
    """Best variant of each family against the better published one, set by set: difference of mean NLML, then the count."""
    rows = []
    for family in ("scgd", "minimax", "bsgd", "svgp"):
        row, wins, compared = [family], 0, 0
        for name in SETS:
            ours = [x for x in lines if x["set"] == name and x["method"].startswith(family)]
            theirs = [published[k] for m in ("SCGD", "MINIMAX") if (k := (name, batch, m)) in published]
            means = {x["method"]: tables.mean(r["results"]["nlml"] for r in x["runs"]) for x in ours}
            means = {method: value for method, value in means.items() if math.isfinite(value)}
            if not means or not theirs:
                row.append("n/a")
                continue
            method = min(means, key=lambda m: means[m])
            gap = means[method] - min(theirs)
            compared, wins = compared + 1, wins + (gap <= 0)
            row.append(f"{gap:+.3f} {method.partition('-')[2]}".rstrip())
        rows.append([*row, f"{wins} of {compared}"])
    return tables.table(["family", *SETS, "at or below the published"], rows)


def figure(records: list[Record], kernel: str) -> Figure:
    """Mean NLML of every method less the better published one, per set."""
    published, panels_of = papers.nlml(kernel), sizes(records)
    drawing = Figure(figsize=(5 * len(panels_of), 4), layout="constrained")
    panels = drawing.subplots(1, len(panels_of), sharey=True, squeeze=False)[0]
    for panel, (batch, epochs) in zip(panels, panels_of, strict=True):
        lines = summaries(records, batch, epochs)
        for i, method in enumerate(METHODS):
            _draw(panel, [x for x in lines if x["method"] == method], published, method, 0.12 * (i - 2.5))
        panel.axhline(0, color="black", linewidth=0.8)
        panel.set_xticks(range(len(SETS)), SETS, rotation=30)
        panel.set_title(f"{kernel} deep kernel, batch {batch}, {epochs} epochs")
        panel.set_yscale("symlog", linthresh=0.5)
    panels[0].set_ylabel("mean NLML per datum − better published one")
    panels[0].legend(fontsize=7)
    return drawing


def _draw(panel: Any, lines: list[dict], published: dict, label: str, shift: float) -> None:
    """One method's points; sets without a published value are left out."""
    x, y = [], []
    for line in lines:
        theirs = [
            published[k] for m in ("SCGD", "MINIMAX") if (k := (line["set"], line["batch"], m)) in published
        ]
        if theirs:
            x.append(SETS.index(line["set"]) + shift)
            y.append(tables.mean(r["results"]["nlml"] for r in line["runs"]) - min(theirs))
    panel.plot(x, y, "o", label=label)


def _nlml(record: Record) -> float:
    value = record["results"]["nlml"]
    return math.inf if value is None else value
