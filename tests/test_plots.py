"""Pictures: what is drawn is what was given, and no global state of matplotlib is touched."""

import sys
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy.stats import norm

from stochgp import metrics, plots
from stochgp.distributions import Normal

RNG = np.random.default_rng(1)


def _predictions(n, spread=1.0):
    mean, std = RNG.normal(size=n), RNG.uniform(0.5, 1.5, size=n)
    return mean + spread * std * RNG.normal(size=n), mean, std


@pytest.mark.parametrize(("n", "spread"), [(1, 1.0), (50, 0.3), (3000, 3.0)])
def test_a_report_is_written_without_windows_or_global_settings(n, spread, tmp_path):
    settings = dict(matplotlib.rcParams)
    y, mean, std = _predictions(n, spread)
    figure = plots.evaluation_report(y, Normal(mean, std), quantity="delay", unit="minutes")
    figure.savefig(tmp_path / "report.png")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
    assert dict(matplotlib.rcParams) == settings
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


@pytest.mark.parametrize("n", [500, 2500])
def test_every_row_is_drawn_or_counted(n):
    y, mean, _ = _predictions(n)
    y[:2] += 1e4
    axes = Figure().subplots()
    plots.draw_predictions(axes, y, mean, quantity="delay", unit="minutes")
    low, high = axes.get_xlim()
    inside = int(np.sum((y > low) & (y < high) & (mean > low) & (mean < high)))
    assert len(axes.get_lines()[0].get_xdata()) == inside
    assert (inside == n) == (not axes.texts)
    assert axes.get_xlabel() == "actual delay (minutes)"


def test_coverage_is_drawn_with_two_standard_errors_of_a_calibrated_forecast():
    y, mean, std = _predictions(400)
    axes = plots.CoverageDisplay.from_predictions(y, Normal(mean, std)).ax_
    levels = np.array([0.5, 0.8, 0.95, 0.99])
    bands = np.array([[bar.get_y(), bar.get_y() + bar.get_height()] for bar in axes.patches])
    np.testing.assert_allclose(bands, 200 * np.sqrt(levels * (1 - levels) / 400)[:, None] * [-1, 1])
    drawn = [line.get_ydata()[0] for line in axes.get_lines()[: len(levels)]]
    held = [np.mean(np.abs(y - mean) <= norm.ppf((1 + level) / 2) * std) for level in levels]
    np.testing.assert_allclose(drawn, 100 * (np.array(held) - levels), atol=1e-9)


def test_errors_are_drawn_against_deviations_by_parts():
    y, mean, std = _predictions(400)
    axes = plots.ErrorDisplay.from_predictions(y, Normal(mean, std)).ax_
    x, sizes = axes.get_lines()[0].get_data()
    rows = np.argsort(std)[:20]
    assert len(x) == 20 and np.all(np.diff(x) > 0)
    np.testing.assert_allclose(x[0] ** 2, np.mean(std[rows] ** 2))
    np.testing.assert_allclose(sizes[0] ** 2, np.mean((y - mean)[rows] ** 2))


def test_dependence_is_the_mean_over_rows_with_its_bands():
    class Line:
        def predict_distribution(self, X):
            return Normal(3 * X[:, 1] + X[:, 0], np.full(len(X), 2.0))

    X = RNG.normal(size=(500, 2))
    axes = Figure().subplots()
    plots.draw_dependence(axes, Line(), X, 1, name="dose")
    x, mean = axes.get_lines()[0].get_data()
    rows = X[np.linspace(0, 499, 200).astype(int)]
    np.testing.assert_allclose(mean, 3 * x + rows[:, 0].mean(), rtol=1e-9, atol=1e-9)
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    np.testing.assert_allclose(band.max() - mean[-1], 1.959963984540054 * 2, rtol=1e-6)
    assert axes.get_xlabel() == "dose"


class Sum:
    """N(2x₁ + x₂, 1): the third input has no part in it."""

    def predict_distribution(self, X):
        return Normal(2 * X[:, 0] + X[:, 1], np.ones(len(X)))


def test_an_evaluation_shows_coverage_calibration_and_the_two_most_relevant_inputs(tmp_path):
    X = RNG.normal(size=(300, 3))
    law = Sum().predict_distribution(X)
    y = law.mean + RNG.normal(size=300)
    figure = plots.evaluation_report(y, law, Sum(), X, names=["a", "b", "c"], quantity="yield")
    panels = {axes.get_title(loc="left"): axes for axes in figure.axes}
    assert {
        "Dependence on a",
        "Dependence on b",
        "Probability integral transform (PIT)",
        "Coverage of central intervals",
    } <= set(panels)
    shown = [line.get_ydata()[0] for line in panels["Coverage of central intervals"].get_lines()[:-1]]
    wanted = [100 * (share - level) for level, (share, _) in metrics.coverages(y, law).items()]
    np.testing.assert_allclose(shown, wanted)
    error, level = metrics.calibration_error(y, law)
    assert f"{error:.2g}" in panels["Probability integral transform (PIT)"].texts[0].get_text()
    assert f"{level:.2g}" in panels["Probability integral transform (PIT)"].texts[0].get_text()
    figure.savefig(tmp_path / "report.png")
    assert len(plots.evaluation_report(y, law).axes) == 4


@pytest.mark.parametrize("name", ["PIT", "Coverage", "Error"])
def test_displays_draw_into_given_axes_and_predict_by_an_estimator(name):
    y, mean, std = _predictions(100)
    display = getattr(plots, f"{name}Display")
    model = SimpleNamespace(predict_distribution=lambda X: Normal(mean, std))
    found, given = display.from_estimator(model, None, y), Figure().subplots()
    other = display.from_predictions(y, Normal(mean, std), ax=given)
    assert other.ax_ is given and found.figure_ is found.ax_.figure and given.lines
    for drawn, expected in zip(found.ax_.get_lines(), given.get_lines(), strict=True):
        np.testing.assert_array_equal(drawn.get_xydata(), expected.get_xydata())
