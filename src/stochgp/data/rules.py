"""How one column becomes numbers: a rule found on the training rows, and applied to any rows."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float64, Int64

from stochgp.names import quoted

from .columns import Column, TableError, first_not_number, row_of_first
from .times import part_of, row_of_first_not_time, times_of_texts, varying_parts

MAX_LEVELS = 50

# Numbers and dates as some countries write them. As text they would be levels, whose order is lost.
_FOREIGN = (
    (
        r"[+-]?(\d+|\d{1,3}([. ]\d{3})+),\d+([eE][+-]?\d+)?",
        "numbers with a decimal comma",
        "write them with a point",
    ),
    (r"\d{1,2}([./])\d{1,2}\1\d{4}", "dates that do not begin with the year", "write them as 2020-01-31"),
)
_HELD = {"number": "numbers", "boolean": "true and false", "text": "text", "time": "dates"}


@dataclass(frozen=True)
class ColumnRule:
    """How one column becomes numbers.

    number, boolean   itself; true and false are 1 and 0
    text              one 0/1 column for each of `levels`
    time              one column for each of `parts`: days since `start`, month, weekday, hour

    `start` is in microseconds since 1970, and so is the `fill` of times: what stands in for a missing value. No fill, and text that
    has no column for it: a missing value is 0 in all columns. `indicator` adds a column that is 1 where the value was missing.
    `zoned` says that times had a time zone, and are UTC.
    """

    name: str
    kind: Literal["number", "boolean", "text", "time"]
    levels: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    start: int = 0
    zoned: bool = False
    fill: float | int | None = None
    indicator: bool = False

    @property
    def output_names(self) -> tuple[str, ...]:
        """The column's own name; name=level for every level; name.days and so on; name=(missing) for the indicator."""
        names = {
            "text": tuple(f"{self.name}={level}" for level in self.levels),
            "time": tuple(f"{self.name}.{part}" for part in self.parts),
        }.get(self.kind, (self.name,))
        return (*names, f"{self.name}=(missing)") if self.indicator else names


def rule_of(column: Column, impute: bool) -> ColumnRule:
    """The rule for a training column. Raises TableError for text with more than 50 levels, or with numbers or dates in a form that is not read, and where there are no values."""
    if column.missing.all():
        raise TableError(
            f"column {column.name!r} holds no values: all {len(column.missing)} are missing; drop it"
        )
    column = with_dates_read(column)
    indicator = impute and bool(column.missing.any())
    if column.kind == "text":
        return ColumnRule(column.name, "text", _levels(column), indicator=indicator)
    present = column.values[~column.missing]
    fill = np.median(present) if impute else None
    if column.kind == "time":
        return ColumnRule(
            column.name, "time", parts=varying_parts(present), start=int(present.min()), zoned=column.zoned,
            fill=None if fill is None else int(fill), indicator=indicator,
        )  # fmt: skip
    return ColumnRule(
        column.name, column.kind, fill=None if fill is None else float(fill), indicator=indicator
    )


def encode(rule: ColumnRule, column: Column, out: Float64[np.ndarray, "N D"]) -> None:
    """Write the column's numbers into zeros, one column for each of the rule's `output_names`.

    Raises TableError, naming column and row, for a value that the rule does not know.
    """
    if rule.indicator:
        out[:, -1] = column.missing
    if rule.kind == "text":
        _encode_levels(rule, column, out)
    elif rule.kind == "time":
        micros = np.where(column.missing, rule.fill or 0, _micros(rule, column))
        for j, part in enumerate(rule.parts):
            out[:, j] = part_of(part, micros, rule.start)
    else:
        _check_numbers(rule, column)
        out[:, 0] = column.values
        if rule.fill is not None:
            out[column.missing, 0] = rule.fill


def with_dates_read(column: Column) -> Column:
    """A column of texts that are all dates as one of times; any other as it is."""
    times = times_of_texts(column.values) if column.kind == "text" else None
    if times is None:
        return column
    return Column(column.name, "time", times.micros, column.missing, times.zoned)


def refuse_no_labels(column: Column) -> None:
    """Raises TableError for a column of text that is none of labels.

    That is numbers or dates in a form that is not read, or with a few texts among them (the first is named, with its row), and more than 50
    different texts.
    """
    levels = _texts(column)
    refuse_foreign(column.name, levels, share=0.5)
    stray = _stray_text(column)
    if stray or len(levels) > MAX_LEVELS:
        raise TableError(f"column {column.name!r} holds text with {len(levels)} different values{stray}")


def refuse_foreign(name: str, texts: Sequence[str], share: float = 1.0) -> None:
    """TableError where at least this share of the texts are numbers or dates as some countries write them."""
    for pattern, what, remedy in _FOREIGN:
        found = [text for text in texts if re.fullmatch(pattern, text.strip())]
        if found and len(found) >= share * len(texts):
            raise TableError(f"column {name!r} holds {what}, such as {found[0]!r}: {remedy}")


