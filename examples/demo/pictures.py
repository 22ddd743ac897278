"""The two pictures of the demo: predicted arrivals, and the calibration."""

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from examples.demo.words import MINUTES, WIDE, Arrivals
from stochgp.plots import CoverageDisplay, draw_labels

_COLORS = ("#1f5fa8", "#2f9e8f", "#c8641b", "#8a3b8f")
_GREY = "#6b6b6b"
_POINTS = 400


def arrivals_figure(found: Arrivals, examples: list[dict[str, Any]]) -> Figure:
    """Draw densities of the arrival delay, and the probability of arrival by each minute."""
    figure = Figure(figsize=(12, 4.6), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2)
    rows = np.array([one["row"] for one in examples])
    delay, predicted = found.column("dep_delay")[rows], found.predicted[rows]
    ends = predicted.quantile([0.01, 0.99]) + delay[:, None]
    for k, one in enumerate(examples):
        color = _COLORS[k % len(_COLORS)]
        label = f"{one['route']}, left {one['left_late']:+.0f} min"
        late = np.linspace(ends[k, 0], ends[k, 1], _POINTS)
        density = np.exp(predicted[[k]].logpdf((late - delay[k])[None]))[0]
        left.fill_between(late, density, color=color, alpha=0.25, linewidth=0)
        left.plot(late, density, color=color, linewidth=1.5, label=label)
        left.axvline(one["was_late"], ymax=0.06, color=color, linewidth=3)
        late = np.linspace(ends[:, 0].min(), ends[:, 1].max(), _POINTS)
        right.plot(late, 100 * predicted[[k]].cdf((late - delay[k])[None])[0], color=color, linewidth=1.8)
        right.plot(one["was_late"], 0, "^", color=color, markersize=8, clip_on=False)
    draw_labels(left, "How late, when they leave the gate", "arrival delay (minutes)", "probability density")
    draw_labels(right, "Will a connection be reached?", "minutes late at most", "probability (%)")
    left.set_ylim(0, 1.5 * left.get_ylim()[1])  # room for the legend
    right.set_ylim(0, 100)
    for minutes in MINUTES:
        right.axvline(minutes, color=_GREY, linewidth=0.6, linestyle=":")
    left.legend(frameon=False, fontsize=9, loc="upper left", title="thick marks: as it was", title_fontsize=9)
    return figure


def trust_figure(found: Arrivals, promises: list[dict[str, Any]], widths: list[dict[str, Any]]) -> Figure:
    """Draw predicted and observed probabilities, coverage, and widths of intervals."""
    figure = Figure(figsize=(15, 5), dpi=150, layout="constrained")
    left, middle, right = figure.subplots(1, 3, gridspec_kw={"width_ratios": (1, 0.8, 1.3)})
    _draw_promises(left, promises)
    CoverageDisplay.from_predictions(found.flights.lost, found.predicted, ax=middle)
    _draw_widths(right, widths)
    return figure


def _draw_promises(axes: Axes, promises: list[dict[str, Any]]) -> None:
    axes.plot([0, 100], [0, 100], color=_GREY, linewidth=1, linestyle="--")
    for color, minutes in zip(_COLORS, MINUTES, strict=True):
        rows = [row for row in promises if row["minutes"] == minutes]
        promised, kept, error = (
            100 * np.array([row[name] for row in rows]) for name in ("promised", "kept", "stderr")
        )
        error = 2 * np.where(np.isfinite(error), error, 0.0)
        axes.errorbar(
            promised,
            kept,
            yerr=error,
            fmt="o-",
            color=color,
            markersize=4,
            linewidth=1,
            label=f"at most {minutes} minutes late",
        )
    draw_labels(
        axes,
        "Are the chances right?",
        "promised probability (%)",
        "flights that were (%), ± 2 errors over days",
    )
    axes.legend(frameon=False, fontsize=9)


def _draw_widths(axes: Axes, widths: list[dict[str, Any]]) -> None:
    causes = list(dict.fromkeys(row["cause"] for row in widths))
    for at, row in enumerate(widths):
        color = _COLORS[causes.index(row["cause"]) % len(_COLORS)]
        axes.barh(at, row["width"], color=color, alpha=0.6)
        axes.annotate(
            f"{100 * row['held']:.0f} % held",
            (row["width"], at),
            (4, 0),
            textcoords="offset points",
            fontsize=8,
            va="center",
        )
    axes.set_yticks(range(len(widths)), [f"{row['cause']}: {row['what']}" for row in widths])
    axes.invert_yaxis()
    axes.margins(x=0.15)
    draw_labels(
        axes, "Where predictions are vague", f"mean width of the {100 * WIDE:.0f} % interval (minutes)", ""
    )
    axes.tick_params(axis="y", labelsize=8)
