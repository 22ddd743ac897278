"""What the commands print and write: reports, scores, predictions and pictures. Importing it loads neither JAX nor pyarrow."""

import contextlib
import json
import math
import numbers
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import stochgp


def show(report: Mapping[str, Any], as_json: bool) -> None:
    """Print names and values: lines for what is known, or one JSON object with null for what is not known or not finite."""
    if as_json:
        values = {name: _plain(value) for name, value in report.items()}
        sys.stdout.write(json.dumps(values, ensure_ascii=False) + "\n")
        return
    known = {name: value for name, value in report.items() if value is not None}
    width = max(len(name) for name in known)
    for name, value in known.items():
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        sys.stdout.write(f"{name:{width}}  {text}\n")


@contextlib.contextmanager
def table_on_stdout() -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """`tables.files.table_writer` as CSV text on the standard output."""
    import pyarrow as pa
    from pyarrow import csv

    writers: list[Any] = []

    def write(columns: Mapping[str, Any]) -> None:
        table = pa.table(dict(columns))
        if not writers:
            writers.append(csv.CSVWriter(sys.stdout.buffer, table.schema))
        writers[0].write_table(table)

    yield write


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
    if not isinstance(estimator, stochgp.KernelGPRegressor):
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


def scores(estimator: Any, inputs: Any, targets: Any) -> dict[str, float]:
    """Metrics of the predictions of observations, in target units, or of classes."""
    metrics, inputs = stochgp.metrics, _inputs_of(estimator, inputs)
    if hasattr(estimator, "classes_"):
        log_probabilities, classes = estimator.predict_log_proba(inputs), estimator.classes_
        return {
            "n": len(targets),
            "accuracy": float((targets == classes[log_probabilities.argmax(axis=1)]).mean()),
            "log_loss": metrics.log_loss(targets, log_probabilities, classes),
        }
    found = estimator.predict_distribution(inputs)
    lower, upper = estimator._fitted.interval(found, 0.95).T
    return {
        "n": len(targets),
        "rmse": metrics.rmse(targets, found.mean),
        "nlpd": metrics.nlpd(targets, found),
        "crps": metrics.crps(targets, found),
        "coverage_95": float(((lower <= targets) & (targets <= upper)).mean()),
    }


def picture(estimator: Any, inputs: Any, targets: Any) -> Any:
    """The report of a regressor's predictions; of fingerprints without the dependence on single inputs."""
    from types import SimpleNamespace

    from stochgp.tables.molecules import is_packed

    fitted = estimator._fitted
    X = estimator._read(_inputs_of(estimator, inputs))  # noqa: SLF001  # rows as `predict` reads them
    found, packed = fitted.distribution(X), is_packed(fitted.encoder)
    of_numbers = None if packed else SimpleNamespace(predict_distribution=fitted.distribution)
    names = getattr(fitted.encoder, "output_names", None) or ()
    quantity = estimator.target_name_ or "target"
    return stochgp.plots.evaluation_report(targets, found, of_numbers, X, names=names, quantity=quantity)


def prediction_columns(estimator: Any, inputs: Any, quantiles: list[float]) -> dict[str, Any]:
    """The columns that `predict` writes: mean, standard deviation, central 95 % and quantiles of observations.

    Of a classifier the class, and the probability of each.
    """
    inputs = _inputs_of(estimator, inputs)
    if hasattr(estimator, "classes_"):
        if quantiles:
            raise ValueError("--quantiles: classes have no quantiles")
        probabilities = estimator.predict_proba(inputs)
        best = estimator.classes_[probabilities.argmax(axis=1)]
        names = [f"probability_{label}" for label in estimator.classes_]
        return {"class": best} | dict(zip(names, probabilities.T, strict=True))
    found = estimator.predict_distribution(inputs)
    lower, upper = estimator._fitted.interval(found, 0.95).T
    columns = {"mean": found.mean, "std": found.std, "lower_95": lower, "upper_95": upper}
    values = found.quantile(quantiles).T if quantiles else ()
    return columns | {f"quantile_{q:g}": value for q, value in zip(quantiles, values, strict=True)}


def parsed_quantiles(text: str | None) -> list[float]:
    """Numbers separated by commas. Raises ValueError for text that is no number between 0 and 1."""
    try:
        found = [float(part) for part in text.split(",")] if text else []
    except ValueError:
        found = [math.nan]
    if not all(0 < q < 1 for q in found):
        raise ValueError(f"--quantiles is {text!r}; give numbers above 0 and below 1, such as 0.1,0.9")
    return found


def left_out(estimator: Any) -> tuple[str, ...]:
    """The columns that `stochgp fit` left out of the inputs."""
    return tuple((getattr(estimator, "trained_on_", None) or {}).get("left_out", ()))


def _inputs_of(estimator: Any, table: Any) -> Any:
    return table.drop_columns([name for name in left_out(estimator) if name in table.column_names])


def _plain(value: Any) -> Any:
    """A JSON value."""
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        return float(value) if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value
