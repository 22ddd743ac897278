"""What of the data makes a fit know less than it says: stated as warnings."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from stochgp.data.fingerprint_rows import is_packed
from stochgp.data.reading import Encoder
from stochgp.data.training import TrainingData
from stochgp.transforms import Log
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
    """Warn of too few rows to learn from, repeated rows, targets without a scale, counts mostly 0, and columns that an outlier flattens."""
    n, rho = data.n_rows, data.weight
    counts = data.given_targets(True) if isinstance(data.transform, Log) and data.transform.shift else None
    alike = 0.0 if counts is None else float(np.average(counts == counts.min(), weights=rho))
    flat = _flattened(data)
    checks = {
        f"only {n} different row(s): what is learned from fewer than {FEW_ROWS} is uncertain, intervals may be too narrow": learns
        and n < FEW_ROWS,
        f"the {n} different rows count as {rho.sum():.6g}: each is taken for observations that agree exactly; if they are copies or "
        "averages, the noise is underestimated": learns and rho.mean() >= OFTEN,
        f"the {n} different rows count as {rho.sum():.6g}, and intervals are as wide as so few rows leave them; weights that only compare "
        "rows with each other should have the mean 1": learns and rho.mean() <= SELDOM,
        "all targets are equal: their scale is unknown, and standard deviations are as if it were 1": data.standardized
        and np.ptp(data.rows.y) == 0,
        f"{alike:.0%} of the counts are the smallest one: a rounded transform of a Gaussian says too little of how rare the others are; "
        "SparseGPRegressor with likelihood='poisson' or 'negative-binomial' takes them as they are": alike
        > MOST_ALIKE,
        f"{named_columns(data.encoder, flat)}: outliers set the scale, four of five values lie within a range of {FLAT:g} standard "
        "deviations and will look alike; transform the column, or leave the outliers out": flat.any(),
    }
    for text, holds in checks.items():
        if holds:
            warn(text, UserWarning, stacklevel=stacklevel + 1)


@dataclass(frozen=True, eq=False)
class Seen:
    """The smallest and the largest value of each input column of the training rows."""

    low: Float[np.ndarray, " D"]
    high: Float[np.ndarray, " D"]

    @classmethod
    def of(cls, data: TrainingData) -> "Seen | None":
        """Of the training rows; None of packed fingerprints, whose numbers are words of bits."""
        return None if is_packed(data.encoder) else cls(*data.limits)

    def with_rows(self, X: Float[np.ndarray, "n D"]) -> "Seen":
        """With further rows among those of training."""
        if len(X) == 0:
            return self
        return Seen(np.minimum(self.low, X.min(axis=0)), np.maximum(self.high, X.max(axis=0)))

    def varying(self, encoder: Encoder | None, X: Float[np.ndarray, "N D"]) -> str:
        """What to say of columns that were constant in training, and vary in X; "" of none."""
        moved, held = np.zeros(len(self.low), bool), np.flatnonzero(self.low == self.high)
        if len(held) == 0:
            return ""
        moved[held] = ~np.isclose(X[:, held], self.low[held], rtol=SAME, atol=0, equal_nan=True).all(axis=0)
        if not moved.any():
            return ""
        return (
            f"{named_columns(encoder, moved)}: constant in the training data, but not here. Its effect is unknown, and the predicted "
            "uncertainty does not account for it"
        )

    def extrapolation(self, encoder: Encoder | None, X: Float[np.ndarray, "N D"]) -> tuple[str, bool]:
        """(What to say of rows outside of the training range, "" of none; whether at least half of the rows lie outside by half of a column's width)."""
        outside, worst, is_far = np.zeros(len(X), bool), (0.0, 0, 0), False
        within = (X.min(axis=0) >= self.low) & (X.max(axis=0) <= self.high) if len(X) else np.False_
        for d in np.flatnonzero((self.low < self.high) & ~within):
            low, high = self.low[d], self.high[d]
            excess = np.nan_to_num(np.maximum(low - X[:, d], X[:, d] - high)) / (high - low)
            outside |= excess * (high - low) > SAME * max(abs(low), abs(high))
            is_far |= bool(2 * np.sum(excess > 0.5) >= max(1, len(X)))
            row = int(np.argmax(excess)) if len(X) else 0
            worst = max(worst, (excess[row] if len(X) else 0.0, int(d), row))
        if not outside.any():
            return "", False
        _, d, row = worst
        return (
            f"{outside.sum()} of {len(X)} rows are outside the training range (worst: {named_columns(encoder, np.arange(X.shape[1]) == d)} is "
            f"{X[row, d]:.6g} at data row {row + 1}, trained on {self.low[d]:.6g} to {self.high[d]:.6g}). Their predictions are extrapolations"
        ), is_far


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
