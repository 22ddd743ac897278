"""How one column becomes numbers: a rule found on the training rows, and applied to any rows."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from jaxtyping import Float64

from stochgp.warning import warn

from . import readings, times
from .bounds import Bound, bound_of
from .categories import CategoryStatistics, CategoryTargets, codes_of, statistics_of
from .columns import Column, TableError, both, row_of_first
from .readings import Reading

MAX_LEVELS = 50
SAME = 1e-6  # relative difference of values that count as equal
UNIQUE = 0.95  # levels, as a share of the rows, from which on a column of texts says nothing of new rows
_HELD = {
    "number": "numbers",
    "boolean": "true and false",
    "text": "text",
    "time": "dates",
    "span": "times of day or durations",
}


@dataclass(frozen=True)
class ColumnRule:
    """How one column becomes numbers.

    A number or boolean becomes itself, within `bound`, true and false 1 and 0; text one 0/1 column for each of `levels`, or `statistics` of the targets within
    each; a time one column for each of `parts`; a column that is dropped nothing. Without `fill` a missing text is 0 in all columns.
    """

    name: str
    kind: Literal["number", "boolean", "text", "time", "dropped"]
    levels: tuple[str, ...] = ()  # the texts at fit, in alphabetical order
    parts: tuple[str, ...] = ()  # of times: "days" since `start`, and those that vary
    start: int = 0  # the first time at fit, in microseconds since 1970
    zoned: bool = False  # whether times had a time zone, and are UTC
    fill: float | int | None = None  # the value for a missing one; of a dropped column its only number
    indicator: bool = False  # whether a further column is 1 where the value was missing
    reading: Reading | None = None  # of texts that stand for numbers or dates
    bound: Bound | None = None  # beyond which numbers are moved nearer
    statistics: CategoryStatistics | None = None  # of many levels
    note: str = ""  # what a user may not expect
    caution: str = ""  # which values are not taken as they are, or may be wrong: a warning of the fit

    @property
    def output_names(self) -> tuple[str, ...]:
        """The column's own name; name=level for every level; name.days and so on; name=(missing) for the indicator."""
        if self.kind == "text" and self.statistics is None:
            names = [f"{self.name}={level}" for level in self.levels]
        elif self.kind in ("text", "time"):
            parts = self.parts if self.statistics is None else self.statistics.names
            names = [f"{self.name}.{part}" for part in parts]
        else:
            names = [] if self.kind == "dropped" else [self.name]
        return (*names, f"{self.name}=(missing)") if self.indicator else tuple(names)


def dropped(rule: ColumnRule, why: str, value: float | None = None) -> ColumnRule:
    """The rule of a column that is not learned from."""
    return ColumnRule(rule.name, "dropped", fill=value, note=f"not learned from: {why}", caution=rule.caution)


