"""Blocks of time. Validation holds out whole blocks if prediction errors depend on time."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Int32

from stochgp.choosing import LEAST_GAIN, SURE
from stochgp.deadline import granted
from stochgp.neighbours import Neighbours
from stochgp.results import Estimate
from stochgp.tables.encoding import TableEncoder
from stochgp.warning import warn

from .rows import Standardiser

Matrix = Float[np.ndarray, "N D"]
Vector = Float[np.ndarray, " N"]
AUTO, INTERPOLATE, FORECAST = "auto", "interpolate", "forecast"
EITHER = "either"  # like "auto", for pools: they accept more tables as ordered in time
FEWEST = 500  # minimum number of rows, and of different times, for "auto"
CALENDAR = 366  # the largest number of a month, a day, an hour or a minute
LEAST_SHARE = 0.25  # minimum ratio of distinct times to rows, for a time in one column of numbers
LARGEST_BLOCK = 0.1  # maximum share of rows per block with "either"; a time has fewer equal values
FIRST = 1_000  # rows for a quick check that rejects most columns

PAIRS, NEAREST, MOST_ROWS, FOLDS = 2_000, 10, 20_000, 40  # constants of `dependence`
UNRELATED = 0.1  # rows count as unrelated if their errors have a smaller correlation
MOST_BLOCKS, FEWEST_BLOCKS = 100, 20
LAST, DRIFT_BLOCKS = 0.15, 15  # share of rows for `drift`, and number of blocks for its standard error
RANGES = 2  # minimum ratio of the length of a block to the reach of dependence
SEED = 0


def groups_in_time(
    X: Matrix | None, y: Vector, encoder: Any, time_order: str, record: Callable[[str, Any, str], None], in_order: bool = True,
) -> Int32[np.ndarray, " N"] | None:  # fmt: skip
    """Return the block number of each row, or None if validation holds out single rows.

    "auto" looks for a column of dates or for columns that increase from row to row. "either" also accepts
    a column that never decreases. If there is no such column, "forecast" uses the order of the rows, or
    raises ValueError if `in_order` is False. X is None if inputs are not numbers.
    """
    N, asked, either = len(y), time_order == FORECAST, time_order == EITHER
    if time_order == INTERPOLATE or (2 * FEWEST_BLOCKS if asked else FEWEST) > N:
        return None
    order = None if X is None else order_in_time(X, encoder, in_order, either)
    if order is None and asked and not in_order:
        raise ValueError("time_order='forecast' needs a column of dates if the rows are in files")
    if order is None and asked:
        order = np.arange(N, dtype=np.float64), "the order of the rows"
    if order is None or (not asked and len(np.unique(order[0])) < (FEWEST_BLOCKS if either else FEWEST)):
        return None
    position, what = order
    found, reach = (Estimate(0.0), 0) if X is None or N < FEWEST else dependence(X, y, position)
    why = f"rows are sorted by {what}: prediction errors of successive rows have a correlation of {found.value:.2f} ± {found.stderr:.2f}"
    if asked:
        why = f"time_order='forecast' is set, and rows are sorted by {what}"
    elif not depends(found):
        later = drift(X, y, position) if X is not None and either else Estimate(0.0)
        if not later.value - SURE * later.stderr > LEAST_GAIN:
            record("time_order", INTERPOLATE, f"{why}, too small to hold out whole blocks of time")
            return None
        why = f"rows are sorted by {what}: earlier rows predict the last rows worse than rows of the same time do, by {later.value:.2f} ± {later.stderr:.2f} nats"
    group = blocks(position, n_blocks(N, reach))
    if (group == group[0]).all() or (either and np.bincount(group).max() > LARGEST_BLOCK * N):
        return None
    _record_forecast(
        f"{why}; validation holds out whole blocks of time ({group.max() + 1} blocks)", asked, record
    )
    return group


def _record_forecast(why: str, asked: bool, record: Callable[[str, Any, str], None]) -> None:
    why += ". For new rows within the training period, time_order='interpolate' predicts better"
    if not asked:
        said = f"time_order='auto' treats this table as a 'forecast': {why}"
        warn(f"{said}; time_order='forecast' avoids this warning", stacklevel=5)
    record("time_order", FORECAST, why)


def order_in_time(
    X: Matrix, encoder: Any, in_order: bool, sorted_too: bool = False
) -> tuple[Vector, str] | None:
    """Return the time of each row and the names of its columns, or None if there is no time."""
    places = encoder.places if isinstance(encoder, TableEncoder) else ()
    dates = [(X[:, place.start], repr(rule.name)) for rule, place in places if rule.kind == "time"]
    if dates:
        return next((found for found in dates if (np.diff(found[0]) >= 0).all()), dates[0])
    columns, changes = increasing(X, sorted_too) if in_order else ([], np.zeros(0))
    if not columns:
        return None
    names = encoder.output_names if isinstance(encoder, TableEncoder) and encoder.named else None
    what = ", ".join(repr(names[j]) if names else f"column {j + 1}" for j in columns)
    return np.concatenate([[0], np.cumsum(changes)]).astype(np.float64), what


def increasing(X: Matrix, sorted_too: bool = False) -> tuple[list[int], Bool[np.ndarray, " N-1"]]:
    """Return the columns that contain the time of sorted rows, and a mask of changes of time.

    A time is a column that never decreases and seldom repeats a value. A time may also be several columns of
    whole numbers, such as year, month and day, that together never decrease. If all columns together form
    such a time, the table is a grid and has no time. With `sorted_too`, the column may repeat values often.
    """
    (N, D), columns, tied = X.shape, list[int](), np.ones(len(X) - 1, bool)
    alone = {j: (np.diff(X[:, j]) > 0).sum() for j in range(D) if D > 1 and _never_falls(X[:, j], tied)}
    for j, n in alone.items():
        if n + 1 >= LEAST_SHARE * N:
            return [j], np.diff(X[:, j]) > 0
    is_whole = (np.floor(X) == X).all(axis=0)
    calendar = np.flatnonzero(is_whole & (X >= 0).all(axis=0) & (X <= CALENDAR).all(axis=0)).tolist()
    more = next((j for j in alone if is_whole[j]), None)
    while more is not None:
        columns, tied = [*columns, more], tied & (np.diff(X[:, more]) == 0)
        more = next((j for j in calendar if j not in columns and _never_falls(X[:, j], tied)), None)
    if 1 < len(columns) < D:
        return columns, ~tied
    for j, n in alone.items():
        if sorted_too and n + 1 >= FEWEST_BLOCKS:
            return [j], np.diff(X[:, j]) > 0
    return [], np.zeros(N - 1, bool)


def _never_falls(values: Vector, tied: Bool[np.ndarray, " N-1"]) -> bool:
    """Return True if values never decrease and some increase, among rows `tied` with the next."""
    if (np.diff(values[: FIRST + 1])[tied[:FIRST]] < 0).any():
        return False
    steps = np.diff(values)[tied]
    return bool((steps >= 0).all() and (steps > 0).any())


def blocks(position: Vector, n: int) -> Int32[np.ndarray, " N"]:
    """Divide rows into `n` blocks in order of time; rows with equal time share a block."""
    first = np.searchsorted(np.sort(position), position)  # rank of the first row with the same time
    return np.unique(first * n // len(position), return_inverse=True)[1].astype(np.int32)


def n_blocks(n_rows: int, reach: int) -> int:
    """Return the number of blocks, from 20 to 100. A longer `reach` (in rows) gives fewer."""
    return int(np.clip(n_rows // max(1, RANGES * reach), FEWEST_BLOCKS, MOST_BLOCKS))


def dependence(X: Matrix, y: Vector, position: Vector) -> tuple[Estimate, int]:
    """Return the correlation of successive errors, and the lag with a correlation below 0.1.

    The rows are divided into 40 blocks in time. A row is predicted by the mean target of the 10 nearest rows
    of other blocks. Two successive rows use different halves of these rows, so they share no neighbours.
    """
    generator, N = np.random.default_rng(SEED), len(y)
    order = np.argsort(position, kind="stable")
    block = np.arange(N) * FOLDS // N
    others = generator.permutation(order[block % 2 == 1])[: 2 * MOST_ROWS]
    inputs = Standardiser.fit(X[others])
    errors = [_errors_from(X, y, half, inputs) for half in (others[::2], others[1::2])]

    def correlation(lag: int) -> Estimate:
        i = np.flatnonzero((block[: N - lag] % 2 == 0) & (block[: N - lag] == block[lag:]))
        i = np.sort(generator.permutation(i)[:PAIRS])
        a, b = errors[0](order[i]), errors[1](order[i + lag])
        if not min(sizes := (np.linalg.norm(a), np.linalg.norm(b))) > 0:
            return Estimate(0.0)
        a, b = a / sizes[0], b / sizes[1]
        found = float(a @ b)
        influence = a * b - found / 2 * (a * a + b * b)  # delta method; blocks are independent
        return Estimate(found, float(np.sqrt(np.sum(np.bincount(block[i], influence) ** 2))))

    with granted(math.inf):  # ignores the time limit; it takes about a second for any number of rows
        first = correlation(1)
        lags = [2**power for power in range(1, 30) if 2**power <= N // FOLDS // 2]
        reach = next((lag for lag in lags if correlation(lag).value < UNRELATED), N // FOLDS)
    return first, reach


def _errors_from(
    X: Matrix, y: Vector, known: Int[np.ndarray, " n"], inputs: Standardiser
) -> Callable[[Int[np.ndarray, " P"]], Vector]:
    """Return a function of row numbers: errors of the mean of the 10 nearest `known` rows."""
    tree = Neighbours(inputs.transform(X[known]))
    near = lambda rows: tree.query(inputs.transform(X[rows]), min(NEAREST, len(known)))
    return lambda rows: y[rows] - y[known][near(rows)].mean(axis=1)


def depends(correlation: Estimate) -> bool:
    """Return True if the correlation, minus two standard errors, is large enough to matter."""
    least = correlation.value - SURE * correlation.stderr
    return least > 0 and -0.5 * math.log1p(-(min(least, 0.999) ** 2)) > LEAST_GAIN


def drift(X: Matrix, y: Vector, position: Vector) -> Estimate:
    """Return how much rows of the same time improve predictions of the last 15 % of the rows.

    Half of the last rows are predicted by the mean target of their 10 nearest rows: first among earlier rows,
    then among earlier rows and the other half. The result is ½ log of the ratio of the mean squared errors.
    """
    generator, N = np.random.default_rng(SEED), len(y)
    first, last = np.split(np.argsort(position, kind="stable"), [N - round(LAST * N)])
    half = generator.permutation(len(last))
    some = np.sort(half[: min(PAIRS, len(last) // 2)])
    others = last[half[len(last) // 2 :]][:MOST_ROWS]
    inputs, first = Standardiser.fit(X), generator.permutation(first)[:MOST_ROWS]
    with granted(math.inf):  # ignores the time limit, as in `dependence`
        far, near = (
            np.square(_errors_from(X, y, known, inputs)(last[some]))
            for known in (first, np.concatenate([first, others]))
        )
    sizes = float(far.mean()), float(near.mean())
    if not min(sizes) > 0:
        return Estimate(0.0)
    influence = (far / sizes[0] - near / sizes[1]) / (2 * len(some))
    sums = np.bincount(some * DRIFT_BLOCKS // len(last), influence)
    return Estimate(0.5 * math.log(sizes[0] / sizes[1]), float(np.sqrt(np.sum(sums**2))))
