"""Plots of predictions as matplotlib figures, which `figure.savefig(path)` saves."""

from collections.abc import Sequence
from typing import Any

import narwhals as nw
import numpy as np

try:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
except ImportError as error:
    raise ImportError("plots need matplotlib: pip install 'stochgp[plots]'") from error

from stochgp.inspection import importance, some_rows, with_column
from stochgp.metrics import calibration_error, coverages, pit, rmse

__all__ = [
    "CoverageDisplay", "ErrorDisplay", "PITDisplay", "draw_dependence", "draw_predictions", "evaluation_report",
]  # fmt: skip

_BLUE, _GREY = "#1f5fa8", "#6b6b6b"
_DENSE = 2000  # with more rows, extreme values are not drawn
_DRAWN = (0.1, 99.9)  # percentiles of the drawn range
_BINS = 20
_PARTS, _ROWS_OF_PART = 20, 20  # maximum groups, and minimum rows per group, in `ErrorDisplay`
_POINTS = 40
_MOST_VALUES = 12  # maximum categories or dates on an axis


def evaluation_report(
    y: Any,
    found: Any,
    model: Any = None,
    X: Any = None,
    *,
    names: Sequence[str] = (),
    quantity: str = "target",
    unit: str = "",
) -> Figure:
    """Return a figure with four panels: PIT values, coverage, errors and predicted values.

    With a model, two more panels show how predictions depend on the two most important inputs.

    Parameters
    ----------
    y : array [N]
        Held-out targets.
    found : distribution
        The predictive distribution of y.
    model : fitted regressor or None
        A model with a method `predict_distribution`. None means no panels of inputs.
    X : array [N, D], data frame or None
        Input rows for `model`; not used without a model.
    names : sequence of D str
        Names of the inputs. () means the column names of a data frame, or the column numbers of an array.
    quantity, unit : str
        Name and unit of the targets on the axes; "" means no unit.
    """
    n_columns = 2 if model is None else 3
    figure = Figure(figsize=(4.5 * n_columns, 8.2), dpi=150, layout="constrained")
    panels = figure.subplots(2, n_columns)
    PITDisplay.from_predictions(y, found, ax=panels[0, 0])
    CoverageDisplay.from_predictions(y, found, ax=panels[0, 1])
    ErrorDisplay.from_predictions(y, found, ax=panels[1, 0], unit=unit)
    draw_predictions(panels[1, 1], y, found.mean, quantity=quantity, unit=unit)
    if model is not None:
        most = np.argsort(-importance(model, X), kind="stable")[:2]
        names = names or [str(name) for name in getattr(some_rows(X), "columns", ())]
        for axes, column in zip(panels[:, 2], map(int, most), strict=False):
            name = names[column] if names else ""
            draw_dependence(axes, model, X, column, name=name, quantity=quantity)
        for axes in panels[len(most) :, 2]:
            axes.set_axis_off()
    return figure


class _Display:
    """Base class of plots of held-out rows, with the attributes `ax_` and `figure_`."""

    ax_: Axes
    figure_: Any
    _draw: Any

    @classmethod
    def from_predictions(cls, y: Any, found: Any, *, ax: Axes | None = None, unit: str = "") -> Any:
        """Draw targets y [N] and their predictive distribution into `ax` or a new figure."""
        self = cls()
        self.ax_ = Figure(figsize=(4.5, 4.1), dpi=150, layout="constrained").subplots() if ax is None else ax
        self.figure_ = self.ax_.figure
        self._draw(self.ax_, y, found, unit)
        return self

    @classmethod
    def from_estimator(cls, model: Any, X: Any, y: Any, *, ax: Axes | None = None, unit: str = "") -> Any:
        """Draw the predictions of a fitted regressor for rows X with targets y."""
        return cls.from_predictions(y, model.predict_distribution(X), ax=ax, unit=unit)


