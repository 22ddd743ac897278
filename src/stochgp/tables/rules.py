"""Rules, learned from training rows, that turn a column into numbers."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float, Float64

from stochgp.exceptions import DataWarning
from stochgp.warning import warn

from . import readings, times
from .categories import CategoryTargets, codes_of, statistics_of
from .columns import Column, TableError, joined, row_of_first
from .readings import Reading

MAX_CATEGORIES = 50
# Bounds for numbers far from all other numbers of a column, such as 9,831 mm of rain in an hour.
FAR = 10.0  # minimum distance of an outlier from the median, in interquartile ranges
ISOLATED = 7.0  # minimum ratio of this distance to the distance of 99.9 % of the values
BULK = 0.999
MIN_ROWS = 20
MAX_APART = 0.05  # maximum share of isolated rows
SAME = 1e-6  # maximum relative difference of equal values
UNIQUE = 0.95  # with a larger ratio of categories to rows, a text column is dropped
_HELD = {
    "number": "numbers",
    "boolean": "true and false",
    "text": "text",
    "time": "dates",
    "span": "durations",
}


@dataclass(frozen=True)
class Bound:
    """A bound for outliers: values far from the median m are moved nearer to m.

    For the limit c and the scale s, z = (x − m)/s with |z| > c becomes sign(z) (c + log(1 + |z| − c)). At
    most 5 % of the training rows change. The scale s is the interquartile range. If the interquartile range
    is 0, s is twice the median of |x − m| over all values x ≠ m.
    """

    center: float
    scale: float
    limit: float

    def __call__(self, x: Float[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        z = (x - self.center) / self.scale
        size = np.abs(z)
        beyond = size > self.limit
        if not beyond.any():
            return x
        moved = self.limit + np.log1p(np.where(beyond, size - self.limit, 0.0))
        return np.where(beyond, self.center + self.scale * np.sign(z) * moved, x)


@dataclass(frozen=True)
class ColumnRule:
    """A rule that turns one column into numbers.

    Numbers become one column, in which `bound` limits outliers; booleans become 1 or 0; times become one
    column for each of `parts`. Texts become one 0/1 column per category, or the statistics in `table`.
    """

    name: str
    kind: Literal["number", "boolean", "text", "time", "dropped"]
    categories: tuple[str, ...] = ()  # sorted texts of the training rows
    parts: tuple[str, ...] = ()  # "days" since `start` and other parts of times; names of statistics
    start: int = 0  # first training time, in microseconds since 1970
    zoned: bool = False  # True if times had a time zone; such times are converted to UTC
    fill: float | int | None = None  # replaces missing values; the value of a constant column
    indicator: bool = False  # True: another column is 1 if a value is missing
    reading: Reading | None = None  # for texts that stand for numbers or dates
    bound: Bound | None = None  # for outliers
    table: tuple[tuple[float, ...], ...] = ()  # statistics of each category and, last, of new texts
    note: str = ""  # a note for the user
    caution: str = ""  # a warning about values that are changed or may be wrong

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names of the columns, such as name, name=category, name.days or name=(missing)."""
        if self.kind == "text" and not self.table:
            names = [f"{self.name}={category}" for category in self.categories]
        elif self.kind in ("text", "time"):
            names = [f"{self.name}.{part}" for part in self.parts]
        else:
            names = [] if self.kind == "dropped" else [self.name]
        return (*names, f"{self.name}=(missing)") if self.indicator else tuple(names)


def dropped(rule: ColumnRule, why: str, value: float | None = None) -> ColumnRule:
    """Return the rule of a column that the model ignores."""
    return ColumnRule(rule.name, "dropped", fill=value, note=f"ignored: {why}", caution=rule.caution)


