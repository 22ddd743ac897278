"""How one column becomes numbers: a rule found on the training rows, and applied to any rows."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Float64

from .bounds import Bound, bound_of
from .columns import Column, TableError, both, first_of, row_of_first
from .levels import LevelStatistics, LevelTargets, statistics_of
from .readings import DIGITS, Reading, all_digits, as_read, numbers_as_dates, reading_of, unread, with_digits
from .times import part_of, times_of_texts, varying_parts

MAX_LEVELS = 50
SAME = 1e-6  # relative difference of values that count as equal
UNIQUE = 0.95  # levels, as a share of the rows, from which on a column of texts says nothing of new rows
WHOLE_DATES = "whole numbers that are dates, such as 20141013"
_HELD = {"number": "numbers", "boolean": "true and false", "text": "text", "time": "dates"}


@dataclass(frozen=True)
class ColumnRule:
    """How one column becomes numbers.

    Parameters
    ----------
    name : str
        Of the column.
    kind : "number", "boolean", "text", "time" or "dropped"
        A number or boolean becomes itself, within `bound`, true and false 1 and 0; text one 0/1 column for each of `levels`, or `statistics`; a time one
        column for each of `parts`; a column that is dropped nothing.
    levels : tuple of str
        Of text: its values at fit, in alphabetical order.
    parts : tuple of str
        Of times: "days" since `start`, "yearday", "weekday", "hour", those that vary.
    start : int
        Of times: the first at fit, in microseconds since 1970.
    zoned : bool
        Whether times had a time zone, and are UTC.
    fill : number, optional
        What stands in for a missing value, for times in microseconds since 1970; of a dropped column its only value, where it had one number. Without it a
        missing value of text is 0 in all columns.
    indicator : bool
        Whether a further column is 1 where the value was missing.
    reading : Reading, optional
        How texts are read that stand for numbers or dates.
    bound : Bound, optional
        Beyond which numbers are moved nearer.
    statistics : LevelStatistics, optional
        Of the targets within each of many levels, in place of `levels`.
    note : str
        What a user may not expect.
    """

    name: str
    kind: Literal["number", "boolean", "text", "time", "dropped"]
    levels: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    start: int = 0
    zoned: bool = False
    fill: float | int | None = None
    indicator: bool = False
    reading: Reading | None = None
    bound: Bound | None = None
    statistics: LevelStatistics | None = None
    note: str = ""

    @property
    def output_names(self) -> tuple[str, ...]:
        """The column's own name; name=level for every level; name.days and so on; name=(missing) for the indicator."""
        names = {
            "text": tuple(f"{self.name}={level}" for level in self.levels),
            "time": tuple(f"{self.name}.{part}" for part in self.parts),
            "dropped": (),
        }.get(self.kind, (self.name,))
        if self.statistics is not None:
            names = tuple(f"{self.name}.{name}" for name in self.statistics.names)
        return (*names, f"{self.name}=(missing)") if self.indicator else names

    @property
    def is_plain(self) -> bool:
        """Whether numbers stay as they are."""
        return self.kind in ("number", "boolean") and self.bound is None and not self.indicator

    def noting(self, text: str) -> "ColumnRule":
        """With this to be said as well."""
        return replace(self, note=both(self.note, text))


def dropped(rule: ColumnRule, why: str, value: float | None = None) -> ColumnRule:
    """The rule of a column that is not learned from."""
    return ColumnRule(rule.name, "dropped", fill=value, note=f"not learned from: {why}")


def rule_of(
    column: Column, imputes: bool, targets: LevelTargets | None = None, dates: bool = True
) -> tuple[ColumnRule, Column]:
    """(The rule for a training column, the column as it is read). Numbers such as 20141013 are dates where `dates`, and where values are imputed.

    Where values are imputed, a few cells that are no number or date in a column of these are missing too. Raises TableError for more than 50
    levels without `targets`, and, where nothing is imputed, for a column without values.
    """
    name = column.name
    if column.missing.all():
        if not imputes:
            raise TableError(
                f"column {name!r} holds no values: all {len(column.missing)} are missing; drop it"
            )
        return ColumnRule(name, "dropped", note="not learned from: it holds no values"), column
    note, reading, given = column.note, None, column
    if column.kind == "text":
        reading, said = reading_of(column, strict=not imputes)
        note = both(note, said)
    if reading is not None:
        read, bad = as_read(reading, column)
        what = {"number": "numbers", "time": "dates", "boolean": "yes or no", "span": "times"}[reading.kind]
        note, column = both(note, unread(column, bad, what)), read
    may_be_dates = dates and imputes and column.kind == "number" and (reading is None or all_digits(given))
    if may_be_dates and (found := numbers_as_dates(column)) is not None:
        reading, note, column = DIGITS, both(note, WHOLE_DATES), found
    indicator = imputes and bool(column.missing.any())
    if column.kind == "text":
        return _rule_of_levels(column, indicator, imputes, targets, note), column
    rule = ColumnRule(column.name, column.kind, indicator=indicator, reading=reading, note=note)
    return (_rule_of_times if column.kind == "time" else _rule_of_numbers)(rule, column, imputes), column


