"""Encoder from a table with text columns to a matrix of numbers."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import narwhals as nw
import numpy as np
from jaxtyping import Bool, Float, Float64

from stochgp.names import did_you_mean, lookup, quoted
from stochgp.numerics.clustered import equal_rows

from .categories import CategoryTargets, at_ranks, codes_of, out_of_fold
from .columns import Caution, Column, TableError, is_array, joined, read_any, read_column, table_columns
from .readings import day_first_of
from .rules import ColumnRule, dropped, encode, rule_of, texts_of

REMEDY = '; missing="auto" in fit (--set missing=auto) replaces such values'
MISSING = ("auto", "refuse")
INDEX_NAMES = ("", "index", "rownames", "row.names")  # names of columns that may contain row numbers
UNNAMED = "Unnamed: "
LEAK, LEAK_ROWS = 0.9999, 5_000  # minimum rank correlation of a leak; rows to compute it
FEWEST_FOR_LEAK = 100  # smallest number of different targets
STAND_INS = 32  # known categories that replace a new category


@dataclass(frozen=True)
class TableEncoder:
    """Rules, learned from a training table, that turn tables into float64 matrices [N, D].

    Parameters
    ----------
    columns : tuple of ColumnRule
        The rule of each column of the training table, in order, including dropped columns.
    named : bool
        True: columns are matched by name. False: columns are matched by position, and no column is dropped.
    missing : "auto" or "refuse"
        "auto": the median of the training column replaces missing or infinite numbers and missing times. A
        missing or new text has no category. A 0/1 column marks missing values if the training column had
        missing values. Constant and repeated columns are dropped.
        "refuse": missing values are errors, and no column is dropped.
    """

    columns: tuple[ColumnRule, ...]
    named: bool = True
    missing: str = "auto"

    @classmethod
    def fit(cls, table: Any, missing: str = "auto", targets: CategoryTargets | None = None) -> "TableEncoder":
        """Return the encoder for a data frame (pandas, polars, pyarrow) or an array [N, D].

        Text with more than 50 categories needs `targets`. Raises TableError for types other than numbers,
        dates and text, and with `missing="refuse"` for missing and infinite values.
        """
        lookup(missing, dict.fromkeys(MISSING), "missing")
        inputs = table_columns(table)
        imputes, named = missing != "refuse", not is_array(table)
        kept, useful, alike = list[ColumnRule](), list[ColumnRule](), dict[Any, str]()
        others = [name for name, raw in inputs.items() if named and not raw.dtype.is_numeric()]
        read = {name: column_of(name, inputs[name], imputes) for name in others}
        day_first = day_first_of(read.values())
        for name, raw in inputs.items():
            column = read.pop(name, None) or column_of(name, raw, imputes)
            rule, column = rule_of(column, imputes, targets, named, day_first)
            kept.append(rule)
            rule = _useful(rule, column, alike) if imputes and named else rule
            useful.append(_without_leak(rule, column, targets))
        if all(rule.kind == "dropped" for rule in kept):
            raise TableError(f"the table has no useful column; {kept[0].name!r} is {kept[0].note}")
        rules = kept if all(rule.kind == "dropped" for rule in useful) else useful
        return cls(tuple(rules), named, missing)

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the D columns of the matrix."""
        return tuple(name for rule in self.columns for name in rule.output_names)

    @property
    def is_plain(self) -> bool:
        """True for an array whose finite numbers the encoder does not change."""
        return not self.named and not any(rule.bound or rule.indicator for rule in self.columns)

    @property
    def notes(self) -> dict[str, str]:
        """Notes for the user, by column."""
        notes = {rule.name: joined(rule.note, rule.caution) for rule in self.columns}
        return {name: note for name, note in notes.items() if note}

    def transform(self, table: Any) -> Float64[np.ndarray, "N D"]:
        """Return the matrix of a table, whose named columns may have any order.

        Raises TableError, with column and row, for values that cannot be used.
        """
        return self.encoded(table)[0]

    def encoded(
        self, table: Any, new_categories: bool = False
    ) -> tuple[Float64[np.ndarray, "N D"], list[str]]:
        """Return the matrix and notes on its values. `new_categories=True` accepts new texts."""
        inputs = self._matched(table)
        X, notes = np.zeros((len(next(iter(inputs.values()))), len(self.output_names))), list[str]()
        for rule, place in self.places:
            if rule.name in inputs:
                column = column_of(rule.name, inputs[rule.name], self.missing != "refuse")
                said = encode(rule, column, X[:, place], self.missing == "refuse", new_categories)
                kind = str if rule.kind == "text" and not column.missing.all() else Caution
                notes += [kind(f"column {rule.name!r}: {said}")] if said else []
        return X, notes

    def in_folds(
        self, X: Float64[np.ndarray, "N D"], table: Any, targets: CategoryTargets
    ) -> Float64[np.ndarray, "N D"]:
        """Return the training matrix X with statistics of categories from other folds."""
        inputs, imputes = self._matched(table), self.missing != "refuse"
        read = lambda name: texts_of(column_of(name, inputs[name], imputes))
        coded = [(rule, place, read(rule.name)) for rule, place in self.with_statistics]
        if coded and targets.group is None:
            codes = [codes_of(texts, rule.categories) for rule, _, texts in coded]
            targets = targets._replace(group=equal_rows((*targets.values.T, *codes, *X.T)))
        for rule, place, texts in coded:
            X[:, place] = out_of_fold(texts, rule.categories, rule.parts, targets)
        return X

    @property
    def places(self) -> list[tuple[ColumnRule, slice]]:
        """Each rule with its columns of the matrix."""
        ends = np.cumsum([len(rule.output_names) for rule in self.columns]).tolist()
        return list(zip(self.columns, map(slice, [0, *ends], ends), strict=False))

    @property
    def with_statistics(self) -> list[tuple[Any, slice]]:
        """Each rule with statistics of the targets, with the columns of these statistics."""
        places = [(rule, place) for rule, place in self.places if rule.table]
        return [(rule, slice(place.start, place.stop - rule.indicator)) for rule, place in places]

    def unknown(self, table: Any) -> tuple[str, ...]:
        """Return the names of columns that `transform` ignores."""
        known = {rule.name for rule in self.columns}
        by_name = self.named and not is_array(table)
        return tuple(name for name in table_columns(table) if name not in known) if by_name else ()

    def _matched(self, table: Any) -> dict[str, Any]:
        """Return the columns by name; dropped columns may be absent."""
        columns = table_columns(table)
        names = [rule.name for rule in self.columns]
        if not self.named or is_array(table):
            if len(columns) != len(names):
                raise TableError(f"expected {len(names)} columns ({quoted(names)}), got {len(columns)}")
            return dict(zip(names, columns.values(), strict=True))
        absent = [rule.name for rule in self.columns if rule.name not in columns and rule.kind != "dropped"]
        if absent:
            near = did_you_mean(absent[0], [name for name in columns if name not in names] or columns)
            what = f"the table lacks the column{'s' if len(absent) > 1 else ''} {quoted(absent)}"
            raise TableError(f"{what}; for {absent[0]!r}, {near}")
        return {name: columns[name] for name in names if name in columns}


