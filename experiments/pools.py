"""Compare `GPRegressor()` with its best member, and check that its means are bounded.

The CRPS on new rows is compared with that of each member with a weight, on 23 tables and 16 simulated ones
with 800 rows each. The excess is the largest mean minus the largest training target, divided by the range of
the training targets. It should be at most 1.
"""

import warnings
from typing import Any

import numpy as np

from benchmarks.arena_tables import TABLES, divided
from experiments.floors import MORE_TABLES
from measuring import tables
from measuring.store import Cell, Record

ONE_CORE = True
ROWS, TEST_ROWS = 800, 500
KINDS = ("smooth", "steps", "heavy tails", "skew", "zeros", "counts", "categories", "line")


def cells(quick: bool, slow: bool) -> list[Cell]:
    real = [{"table": name} for name in {**TABLES, **MORE_TABLES}]
    simulated = [{"table": f"{kind} {seed}"} for seed in (0, 1) for kind in KINDS]
    return simulated[:1] if quick else real + simulated


def simulated(kind: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets, of which the last TEST_ROWS are new rows."""
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    n = ROWS + TEST_ROWS
    X = rng.normal(size=(n, 5))
    f, noise = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2], rng.normal(size=n)
    if kind == "categories":
        X[:, 4] = rng.integers(0, 60, n)
        f = f + rng.normal(size=60)[X[:, 4].astype(int)]
    return X, {
        "smooth": f + 0.3 * noise, "steps": 2.0 * (X[:, 0] > 0.2) + (X[:, 1] > 0) + 0.3 * noise, "heavy tails": f + 0.3 * rng.standard_t(3, n),
        "skew": np.exp(f + 0.5 * noise), "zeros": np.where(rng.uniform(size=n) < 0.4, 0.0, rng.poisson(1000 * np.exp(0.5 * f))),
        "counts": rng.poisson(np.exp(0.5 * f)).astype(float), "categories": f + 0.5 * noise, "line": X @ [1, -1, 0.5, 0, 0] + noise,
    }[kind]  # fmt: skip


def run(cell: Cell) -> dict:
    from stochgp import GPRegressor

    kind, _, seed = cell["table"].rpartition(" ")
    groups: Any = None
    if kind in KINDS:
        X, y = simulated(kind, int(seed))
        X, y, X_test, y_test = X[:ROWS], y[:ROWS], X[ROWS:], y[ROWS:]
    else:
        train, test = divided((TABLES | MORE_TABLES)[cell["table"]].load(), "random", ROWS)
        X, y, groups, X_test, y_test = train.X, train.y, train.groups, test.X[:TEST_ROWS], test.y[:TEST_ROWS]
    with warnings.catch_warnings(action="ignore"):
        pool = GPRegressor(random_state=0).fit(X, y, groups=groups)
        crps = lambda model: float(np.mean(model.predict_distribution(X_test).crps(y_test)))
        members = {name: crps(member) for name, member in pool.estimators_.items()}
        excess = float((pool.predict(X_test).max() - y.max()) / max(np.ptp(y), 1e-300))
    return {
        "crps": crps(pool),
        "best_member": min(members.values()),
        "members": len(members),
        "excess": excess,
    }


def page(records: list[Record]) -> list[str]:
    ratios = {r["settings"]["table"]: r["results"]["crps"] / r["results"]["best_member"] for r in records}
    excess = {r["settings"]["table"]: r["results"]["excess"] for r in records}
    rows = [[name, tables.number(ratios[name], 3), tables.number(excess[name], 3)] for name in ratios]
    worst = ["largest", tables.number(max(ratios.values()), 3), tables.number(max(excess.values()), 3)]
    return [tables.table(["table", "CRPS, pool / best member", "excess of the largest mean"], [*rows, worst])]
