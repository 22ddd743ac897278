"""The pictures of docs/comparison.md, and its table comparison.csv."""

import csv
import statistics

import numpy as np
from matplotlib.figure import Figure

from benchmarks import arena_summary
from measuring import report, store

FOLDER = store.ROOT / "docs" / "figures"
GREY, BLUE, RED = "#808080", "#3b82c4", "#c4553b"  # readable on light and dark pages


def write() -> None:
    """Write the pictures and the table."""
    rows = store.rows(report.records("arena"))
    for name, draw in (("ranks", ranks), ("seconds", seconds), ("tables", tables)):
        draw(rows).savefig(FOLDER / f"comparison_{name}.png", transparent=True)
    headings, lines = arena_summary.sides(rows)
    with (FOLDER / "comparison.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([headings, *lines])


def ranks(rows: list[arena_summary.Row]) -> Figure:
    """Draw mean ranks by CRPS; bars join methods that do not differ significantly."""
    *lines, (*_, least) = arena_summary.ranks(rows)[1]
    found = sorted((float(line[3]), line[0]) for line in lines)
    figure, axes = _axes(8, 2.6)
    axes.set(xlim=(len(found) + 0.3, 0.7), ylim=(-len(found) / 2 - 1, 1.5), yticks=[], xlabel="")
    axes.xaxis.set_ticks_position("top")
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.set_title(f"mean rank by CRPS, 1 is best; critical difference {least}", fontsize=10, color=GREY)
    half = (len(found) + 1) // 2
    for i, (rank, name) in enumerate(found):
        low, end = (-1.2 - i % half, 0.75 if i < half else len(found) + 0.25)
        axes.plot([rank, rank, end], [1.5, low, low], color=BLUE if name == "pool" else GREY, lw=1)
        axes.text(end, low + 0.1, name, ha="right" if i < half else "left", color=GREY, fontsize=9)
    starts = [rank for rank, _ in found]
    groups = {
        max(i for i, r in enumerate(starts) if r - first <= float(least)): first for first in starts[::-1]
    }
    for level, (last, first) in enumerate(sorted(groups.items())):
        axes.plot([first, starts[last]], [1.1 - 0.35 * level] * 2, color=RED, lw=3)
    return figure


def seconds(rows: list[arena_summary.Row]) -> Figure:
    """Draw the mean rank by CRPS against the median seconds of a default fit."""
    *lines, _ = arena_summary.ranks(rows)[1]
    figure, axes = _axes(6, 3.6)
    before = (1.0, 0.0)
    for rank, name in sorted((float(line[3]), line[0]) for line in lines):
        times = [
            row["fit_seconds"]
            for row in rows
            if (row["side"], row["variant"]) == (name, "default") and "fit_seconds" in row
        ]
        at = max(statistics.median(times), 0.01), rank
        axes.plot(*at, "o", color=BLUE if name == "pool" else GREY)
        is_near = abs(rank - before[1]) < 0.3 and 0.5 < at[0] / before[0] < 2
        axes.annotate(
            name, at, xytext=(5, -9 if is_near else 3), textcoords="offset points", color=GREY, fontsize=9
        )
        before = at
    axes.set(xscale="log", xlabel="median seconds of a fit on two cores", ylabel="mean rank by CRPS")
    axes.invert_yaxis()
    return figure


def tables(rows: list[arena_summary.Row]) -> Figure:
    """Draw, for each split, the ratio of the best other CRPS to the CRPS of the pool."""
    found = []
    for (name, split, _), own in arena_summary.by_division(rows):
        pool, best = arena_summary.pool_of(own), arena_summary.best_of(own, "crps")
        if pool is not None and best is not None and "crps" in pool:
            found.append((best["crps"] / pool["crps"], f"{name}, {split}"))
    values = np.array([value for value, _ in sorted(found)])
    figure, axes = _axes(6, 0.2 * len(found) + 1)
    axes.barh([name for _, name in sorted(found)], values - 1, left=1, color=np.where(values > 1, BLUE, RED))
    axes.set(
        xscale="log",
        xlabel="CRPS of the best other method / CRPS of the pool",
        ylim=(-0.6, len(found) - 0.4),
        xlim=(0.08, 25),
    )
    axes.set_xticks([0.1, 0.2, 0.5, 1, 2, 5, 10, 20], labels=["0.1", "0.2", "0.5", "1", "2", "5", "10", "20"])
    axes.tick_params(labelsize=8)
    for y, value in enumerate(values):
        axes.text(1.03 * max(value, 1), y, f"{value:.2f}", va="center", fontsize=7, color=GREY)
    return figure


def _axes(width: float, height: float) -> tuple[Figure, object]:
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    axes = figure.subplots()
    axes.tick_params(colors=GREY)
    axes.xaxis.label.set_color(GREY)
    axes.yaxis.label.set_color(GREY)
    for side, spine in axes.spines.items():
        spine.set_color(GREY)
        spine.set_visible(side in ("bottom", "left"))
    return figure, axes
