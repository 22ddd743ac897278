"""Requests to a fitted kernel GP, each with the memory that it is counted to need and the peak that it had, as JSON.

The argument is JSON: n_rows, n_inputs, solver, and requests [[name, size], …]. The fit solves for two epochs: what it comes to does not
matter here.
"""

import dataclasses
import json
import sys
import warnings
from pathlib import Path

import numpy as np

from stochgp import KernelGPRegressor, budget, solvers


def main(given: dict) -> list[dict]:
    warnings.simplefilter("ignore")
    generator = np.random.default_rng(0)
    X = generator.normal(size=(given["n_rows"], given["n_inputs"]))
    solver = dataclasses.replace(getattr(solvers, given["solver"])(), epochs=2)
    model = KernelGPRegressor(learner=None, solver=solver, random_state=0).fit(X, np.sin(X[:, 0]))
    return [measured(model, X, *request) for request in given["requests"]]


def measured(model: KernelGPRegressor, X: np.ndarray, name: str, size: int) -> dict:
    """The peak of a request on top of what was in use."""
    posterior = model._fitted.posterior
    budget.release()
    before = budget.resident()
    Path("/proc/self/clear_refs").write_text("5")
    match name:
        case "predict":
            need = posterior.need_bytes(size)
            model.predict(X[np.arange(size) % len(X)], return_std=True)
        case "functions":
            need = posterior.need_bytes(n_samples=size)
            model.sample_functions(size)
        case "covariance":
            need = posterior.need_bytes(size, covariance=True)
            posterior.covariance(np.asarray(posterior.system.X[:size]))
    return {"name": name, "size": size, "need": need, "took": budget.peak_resident() - before}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