class PITDisplay(_Display):
    """Density of the PIT values (`metrics.pit`), which is 1 for calibrated predictions.

    For calibrated predictions, about 19 of the 20 bars end between the dotted lines. If standard deviations
    are too small, the density is high at both ends. If standard deviations are too large, the density is high
    in the middle.
    """

    def _draw(self, axes: Axes, y: Any, found: Any, unit: str) -> None:
        values = pit(y, found)
        error = 2 * np.sqrt((_BINS - 1) / len(values))
        axes.hist(values, bins=_BINS, range=(0, 1), density=True, color=_BLUE, alpha=0.5)
        axes.axhline(1, color=_GREY, linewidth=1, linestyle="--")
        for edge in (max(0.0, 1 - error), 1 + error):
            axes.axhline(edge, color=_GREY, linewidth=1, linestyle=":")
        distance, level = calibration_error(y, found)
        names = "predicted probability of a smaller value", "density"
        draw_labels(axes, "Probability integral transform (PIT)", *names)
        axes.set(xlim=(0, 1))
        axes.set_ylim(top=1.3 * axes.get_ylim()[1])
        text = f"calibration error {distance:.2g}\n(calibrated forecasts: about {level:.2g})"
        axes.text(0.5, 0.97, text, transform=axes.transAxes, ha="center", va="top", fontsize=9)


class CoverageDisplay(_Display):
    """Coverage of central intervals minus the intervals' level, in percentage points.

    The levels are 50, 80, 95 and 99 %. Bars show ± 2 standard errors of a calibrated model's coverage.
    """

    def _draw(self, axes: Axes, y: Any, found: Any, unit: str) -> None:
        shares = coverages(y, found)
        for at, (level, (share, error)) in enumerate(shares.items()):
            axes.bar(at, 400 * error, bottom=-200 * error, width=0.5, color=_GREY, alpha=0.25, linewidth=0)
            axes.plot(at, 100 * (share - level), "o", color=_BLUE, markersize=6)
            style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 9, "va": "center"}
            axes.annotate(f"{100 * share:.1f} %", (at, 100 * (share - level)), (9, 0), **style)
        axes.axhline(0, color=_GREY, linewidth=1, linestyle="--")
        names = "level of the interval", "coverage − level (percentage points)"
        draw_labels(axes, "Coverage of central intervals", *names)
        axes.set_xticks(range(len(shares)), [f"{100 * level:.0f} %" for level in shares])
        axes.set_xlim(-0.6, len(shares) - 0.2)