def rule_of(
    column: Column,
    imputes: bool,
    targets: CategoryTargets | None = None,
    named: bool = True,
    day_first: bool | None = None,
) -> tuple[ColumnRule, Column]:
    """(The rule for a training column, the column as it is read). In a `named` column, numbers such as 20141013 are dates if values are imputed.

    `day_first` as of `readings.reading_of`. Warns of dates that another order, or a number, may stand for. If values are
    imputed, a few cells that are no number or date in a column of these are missing too. Raises TableError for more than 50 levels
    without `targets`, and, if nothing is imputed, for a column without values.
    """
    name, note, reading, given = column.name, column.note, None, column
    if column.missing.all():
        if imputes:
            return dropped(ColumnRule(name, "number"), "it holds no values"), column
        raise TableError(f"column {name!r} holds no values: all {len(column.missing)} are missing; drop it")
    if column.kind == "text":
        reading, column, said = readings.reading_of(column, not imputes, day_first)
        note = both(note, said)
    may_be_dates = named and imputes and (reading is None or readings.all_digits(given))
    if may_be_dates and (found := readings.numbers_as_dates(column)) is not None:
        row = int(np.argmin(column.missing))
        shown = f"{column.values[row]:.0f} {times.TAKEN} {times.day_of(found.values[row])}"
        reading, note, column = readings.DIGITS, both(note, f"whole numbers that are dates: {shown}"), found
    if times.TAKEN in note:
        warn(f"column {name!r}: {note}", UserWarning, stacklevel=2)
    indicator = imputes and bool(column.missing.any())
    rule = ColumnRule(
        name, column.kind, indicator=indicator, reading=reading, note=note, caution=column.caution
    )
    if column.kind == "text":
        return _rule_of_levels(rule, column, imputes, targets), column
    present = column.values[~column.missing]
    if column.kind == "time":
        parts, fill = times.varying_parts(present), int(np.median(present)) if imputes else None
        return replace(rule, parts=parts, start=int(present.min()), zoned=column.zoned, fill=fill), column
    if not imputes:
        return rule, column
    bound, fill = bound_of(present) if rule.kind == "number" else None, float(np.median(present))
    if bound is not None:
        most, reach = float(present[np.argmax(np.abs(present - bound.center))]), bound.scale * bound.limit
        limits = f"{bound.center - reach:.6g} or above {bound.center + reach:.6g}"
        said = f"values up to {most:.6g} lie far beyond the others: those below {limits} are moved nearer, by a logarithm"
        note = both(note, said)
    return replace(rule, fill=fill, bound=bound, note=note), column


def _rule_of_levels(
    rule: ColumnRule, column: Column, imputes: bool, targets: CategoryTargets | None
) -> ColumnRule:
    levels = tuple(sorted(column.values.drop_null().unique().to_pylist()))
    if len(levels) <= MAX_LEVELS:
        return replace(rule, levels=levels)
    if imputes and len(levels) > UNIQUE * int((~column.missing).sum()):
        return dropped(rule, f"{len(levels)} different texts, nearly one for each row (an identifier?)")
    if targets is None:
        raise TableError(
            f"column {column.name!r} holds text with {len(levels)} different values; at most {MAX_LEVELS} are encoded without targets: "
            "group them, give numbers, or drop the column"
        )
    found = statistics_of(column.values, levels, targets)
    said = f"{len(levels)} different texts are encoded by {', '.join(found.names)} of the targets of their rows, for training rows by other rows"
    return replace(rule, statistics=found, note=both(rule.note, said))


def encode(
    rule: ColumnRule, column: Column, out: Float64[np.ndarray, "N D"], strict: bool, new_levels: bool
) -> str:
    """Write the column's numbers into zeros, one column for each of the rule's `output_names`; return a note on its values.

    Raises TableError, naming column and row, for values of another kind than at fit, and if `strict` for any that the rule does not know, except `new_levels`.
    """
    if rule.kind == "dropped":
        if rule.fill is None or column.kind not in ("number", "boolean"):
            return ""
        other = ~column.missing & ~np.isclose(column.values, rule.fill, rtol=SAME, atol=0)
        place = column.first(other)
        said = f"{int(other.sum())} value(s) differ from the only one at fit, {rule.fill:g}, {place}: nothing is known of what they do"
        return said if other.any() else ""
    column, said = _as_at_fit(rule, column, strict)
    missing = column.missing
    if rule.indicator:
        out[:, -1] = missing
    is_usual = rule.indicator and not (len(out) >= readings.FEWEST and missing.all())
    if missing.any() and not said and not is_usual:
        stand_in, had = (
            "the median" if rule.kind != "text" else "no level",
            "values" if rule.indicator else "none",
        )
        said = f"{missing.sum()} missing value(s) in a column that had {had} at fit are taken as {stand_in}, the first at data row {row_of_first(missing)}"
    if rule.kind == "text":
        return both(said, _encode_levels(rule, column, out, strict and not new_levels))
    if rule.kind == "time":
        micros = np.where(missing, rule.fill or 0, column.values)
        for j, part in enumerate(rule.parts):
            out[:, j] = times.part_of(part, micros, rule.start)
        return said
    values = np.where(missing, np.nan, column.values)
    out[:, 0] = values if rule.bound is None else rule.bound(values)
    if rule.fill is not None:
        out[missing, 0] = rule.fill
    return said


