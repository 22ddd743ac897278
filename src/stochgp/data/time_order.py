"""Blocks of time: if a table tells when its rows were taken, and neighbours in time resemble each other, whole blocks are held out."""

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
EITHER = "either"  # "auto" of an estimator that judges rows one by one as well, and may so take more tables as ordered in time
FEWEST = 500  # rows, and different times, from which "auto" chooses
CALENDAR = 366  # the largest number of a month, a day, an hour or a minute
LEAST_SHARE = 0.25  # of the rows, that have a time of their own by a column of numbers; a sorted input has many equal ones
LARGEST_BLOCK = (
    0.1  # of the rows, in a table that is "either" ordered or sorted: a value that many rows share is no time
)
FIRST = 1_000  # rows by which most columns are seen not to increase

PAIRS, NEAREST, MOST_ROWS, FOLDS = 2_000, 10, 20_000, 40  # of `dependence`; rows of a tree
UNRELATED = 0.1  # of the correlation, from which lag on rows count as unrelated
MOST_BLOCKS, FEWEST_BLOCKS = 100, 20  # how far ahead new rows lie is not known
LAST, DRIFT_BLOCKS = 0.15, 15  # of the rows, by which `drift` is seen, and into how many blocks these are cut
RANGES = 2  # a block is at least so many times as long as dependence reaches
SEED = 0


def groups_in_time(
    X: Matrix | None, y: Vector, encoder: Any, time_order: str, record: Callable[[str, Any, str], None], in_order: bool = True,
) -> Int32[np.ndarray, " N"] | None:  # fmt: skip
    """Return the number of each row's block of time, or None if rows are held out one by one.

    "auto" looks for a column of dates or columns that increase from row to row, "either" also for a column that never decreases. "forecast" takes the order
    of the rows if there is no such column. X is None if inputs are not numbers. Raises ValueError for "forecast" without an order. `record` gets the decision.
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
    why = f"rows are sorted by {what}: errors of successive rows have a correlation of {found.value:.2f} ± {found.stderr:.2f}"
    if asked:
        why = f"as asked, with rows sorted by {what}"
    elif not depends(found):
        later = drift(X, y, position) if X is not None and either else Estimate(0.0)
        if not later.value - SURE * later.stderr > LEAST_GAIN:
            record("time_order", INTERPOLATE, f"{why}, too little to hold out whole blocks of time")
            return None
        why = f"rows are sorted by {what}: earlier rows predict the last rows {later.value:.2f} ± {later.stderr:.2f} nats worse than rows of the same time"
    group = blocks(position, n_blocks(N, reach))
    if (group == group[0]).all() or (either and np.bincount(group).max() > LARGEST_BLOCK * N):
        return None
    _record_forecast(
        f"{why}; so validation holds out whole blocks of time ({group.max() + 1} blocks)", asked, record
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
    """Return the time of each row (days or positions) and the names of the columns that show it, or None."""
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
    """Return the columns that give the time of sorted rows ([] = none), and when it changes.

    Either one column that never decreases and seldom repeats a value, such as a time stamp. Or whole numbers up to 366 such as year, month, day and hour:
    each never decreases while the columns before it stay constant. If these are all columns, the table is a grid and [] is returned. With `sorted_too`, a
    column that never decreases and has 20 different values suffices.
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
    """Return True if, among rows `tied` with the next, no value falls and some rise."""
    if (np.diff(values[: FIRST + 1])[tied[:FIRST]] < 0).any():
        return False
    steps = np.diff(values)[tied]
    return bool((steps >= 0).all() and (steps > 0).any())


def blocks(position: Vector, n: int) -> Int32[np.ndarray, " N"]:
    """Return the number of each row's block: `n` equal blocks in order of time; rows of equal time share a block."""
    first = np.searchsorted(np.sort(position), position)  # of the rows of one time
    return np.unique(first * n // len(position), return_inverse=True)[1].astype(np.int32)


def n_blocks(n_rows: int, reach: int) -> int:
    """Return the number of blocks: 100, or fewer (at least 20) if errors depend on each other over more than half a block."""
    return int(np.clip(n_rows // max(1, RANGES * reach), FEWEST_BLOCKS, MOST_BLOCKS))


def dependence(X: Matrix, y: Vector, position: Vector) -> tuple[Estimate, int]:
    """Return the correlation of successive errors, and the lag at which it is below UNRELATED.

    The rows form 40 blocks. The mean of the 10 nearest rows of other blocks predicts each row. The predictions of rows i and i + lag use different
    halves of the rows, so their errors have no neighbours in common.
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
        influence = a * b - found / 2 * (a * a + b * b)  # the delta method, sums over a block as one number
        return Estimate(found, float(np.sqrt(np.sum(np.bincount(block[i], influence) ** 2))))

    with granted(math.inf):  # it takes about a second, whatever the number of rows
        first = correlation(1)
        lags = [2**power for power in range(1, 30) if 2**power <= N // FOLDS // 2]
        reach = next((lag for lag in lags if correlation(lag).value < UNRELATED), N // FOLDS)
    return first, reach


def _errors_from(
    X: Matrix, y: Vector, known: Int[np.ndarray, " n"], inputs: Standardiser
) -> Callable[[Int[np.ndarray, " P"]], Vector]:
    """Return a function of rows: their targets less the means of their 10 nearest `known` rows, in standardised inputs."""
    tree = Neighbours(inputs.transform(X[known]))
    near = lambda rows: tree.query(inputs.transform(X[rows]), min(NEAREST, len(known)))
    return lambda rows: y[rows] - y[known][near(rows)].mean(axis=1)


def depends(correlation: Estimate) -> bool:
    """Return True if the next row adds at least 0.01 nats per row, −½ log(1 − ρ²), at ρ less two standard errors."""
    least = correlation.value - SURE * correlation.stderr
    return least > 0 and -0.5 * math.log1p(-(min(least, 0.999) ** 2)) > LEAST_GAIN


def drift(X: Matrix, y: Vector, position: Vector) -> Estimate:
    """Return ½ log of the ratio of squared errors of the last 15 % of the rows.

    The ratio compares predictions from earlier rows only with predictions from all rows. The mean of the 10 nearest rows predicts half of these rows: once from earlier rows only, once also from the other half.
    """
    generator, N = np.random.default_rng(SEED), len(y)
    first, last = np.split(np.argsort(position, kind="stable"), [N - round(LAST * N)])
    half = generator.permutation(len(last))
    some = np.sort(half[: min(PAIRS, len(last) // 2)])
    others = last[half[len(last) // 2 :]][:MOST_ROWS]
    inputs, first = Standardiser.fit(X), generator.permutation(first)[:MOST_ROWS]
    with granted(math.inf):  # as `dependence`
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