class ErrorDisplay(_Display):
    """Root mean square error against predicted standard deviation, for groups of rows.

    Rows with finite standard deviation are sorted by standard deviation and divided into at most 20 groups.
    Bars show ± 2 standard errors. Points of calibrated predictions are close to the diagonal.
    """

    def _draw(self, axes: Axes, y: Any, found: Any, unit: str) -> None:
        squares, std = (np.asarray(y, np.float64) - found.mean) ** 2, found.std
        squares, std = squares[np.isfinite(std)], std[np.isfinite(std)]
        if len(std) == 0:
            style: dict[str, Any] = {"transform": axes.transAxes, "ha": "center", "color": _GREY}
            axes.text(0.5, 0.5, "all standard deviations are infinite", **style)
            return
        n_parts = max(1, min(_PARTS, len(std) // _ROWS_OF_PART))
        parts = np.array_split(np.argsort(std, kind="stable"), n_parts)
        stds = np.array([np.sqrt(np.mean(std[rows] ** 2)) for rows in parts])
        sizes = np.array([np.sqrt(np.mean(squares[rows])) for rows in parts])
        errors = np.array([np.std(squares[rows]) / len(rows) ** 0.5 for rows in parts]) / sizes
        axes.errorbar(stds, sizes, yerr=errors, fmt="o", color=_BLUE, markersize=4, linewidth=1)
        ends = [min(stds.min(), sizes.min()), max(stds.max(), sizes.max())]
        axes.plot(ends, ends, color=_GREY, linewidth=1, linestyle="--")
        in_units = f" ({unit})" if unit else ""
        names = f"predicted standard deviation{in_units}", f"root mean square error{in_units}"
        draw_labels(axes, "Errors against predicted standard deviations", *names)


def draw_dependence(
    axes: Axes, model: Any, X: Any, column: int, *, name: str = "", quantity: str = "target"
) -> None:
    """Draw the mean prediction as a function of one input, with 80 % and 95 % bands.

    The input varies from its 2 % to its 98 % quantile; all other inputs keep their values in X. Predicted
    means and quantiles are averaged over at most 200 rows, and the quantiles include the noise. At most 12
    categories or dates are drawn.

    Parameters
    ----------
    axes, model, X, column
        The axes, a fitted regressor with a method `predict_distribution`, input rows, and the input's index.
    name, quantity : str
        Axis labels for the input ("" means the number of the input) and for the targets.
    """
    rows = some_rows(X)
    values, is_array = rows[:, column], isinstance(rows, np.ndarray)
    if is_array or values.dtype.is_numeric():
        low, high = np.nanquantile(np.asarray(values, np.float64), [0.02, 0.98])
        grid = shown = np.linspace(low, high, _POINTS)
    else:
        shown = values.drop_nulls().unique().sort().to_list()[:_MOST_VALUES]
        grid = np.arange(len(shown))
        axes.set_xticks(grid, [str(value) for value in shown], rotation=45)
    moved = [with_column(rows, column, [value] * len(rows)) for value in shown]
    found = model.predict_distribution(np.concatenate(moved) if is_array else nw.concat(moved).to_native())
    q = found.quantile([0.025, 0.1, 0.9, 0.975]).reshape(len(grid), -1, 4).mean(axis=1)
    axes.fill_between(grid, q[:, 0], q[:, 3], color=_BLUE, alpha=0.15, linewidth=0)
    axes.fill_between(grid, q[:, 1], q[:, 2], color=_BLUE, alpha=0.25, linewidth=0)
    axes.plot(grid, found.mean.reshape(len(grid), -1).mean(axis=1), color=_BLUE, linewidth=2)
    label = name or f"input {column + 1}"
    draw_labels(axes, f"Dependence on {label}", label, quantity)


def draw_predictions(axes: Axes, y: Any, mean: Any, *, quantity: str = "target", unit: str = "") -> None:
    """Draw predicted against actual values.

    With more than 2,000 rows, the axes end near the 0.1 % and the 99.9 % quantile of all values.

    Parameters
    ----------
    axes, y, mean
        The matplotlib axes, the held-out targets, and their predictions.
    quantity, unit : str
        Name and unit of the targets on the axes; "" means no unit.
    """
    y, mean = np.asarray(y, np.float64), np.asarray(mean, np.float64)
    low, high = np.percentile([y, mean], _DRAWN if len(y) > _DENSE else (0, 100))
    margin = 0.03 * (high - low) or 0.5 + abs(high) * 1e-3
    low, high = float(low - margin), float(high + margin)
    shown = (y >= low) & (y <= high) & (mean >= low) & (mean <= high)
    alpha = 0.5 if len(y) <= _DENSE else 0.1
    axes.plot(
        y[shown], mean[shown], "o", color=_BLUE, markersize=3, alpha=alpha, markeredgewidth=0, rasterized=True
    )
    axes.plot([low, high], [low, high], color=_GREY, linewidth=1, linestyle="--")
    in_units = f" ({unit})" if unit else ""
    title = f"Predicted against actual, RMSE {rmse(y, mean):.4g}{f' {unit}' if unit else ''}"
    draw_labels(axes, title, f"actual {quantity}{in_units}", f"predicted {quantity}{in_units}")
    axes.set(xlim=(low, high), ylim=(low, high))
    if not shown.all():
        note = f"{np.sum(~shown):,} of {len(y):,} rows are outside the axes"
        axes.text(0.03, 0.97, note, transform=axes.transAxes, va="top", fontsize=8, color=_GREY)


def draw_labels(axes: Axes, title: str, x: str, y: str) -> None:
    """Set the title and the axis labels."""
    axes.set_title(title, fontsize=11, loc="left")
    axes.set_xlabel(x, fontsize=10)
    axes.set_ylabel(y, fontsize=10)
    axes.tick_params(labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