def texts_of(column: Column) -> Any:
    """A column's values as texts: 1.0 as "1", booleans as "true" and "false"; None where missing."""
    if column.kind == "text":
        return column.values
    values, codes = np.unique(np.where(column.missing, 0.0, column.values), return_inverse=True)
    shown = lambda value: str(int(value)) if float(value).is_integer() else str(float(value))
    texts = [("false", "true")[int(v)] if column.kind == "boolean" else shown(v) for v in values]
    return pa.array(texts, pa.large_string()).take(pa.array(codes.ravel(), mask=column.missing))


def _as_at_fit(rule: ColumnRule, column: Column, strict: bool) -> tuple[Column, str]:
    """(The column of the rule's kind, a note on cells that are not)."""
    if rule.kind == "text":
        if column.kind == "time":
            raise _changed(rule, column)
        return column, ""
    if column.missing.all():
        values = np.full(len(column.missing), 0 if rule.kind == "time" else np.nan)
        return replace(column, kind=rule.kind, values=values, zoned=rule.zoned), ""
    if column.kind == "number" and rule.reading is not None and rule.reading.digits:
        column = readings.with_digits(column)
    if column.kind == "text":
        kind: Any = rule.kind
        read, bad = readings.as_read(rule.reading or Reading(kind, zoned=rule.zoned), column)
        if bad.any() and (strict or bad.sum() == (~column.missing).sum() > 1):
            raise _changed(rule, column, int(np.argmax(bad)))
        first, is_new = int(np.argmin(read.missing)), rule.reading is None and kind == "number"
        texts = f"texts are read as numbers, {column.values[first].as_py()!r} as {read.values[first]:g}"
        return read, both(texts if is_new and not bad.all() else "", read.caution)
    if "time" in (column.kind, rule.kind) and (column.kind, column.zoned) != (rule.kind, rule.zoned):
        raise _changed(rule, column)
    return column, both("" if column.note in rule.note else column.note, column.caution)


def _changed(rule: ColumnRule, column: Column, row: int | None = None) -> TableError:
    """The error of a column of another kind than at fit, with the first such value."""
    row = int(np.argmin(column.missing)) if row is None else row
    value, zone = column.values[row], {True: " with a time zone", False: " without a time zone"}
    held = _HELD["span" if rule.reading is not None and rule.reading.kind == "span" else rule.kind]
    holds, shown = _HELD[column.kind], str(value)
    if column.kind == "text":
        shown = repr(value.as_py())
    if column.kind == "time":
        shown = str(value.astype("datetime64[us]"))
        holds += zone[column.zoned] if rule.kind == "time" else ""
    held += zone[rule.zoned] if rule.kind == "time" and column.kind in ("time", "text") else ""
    return TableError(
        f"column {rule.name!r} held {held} at fit and holds {holds} now: {shown} at data row {row + 1}"
    )


def _encode_levels(rule: ColumnRule, column: Column, out: np.ndarray, strict: bool) -> str:
    texts, statistics = texts_of(column), rule.statistics
    levels = rule.levels if statistics is None else statistics.levels
    codes = codes_of(texts, levels)
    if statistics is None:
        known = np.flatnonzero(codes < len(levels))
        out[known, codes[known]] = 1.0
    else:
        out[:, : len(statistics.names)] = np.array(statistics.rows)[codes]
    unseen = (codes == len(levels)) & ~column.missing
    if not unseen.any():
        return ""
    level, row = texts[int(np.argmax(unseen))].as_py(), row_of_first(unseen)
    count, stand_in = (
        int(unseen.sum()),
        "no level" if statistics is None else "a random one of the known levels",
    )
    if strict:
        why = f", which was not in the training data ({count} such rows)"
        raise TableError(f"column {rule.name!r} has the level {level!r} at data row {row}{why}")
    return f"{count} level(s) that were not in the training rows are taken as {stand_in}, the first, {level!r}, at data row {row}"