def _texts(column: Column) -> list[str]:
    return sorted(column.values.drop_null().unique().to_pylist())


def _levels(column: Column) -> tuple[str, ...]:
    levels = _texts(column)
    refuse_foreign(column.name, levels)
    if len(levels) > MAX_LEVELS:
        raise TableError(
            f"column {column.name!r} holds text with {len(levels)} different values{_stray_text(column)}; at most "
            f"{MAX_LEVELS} are encoded: group them, give numbers, or drop the column"
        )
    return tuple(levels)


def _stray_text(column: Column) -> str:
    """For a column of numbers or dates that a few texts spoil: the first of them."""
    texts = column.values.to_pylist()
    for what, is_one in (("numbers", _is_number), ("dates", _is_date)):
        sample = [text for text in texts[:1000] if text is not None]
        if 2 * sum(map(is_one, sample)) < len(sample):
            continue
        first = next((row for row, text in enumerate(texts) if text is not None and not is_one(text)), None)
        if first is not None:
            return f" (most are {what}, but {texts[first]!r} at data row {first + 1} is not)"
    return ""


def _is_number(text: str) -> bool:
    return first_not_number([text]) is None


def _is_date(text: str) -> bool:
    return times_of_texts(pa.array([text], pa.large_string())) is not None


def _micros(rule: ColumnRule, column: Column) -> Int64[np.ndarray, " N"]:
    """The microseconds of a column that held dates at fit."""
    if column.missing.all():
        return np.zeros(len(column.missing), np.int64)
    was = "with a time zone" if rule.zoned else "without a time zone"
    if column.kind == "text":
        times = times_of_texts(column.values)
        if times is None:
            row = row_of_first_not_time(column.values, rule.zoned)
            text = column.values[row].as_py()
            raise TableError(
                f"column {rule.name!r} held dates {was} at fit, and {text!r} at data row {row + 1} is not one: write dates as "
                f"2011-01-31, with a time as 2011-01-31{'T05:00:00Z' if rule.zoned else ' 05:00:00'}"
            )
        micros, zoned = times
    elif column.kind == "time":
        micros, zoned = column.values, column.zoned
    else:
        raise _changed(rule, column)
    if zoned != rule.zoned:
        raise TableError(
            f"column {rule.name!r} held dates {was} at fit, and now they are with{'' if zoned else 'out'} one, from data row "
            f"{row_of_first(~column.missing)} on"
        )
    return micros


def _check_numbers(rule: ColumnRule, column: Column) -> None:
    if column.kind in ("text", "time"):
        raise _changed(rule, column)
    strange = ~column.missing & (column.values != 0.0) & (column.values != 1.0)
    if rule.kind == "boolean" and strange.any():
        value = column.values[np.argmax(strange)]
        raise TableError(
            f"column {rule.name!r} held true and false at fit and holds {value:g} now at data row {row_of_first(strange)}"
        )


def _changed(rule: ColumnRule, column: Column) -> TableError:
    """A column of another kind than at fit; the first value that says so."""
    row = int(np.argmin(column.missing))
    if column.kind == "text":
        texts = column.values.to_pylist()
        row = next((i for i, text in enumerate(texts) if text is not None and not _is_number(text)), row)
        shown = repr(texts[row])
    else:
        shown = str(
            column.values[row].astype("datetime64[us]") if column.kind == "time" else column.values[row]
        )
    return TableError(
        f"column {rule.name!r} held {_HELD[rule.kind]} at fit and holds {_HELD[column.kind]} now: {shown} at data row {row + 1}"
    )


def _encode_levels(rule: ColumnRule, column: Column, out: np.ndarray) -> None:
    if column.kind == "time":
        raise _changed(rule, column)
    texts = column.values if column.kind == "text" else _number_texts(column)
    for j, level in enumerate(rule.levels):
        out[:, j] = pc.fill_null(pc.call_function("equal", [texts, level]), False).to_numpy(
            zero_copy_only=False
        )
    unseen = ~column.missing & (out[:, : len(rule.levels)].sum(axis=1) == 0)
    if unseen.any():
        row = row_of_first(unseen)
        raise TableError(
            f"column {rule.name!r} has the level {texts[row - 1].as_py()!r} at data row {row}, which was not in the training "
            f"data ({int(unseen.sum())} such rows; known: {quoted(rule.levels)})"
        )


def _number_texts(column: Column) -> Any:
    """Numbers given where text was at fit, as text: 1.0 as "1", booleans as "true" and "false"; None where missing."""
    values, codes = np.unique(np.where(column.missing, 0.0, column.values), return_inverse=True)
    texts = pa.array([_number_text(value, column.kind) for value in values], pa.large_string())
    return texts.take(pa.array(codes.ravel(), mask=column.missing))


def _number_text(value: float, kind: str) -> str:
    if kind == "boolean":
        return "true" if value else "false"
    return str(int(value)) if value.is_integer() else str(float(value))