def rule_of(
    column: Column, imputes: bool, targets: CategoryTargets | None = None, named: bool = True, day_first: bool | None = None,
) -> tuple[ColumnRule, Column]:  # fmt: skip
    """Return the rule for a training column, and the column after reading it.

    With `imputes`, numbers such as 20141013 in a `named` column are dates, and a few unreadable cells become
    missing. Otherwise an empty column raises TableError. So do too many categories without `targets`.
    """
    name = column.name
    if column.missing.all():
        if imputes:
            return dropped(ColumnRule(name, "number"), "it has no values"), column
        raise TableError(f"column {name!r} has no values in any of {len(column.missing)} rows; drop it")
    reading, column = readings.reading_of(column, not imputes, day_first, named and imputes)
    if times.TAKEN in column.note:
        warn(f"column {name!r}: {column.note}", DataWarning, stacklevel=2)
    indicator = imputes and bool(column.missing.any())
    rule = ColumnRule(
        name, column.kind, indicator=indicator, reading=reading, note=column.note, caution=column.caution
    )
    if column.kind == "text":
        return _rule_of_categories(rule, column, imputes, targets), column
    present = column.values[~column.missing]
    if column.kind == "time":
        parts, fill = times.varying_parts(present), int(np.median(present)) if imputes else None
        return replace(rule, parts=parts, start=int(present.min()), zoned=column.zoned, fill=fill), column
    if not imputes:
        return rule, column
    rule = replace(rule, fill=float(np.median(present)))
    if rule.kind != "number" or (bound := bound_of(present)) is None:
        return rule, column
    most, reach = float(present[np.argmax(np.abs(present - bound.center))]), bound.scale * bound.limit
    limits = f"{bound.center - reach:.6g} or above {bound.center + reach:.6g}"
    said = f"values up to {most:.6g} are far from the other values; values below {limits} are moved nearer with a logarithm"
    return replace(rule, bound=bound, note=joined(rule.note, said)), column


def _rule_of_categories(
    rule: ColumnRule, column: Column, imputes: bool, targets: CategoryTargets | None
) -> ColumnRule:
    categories = tuple(sorted(column.values.drop_null().unique().to_pylist()))
    if len(categories) <= MAX_CATEGORIES:
        return replace(rule, categories=categories)
    if imputes and len(categories) > UNIQUE * int((~column.missing).sum()):
        return dropped(rule, f"it has {len(categories)} different texts, nearly one per row (an identifier?)")
    if targets is None:
        what = f"column {column.name!r} contains {len(categories)} different texts"
        most = f"at most {MAX_CATEGORIES} can be encoded without targets"
        raise TableError(f"{what}, but {most}; group them, use numbers, or drop the column")
    names, table = statistics_of(column.values, categories, targets)
    what = f"statistics of the targets of rows with the same text ({', '.join(names)}); training rows use only other rows"
    note = joined(rule.note, f"{len(categories)} different texts are encoded as {what}")
    return replace(rule, categories=categories, parts=names, table=table, note=note)


def encode(
    rule: ColumnRule, column: Column, out: Float64[np.ndarray, "N D"], strict: bool, new_categories: bool
) -> str:
    """Write a column's numbers into `out`, which is filled with zeros, and return a note."""
    if rule.kind == "dropped":
        if rule.fill is None or column.kind not in ("number", "boolean"):
            return ""
        other = ~column.missing & ~np.isclose(column.values, rule.fill, rtol=SAME, atol=0)
        said = f"{other.sum()} value(s) differ from the only training value {rule.fill:g}, {column.first(other)}; the model ignores the column"
        return said if other.any() else ""
    column, said = _as_at_fit(rule, column, strict)
    missing = column.missing
    if rule.indicator:
        out[:, -1] = missing
    is_usual = rule.indicator and not (len(out) >= readings.FEWEST and missing.all())
    if missing.any() and not said and not is_usual:
        had = "values" if rule.indicator else "no missing values"
        stand_in = f"{'treated as having no category' if rule.kind == 'text' else 'replaced by the median'}, the first at data row {row_of_first(missing)}"
        said = f"{missing.sum()} missing value(s), in a column with {had} at fit, are {stand_in}"
    if rule.kind == "text":
        return joined(said, _encode_categories(rule, column, out, strict and not new_categories))
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
    """Return values as texts: 1.0 as "1", booleans as "true" and "false", missing as None."""
    if column.kind == "text":
        return column.values
    values, codes = np.unique(np.where(column.missing, 0.0, column.values), return_inverse=True)
    shown = lambda value: str(int(value)) if float(value).is_integer() else str(float(value))
    texts = [("false", "true")[int(v)] if column.kind == "boolean" else shown(v) for v in values]
    return pa.array(texts, pa.large_string()).take(pa.array(codes.ravel(), mask=column.missing))


