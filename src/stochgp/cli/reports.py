"""What the commands report of a model, and the scores of its predictions."""

from pathlib import Path
from typing import Any

from stochgp import KernelGPRegressor, metrics
from stochgp.cli.tables import Labelled, left_out, naming, without


def described(estimator: Any, out: str, n_train: int) -> dict[str, Any]:
    """What `fit` reports of the model in the file `out`; None for what is not known."""
    report = {
        "model": out,
        "n_train": n_train,
        "nlml": getattr(estimator, "nlml_", None),
        "noise_variance": estimator.noise_variance_,
        "n_iter": estimator.n_iter_,
        "converged": estimator.converged_,
        "seconds": estimator.fit_seconds_,
    }
    if not isinstance(estimator, KernelGPRegressor):
        return report
    plan = {name: entry["choice"] for name, entry in estimator.plan_.items()}
    kept = estimator.learner is None
    return report | {
        "hyperparameters": "as given, nothing was learned" if kept else f"learned by {plan['learner']}",
        **{name: plan.get(name) for name in ("prediction", "solver", "variance", "residual")},
        "file_bytes": Path(out).stat().st_size,
        "file_holds": "the training rows, standardised: a kernel model predicts from them",
    }


def scores(estimator: Any, rows: Labelled, source: str) -> dict[str, float]:
    """Metrics of the estimator's predictions of observations, in target units; `source` is what messages call the rows."""
    with naming(source):
        inputs = without(rows.inputs, left_out(estimator))
        mean, std = estimator.predict(inputs, return_std=True, include_noise=True)
    y = rows.targets
    return {
        "n": len(y),
        "rmse": float(metrics.rmse(y, mean)),
        "nlpd": float(metrics.nlpd(y, mean, std)),
        "crps": float(metrics.crps(y, mean, std)),
        "coverage_95": float(metrics.coverage(y, mean, std)),
    }
