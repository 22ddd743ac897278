"""Folders: the checkout, the results, and the shared files beside the checkout."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXPERIMENTS = ROOT / "experiments" / "results"
BENCHMARKS = ROOT / "benchmarks" / "results"
FIGURES = ROOT / "docs" / "figures"
WRITTEN = (
    "experiments/results",
    "benchmarks/results",
    "docs/figures",
    "docs/measured.md",
    "docs/comparison.md",
    "docs/solvers.md",
)
"""What runs write: changes there do not make a commit dirty."""


def shared(part: str) -> Path:
    """`part` of the shared folder, beside the checkout or in it; the first of the two where neither is there."""
    places = [folder / "shared" / part for folder in (ROOT.parent, ROOT)]
    return next((place for place in places if place.exists()), places[0])