def _as_at_fit(rule: ColumnRule, column: Column, strict: bool) -> tuple[Column, str]:
    """Return the column, converted to the kind of the rule, and a note on other cells."""
    if rule.kind == "text":
        if column.kind == "time":
            raise _changed(rule, column)
        return column, ""
    if column.missing.all():
        values = np.full(len(column.missing), 0 if rule.kind == "time" else np.nan)
        return replace(column, kind=rule.kind, values=values), ""  # pyrefly: ignore[bad-argument-type]
    if column.kind == "number" and rule.reading is not None and rule.reading.digits:
        column = readings.with_digits(column)
    if column.kind == "text":
        kind: Any = rule.kind
        read, bad = readings.as_read(rule.reading or Reading(kind, zoned=rule.zoned), column)
        if bad.any() and (strict or bad.sum() == (~column.missing).sum() > 1):
            raise _changed(rule, column, int(np.argmax(bad)))
        first, is_new = int(np.argmin(read.missing)), rule.reading is None and kind == "number"
        texts = f"text is read as numbers, {column.values[first].as_py()!r} as {read.values[first]:g}"
        return read, joined(texts if is_new and not bad.all() else "", read.caution)
    if "time" in (column.kind, rule.kind) and (column.kind, column.zoned) != (rule.kind, rule.zoned):
        raise _changed(rule, column)
    return column, joined("" if column.note in rule.note else column.note, column.caution)


def _changed(rule: ColumnRule, column: Column, row: int | None = None) -> TableError:
    row = int(np.argmin(column.missing)) if row is None else row
    value, zone = column.values[row], {True: " with a time zone", False: " without a time zone"}
    held = _HELD["span" if rule.reading is not None and rule.reading.kind == "span" else rule.kind]
    held += zone[rule.zoned] if rule.kind == "time" and column.kind in ("time", "text") else ""
    holds = _HELD[column.kind] + (zone[column.zoned] if rule.kind == column.kind == "time" else "")
    if column.kind in ("text", "time"):
        value = repr(value.as_py()) if column.kind == "text" else value.astype("datetime64[us]")
    place = f"{value} at data row {row + 1}"
    return TableError(f"column {rule.name!r} contained {held} at fit and contains {holds} now: {place}")


def _encode_categories(rule: ColumnRule, column: Column, out: np.ndarray, strict: bool) -> str:
    texts, categories = texts_of(column), rule.categories
    codes = codes_of(texts, categories)
    if rule.table:
        out[:, : len(rule.parts)] = np.array(rule.table)[codes]
    else:
        known = np.flatnonzero(codes < len(categories))
        out[known, codes[known]] = 1.0
    unseen = (codes == len(categories)) & ~column.missing
    if not unseen.any():
        return ""
    count, shown = int(unseen.sum()), texts[int(np.argmax(unseen))].as_py()
    place = f"{shown!r} at data row {row_of_first(unseen)}"
    if strict:
        why = f", which was not in the training data ({count} such rows)"
        raise TableError(f"column {rule.name!r} has the category {place}{why}")
    stand_in = "a random known category" if rule.table else "having no category"
    return f"{count} value(s) that are not in the training rows are treated as {stand_in}, the first {place}"


def bound_of(x: Float[np.ndarray, " N"]) -> Bound | None:
    """Return the bound of finite values, or None if no value is far from the other values."""
    if len(x) < MIN_ROWS:
        return None
    center = float(np.median(x))
    low, high = np.quantile(x, (0.25, 0.75))
    scale, distance = float(high - low), np.abs(x - center)
    if scale == 0.0:
        others = distance[distance > 0]
        scale = 2 * float(np.median(others)) if len(others) else 0.0
    if not 0.0 < scale < np.inf or not distance.max() > FAR * scale:
        return None
    apart = int(isolated(x, center, FAR * scale, ISOLATED).sum())
    last = len(x) - 1 - max(1, round((1 - BULK) * len(x)), apart if apart <= MAX_APART * len(x) else 0)
    limit = max(1.0, float(np.partition(distance, last)[last]) / scale)
    return Bound(center, scale, limit) if distance.max() > ISOLATED * limit * scale else None


def isolated(x: Float[np.ndarray, " N"], center: float, least: float, ratio: float) -> Bool[np.ndarray, " N"]:
    """Return a mask of values farther than `least` from the centre and after a gap."""
    found = np.zeros(len(x), bool)
    for distance in (x - center, center - x):
        ordered = np.sort(np.append(distance[distance > 0], 0.0))
        starts = np.flatnonzero(ordered[1:] > np.maximum(least, ratio * ordered[:-1]))
        found |= distance >= (ordered[1 + starts[0]] if len(starts) else np.inf)
    return found