def column_of(name: str, raw: Any, imputes: bool) -> Column:
    """Return `read_any` if missing values are replaced, else `read_column`."""
    return read_any(name, raw) if imputes else read_column(name, raw, remedy=REMEDY)


def _useful(rule: ColumnRule, column: Column, alike: dict[Any, str]) -> ColumnRule:
    """Return the rule, or a dropped rule for a constant, repeated or row-number column."""
    if rule.kind == "dropped":
        return rule
    is_text, is_number = column.kind == "text", column.kind in ("number", "boolean")
    there: Any = () if is_text else column.values[~column.missing]
    is_index = column.name.lower() in INDEX_NAMES or column.name.startswith(UNNAMED)
    is_index = is_index and column.kind == "number" and bool((there == np.floor(there)).all())
    if is_index and len(np.unique(there)) == len(there) > 1:
        return dropped(rule, "it contains only row numbers")
    is_one = len(rule.categories) == 1 if is_text else np.ptp(there) == 0
    if is_one and len(column.missing) > 1 and not column.missing.any():
        return dropped(rule, "it is constant", float(there[0]) if is_number else None)
    content: Any = (
        column.values.to_pylist() if is_text else [np.where(column.missing, 0, column.values).tobytes()]
    )
    content = (*content, column.missing.tobytes())
    first = alike.setdefault((column.kind, hash(content)), rule.name)
    return rule if first == rule.name else dropped(rule, f"it equals the column {first!r}")


def _without_leak(rule: ColumnRule, column: Column, targets: CategoryTargets | None) -> ColumnRule:
    """Return the rule, with a caution if the column determines the target on its own."""
    if targets is None or len(targets.names) > 1 or rule.kind not in ("number", "time"):
        return rule
    rows = np.flatnonzero(~column.missing)
    rows = rows[:: max(1, len(rows) // LEAK_ROWS)]
    x, y = column.values[rows], targets.values[rows, 0]
    if len(np.unique(y)) < FEWEST_FOR_LEAK or np.ptp(x) == 0:
        return rule
    from scipy.stats import rankdata  # slow to import

    found = float(np.corrcoef(rankdata(x), rankdata(y))[0, 1])
    leak = f"it alone determines the target (rank correlation {found:.5f}); is the column known before the target?"
    return replace(rule, caution=joined(rule.caution, leak)) if abs(found) > LEAK else rule


def known_instead(
    encoder: Any, X: Float[np.ndarray, "N D"]
) -> tuple[Bool[np.ndarray, " N"], Iterator[Float[np.ndarray, "n D"]]]:
    """Return a mask of rows with new categories, and 32 copies with known categories."""
    new, found = np.zeros(len(X), bool), list[tuple[Any, slice, Any]]()
    places: Any = getattr(encoder, "with_statistics", ())
    for number, (rule, place) in enumerate(places):
        here = X[:, place.start + rule.parts.index("log count")] == 0
        here = here & (X[:, place.stop] == 0) if rule.indicator else here
        if here.any():
            new |= here
            order = np.random.default_rng(number).permutation(STAND_INS)  # columns are independent
            found.append((here, place, at_ranks(rule.table, STAND_INS)[order]))

    def instead(k: int) -> Float[np.ndarray, "n D"]:
        Z = X[new]
        for here, place, known in found:
            Z[here[new], place] = known[k]
        return Z

    return new, map(instead, range(STAND_INS))


def some_rows(table: Any, kept: np.ndarray) -> Any:
    """Return these rows of a table or an array."""
    if is_array(table):
        return np.asarray(table)[kept]
    return nw.from_native(table, eager_only=True).filter(kept.tolist()).to_native()
