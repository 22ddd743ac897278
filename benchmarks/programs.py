"""`programs`: how many programs fits compile, and the seconds that takes: a first fit, one of other rows, and a grid search.

The rows are those of `first_fits`, 500 and then 517 of them; a fit includes a prediction with standard deviations. The grid search has five
settings and three folds of the 517 rows: learning rates, or noise variances of a kernel GP. `most` is how often
programs of one name were compiled, and `name` is that name. Each side in a process of its own that finds nothing compiled on disk.
"""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

from benchmarks.first_fits import CACHE, FIRST, NEXT, simulated
from measuring.places import ROOT

KEYS = ("side", "what")
SIDES = ("kernel", "feature", "sparse")
GRIDS = {
    "kernel": ("noise_variance", (0.01, 0.02, 0.05, 0.1, 0.2)),
    "feature": ("learning_rate", (0.001, 0.003, 0.01, 0.03, 0.1)),
    "sparse": ("learning_rate", (0.001, 0.003, 0.01, 0.03, 0.1)),
}
QUICK_SETTINGS = 2


def run(quick: bool, report: Callable[[str], object]) -> dict:
    """Three rows per side."""
    rows = []
    for side in SIDES:
        command = [sys.executable, "-m", "benchmarks.programs", side, *(["quick"] if quick else [])]
        alone = os.environ | {CACHE: ""}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT, env=alone)
        rows += json.loads(done.stdout)
        report(done.stdout)
    return {"settings": {"n_rows": FIRST, "next_rows": NEXT}, "rows": rows}


def table(result: dict) -> tuple[list[str], list[list]]:
    headings = ["side", "what", "programs", "seconds", "most", "name"]
    return headings, [
        [r["side"], r["what"], r["programs"], round(r["seconds"], 2), r["most"], r["name"]]
        for r in result["rows"]
    ]


def measure(side: str, quick: bool) -> list[dict]:
    """In this process, which should be a fresh one."""
    warnings.simplefilter("ignore")
    from measuring.programs import compiled, counts

    first, other, name, settings = simulated(FIRST, 0), simulated(NEXT, 1), *GRIDS[side]
    settings = settings[:QUICK_SETTINGS] if quick else settings
    works = {
        "first fit": lambda: _make(side).fit(*first[:2]).predict(first[2], return_std=True),
        "next fit": lambda: _make(side).fit(*other[:2]).predict(first[2], return_std=True),
        "grid search": lambda: _search(_make(side), name, settings).fit(*other[:2]),
    }
    rows = []
    for what, work in works.items():
        with compiled() as found:
            work()
        most = next(iter(counts(found).items()), ("", 0))
        facts = {"programs": len(found), "seconds": sum(seconds for _, seconds in found)}
        rows.append({"side": side, "what": what, **facts, "most": most[1], "name": most[0]})
    return rows


def _make(side: str) -> Any:
    import stochgp

    if side == "sparse":
        return stochgp.SparseGPRegressor(n_inducing=64, random_state=0)
    return {"kernel": stochgp.KernelGPRegressor, "feature": stochgp.FeatureGPRegressor}[side](random_state=0)


def _search(model: Any, name: str, settings: tuple[float, ...]) -> Any:
    from sklearn.model_selection import GridSearchCV

    return GridSearchCV(model, {name: settings}, cv=3)


if __name__ == "__main__":
    json.dump(measure(sys.argv[1], "quick" in sys.argv[2:]), sys.stdout)
