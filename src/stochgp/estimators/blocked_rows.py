"""Rows in the user's units go through a compiled function block by block."""

from collections.abc import Callable

import jax
import numpy as np

from stochgp.compiled import kept_on_disk
from stochgp.data import Standardiser
from stochgp.estimators.inputs import refuse_not_finite
from stochgp.numerics.arrays import filled_up
from stochgp.posteriors.base import MOST_ROWS


def in_blocks(
    evaluate: Callable, inputs: Standardiser, X: np.ndarray, dtype: str, n_block: int | None
) -> tuple[np.ndarray, ...]:
    """What `evaluate` returns for the standardised rows, as float64 arrays [N, …], from blocks of `n_block` rows, the last one filled up.

    With None it is given MOST_ROWS rows at a time, and none to fill up. Raises ValueError where a result is not finite: inputs so far
    from the training rows that the features overflow.
    """
    results: tuple[np.ndarray, ...] = ()
    step = MOST_ROWS if n_block is None else n_block
    with jax.enable_x64(True), kept_on_disk():
        for start in range(0, len(X), step):
            part = X[start : start + step]
            Z = filled_up(standardised(inputs, part, dtype, start), n_block or 0, 0.0)
            values = [np.asarray(value)[: len(part)] for value in evaluate(Z)]
            if not results:
                results = tuple(np.empty((len(X), *value.shape[1:]), np.float64) for value in values)
            for result, value in zip(results, values, strict=True):
                result[start : start + len(part)] = value
            _refuse_overflow(values, part, start)
    return results


def standardised(inputs: Standardiser, part: np.ndarray, dtype: str, start: int) -> np.ndarray:
    """Rows start, start + 1, … of what a user gave; ValueError says which of them are not finite."""
    try:
        return inputs.transform(part, dtype)
    except ValueError as error:
        refuse_not_finite(part)
        raise ValueError(f"in the rows from {start + 1} on: {error}") from error


def _refuse_overflow(values: list[np.ndarray], part: np.ndarray, start: int) -> None:
    for value in values:
        bad = ~np.isfinite(value).reshape(len(part), -1).all(axis=1)
        if bad.any():
            row = int(np.argmax(bad))
            raise ValueError(
                f"the prediction of row {start + row + 1} is not a finite number: its inputs, up to {np.abs(part[row]).max():g} "
                "in size, lie too far from the training rows"
            )
