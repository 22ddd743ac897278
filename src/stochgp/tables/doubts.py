"""What may be wrong in how the texts of a column are read as numbers, and what differs at predict."""

from dataclasses import replace

import numpy as np

from .columns import Column, whole
from .readings import Reading, as_read, different_of, differing, marks_of, numbers_of, place_of

POINT_MONEY = (
    "$",
    "US$",
    "A$",
    "C$",
    "£",
    "¥",
    "₹",
    "Rs",
    "Rs.",
    "USD",
    "GBP",
    "JPY",
    "CNY",
    "INR",
)  # 1,200 is 1200
NEARER = 100  # times as near to the training median: then the other decimal mark is the right one


def doubts(column: Column, reading: Reading | None, mark: str) -> str:
    """What may be wrong in how a training column of texts is read; "" for nothing. `mark` as of `reading_of`."""
    there, different = ~column.missing, different_of(column)
    if reading is None and not column.category and there.any():
        nearly = numbers_of(different, whole(column.values.drop_null()), mark)
        bad = there if nearly is None else as_read(nearly[0], column)[1]
        if 2 * bad.sum() <= there.sum():
            return f"{bad.sum()} of {there.sum()} values are no numbers as the others are, {place_of(column, bad)}: all are taken as categories"
    if mark or reading is None or reading.kind != "number" or reading.unit in POINT_MONEY:
        return ""
    either = marks_of(different)[1]
    if len(either) < len(different) or "," not in either[0]:
        return ""
    value = as_read(reading, column)[0].values[np.argmax(there)]
    return f"in all {there.sum()} values {either[0][-4]!r} may stand between thousands or be the decimal mark, and no other column decides: {either[0]!r} is read as {value:g}"


def at_predict(reading: Reading | None, column: Column, median: float | None) -> tuple[Reading, str]:
    """(The reading at fit, None of a column that held numbers, or the same with the other decimal mark; what is said of that).

    The other mark is taken if it reads more texts, or numbers a hundred times as near to the median at fit.
    """
    at_fit = reading or Reading("number")
    other = replace(at_fit, comma=not at_fit.comma)
    values = [as_read(one, column)[0].values for one in (at_fit, other)]
    more = np.isnan(values[0]).sum() - np.isnan(values[1]).sum()
    differ = differing(*values)
    if more == 0 and median is not None and differ.any():
        near, far = (abs(float(np.median(part[differ])) - median) for part in values[::-1])
        more = NEARER * near < far
    changed = (values[0] != values[1]) & ~np.isnan(values[1]) if more > 0 else differ & (reading is None)
    if not changed.any():
        return at_fit, ""
    used, mark = (other, "comma" if other.comma else "point") if more > 0 else (at_fit, "point")
    what = f"{changed.sum()} value(s) are written otherwise than at fit, {place_of(column, changed)}"
    return used, f"{what}, read with a decimal {mark} as {values[int(more > 0)][np.argmax(changed)]:g}"
