"""X11 (Lin et al. 2024, figure 1): full-batch gradient descent on the primal and on the dual objective, pol, no momentum.

Gradient descent from 0 is a linear iteration: α* − α_t = Q (I − βH)ᵗ (Λ + λI)⁻¹ Qᵀb with K = QΛQᵀ, H = Λ + λI (dual) or Λ(Λ + λI)
(primal), so that one eigendecomposition gives every step of every run. Here with 4,000 rows drawn at random (--slow: all 13,500, some ten
minutes and 8 GB). Stable are βN < 2N/(λ₁ + λ), which hardly depends on the number of rows, and 2N/(λ₁(λ₁ + λ)), which falls with it.
"""

import functools
from typing import NamedTuple

import numpy as np
import scipy.linalg
from jaxtyping import Float
from matplotlib.figure import Figure

from experiments import ablations
from measuring import tables
from measuring.store import Cell, Record, select

ROWS, QUICK_ROWS, STEPS = 4_000, 300, 100_000
STEP_SIZES = {"primal": (0.001, 0.01, 0.1), "dual": (0.1, 1.0, 10.0, 50.0)}


class Spectrum(NamedTuple):
    """K = QΛQᵀ with what the runs are judged by in its basis."""

    values: Float[np.ndarray, " N"]
    noise: float
    b: Float[np.ndarray, " N"]  # Qᵀb
    K_test: Float[np.ndarray, "M N"]  # k(test, X) Q
    y_test: Float[np.ndarray, " M"]

    def error(self, objective: str, step_size: float, step: int) -> Float[np.ndarray, " N"]:
        """Qᵀ(α* − α_t) after `step` steps of β = `step_size`."""
        H = self.values + self.noise
        H = H * self.values if objective == "primal" else H
        with np.errstate(over="ignore"):
            return (1 - step_size * H) ** step * self.b / (self.values + self.noise)

    def scores(self, error: Float[np.ndarray, " N"]) -> list[float]:
        """[‖α − α*‖²_K, ‖α − α*‖²_{K²}, test RMSE]."""
        with np.errstate(all="ignore"):
            alpha = self.b / (self.values + self.noise) - error
            rmse = np.sqrt(np.mean((self.K_test @ alpha - self.y_test) ** 2))
            return [
                float(np.sum(self.values * error**2)),
                float(np.sum((self.values * error) ** 2)),
                float(rmse),
            ]


@functools.lru_cache(maxsize=1)
def decompose(rows: int | None) -> Spectrum:
    held = ablations.load(rows)
    K = np.asarray(held.system.K, np.float64)
    values, Q = scipy.linalg.eigh((K + K.T) / 2, overwrite_a=True, check_finite=False)
    b = Q.T @ np.asarray(held.system.b, np.float64)
    return Spectrum(np.maximum(values, 0), held.system.noise, b, held.K_test @ Q, held.y_test)


def cells(quick: bool, slow: bool) -> list[Cell]:
    rows = QUICK_ROWS if quick else None if slow else ROWS
    return [
        {"objective": objective, "step_size": step_size, "steps": STEPS, "rows": rows}
        for objective, sizes in STEP_SIZES.items()
        for step_size in sizes
    ]


def depends(cell: Cell, records: list[Record]) -> dict:
    return {}


def cost(cell: Cell) -> float:
    return 1.0


def run(cell: Cell) -> dict:
    spectrum = decompose(cell["rows"])
    N, largest = len(spectrum.values), float(spectrum.values[-1])
    beta = cell["step_size"] / N
    curve = [
        [step, *spectrum.scores(spectrum.error(cell["objective"], beta, step))]
        for step in ablations.marks(cell["steps"])
    ]
    return {
        "curves": {"last": curve},
        "largest_eigenvalue": largest,
        "limit": 2 * N / (largest + spectrum.noise) / (largest if cell["objective"] == "primal" else 1.0),
        "exact_rmse": spectrum.scores(np.zeros(N))[2],
    }


def page(records: list[Record]) -> list[str]:
    headings = ["rows", "objective", "βN", "limit of βN", "at step", *ablations.HEADINGS[-3:], "exact RMSE"]
    lines = []
    for record in sorted(records, key=lambda r: (r["settings"]["objective"], r["settings"]["step_size"])):
        settings, results = record["settings"], record["results"]
        curve, rows = results["curves"]["last"], settings["rows"] or "all"
        for step, *scores in (curve[len(curve) // 2], curve[-1]):
            lines.append(
                [rows, settings["objective"], settings["step_size"], f"{results['limit']:.3g}", step]
                + ["n/a" if s is None else f"{s:.4g}" for s in scores]
                + [f"{results['exact_rmse']:.4g}"]
            )
    return [tables.table(headings, lines)]


def figure(records: list[Record]) -> Figure:
    """The two norms of the error and the RMSE against steps."""
    drawing = Figure(figsize=(12, 4), layout="constrained")
    panels = drawing.subplots(1, 3)
    most = max((r["settings"]["rows"] or 10**9) for r in records)
    records = [r for r in records if (r["settings"]["rows"] or 10**9) == most]
    for objective, line in (("primal", "--"), ("dual", "-")):
        for i, record in enumerate(select(records, objective=objective)):
            label = f"{objective}, βN = {record['settings']['step_size']:g}"
            ablations.draw(panels, record["results"]["curves"]["last"], label, linestyle=line, color=f"C{i}")
    panels[2].legend(fontsize=7)
    return drawing