def _rule_of_times(rule: ColumnRule, column: Column, imputes: bool) -> ColumnRule:
    present = column.values[~column.missing]
    found = replace(rule, parts=varying_parts(present), start=int(present.min()), zoned=column.zoned)
    return replace(found, fill=int(np.median(present))) if imputes else found


def _rule_of_numbers(rule: ColumnRule, column: Column, imputes: bool) -> ColumnRule:
    """With a bound for values far beyond all others."""
    present = column.values[~column.missing]
    if not imputes:
        return rule
    rule = replace(rule, fill=float(np.median(present)))
    bound = bound_of(present) if column.kind == "number" else None
    if bound is None:
        return rule
    most, reach = float(present[np.argmax(np.abs(present - bound.center))]), bound.scale * bound.limit
    return replace(rule, bound=bound).noting(
        f"values up to {most:.6g} lie far beyond the others: those below {bound.center - reach:.6g} or above "
        f"{bound.center + reach:.6g} are moved nearer, by a logarithm"
    )


def _rule_of_levels(
    column: Column, indicator: bool, imputes: bool, targets: LevelTargets | None, note: str
) -> ColumnRule:
    levels = tuple(sorted(column.values.drop_null().unique().to_pylist()))
    rule = ColumnRule(column.name, "text", levels, indicator=indicator, note=note)
    if len(levels) <= MAX_LEVELS and (targets is None or column.name not in targets.many):
        return rule
    if imputes and len(levels) > UNIQUE * int((~column.missing).sum()):
        return dropped(rule, f"{len(levels)} different texts, nearly one for each row (an identifier?)")
    if targets is None:
        raise TableError(
            f"column {column.name!r} holds text with {len(levels)} different values; at most {MAX_LEVELS} are encoded without targets: "
            "group them, give numbers, or drop the column"
        )
    found = statistics_of(column.values, levels, targets)
    said = f"{len(levels)} different texts are encoded by {', '.join(found.names)} of the targets of their rows, for training rows by other rows"
    return replace(rule, levels=(), statistics=found).noting(said)


def encode(rule: ColumnRule, column: Column, out: Float64[np.ndarray, "N D"], strict: bool = False) -> str:
    """Write the column's numbers into zeros, one column for each of the rule's `output_names`; what is to be said of its values.

    Raises TableError, naming column and row, for values of another kind than at fit, and where `strict` for any that the rule does not know.
    """
    if rule.kind == "dropped":
        return _moved(rule, column)
    column, said = _as_at_fit(rule, column, strict)
    if rule.indicator:
        out[:, -1] = column.missing
    elif column.missing.any() and not said:
        row, count = int(np.argmax(column.missing)), int(column.missing.sum())
        stand_in = "the median" if rule.kind != "text" else "no level"
        said = f"{count} missing value(s) in a column that had none at fit are taken as {stand_in}, the first at data row {row + 1}"
    if rule.kind == "text":
        return both(said, _encode_levels(rule, column, out, strict))
    if rule.kind == "time":
        micros = np.where(column.missing, rule.fill or 0, column.values)
        for j, part in enumerate(rule.parts):
            out[:, j] = part_of(part, micros, rule.start)
        return said
    values = (
        column.values if rule.bound is None else rule.bound(np.where(column.missing, np.nan, column.values))
    )
    out[:, 0] = values
    if rule.fill is not None:
        out[column.missing, 0] = rule.fill
    return said


def texts_of(column: Column) -> Any:
    """A column's values as texts: 1.0 as "1", booleans as "true" and "false"; None where missing."""
    if column.kind == "text":
        return column.values
    values, codes = np.unique(np.where(column.missing, 0.0, column.values), return_inverse=True)
    texts = pa.array([_number_text(value, column.kind) for value in values], pa.large_string())
    return texts.take(pa.array(codes.ravel(), mask=column.missing))


def with_dates_read(column: Column) -> Column:
    """A column of texts that are all dates of ISO 8601 as one of times; any other as it is."""
    times = times_of_texts(column.values) if column.kind == "text" else None
    if times is None:
        return column
    return Column(column.name, "time", times.micros, column.missing, times.zoned)


def refuse_no_labels(column: Column) -> None:
    """Raises TableError for a column of text with more than 50 different ones, which is none of labels."""
    levels = column.values.drop_null().unique()
    if len(levels) > MAX_LEVELS:
        raise TableError(f"column {column.name!r} holds text with {len(levels)} different values")


