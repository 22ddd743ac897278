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
    """Return the number of each row's block of time, None if rows are judged one by one; `record` the decision.

    "auto" looks for a column of dates, or for columns that only increase with the rows; "either" also for one that never falls. "forecast"
    without such columns takes the order of the rows. X is None if inputs are no numbers. Raises ValueError for "forecast" without an order.
    """
    N, asked, either = len(y), time_order == FORECAST, time_order == EITHER
    if time_order == INTERPOLATE or (2 * FEWEST_BLOCKS if asked else FEWEST) > N:
        return None
    order = None if X is None else order_in_time(X, encoder, in_order, either)
    if order is None and asked and not in_order:
        raise ValueError("time_order='forecast' of rows in files wants a column of dates among the inputs")
    if order is None and asked:
        order = np.arange(N, dtype=np.float64), "the order of the rows"
    if order is None or (not asked and len(np.unique(order[0])) < (FEWEST_BLOCKS if either else FEWEST)):
        return None
    position, what = order
    found, reach = (Estimate(0.0), 0) if X is None or N < FEWEST else dependence(X, y, position)
    why = f"errors of neighbours in time, by {what}, correlate by {found.value:.2f} ± {found.stderr:.2f}"
    if asked:
        why = f"as asked, by {what}"
    elif not depends(found):
        later = drift(X, y, position) if X is not None and either else Estimate(0.0)
        if not later.value - SURE * later.stderr > LEAST_GAIN:
            record("time_order", INTERPOLATE, f"{why}: too little to judge rows by whole blocks of time")
            return None
        why = f"by {what}, the last rows are predicted {later.value:.2f} ± {later.stderr:.2f} nats worse from earlier ones than from rows of their time"
    group = blocks(position, n_blocks(N, reach))
    if (group == group[0]).all() or (either and np.bincount(group).max() > LARGEST_BLOCK * N):
        return None
    _record_forecast(
        f"{why}; so rows are held out and left out in {group.max() + 1} blocks of time", asked, record
    )
    return group


def _record_forecast(why: str, asked: bool, record: Callable[[str, Any, str], None]) -> None:
    why += ". For new rows between these, time_order='interpolate' predicts better"
    if not asked:
        said = f"time_order='auto' treats this table as a 'forecast': {why}"
        warn(f"{said}; time_order='forecast' confirms it", stacklevel=5)
    record("time_order", FORECAST, why)


def order_in_time(
    X: Matrix, encoder: Any, in_order: bool, sorted_too: bool = False
) -> tuple[Vector, str] | None:
    """Return when rows were taken, in days or places, and by which columns; None if nothing shows it."""
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
    """Return columns with the time of rows in order, [] for none, and after which rows it changes.

    One column that never falls and is seldom the same for two rows: a counter, a time stamp. Or whole numbers up to 366, of which the first
    never falls, and each of the others never where those before it stay: year, month, day, hour. Not where these are all columns: such
    a table is a grid, or sorted by its only input. Where `sorted_too`, else one column that never falls and has 20 different values.
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
    """Return the number of each row's block: `n` of equally many rows in order, those of one time in one."""
    first = np.searchsorted(np.sort(position), position)  # of the rows of one time
    return np.unique(first * n // len(position), return_inverse=True)[1].astype(np.int32)


def n_blocks(n_rows: int, reach: int) -> int:
    """Blocks of a hundredth of the rows; longer ones, up to a twentieth, where dependence reaches beyond half of that."""
    return int(np.clip(n_rows // max(1, RANGES * reach), FEWEST_BLOCKS, MOST_BLOCKS))


def dependence(X: Matrix, y: Vector, position: Vector) -> tuple[Estimate, int]:
    """Return the correlation between the errors of a row and the next, and after how many rows it is below UNRELATED.

    Each row is predicted by the mean of its 10 nearest rows of other blocks, of 40. Row i is predicted from one half of every second block,
    row i + lag from the other half: so their errors have no noise of neighbours in common.
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
    """Return True if knowing the next row is worth 0.01 nats per row, −½ log(1 − ρ²), by two standard errors of ρ."""
    least = correlation.value - SURE * correlation.stderr
    return least > 0 and -0.5 * math.log1p(-(min(least, 0.999) ** 2)) > LEAST_GAIN


def drift(X: Matrix, y: Vector, position: Vector) -> Estimate:
    """½ log of how much larger squared errors of the last 15 % of the rows are if they are predicted from earlier rows alone.

    Half of them are predicted by the means of their 10 nearest rows: of earlier ones, and of these and the other half.
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
