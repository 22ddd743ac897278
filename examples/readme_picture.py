"""The picture of the README, docs/figures/readme.png: `python examples/readme_picture.py`."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_diabetes

from stochgp import GPRegressor

PICTURE = Path(__file__).parents[1] / "docs" / "figures" / "readme.png"


def picture():
    """Draw disease progression against body mass index, with predictive intervals."""
    data: Any = load_diabetes(as_frame=True, scaled=False)
    X, y = data.data, data.target
    model = GPRegressor(random_state=0).fit(X[["bmi"]], y)
    grid = X[["bmi"]].iloc[:200].assign(bmi=np.linspace(X["bmi"].min(), X["bmi"].max(), 200))
    found = model.predict_distribution(grid)
    figure = Figure(figsize=(7, 3.4), dpi=100, layout="constrained")
    axes = figure.subplots()
    for level, color in ((0.95, "#dbe6f3"), (0.8, "#b0c9e4"), (0.5, "#82a8d2")):  # opaque, as in the legend
        low, high = found.interval(level).T
        axes.fill_between(grid["bmi"], low, high, color=color, lw=0, label=f"{level:.0%}")
    axes.plot(grid["bmi"], found.mean, color="#1f5fa8", label="mean")
    axes.plot(X["bmi"], y, ".", color="#303030", ms=3, label="observations")
    axes.set(xlabel="body mass index", ylabel="disease progression", ylim=(0, None))
    axes.legend(loc="upper left", ncols=2, frameon=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(PICTURE)


if __name__ == "__main__":
    picture()