def _as_at_fit(rule: ColumnRule, column: Column, strict: bool) -> tuple[Column, str]:
    """(The column of the rule's kind, what is said of cells that are not)."""
    said = column.note if column.note != rule.note else ""
    if rule.kind == "text":
        if column.kind == "time":
            raise _changed(rule, column)
        return column, ""
    if column.missing.all():
        values = (
            np.zeros(len(column.missing), np.int64)
            if rule.kind == "time"
            else np.full(len(column.missing), np.nan)
        )
        return replace(column, kind=rule.kind, values=values, zoned=rule.zoned), ""
    if column.kind == "number" and rule.reading is not None and rule.reading.digits:
        column = with_digits(column)
    if column.kind == "text":
        kind: Any = rule.kind
        reading = rule.reading or Reading(kind, zoned=rule.zoned)
        read, bad = as_read(reading, column)
        if bad.any() and strict:
            raise _changed(rule, column, int(np.argmax(bad)))
        return read, unread(column, bad, _HELD[rule.kind]) if bad.any() else ""
    if (column.kind == "time") != (rule.kind == "time"):
        raise _changed(rule, column)
    if column.kind == "time" and column.zoned != rule.zoned:
        raise TableError(
            f"column {rule.name!r} held dates {_zone(rule.zoned)} at fit, and now they are with{'' if column.zoned else 'out'} one, from data row "
            f"{row_of_first(~column.missing)} on"
        )
    if rule.kind == "boolean":
        _refuse_no_boolean(rule, column)
    return column, said


def _refuse_no_boolean(rule: ColumnRule, column: Column) -> None:
    strange = ~column.missing & (column.values != 0.0) & (column.values != 1.0)
    if strange.any():
        value = column.values[np.argmax(strange)]
        raise TableError(
            f"column {rule.name!r} held true and false at fit and holds {value:g} now at data row {row_of_first(strange)}"
        )


def _moved(rule: ColumnRule, column: Column) -> str:
    """What is said of other values in a column that had only one."""
    if rule.fill is None or column.kind not in ("number", "boolean"):
        return ""
    other = ~column.missing & ~np.isclose(column.values, rule.fill, rtol=SAME, atol=0)
    if not other.any():
        return ""
    row = int(np.argmax(other))
    return f"{int(other.sum())} value(s) differ from the only one at fit, {rule.fill:g}, {first_of(f'{column.values[row]:g}', row)}: nothing is known of what they do"


def _zone(zoned: bool) -> str:
    return "with a time zone" if zoned else "without a time zone"


def _changed(rule: ColumnRule, column: Column, row: int | None = None) -> TableError:
    """A column of another kind than at fit; the first value that says so."""
    row = int(np.argmin(column.missing)) if row is None else row
    held = (
        "times of day or durations"
        if rule.reading is not None and rule.reading.kind == "span"
        else _HELD[rule.kind]
    )
    if column.kind == "text":
        shown = repr(column.values[row].as_py())
        if rule.kind == "time":
            return TableError(
                f"column {rule.name!r} held dates {_zone(rule.zoned)} at fit, and {shown} at data row {row + 1} is not one: write dates as "
                f"2011-01-31, with a time as 2011-01-31{'T05:00:00Z' if rule.zoned else ' 05:00:00'}"
            )
    else:
        value = column.values[row]
        shown = str(value.astype("datetime64[us]") if column.kind == "time" else value)
    return TableError(
        f"column {rule.name!r} held {held} at fit and holds {_HELD[column.kind]} now: {shown} at data row {row + 1}"
    )


def _encode_levels(rule: ColumnRule, column: Column, out: np.ndarray, strict: bool) -> str:
    texts = texts_of(column)
    if rule.statistics is not None:
        values, unseen = rule.statistics.encoded(texts)
        out[:, : values.shape[1]] = values
        stand_in = "a random one of the known levels"
    else:
        for j, level in enumerate(rule.levels):
            equal = pc.fill_null(pc.call_function("equal", [texts, level]), False)
            out[:, j] = equal.to_numpy(zero_copy_only=False)
        unseen = ~column.missing & (out[:, : len(rule.levels)].sum(axis=1) == 0)
        stand_in = "no level"
    return _say_unseen(rule, texts, unseen, stand_in, strict) if unseen.any() else ""


def _say_unseen(
    rule: ColumnRule, texts: Any, unseen: Bool[np.ndarray, " N"], stand_in: str, strict: bool
) -> str:
    row, count = int(np.argmax(unseen)), int(unseen.sum())
    level = repr(texts[row].as_py())
    if strict:
        raise TableError(
            f"column {rule.name!r} has the level {level} at data row {row + 1}, which was not in the training data ({count} such rows)"
        )
    return (
        f"{count} level(s) that were not in the training rows are taken as {stand_in}, {first_of(level, row)}"
    )


def _number_text(value: float, kind: str) -> str:
    if kind == "boolean":
        return "true" if value else "false"
    return str(int(value)) if float(value).is_integer() else str(float(value))
