"""fit, predict, evaluate, data list."""

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter

import stochgp
from stochgp import data, metrics
from stochgp.cli.divisions import division_for_scores, known_division
from stochgp.cli.hyperparameters import with_hyperparameters
from stochgp.cli.settings import parse_settings
from stochgp.cli.tables import Labelled, read_divided, read_inputs, read_labelled
from stochgp.names import lookup

_MODELS: dict[str, type | None] = {
    "feature": stochgp.FeatureGPRegressor,
    "kernel": stochgp.KernelGPRegressor,
    "sparse": None,
}
_NORMAL_975 = 1.959963984540054


def fit(
    source: Annotated[str, Parameter(name="DATA")],
    /,
    *,
    target: str | None = None,
    model: str = "feature",
    setting: Annotated[list[str] | None, Parameter(name="--set", negative="")] = None,
    test_fraction: float | None = None,
    hyperparameters: str | None = None,
    checkpoint: str | None = None,
    out: str,
    seed: int = 0,
    quiet: Annotated[bool, Parameter(negative="")] = False,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Learn from DATA and write the model; Ctrl-C ends the learning, and the best model so far is written.

    Parameters
    ----------
    source
        A .csv, .csv.gz, .parquet, .feather or .npz file, or a named set such as uci:bike:0, whose training rows are used.
    target
        The column to learn. Named sets have theirs.
    model
        feature, or kernel: any kernel, all rows kept. (sparse is not in this version.)
    setting
        name=value: a setting of the estimator, such as --set batch_size=32. May be repeated.
    test_fraction
        Set aside this fraction of a file's rows and print the metrics on them.
    hyperparameters
        A JSON file with the kernel to start from: {"kernel": "rbf", "lengthscale": 1.0, "variance": 1.0}. A kernel model also takes
        "noise_variance", and then keeps all of them unless a setting of learning is given; so it does with a table of published
        values {set: {split: {"noise_std", "signal_std", "lengthscale"}}}, for DATA uci:NAME:SPLIT.
    checkpoint
        A file kept up to date; the same command goes on from it after a kill.
    out
        Where to write the model.
    seed
        Of the division into training and test rows, and of the learning.
    quiet
        No progress on stderr.
    as_json
        One JSON object on stdout.
    """
    kind = lookup(model, _MODELS, "model")
    if kind is None:
        raise ValueError(f"--model {model} is not in this version of stochgp; use feature or kernel")
    check_can_write(out)
    settings = parse_settings(setting or [], kind)
    if hyperparameters is not None:
        settings = with_hyperparameters(settings, hyperparameters, source, kind)
    estimator = kind(**{"random_state": seed, "verbose": 0 if quiet else 1} | settings)
    rows = read_divided(source, target, test_fraction, seed)
    estimator.fit(rows.train.inputs, rows.train.targets, checkpoint=checkpoint)
    estimator.target_name_ = rows.target
    estimator.trained_on_ = {"data": source, "seed": seed, "test_fraction": test_fraction}
    estimator.save(out)
    report = described(estimator, out, len(rows.train.targets))
    show(report | ({} if rows.test is None else scores(estimator, rows.test)), as_json)


def predict(
    model: Annotated[str, Parameter(name="MODEL")],
    source: Annotated[str, Parameter(name="DATA")],
    /,
    *,
    out: str,
) -> None:
    """Write the columns mean, std, lower_95, upper_95 for every row of DATA; they are of observations, noise included.

    Parameters
    ----------
    model
        A file that `stochgp fit` wrote.
    source
        A table with the columns that the model was given, in any order, or a named set, whose test rows are used.
    out
        A .csv, .parquet or .feather file.
    """
    check_can_write(out)
    estimator = stochgp.load(model)
    table = read_inputs(source, known_division(estimator, source) or {})
    mean, std = estimator.predict(table, return_std=True, include_noise=True)
    columns = {
        "mean": mean,
        "std": std,
        "lower_95": mean - _NORMAL_975 * std,
        "upper_95": mean + _NORMAL_975 * std,
    }
    data.write_table(out, columns)


def evaluate(
    model: Annotated[str, Parameter(name="MODEL")],
    source: Annotated[str, Parameter(name="DATA")],
    /,
    *,
    target: str | None = None,
    seed: int | None = None,
    test_fraction: float | None = None,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Print n, rmse, nlpd, crps and coverage_95 of a model on the rows of DATA, noise included.

    Parameters
    ----------
    model
        A file that `stochgp fit` wrote.
    source
        A table with the model's columns and its target, or a named set, whose test rows are used.
    target
        The target column, if it is called otherwise than at fit.
    seed
        Of the division of a named set that has no test rows of its own; models of `stochgp fit` know theirs.
    test_fraction
        Of that division.
    as_json
        One JSON object on stdout.
    """
    estimator = stochgp.load(model)
    name = getattr(estimator, "target_name_", None) if target is None else target
    rows = read_labelled(source, name, division_for_scores(estimator, source, seed, test_fraction))
    show(scores(estimator, rows), as_json)


def data_list(*, as_json: Annotated[bool, Parameter(name="--json", negative="")] = False) -> None:
    """Named data sets, where they are, how to get them.

    Parameters
    ----------
    as_json
        One JSON object on stdout.
    """
    sets = data.list_named()
    if as_json:
        entries = [vars(line) for line in sets]
        show({"sets": [{name: _plain(value) for name, value in entry.items()} for entry in entries]}, True)
        return
    for line in sets:
        where = f"in {line.location}" if line.location else line.how_to_get
        sys.stdout.write(f"{line.name:24} {line.rows:>9,} rows {line.columns:>4} inputs   {where}\n")


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
    if not isinstance(estimator, stochgp.KernelGPRegressor):
        return report
    plan = {name: entry["choice"] for name, entry in estimator.plan_.items()}
    kept = estimator.learner is None
    return report | {
        "hyperparameters": "as given, nothing was learned" if kept else f"learned by {plan['learner']}",
        **{name: plan.get(name) for name in ("prediction", "solver", "variance", "residual")},
        "file_bytes": Path(out).stat().st_size,
        "file_holds": "the training rows, standardised: a kernel model predicts from them",
    }


def scores(estimator: Any, rows: Labelled) -> dict[str, float]:
    """Metrics of the estimator's predictions of observations, in target units."""
    mean, std = estimator.predict(rows.inputs, return_std=True, include_noise=True)
    y = rows.targets
    return {
        "n": len(y),
        "rmse": float(metrics.rmse(y, mean)),
        "nlpd": float(metrics.nlpd(y, mean, std)),
        "crps": float(metrics.crps(y, mean, std)),
        "coverage_95": float(metrics.coverage(y, mean, std)),
    }


def show(report: Mapping[str, Any], as_json: bool) -> None:
    """Names and values on stdout: lines for what is known, or one JSON object (None and numbers that are not finite as null)."""
    if as_json:
        sys.stdout.write(
            json.dumps({name: _plain(value) for name, value in report.items()}, ensure_ascii=False) + "\n"
        )
        return
    known = {name: value for name, value in report.items() if value is not None}
    width = max(len(name) for name in known)
    for name, value in known.items():
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        sys.stdout.write(f"{name:{width}}  {text}\n")


def check_can_write(out: str) -> None:
    """Refuses before the work what would fail after it."""
    path = Path(out)
    if path.is_dir():
        raise ValueError(f"{out}: is a folder, not a file")
    if not path.resolve().parent.is_dir():
        raise ValueError(f"{out}: there is no folder {path.resolve().parent}")


def _plain(value: Any) -> Any:
    """A JSON value."""
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Path):
        return str(value)
    return value
