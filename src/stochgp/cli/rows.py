"""Input, scores and output of the command line, for rows in memory or in blocks."""

import contextlib
import json
import math
import numbers
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pa_parquet
from jaxtyping import Shaped

import stochgp
from stochgp import data
from stochgp.budget import Budget
from stochgp.data.files import Block, with_targets
from stochgp.tables.categories import CategoryTargets
from stochgp.tables.columns import TableError, rewording
from stochgp.tables.files import DAMAGE, SUFFIXES, TooNarrowError, column_names, file_suffix
from stochgp.tables.molecules import is_packed
from stochgp.tables.targets import holds_classes
from stochgp.warning import warn

MAX_SHARE = 0.1  # maximum share of the free memory; larger tables are read in blocks
# Bytes in memory, including the matrix of numbers, per byte of the (uncompressed) file.
EXPANSION = {".parquet": 5}
DEFAULT_EXPANSION = 3
N_COPIES = 3  # copies of the numbers of a table in memory
TYPES = {"number": pa.float64(), "text": pa.string()}  # types of columns of text files at predict

Labelled = tuple[pa.Table, Shaped[np.ndarray, " N"]]  # input columns and targets


def is_large(source: str, memory_limit: Any) -> bool:
    """Return True for a folder, and for a file that may need much memory."""
    path = Path(source)
    if path.is_dir() or not path.is_file():
        return path.is_dir()
    suffix, size = file_suffix(path, SUFFIXES), path.stat().st_size
    if suffix.endswith(".gz"):  # the last four bytes contain the length of the text
        with path.open("rb") as file:
            file.seek(-min(4, size), 2)
            size = max(4 * size, int.from_bytes(file.read(4), "little"))
    size *= EXPANSION.get(suffix, DEFAULT_EXPANSION)
    if suffix == ".parquet":  # equal values take almost no space in the file
        with contextlib.suppress(*DAMAGE):  # reading the file raises the error again
            found = pa_parquet.read_metadata(path)
            size = max(size, N_COPIES * 8 * found.num_rows * found.num_columns)
    return size > MAX_SHARE * Budget.of(memory_limit).free()


def divided(
    source: str,
    estimator: Any,
    target: str,
    left_out: Sequence[str],
    task: str,
    test_fraction: float | None,
    seed: int,
    **options: Any,
) -> tuple[tuple[Any, Any], Any, bool]:
    """Return X and y for `fit`, the test rows or None, and True if the targets are classes."""
    is_of_molecules = "tanimoto" in (getattr(estimator, "kernel", None), getattr(estimator, "features", None))
    if any(options.values()) and is_of_molecules:
        raise ValueError("--weight and --split-by are not available for molecules")
    classify = task == "classes"
    if any(options.values()) or (is_large(source, estimator.memory_limit) and not is_of_molecules):
        rows = data.FileSource.of(source, **options)
        rows = rows.only(tuple(name for name in column_names(source) if name not in left_out))
        if task == "auto":
            block = next(iter(rows.only((target,))))
            with block.placing():
                classify = holds_classes(block.table, target)
        train, test = (rows, None) if test_fraction is None else rows.divided(test_fraction, seed)
        return (train, target), test, classify
    table, imputes = data.read_table(source), estimator.missing != "refuse"
    with naming(source):
        classify = holds_classes(table, target) if task == "auto" else classify
        X, y = split_off(table, target, classify, allow_missing=imputes)
        X = without(X, left_out)
        if test_fraction is None:
            return (X, y), None, classify
        if not is_of_molecules and not imputes:  # errors then contain row numbers of the file
            targets = None if classify else CategoryTargets.of(y, seed)
            data.TableEncoder.fit(X, missing="refuse", targets=targets)
    train, test = data.train_test_indices(len(y), test_fraction, seed)
    if not classify:  # rows without a target cannot be scored
        test = test[~np.isnan(y[test])]
    return (X.take(pa.array(train)), y[train]), (X.take(pa.array(test)), y[test]), classify


