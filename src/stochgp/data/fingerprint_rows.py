"""Inputs that the Tanimoto kernel sees: never standardised, and packed where they are whole numbers."""

from collections.abc import Sequence
from enum import Enum
from typing import Any

import numpy as np
import scipy.sparse

from stochgp.budget import Budget
from stochgp.data import TableEncoder
from stochgp.tables.columns import is_array
from stochgp.tables.molecules import (
    FingerprintEncoder,
    Fingerprints,
    Morgan,
    checked_counts,
    holds_fractions,
)
from stochgp.warning import warn

MOST_NAMED = 8  # rows in a warning


class Inputs(Enum):
    """What an estimator makes of its inputs; the value says so in `plan_`."""

    NUMBERS = "standardised if so asked"
    AS_GIVEN = "as they are: the Tanimoto kernel knows the origin and the scale, so `standardize` is of the targets alone"
    FINGERPRINTS = "as they are, packed as sets of bits: the Tanimoto kernel knows the origin, so `standardize` is of the targets alone"


def name_inputs(estimator: Any, n_inputs: int, names: Sequence[str] | np.ndarray | None = None) -> None:
    """Sets `n_features_in_`, and `feature_names_in_` where inputs have names."""
    estimator.n_features_in_ = n_inputs
    if names is not None:
        estimator.feature_names_in_ = np.array(names, dtype=object)
    elif hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_


def read_fingerprints(estimator: Any, X: Any, budget: Budget) -> tuple[Any, np.ndarray]:
    """(How rows are packed, the packed rows) for `fit`; (None, rows of float64) where an array holds fractions.

    With the setting `smiles` X is a table, and molecules that cannot be read are rows of NaN where `missing` is "skip". Columns of a data
    frame of counts are taken by position. Sets `n_features_in_`. Raises ValueError, naming row and column, for what are no fingerprints.
    """
    smiles = estimator.smiles
    if smiles is not None:
        if not isinstance(smiles, str | Morgan):
            raise TypeError(f"smiles must be the name of a column, or a data.Morgan, but got {smiles!r}")
        morgan = Morgan(smiles) if isinstance(smiles, str) else smiles
        found = FingerprintEncoder.fit(X, morgan, estimator.missing == "skip")
        name_inputs(estimator, 1, [morgan.column])
        return found
    if not isinstance(X, Fingerprints) and not scipy.sparse.issparse(X) and not is_array(X):
        X = TableEncoder.fit(X).transform(X)
    X = X if isinstance(X, Fingerprints) else checked_counts(X)
    n_rows, n_inputs = X.shape
    name_inputs(estimator, n_inputs)
    if not isinstance(X, Fingerprints | scipy.sparse.sparray) and holds_fractions(X):
        return None, np.asarray(X, np.float64)
    encoder, words = FingerprintEncoder.fit(X)
    budget.require(4 * n_rows * words.shape[1], f"{n_rows} packed fingerprints")
    return encoder, words


def is_packed(encoder: Any) -> bool:
    """Whether an estimator's encoder packs fingerprints."""
    return isinstance(encoder, FingerprintEncoder)


def refuse_further_counts(words: np.ndarray) -> None:
    """Raises ValueError, naming the first, for packed rows with counts that have no bits of their own: of two such rows T is not known."""
    beyond = words[:, -1] > 0  # False for NaN
    if beyond.any():
        raise ValueError(
            f"{int(beyond.sum())} of {len(words)} rows, the first row {int(np.argmax(beyond)) + 1}, have larger counts in some column than any row of "
            "fit, by whose largest counts rows are packed: fit all rows again, or fit data.Fingerprints.pack(X, levels) with levels that hold new rows too"
        )


def without_skipped(rows: np.ndarray) -> np.ndarray:
    """Which rows of a molecule encoder were read; warns of the others."""
    there = ~np.isnan(rows[:, 0])
    if not there.all():
        which = ", ".join(str(row + 1) for row in np.flatnonzero(~there)[:MOST_NAMED])
        more = f" and {int((~there).sum()) - MOST_NAMED} more" if (~there).sum() > MOST_NAMED else ""
        text = f"{int((~there).sum())} molecule(s) cannot be read and are left out: data rows {which}{more} (from 1)"
        warn(text, UserWarning, stacklevel=6)
    return there
