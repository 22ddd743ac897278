"""What the commands report of a model, and the scores of its predictions."""

import math
from pathlib import Path
from typing import Any

from stochgp import KernelGPRegressor, metrics
from stochgp.cli.tables import Labelled, left_out, naming, without
from stochgp.data.fingerprint_rows import is_packed


def described(estimator: Any, out: str, n_train: int) -> dict[str, Any]:
    """What `fit` reports of the model in the file `out`; None for what is not known."""
    report = {
        "model": out,
        "n_train": n_train,
        "nlml": getattr(estimator, "nlml_", None),
        "noise_variance": getattr(estimator, "noise_variance_", None),
        "n_iter": estimator.n_iter_,
        "converged": estimator.converged_,
        "seconds": estimator.fit_seconds_,
    }
    if hasattr(estimator, "elbo_"):
        report["elbo"] = estimator.elbo_
    if hasattr(estimator, "weights_"):
        report["members"] = estimator.weights_
    if not isinstance(estimator, KernelGPRegressor):
        return report
    plan = {name: entry["choice"] for name, entry in estimator.plan_.items()}
    kept = estimator.learner is None
    return report | {
        "hyperparameters": "as given, nothing was learned" if kept else f"learned by {plan['learner']}",
        **{name: plan.get(name) for name in ("prediction", "solver", "variance")},
        "residual": estimator.fit_report_.get("residual"),
        "file_bytes": Path(out).stat().st_size,
        "file_holds": "the training rows, standardised: a kernel model predicts from them",
    }


def scores(estimator: Any, rows: Labelled, source: str) -> dict[str, float]:
    """Metrics of the estimator's predictions of observations, in target units, or of its classes; `source` is what messages call the rows."""
    with naming(source):
        inputs = without(rows.inputs, left_out(estimator))
        if hasattr(estimator, "classes_"):
            return _scores_of_classes(estimator, inputs, rows.targets)
        found = estimator.predict_distribution(inputs)
    y = rows.targets
    return {
        "n": len(y),
        "rmse": metrics.rmse(y, found.mean),
        "nlpd": metrics.nlpd(y, found),
        "crps": metrics.crps(y, found),
        "coverage_95": _coverage(estimator, found, y),
    }


def picture(estimator: Any, rows: Labelled, source: str) -> Any:
    """The report of a regressor's predictions of these rows; of fingerprints without the dependence on single inputs."""
    from types import SimpleNamespace

    from stochgp import plots

    fitted = estimator._fitted
    with naming(source):
        X = estimator._read(without(rows.inputs, left_out(estimator)))  # noqa: SLF001  # rows as `predict` reads them
    found = fitted.distribution(X)
    of_numbers = (
        None if is_packed(fitted.encoder) else SimpleNamespace(predict_distribution=fitted.distribution)
    )
    names = getattr(fitted.encoder, "output_names", None) or ()
    return plots.evaluation_report(
        rows.targets, found, of_numbers, X, names=names, quantity=estimator.target_name_ or "target"
    )


def prediction_columns(estimator: Any, inputs: Any, quantiles: list[float]) -> dict[str, Any]:
    """The columns that `predict` writes: mean and standard deviation of observations, the central 95 %, and the quantiles asked for.

    Of a classifier the class, and the probability of each.
    """
    if hasattr(estimator, "classes_"):
        return _columns_of_classes(estimator, inputs, quantiles)
    found = estimator.predict_distribution(inputs)
    lower, upper = estimator._fitted.interval(found, 0.95).T
    columns = {"mean": found.mean, "std": found.std, "lower_95": lower, "upper_95": upper}
    asked = found.quantile(quantiles).T if quantiles else ()
    return columns | {f"quantile_{q:g}": values for q, values in zip(quantiles, asked, strict=True)}


def parsed_quantiles(text: str | None) -> list[float]:
    """Numbers separated by commas. ValueError, in one line, for what is none between 0 and 1."""
    try:
        found = [float(part) for part in text.split(",")] if text else []
    except ValueError:
        found = [math.nan]
    if not all(0 < q < 1 for q in found):
        raise ValueError(f"--quantiles is {text!r}; give numbers above 0 and below 1, such as 0.1,0.9")
    return found


def _coverage(estimator: Any, found: Any, y: Any) -> float:
    """The share of the rows in their 95 % intervals."""
    lower, upper = estimator._fitted.interval(found, 0.95).T
    return float(((lower <= y) & (y <= upper)).mean())


def _columns_of_classes(estimator: Any, inputs: Any, quantiles: list[float]) -> dict[str, Any]:
    if quantiles:
        raise ValueError("--quantiles: classes have no quantiles")
    probabilities = estimator.predict_proba(inputs)
    best = estimator.classes_[probabilities.argmax(axis=1)]
    names = [f"probability_{label}" for label in estimator.classes_]
    return {"class": best} | dict(zip(names, probabilities.T, strict=True))


def _scores_of_classes(estimator: Any, inputs: Any, labels: Any) -> dict[str, float]:
    log_probabilities, classes = estimator.predict_log_proba(inputs), estimator.classes_
    found = classes[log_probabilities.argmax(axis=1)]
    return {
        "n": len(labels),
        "accuracy": metrics.accuracy(labels, found),
        "log_loss": metrics.log_loss(labels, log_probabilities, classes),
    }
