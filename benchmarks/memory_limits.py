"""`memory_limits`: fits and predictions of random sizes under random memory limits.

`peak` is the largest resident memory, which should stay within the limit. `refused` names the calls that
raised an error because they would exceed the limit. Linux and macOS only.
"""

import warnings
from typing import Any

import numpy as np

from measuring import store
from measuring.tables import table

ROWS, INPUTS, LIMITS = (200, 60_000), (1, 40), (0.4e9, 2e9)  # ranges of log-uniform draws


def cells(quick: bool, slow: bool) -> list[store.Cell]:
    common = {"seconds": 60.0, "test_rows": 5_000, "functions": 10}  # longer fits need no more memory
    return [common | {"run": number} for number in range(3 if quick else 100)]


def run(cell: store.Cell) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    import stochgp
    from stochgp import budget

    what, refused = drawn(cell["run"]), []
    generator = np.random.default_rng(cell["run"])
    X = generator.normal(size=(what["n_rows"], what["n_inputs"]))
    y = np.sin(2 * X[:, 0]) + 0.3 * generator.normal(size=len(X))
    limits: dict[str, Any] = {"memory_limit": what["limit"], "time_limit": cell["seconds"], "random_state": 0}
    if what["model"] == "kernel":  # local prediction needs less memory
        model = stochgp.KernelGPRegressor(solver="cholesky" if len(X) <= 20_000 else "cg", **limits)
    else:
        model = stochgp.FeatureGPRegressor(**limits)
    rows = generator.normal(size=(cell["test_rows"], what["n_inputs"]))
    calls = {
        "fit": lambda: model.fit(X, y),
        "predict": lambda: model.predict(rows, return_std=True),
        "functions": lambda: model.sample_functions(cell["functions"])(rows),
    }
    for name, call in calls.items():
        try:
            call()
        except ValueError as error:
            if "memory_limit is" not in str(error):
                raise
            refused.append(name)
            if name == "fit":
                break
    peak = budget.peak_resident()
    return what | {"peak": peak, "kept": peak <= what["limit"], "refused": refused}


def drawn(number: int) -> dict[str, Any]:
    """Draw the model, the sizes and the limit of a run."""
    generator = np.random.default_rng(number)
    between = lambda low, high: round(float(np.exp(generator.uniform(np.log(low), np.log(high)))))
    n_rows, n_inputs, limit = between(*ROWS), between(*INPUTS), between(*LIMITS)
    model = "kernel" if generator.random() < 0.6 else "feature"
    return {"model": model, "n_rows": n_rows, "n_inputs": n_inputs, "limit": limit}


def page(records: list[store.Record]) -> list[str]:
    rows = [
        [r["run"], r["model"], r["n_rows"], r["n_inputs"], round(r["limit"] / 1e6), round(r["peak"] / 1e6)]
        + [r["kept"], ", ".join(r["refused"]) or "-"]
        for r in store.rows(records)
    ]
    return [table("run | model | rows | inputs | limit MB | peak MB | kept | refused", rows)]
