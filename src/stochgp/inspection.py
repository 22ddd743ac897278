"""Importance of inputs for predictions."""

from typing import Any

import narwhals as nw
import numpy as np

__all__ = ["importance"]

MAX_INPUTS, MAX_ROWS = 1000, 200


def importance(model: Any, X: Any) -> np.ndarray:
    """Return the importance of each of the D inputs.

    To measure the importance of an input, the function permutes the values of this input among at most 200
    rows. The importance is the root mean square of the resulting changes of the predicted means, in target
    units. Only the first 1,000 input columns are measured; other columns have importance 0.

    Parameters
    ----------
    model : fitted regressor
        A model with a method `predict_distribution`.
    X : array [N, D] or data frame
        Input rows for the model.
    """
    rows = some_rows(X)
    exchanged = np.random.default_rng(0).permutation(len(rows)).tolist()
    mean = lambda rows: model.predict_distribution(nw.to_native(rows, pass_through=True)).mean
    before, found = mean(rows), np.zeros(rows.shape[1])
    for column in range(min(rows.shape[1], MAX_INPUTS)):
        moved = with_column(rows, column, rows[:, column][exchanged])
        found[column] = np.sqrt(np.mean((mean(moved) - before) ** 2))
    return found


def some_rows(X: Any) -> Any:
    """Return at most 200 evenly spaced rows, as an array or as a narwhals frame."""
    rows = nw.from_native(X, eager_only=True) if hasattr(type(X), "columns") else np.asarray(X, np.float64)
    return rows[np.linspace(0, len(rows) - 1, min(len(rows), MAX_ROWS)).astype(int).tolist()]


def with_column(rows: Any, column: int, values: Any) -> Any:
    """Return the rows after replacing one column by `values`."""
    if isinstance(rows, np.ndarray):
        return np.column_stack([rows[:, :column], values, rows[:, column + 1 :]])
    name = rows.columns[column]
    return rows.with_columns(nw.new_series(name, list(values), backend=rows.implementation))
