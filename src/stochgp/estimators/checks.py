"""What of the data makes a fit know less than it says: stated as warnings."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from stochgp.data import TableEncoder
from stochgp.data.fingerprint_rows import is_packed
from stochgp.data.reading import Encoder
from stochgp.data.training import TrainingData
from stochgp.transforms import ShiftedLog
from stochgp.warning import warn

# Different rows below which intervals of learned models were too narrow now and then: of simulated sets, three kinds of function in two inputs,
# 95 % intervals held less than 80 % of new observations in 6 of 24 fits to 6 rows, 1 to 12, 1 to 20, none to 40.
FEW_ROWS = 40
OFTEN, SELDOM = 1.5, 0.5  # how often a row counts on average
LOOKED_AT = 2_000  # rows whose quantiles are taken
FLAT = 1e-3  # of a column's standard deviation
SAME = 1e-6  # relative difference of values that count as equal
MOST_NAMED = 5
MOST_ALIKE = 0.5  # of counts with one value: a transform of a Gaussian gives no value so large a share


def warn_of(data: TrainingData, *, learns: bool, stacklevel: int) -> None:
    """Warns of too few rows to learn from, of repeated rows, of targets without a scale, of counts mostly 0, of columns that an outlier flattens."""
    if learns and data.n_rows < FEW_ROWS:
        _warn(
            f"only {data.n_rows} different row(s): what is learned from fewer than {FEW_ROWS} is uncertain, intervals may be too narrow",
            stacklevel,
        )
    if learns and data.weight.mean() >= OFTEN:
        _warn(
            f"the {data.n_rows} different rows count as {data.weight.sum():.6g}: each is taken for observations that agree exactly; if they are "
            "copies or averages, the noise is underestimated",
            stacklevel,
        )
    if learns and data.weight.mean() <= SELDOM:
        _warn(
            f"the {data.n_rows} different rows count as {data.weight.sum():.6g}, and intervals are as wide as so few rows leave them; weights "
            "that only compare rows with each other should have the mean 1",
            stacklevel,
        )
    if data.standardized and np.ptp(data.rows.y) == 0:
        _warn(
            "all targets are equal: their scale is unknown, and standard deviations are as if it were 1",
            stacklevel,
        )
    counts = data.given_targets(True) if isinstance(data.transform, ShiftedLog) else None
    alike = 0.0 if counts is None else float(np.average(counts == counts.min(), weights=data.weight))
    if alike > MOST_ALIKE:
        _warn(
            f"{alike:.0%} of the counts are the smallest one: a rounded transform of a Gaussian says too little of how rare the others are; "
            "SparseGPRegressor with likelihood='poisson' or 'negative-binomial' takes them as they are",
            stacklevel,
        )
    flat = _flattened(data)
    if flat.any():
        _warn(
            f"{named_columns(data.encoder, flat)}: outliers set the scale, four of five values lie within a range of {FLAT:g} standard "
            "deviations and will look alike; transform the column, or leave the outliers out",
            stacklevel,
        )


@dataclass(eq=False)
class Seen:
    """The smallest and the largest value of each input column of the training rows; and of rows given since, how many lay outside."""

    low: Float[np.ndarray, " D"]
    high: Float[np.ndarray, " D"]
    n_rows: int = 0
    n_outside: int = 0
    farthest: str = ""  # the column in which one lay farthest outside, for its range

    @classmethod
    def of(cls, data: TrainingData) -> "Seen | None":
        """Of the training rows; None of packed fingerprints, whose numbers are words of bits."""
        return None if is_packed(data.encoder) else cls(*data.limits)

    def with_rows(self, X: Float[np.ndarray, "n D"]) -> "Seen":
        """With further rows among those of training; those given since are counted anew."""
        if len(X) == 0:
            return self
        return Seen(np.minimum(self.low, X.min(axis=0)), np.maximum(self.high, X.max(axis=0)))

    def note(self) -> str:
        """What a user reads of these rows; "" where none lay outside."""
        if self.n_outside == 0:
            return ""
        return (
            f"{self.n_outside} of {self.n_rows} rows given since the fit lie outside of the range of the training rows, farthest in {self.farthest}: "
            "little is known of f there"
        )

    def look_at(self, encoder: Encoder | None, X: Float[np.ndarray, "N D"]) -> bool:
        """Counts these rows; whether they are the first of which some lie outside. Columns of one value are left to `warn_of_moved`."""
        outside, farthest, before = np.zeros(len(X), bool), 0.0, self.n_outside
        for d in np.flatnonzero(self.low < self.high):
            low, high, column = self.low[d], self.high[d], X[:, d]
            excess = np.maximum(low - column, column - high)
            there = excess > SAME * max(abs(low), abs(high))
            outside |= there
            most = float(np.fmax.reduce(excess, initial=0.0)) / (high - low)
            if there.any() and most > farthest:
                farthest, which = most, np.arange(len(self.low)) == d
                name, value = named_columns(encoder, which), column[np.nanargmax(excess)]
                self.farthest = f"{name} ({value:.6g}; training rows have {low:.6g} to {high:.6g})"
        self.n_rows, self.n_outside = self.n_rows + len(X), self.n_outside + int(outside.sum())
        return before == 0 < self.n_outside


def warn_of_moved(encoder: Encoder | None, seen: Seen, X: Float[np.ndarray, "N D"], stacklevel: int) -> None:
    """Warns of columns that had one value in all training rows, and have another in X."""
    moved = np.zeros(len(seen.low), bool)
    held = np.flatnonzero(seen.low == seen.high)
    moved[held] = ~np.isclose(X[:, held], seen.low[held], rtol=SAME, atol=0, equal_nan=True).all(axis=0)
    if moved.any():
        _warn(
            f"{named_columns(encoder, moved)}: one value in all training rows, others here; nothing is known of what the column does, and "
            "standard deviations do not hold it",
            stacklevel,
        )


def warn_of_far(encoder: Encoder | None, seen: Seen, X: Float[np.ndarray, "N D"], stacklevel: int) -> None:
    """Warns of columns of numbers of which at least half lie outside of the training range [a, b] by more than (b − a)/2: of another unit?"""
    rules = encoder.columns if isinstance(encoder, TableEncoder) else ()
    kept = {rule.name for rule in rules if rule.kind == "number"}
    reach = (seen.high - seen.low) / 2
    far = np.abs(X - (seen.low + seen.high) / 2) > 2 * reach
    for d in np.flatnonzero((far.sum(axis=0) >= max(1, len(X) / 2)) & (reach > 0)):
        if encoder is None or rules and encoder.output_names[d] in kept:
            row = int(np.argmax(far[:, d]))
            _warn(
                f"{named_columns(encoder, np.arange(X.shape[1]) == d)}: {far[:, d].sum()} of {len(X)} values lie far outside of the training range, "
                f"{seen.low[d]:.6g} to {seen.high[d]:.6g}, the first, {X[row, d]:.6g}, at data row {row + 1}: is their unit another one?",
                stacklevel,
            )


def _flattened(data: TrainingData) -> np.ndarray:
    """Of standardised inputs: whether the range of the middle 80 % of a column's values is above 0, but below FLAT standard deviations."""
    if not data.standardized or data.leaves_inputs or data.n_rows < FEW_ROWS:
        return np.zeros(data.n_inputs, bool)
    rows: Any = slice(None)
    if data.n_rows > LOOKED_AT:
        rows = np.random.default_rng(0).integers(0, data.n_rows, LOOKED_AT)
    low, high = np.quantile(data.rows.X[rows].astype(np.float64), (0.1, 0.9), axis=0)
    return (high > low) & (high - low < FLAT * data.inputs.scale)


def named_columns(encoder: Encoder | None, which: np.ndarray) -> str:
    """The columns' names, or their numbers from 1 on."""
    indices = np.flatnonzero(which)
    names = [
        repr(encoder.output_names[i]) if encoder is not None and encoder.named else str(i + 1)
        for i in indices
    ]
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"input column {', '.join(names[:MOST_NAMED])}{more}"


def _warn(text: str, stacklevel: int) -> None:
    warn(text, UserWarning, stacklevel=stacklevel + 2)