def parts_of(source: str, estimator: Any, rows: data.FileSource | None = None) -> Iterator[Block]:
    """Yield blocks of DATA or of `rows`, with the column types of the fit."""
    if rows is None and not is_large(source, estimator.memory_limit):
        table = data.read_table(source)
        yield Block(table, Path(source), np.arange(table.num_rows))
        return
    rules = estimator._fitted.encoder.columns if estimator._fitted.encoder is not None else ()
    kind_of = lambda rule: rule.kind if rule.reading is None else "text"
    types = {rule.name: TYPES[kind_of(rule)] for rule in rules if kind_of(rule) in TYPES}
    try:
        yield from replace(rows or data.FileSource(Path(source)), types=types)
    except TooNarrowError as narrow:
        raise ValueError(
            f"{source}: column {narrow.name!r} has a value whose type differs from the type in the fit or in the first rows"
        ) from None


def labelled_parts(
    estimator: Any, source: str, target: str, aside: data.FileSource | None = None
) -> Iterator[tuple[Labelled, Block]]:
    """Yield the rows of DATA or `aside` that have a target. Warn about other rows."""
    n_rows, dropped = 0, list[int]()
    for block in with_targets(parts_of(source, estimator, aside), target, estimator.missing, dropped):
        with block.placing():
            part = split_off(block.table, target, hasattr(estimator, "classes_"))
        n_rows += len(part[1])
        yield part, block
    if (n_left := sum(dropped)) and aside is None:
        warn(f"{n_left} of {n_rows + n_left} rows have no usable target and do not count in the scores")


def mean_scores(estimator: Any, parts: Iterable[tuple[Labelled, Block]], source: str) -> dict[str, float]:
    """Return the `scores` of all rows, averaged over the parts."""
    total, n_rows = dict[str, float](), 0
    for part, block in parts:
        with block.placing():
            found = scores(estimator, *part)
        n = int(found.pop("n"))
        n_rows += n
        for name, value in found.items():
            total[name] = total.get(name, 0.0) + n * (value**2 if name == "rmse" else value)
    if n_rows == 0:
        raise ValueError(f"{source}: there are no rows to score")
    means = {name: value / n_rows for name, value in total.items()}
    return {"n": n_rows} | {name: v**0.5 if name == "rmse" else v for name, v in means.items()}


def split_off(table: pa.Table, target: str, classify: bool = False, allow_missing: bool = False) -> Labelled:
    """Return the inputs and the targets of a table: numbers (NaN if missing) or labels."""
    if classify:
        targets = data.label_column(table, target)
    else:
        targets = data.target_column(table, target, allow_missing)
    inputs = without(table, [target])
    if not inputs.column_names:
        raise TableError(f"there are no columns besides the target {target!r}")
    return inputs, targets


def without(table: pa.Table, names: Iterable[str]) -> pa.Table:
    """Return the table without these columns."""
    return table.drop_columns([name for name in names if name in table.column_names])


def naming(source: str) -> contextlib.AbstractContextManager:
    """Return a context that adds the name of the data to errors about tables."""
    return rewording(lambda text: text if text.startswith(source) else f"{source}: {text}")


def show(report: Mapping[str, Any], as_json: bool) -> None:
    """Print known values line by line, or all values as one JSON object."""
    if as_json:
        values = {name: _plain(value) for name, value in report.items()}
        sys.stdout.write(json.dumps(values, ensure_ascii=False) + "\n")
        return
    known = {name: value for name, value in report.items() if value is not None}
    width = max(len(name) for name in known)
    for name, value in known.items():
        text = f"{value:.6g}" if isinstance(value, float) else str(value)
        sys.stdout.write(f"{name:{width}}  {text}\n")


def described(estimator: Any, out: str, n_train: int) -> dict[str, Any]:
    """Return the report of `fit` for a model in the file `out`; unknown values are None."""
    names = ("nlml", "noise_variance", "elbo", "weights", "n_iter", "converged", "fit_seconds")
    found = {name: getattr(estimator, f"{name}_", None) for name in names}
    report = {"model": out, "n_train": n_train} | found
    report["members"], report["seconds"] = report.pop("weights"), report.pop("fit_seconds")
    for name in ("learner", "prediction", "solver", "variance"):
        report[name] = estimator.plan_.get(name, {}).get("choice")
    return report | {"residual": getattr(estimator, "fit_report_", {}).get("residual")}


def scores(estimator: Any, inputs: Any, targets: Any) -> dict[str, float]:
    """Return the scores of a regressor or a classifier, with observations in target units."""
    metrics, inputs = stochgp.metrics, _inputs_of(estimator, inputs)
    if hasattr(estimator, "classes_"):
        log_probabilities, classes = estimator.predict_log_proba(inputs), estimator.classes_
        return {
            "n": len(targets),
            "accuracy": float((targets == classes[log_probabilities.argmax(axis=1)]).mean()),
            "log_loss": metrics.log_loss(targets, log_probabilities, classes),
        }
    found = estimator.predict_distribution(inputs)
    lower, upper = found.interval(0.95).T
    return {
        "n": len(targets),
        "rmse": metrics.rmse(targets, found.mean),
        "nlpd": metrics.nlpd(targets, found),
        "crps": metrics.crps(targets, found),
        "coverage_95": float(((lower <= targets) & (targets <= upper)).mean()),
    }


def picture(estimator: Any, inputs: Any, targets: Any) -> Any:
    """Return plots of predictions of a regressor; for fingerprints, without plots of inputs."""
    fitted = estimator._fitted
    X = estimator._read(_inputs_of(estimator, inputs))  # noqa: SLF001  # the same rows as in `predict`
    found, packed = fitted.distribution(X), is_packed(fitted.encoder)
    of_numbers = None if packed else SimpleNamespace(predict_distribution=fitted.distribution)
    names = getattr(fitted.encoder, "output_names", None) or ()
    quantity = estimator.target_name_ or "target"
    return stochgp.plots.evaluation_report(targets, found, of_numbers, X, names=names, quantity=quantity)


def prediction_columns(estimator: Any, inputs: Any, quantiles: list[float]) -> dict[str, Any]:
    """Return the columns that `predict` writes."""
    inputs = _inputs_of(estimator, inputs)
    if hasattr(estimator, "classes_"):
        if quantiles:
            raise ValueError("--quantiles: classes have no quantiles")
        probabilities = estimator.predict_proba(inputs)
        best = estimator.classes_[probabilities.argmax(axis=1)]
        names = [f"probability_{label}" for label in estimator.classes_]
        return {"class": best} | dict(zip(names, probabilities.T, strict=True))
    found = estimator.predict_distribution(inputs)
    lower, upper = found.interval(0.95).T
    columns = {"mean": found.mean, "std": found.std, "lower_95": lower, "upper_95": upper}
    values = found.quantile(quantiles).T if quantiles else ()
    return columns | {f"quantile_{q:g}": value for q, value in zip(quantiles, values, strict=True)}


def parsed_quantiles(text: str | None) -> list[float]:
    """Parse numbers separated by commas. Raises ValueError unless all are between 0 and 1."""
    try:
        found = [float(part) for part in text.split(",")] if text else []
    except ValueError:
        found = [math.nan]
    if not all(0 < q < 1 for q in found):
        raise ValueError(f"--quantiles is {text!r}; it must contain numbers between 0 and 1, such as 0.1,0.9")
    return found


def _inputs_of(estimator: Any, table: Any) -> Any:
    """Return the table without the columns that `stochgp fit` did not use as inputs."""
    return without(table, (getattr(estimator, "trained_on_", None) or {}).get("left_out", ()))


def _plain(value: Any) -> Any:
    """Convert a value to a JSON value."""
    if isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        return float(value) if math.isfinite(value) else None
    return str(value) if isinstance(value, Path) else value
